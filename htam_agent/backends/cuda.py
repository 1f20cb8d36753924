"""CUDA kernels for NVIDIA GPUs, compiled in-process by NVRTC through cuda-bindings.

Building needs no GPU and never initialises CUDA, so that it is safe in a process that was forked from one which has
called `preload()`. Everything that touches the device happens in child processes of its own (probe_cuda.py).
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.backends.base import Availability, BuildLimits, Occupancy, binary_name
from htam_agent.backends.cache import SOURCE_REFUSED, write_atomically
from htam_agent.backends.ceilings import CeilingStore
from htam_agent.backends.flags import DEFAULT_ARCHITECTURE, nvrtc_options
from htam_agent.backends.logs import blames_source, shorten
from htam_agent.backends.occupancy import compute_capability, limits_of, occupancy
from htam_agent.backends.probe_cuda import ask_device, has_device_file
from htam_agent.backends.resources import parse_resources, without_report
from htam_agent.backends.versions import package_version, torch_version
from htam_agent.errors import BackendUnavailable, InfrastructureError, SettingsError
from htam_agent.verdict import Ceilings, CompileResult, DeviceFacts, KernelResources, Launch
from htam_agent.words import Backend as BackendName

if TYPE_CHECKING:
    from types import ModuleType

DIED = "NVRTC died of the source"
NOTHING = "\0 \n"
INSTALL = "Install the CUDA extra: pip install 'htam_agent[cuda13]'."


class CudaBackend:
    """Backend "cuda". `architecture` ("sm_90") fixes what is compiled for; None asks HTAM_CUDA_ARCH, then the GPU, and
    without one takes sm_90. `device` is the index among the visible devices."""

    name: BackendName = "cuda"

    def __init__(self, architecture: str | None = None, device: int = 0, ceilings: CeilingStore | None = None) -> None:
        self.device = device
        self._architecture = _checked(architecture) if architecture else None
        self._ceilings = ceilings if ceilings is not None else CeilingStore()

    def available(self) -> Availability:
        """NVRTC loads and a device answers."""
        # The device first: who has none would install the compiler in vain.
        if has_device_file():
            building = self.can_build()
            if not building.ok:
                return building
        answer = ask_device(self.device)
        return Availability(ok=answer.facts is not None, reason=answer.reason, remedy=answer.remedy)

    def can_build(self) -> Availability:
        try:
            preload()
        except BackendUnavailable as error:
            return Availability(ok=False, reason=error.message, remedy=error.remedy)
        return Availability(ok=True)

    def target(self) -> str:
        if self._architecture is None:
            chosen = os.environ.get("HTAM_CUDA_ARCH", "")
            facts = None if chosen else ask_device(self.device).facts
            self._architecture = _checked(chosen or (facts.architecture if facts else DEFAULT_ARCHITECTURE))
        return self._architecture

    def options(self) -> tuple[str, ...]:
        """NVRTC options of this target. There is no include path: a candidate's own launcher has none either, so a
        source that needs a toolkit's headers would build here and fail for its user."""
        return nvrtc_options(self.target())

    def build_key(self, source: str) -> str:
        parts = (source, *self.options(), compiler_version(), self.target())
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def build(self, source: str, folder: Path, limits: BuildLimits) -> CompileResult:
        """Compile in this process. NVRTC cannot be interrupted: whoever must keep `limits.build_seconds` calls this in
        a process that it kills, with `architecture` given (asking the device starts a process of its own)."""
        started = time.monotonic()
        module = preload()
        binary = folder / binary_name(source, self.target())
        folder.mkdir(parents=True, exist_ok=True)
        options = [option.encode() for option in (*self.options(), "--ptxas-options=-v")]
        code, log = _compile(module, source, options)
        ok = bool(code)
        if ok:
            write_atomically(binary, code)
        elif not blames_source(log) and not log.startswith(DIED):
            raise InfrastructureError(
                f"NVRTC failed and names no fault of the source: {log[-500:]}",
                "Check the free space of the disk and the CUDA packages; `htam doctor` tries both.",
                "compiler-failed",
            )
        return CompileResult(
            ok=ok,
            backend="cuda",
            log=shorten(without_report(log)),
            binary=str(binary) if ok else "",
            folder=str(folder),
            seconds=time.monotonic() - started,
            reason="" if ok else log.splitlines()[0] if log.startswith(DIED) else SOURCE_REFUSED,
            kernels=parse_resources(log) if ok else [],
        )

    def device_facts(self) -> DeviceFacts:
        answer = ask_device(self.device)
        if answer.facts is None:
            raise BackendUnavailable(f"There is no CUDA device to use: {answer.reason}.", answer.remedy)
        return answer.facts.model_copy(update={"compiler": compiler_version(), "torch": torch_version()})

    def ceilings(self) -> Ceilings:
        from htam_agent.backends.measure_cuda import measure

        facts = self.device_facts()
        return self._ceilings.get(facts, lambda: measure(facts, self.device))

    def occupancy(self, resources: KernelResources, launch: Launch) -> Occupancy | None:
        limits = limits_of(self.target())
        if limits is None or resources.registers is None:
            return None
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        shared = (resources.static_shared_bytes or 0) + launch.dynamic_shared_bytes
        return occupancy(limits, threads, resources.registers, shared) if 1 <= threads <= 1024 else None


@functools.cache
def preload() -> ModuleType:
    """Import cuda-bindings and load NVRTC, without touching CUDA: for a process that forks builders.

    Raises BackendUnavailable when either is missing.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise BackendUnavailable(f"cuda-bindings cannot be imported: {error}.", INSTALL) from error
    try:
        # Any call makes the bindings load the library, and NVRTC's built-ins with it.
        nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:
        raise BackendUnavailable(f"NVRTC cannot be loaded: {error}.", INSTALL) from error
    module: ModuleType = nvrtc
    return module


@functools.cache
def compiler_version() -> str:
    """ "NVRTC 13.0" with the wheel's full version where NVRTC came from one."""
    try:
        _, major, minor = preload().nvrtcVersion()
    except BackendUnavailable:
        return ""
    wheel = package_version("nvidia-cuda-nvrtc")
    return f"NVRTC {major}.{minor}" + (f" ({wheel})" if wheel else "")


def compile_text(source: str, options: tuple[str, ...]) -> tuple[bytes, str]:
    """(cubin, program log) of a CUDA source, in this process; the cubin is empty when the source is refused.

    Raises BackendUnavailable where NVRTC is missing.
    """
    return _compile(preload(), source, [option.encode() for option in options])


def _compile(module: ModuleType, source: str, options: list[bytes]) -> tuple[bytes, str]:
    """(cubin, program log); the cubin is empty when the source is refused."""
    failed, program = module.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    if failed:
        return b"", f"{DIED}: {failed.name} while it took the source"
    try:
        (failed,) = module.nvrtcCompileProgram(program, len(options), options)
        log = _text(module.nvrtcGetProgramLogSize, module.nvrtcGetProgramLog, program).decode("utf-8", "replace")
        if failed == module.nvrtcResult.NVRTC_ERROR_INTERNAL_ERROR:
            return b"", f"{DIED}: {failed.name} {log.strip(NOTHING)}"
        if failed:
            return b"", log.strip(NOTHING) or failed.name
        return _text(module.nvrtcGetCUBINSize, module.nvrtcGetCUBIN, program), log
    finally:
        module.nvrtcDestroyProgram(program)


def _text(
    size: Callable[[object], tuple[object, int]], get: Callable[[object, bytes], object], program: object
) -> bytes:
    """One of NVRTC's pairs of calls: how many bytes, then the bytes (written into the buffer that is passed)."""
    _, count = size(program)
    buffer = b" " * count
    get(program, buffer)
    return buffer


def _checked(architecture: str) -> str:
    if compute_capability(architecture) is None:
        raise SettingsError(
            f"{architecture!r} is not a CUDA architecture (HTAM_CUDA_ARCH).",
            "Give one like sm_90 or sm_100.",
            "cuda-arch",
        )
    return architecture
