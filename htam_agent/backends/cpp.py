"""C++ kernels for this machine's processor: g++ with OpenMP."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from htam_agent.backends.base import Availability, BuildLimits, Occupancy, binary_name
from htam_agent.backends.cache import SOURCE_REFUSED, TOO_LONG
from htam_agent.backends.ceilings import CeilingStore
from htam_agent.backends.flags import CPP_FLAGS
from htam_agent.backends.logs import blames_source, first_error, shorten
from htam_agent.backends.versions import torch_version
from htam_agent.errors import BackendUnavailable, InfrastructureError
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, KernelResources, Launch
from htam_agent.words import Backend as BackendName

INSTALL = "Install g++ with OpenMP (Debian and Ubuntu: apt-get install g++)."


DEATHS = (
    "internal compiler error",
    "virtual memory exhausted",
    "signal terminated program",
    "out of memory allocating",
)
"""Words of a compiler that died of a source, or at a limit that a source can reach."""


class CppBackend:
    """Backend "cpp". `compiler` is the g++ to call, found on PATH."""

    name: BackendName = "cpp"

    def __init__(self, compiler: str = "g++", ceilings: CeilingStore | None = None) -> None:
        self.compiler = compiler
        self._ceilings = ceilings if ceilings is not None else CeilingStore()

    def available(self) -> Availability:
        """g++ runs, and an OpenMP program builds."""
        return _probe(self.compiler)

    def can_build(self) -> Availability:
        return self.available()

    def target(self) -> str:
        return "cpp"

    def build_key(self, source: str) -> str:
        # -march=native makes the binary depend on the processor.
        parts = (source, *CPP_FLAGS, compiler_version(self.compiler), processor_fingerprint(), self.target())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def build(self, source: str, folder: Path, limits: BuildLimits) -> CompileResult:
        started = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        binary = folder / binary_name(source, self.target())
        code = folder / binary.with_suffix(".cpp").name
        code.unlink(missing_ok=True)  # never through a link
        code.write_text(source, encoding="utf-8")
        part = binary.with_suffix(f".part{os.getpid()}")
        # The file's name alone, so that the log and the binary do not depend on where the folder lies.
        command = [self.compiler, *CPP_FLAGS, "-fdiagnostics-color=never", code.name, "-o", part.name]
        status, log = run_bounded(command, folder, limits.build_seconds)
        reason = ""
        if status is None:
            reason = f"{TOO_LONG} {limits.build_seconds:g} s and was stopped"
        elif status < 0 or any(words in log for words in DEATHS):
            reason = f"g++ died (status {status}): {first_error(log)}"
        elif status == 0:
            os.replace(part, binary)
        elif blames_source(log):
            reason = SOURCE_REFUSED
        else:
            part.unlink(missing_ok=True)
            raise InfrastructureError(
                f"{self.compiler} failed (status {status}) and names no fault of the source: {log.strip()[-500:]}",
                "Check the free space of the disk and the compiler's installation; `htam doctor` tries both.",
                "compiler-failed",
            )
        part.unlink(missing_ok=True)
        return CompileResult(
            ok=not reason,
            backend="cpp",
            # The file is named by its content, which tells a reader nothing.
            log=shorten(log.replace(code.name, "kernel.cpp")),
            binary="" if reason else str(binary),
            folder=str(folder),
            seconds=time.monotonic() - started,
            reason=reason,
        )

    def device_facts(self) -> DeviceFacts:
        if not self.available().ok:
            raise BackendUnavailable(f"No C++ kernels can be built: {self.available().reason}.", INSTALL)
        return DeviceFacts(
            backend="cpp",
            name=processor_name(),
            architecture=platform.machine(),
            driver=platform.release(),
            compiler=compiler_version(self.compiler),
            torch=torch_version(),
            libraries={"flags": " ".join(CPP_FLAGS), "processor": processor_fingerprint(), "simd": vector_words()},
            threads=usable_threads(),
            memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )

    def ceilings(self) -> Ceilings:
        from htam_agent.backends.measure_cpp import measure

        facts = self.device_facts()
        return self._ceilings.get(facts, lambda: measure(self, facts.threads))

    def occupancy(self, resources: KernelResources, launch: Launch) -> Occupancy | None:
        """None: a processor has no occupancy."""
        return None


def run_bounded(command: list[str], folder: Path, seconds: float) -> tuple[int | None, str]:
    """Run a compiler in its own process group with a bare environment; everything that it started ends with it.

    Returns (exit status, output); the status is None when it was stopped at its limit. Raises BackendUnavailable when
    the compiler cannot be run.
    """
    # In the own folder: a confined build may write nowhere else.
    with tempfile.TemporaryFile(dir=folder) as output:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TMPDIR": str(folder)}
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise BackendUnavailable(f"{command[0]} cannot be run: {error.strerror}.", INSTALL) from error
        status: int | None
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return status, output.read(4_000_000).decode("utf-8", "replace")


@functools.cache
def compiler_version(compiler: str = "g++") -> str:
    """First line of `g++ --version`; empty when it cannot be run."""
    if shutil.which(compiler) is None:
        return ""
    result = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=20)
    return result.stdout.splitlines()[0].strip() if result.stdout else ""


@functools.cache
def _probe(compiler: str) -> Availability:
    if shutil.which(compiler) is None:
        return Availability(ok=False, reason=f"{compiler} is not on PATH", remedy=INSTALL)
    with tempfile.TemporaryDirectory(prefix="htam-probe-") as name:
        folder = Path(name)
        (folder / "probe.cpp").write_text(
            '#include <omp.h>\nextern "C" int threads() { return omp_get_max_threads(); }\n', encoding="utf-8"
        )
        try:
            status, log = run_bounded([compiler, *CPP_FLAGS, "probe.cpp", "-o", "probe.so"], folder, 60.0)
        except BackendUnavailable as error:
            return Availability(ok=False, reason=error.message, remedy=INSTALL)
    if status != 0:
        return Availability(ok=False, reason=f"an OpenMP program does not build: {first_error(log)}", remedy=INSTALL)
    return Availability(ok=True)


VECTORS: tuple[tuple[str, str], ...] = (
    ("avx512f", "AVX-512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sse4_2", "SSE4.2"), ("sve", "SVE"), ("asimd", "NEON"),
)  # fmt: skip
"""Flags of /proc/cpuinfo and the vector instructions that they stand for, widest first."""


@functools.cache
def vector_words() -> str:
    """The widest vector instructions of the processor, "AVX2 with FMA"; empty where they are not known."""
    flags = f"{_processor().get('flags', '')} {_processor().get('Features', '')}".split()
    widest = next((words for flag, words in VECTORS if flag in flags), "")
    return f"{widest} with FMA" if widest.startswith("AVX") and "fma" in flags else widest


def usable_threads() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0))


@functools.cache
def _processor() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.split(":", 1) for line in first.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def processor_name() -> str:
    """The processor's model name as the kernel reports it."""
    return _processor().get("model name") or platform.processor() or platform.machine()


@functools.cache
def processor_fingerprint() -> str:
    """Twelve hex digits over what -march=native depends on: model, stepping and instruction-set flags."""
    found = _processor()
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    text = "\0".join(found.get(key, "") for key in wanted)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
