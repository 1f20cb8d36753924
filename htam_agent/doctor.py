"""What this machine can do, and why not the rest: each check really tries what it reports on.

Nothing is changed here, no key is shown, and torch is not imported. Checks run side by side in threads; what needs a
process of its own (CUDA, confinement) gets one.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import util
from pathlib import Path
from typing import Literal

from pydantic import Field

from htam_agent.backends.base import Availability, DefaultLimits
from htam_agent.backends.cpp import CppBackend
from htam_agent.backends.cuda import INSTALL as INSTALL_CUDA
from htam_agent.backends.cuda import CudaBackend, compiler_version
from htam_agent.backends.flags import DEFAULT_ARCHITECTURE
from htam_agent.backends.versions import package_version, torch_version
from htam_agent.errors import SettingsError
from htam_agent.settings import Settings, unknown_variables
from htam_agent.words import Backend, Record

State = Literal["ok", "missing", "off", "warning"]
"""`off`: works without it, and it is not in use; `warning`: in use, and worth a second thought."""

LOW_DISK_BYTES = 2**30
CONFINEMENT_CHILD = """
import json
from htam_agent.evaluation.confinement import MEANINGS, confinement_report
print(json.dumps([*confinement_report(), MEANINGS]))
"""
OPENMP_SOURCE = """
#include <omp.h>
extern "C" int threads() {
    int count = 0;
    #pragma omp parallel reduction(+ : count)
    count += 1;
    return count;
}
"""
CUDA_SOURCE = 'extern "C" __global__ void probe(float* out) { out[threadIdx.x] = 1.0f; }'


class Line(Record):
    """One checked thing: its state, the fact, and what to do where it is not ok."""

    name: str
    state: State
    fact: str
    remedy: str = ""


class Report(Record):
    """What `htam doctor --json` prints. `backends` are those that can run kernels here."""

    schema_: Literal["htam.doctor/1"] = Field("htam.doctor/1", alias="schema", serialization_alias="schema")
    backends: list[Backend]
    checks: list[Line]


def examine() -> Report:
    """Every check, in a fixed order. Takes about two seconds at most."""
    settings, settings_line = _settings()
    checks: list[Callable[[], list[Line]]] = [
        lambda: [_python(), _torch()],
        lambda: [_cpp()],
        lambda: [_driver()],
        lambda: [_bindings(), _nvrtc()],
        lambda: [_address_sanitizer(), *(_tool(name, why) for name, why in TOOLS.items())],
        _confinement,
        lambda: [settings_line, *_variables(), _model(settings), _tracing()],
        lambda: [_folder("memory", settings.memory), _folder("runs", settings.runs), _disk(settings.runs)],
        lambda: [_chroma(settings.chroma_url)],
        lambda: _seams(settings),
    ]
    with ThreadPoolExecutor(len(checks)) as pool:
        lines = [line for found in pool.map(_tried, checks) for line in found]
    working = {line.name for line in lines if line.state == "ok"}
    backends: list[Backend] = ["cpp"] if "g++ with OpenMP" in working else []
    if {"NVIDIA GPU", "NVRTC"} <= working:
        backends = ["cuda", *backends]
    return Report(schema_="htam.doctor/1", backends=backends, checks=lines)


def _tried(check: Callable[[], list[Line]]) -> list[Line]:
    """A check that breaks is a finding of its own and does not hide the others."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - on a broken machine anything may fail
        fact = f"a check failed: {type(error).__name__}: {error}"
        return [Line(name="doctor", state="missing", fact=fact, remedy="Please report it, with `htam doctor --json`.")]


TOOLS = {
    "nvcc": "Not needed: kernels are built by NVRTC. Only files that use load_inline want the CUDA toolkit.",
    "ncu": "Optional: Nsight Compute gives hardware counters.",
    "compute-sanitizer": "Optional: it finds bad memory accesses and races on the GPU.",
    "bwrap": "Optional: bubblewrap (Debian and Ubuntu: apt-get install bubblewrap).",
}


def _settings() -> tuple[Settings, Line]:
    try:
        found = Settings.load()
    except SettingsError as error:
        return Settings(), Line(name="settings", state="missing", fact=error.message, remedy=error.remedy)
    given = [line for line in found.explain() if line.origin != "default"]
    fact = f"{len(given)} given, the rest defaults (`htam config` shows them)"
    return found, Line(name="settings", state="ok", fact=fact)


def _python() -> Line:
    version = platform.python_version()
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return Line(name="Python", state="ok", fact=f"{version} at {sys.executable}")
    return Line(name="Python", state="warning", fact=f"{version} is not tested.", remedy="Use Python 3.11 to 3.14.")


def _torch() -> Line:
    version, remedy = torch_version(), "pip install 'torch>=2.9'"
    if not version:
        return Line(name="torch", state="missing", fact="not installed", remedy=remedy)
    if tuple(map(int, version.split(".")[:2])) < (2, 9):
        return Line(name="torch", state="missing", fact=f"{version} is older than 2.9", remedy=remedy)
    cuda = _torch_cuda() or version.partition("+cu")[2]
    return Line(name="torch", state="ok", fact=f"{version}, " + (f"built for CUDA {cuda}" if cuda else "a CPU build"))


def _torch_cuda() -> str:
    """The CUDA version that torch was built for, read from its version file: importing torch takes seconds."""
    found = util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        return ""
    path = Path(found.submodule_search_locations[0]) / "version.py"
    if not path.is_file():
        return ""
    match = re.search(r"^cuda[^=\n]*=\s*'([^']+)'", path.read_text(encoding="utf-8"), re.MULTILINE)
    return match.group(1) if match else ""


def _cpp() -> Line:
    """Builds a library with OpenMP and calls it."""
    name, compiler = "g++ with OpenMP", CppBackend()
    found = compiler.available()
    if not found.ok:
        return _of(name, found)
    with tempfile.TemporaryDirectory() as folder:
        built = compiler.build(OPENMP_SOURCE, Path(folder), DefaultLimits(build_seconds=20.0))
        if not built.ok:
            return Line(name=name, state="missing", fact=built.log or built.reason, remedy="Reinstall g++.")
        call = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).threads())"
        ran = _ask([sys.executable, "-I", "-c", call, built.binary])
    if ran is None:
        return Line(name=name, state="missing", fact="builds, but does not run", remedy="Install libgomp1.")
    version = (_ask([compiler.compiler, "-dumpfullversion"]) or "").strip()
    return Line(name=name, state="ok", fact=f"g++ {version}, {ran.strip()} threads")


def _driver() -> Line:
    found = CudaBackend().available()
    if not found.ok:
        return _of("NVIDIA GPU", found)
    facts = CudaBackend().device_facts()
    memory = f"{facts.memory_bytes / 2**30:.0f} GiB"
    return Line(
        name="NVIDIA GPU", state="ok", fact=f"{facts.name} ({facts.architecture}, {memory}), driver {facts.driver}"
    )


def _bindings() -> Line:
    version = package_version("cuda-bindings")
    if version:
        return Line(name="cuda-bindings", state="ok", fact=version)
    return Line(name="cuda-bindings", state="missing", fact="not installed", remedy=INSTALL_CUDA)


def _nvrtc() -> Line:
    """Builds a kernel, which needs no GPU."""
    backend = CudaBackend(DEFAULT_ARCHITECTURE)
    found = backend.can_build()
    if not found.ok:
        return _of("NVRTC", found)
    with tempfile.TemporaryDirectory() as folder:
        built = backend.build(CUDA_SOURCE, Path(folder), DefaultLimits(build_seconds=20.0))
    if not built.ok:
        return Line(name="NVRTC", state="missing", fact=built.log or built.reason, remedy=INSTALL_CUDA)
    fact = f"{compiler_version()}, a kernel for {DEFAULT_ARCHITECTURE} in {built.seconds * 1000:.0f} ms"
    return Line(name="NVRTC", state="ok", fact=fact)


def _address_sanitizer() -> Line:
    """Whether `--deep` can check C++ kernels."""
    from htam_agent.evaluation.deep.address import library

    found = library(CppBackend().compiler)
    remedy = "Optional: --deep checks C++ kernels with it (Debian and Ubuntu: it comes with g++, as libasan)."
    if not found:
        return Line(name="AddressSanitizer", state="off", fact="not found", remedy=remedy)
    return Line(name="AddressSanitizer", state="ok", fact=found[0])


def _tool(name: str, why: str) -> Line:
    from htam_agent.evaluation.deep.gpu_tools import find

    path = find(name)
    return (
        Line(name=name, state="ok", fact=path) if path else Line(name=name, state="off", fact="not found", remedy=why)
    )


def _confinement() -> list[Line]:
    """The layers round a candidate, tried in a process of their own."""
    answer = _ask([sys.executable, "-c", CONFINEMENT_CHILD])
    if answer is None:
        return [Line(name="confinement", state="missing", fact="the trial process failed", remedy="Please report it.")]
    active, missing, meanings = json.loads(answer.splitlines()[-1])
    state: State = "missing" if not active else "warning" if missing else "ok"
    remedy = "Candidates run behind fewer walls: the lines below say which." if missing else ""
    fact = f"{len(active)} of {len(meanings)} layers"
    lines = [Line(name="confinement", state=state, fact=fact, remedy=remedy)]
    lines += [Line(name=f"confinement: {name}", state="ok", fact=meanings[name]) for name in active]
    for layer in missing:
        name, _, reason = layer.partition(":")
        lines.append(
            Line(
                name=f"confinement: {name}",
                state="missing",
                fact=f"{reason.strip()} (it would be {meanings[name]})",
                remedy="Do not judge code of strangers here, or use a machine or container that allows it.",
            )
        )
    return lines


def _variables() -> list[Line]:
    remedy = "Correct its name, or unset it; `htam config` lists the settings."
    return [
        Line(name=name, state="warning", fact="names no setting", remedy=remedy)
        for name in unknown_variables(os.environ)
    ]


def _model(settings: Settings) -> Line:
    missing = [
        variable
        for variable, value in (("HTAM_MODEL", settings.model), ("HTAM_API_KEY", settings.api_key))
        if not value
    ]
    if missing:
        fact = f"{' and '.join(missing)} not set"
        return Line(name="chat model", state="off", fact=fact, remedy="Only --coder model needs it; see .env.example.")
    return Line(
        name="chat model",
        state="ok",
        fact=f"{settings.model} at {settings.base_url or 'the default endpoint'}, key set",
    )


def _seams(settings: Settings) -> list[Line]:
    """Who serves each seam that the settings can swap. Only what was swapped is imported or started."""
    from htam_agent.swapping.served import served

    return [
        Line(name=f"tools.{item.seam}", state="missing", fact=item.problem, remedy=item.remedy)
        if item.problem
        else Line(name=f"tools.{item.seam}", state="ok", fact=item.fact)
        for item in served(settings)
    ]


def _tracing() -> Line:
    on = [
        name
        for name in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2")
        if os.environ.get(name, "").lower() in ("true", "1")
    ]
    if not on:
        return Line(name="LangSmith tracing", state="off", fact="no code leaves this machine through tracing")
    fact = f"{on[0]} is on: tasks, prompts and kernels are sent to LangSmith."
    return Line(name="LangSmith tracing", state="warning", fact=fact, remedy=f"Unset {on[0]} to keep them here.")


def _folder(name: str, folder: Path) -> Line:
    """Writable, tried in the folder itself or, where it does not exist yet, in the nearest one that does."""
    place = folder.absolute()
    nearest = next(parent for parent in (place, *place.parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        remedy = f"Give a writable folder with HTAM_{name.upper()}."
        return Line(name=f"{name} folder", state="missing", fact=f"{nearest}: {error.strerror}", remedy=remedy)
    return Line(
        name=f"{name} folder",
        state="ok",
        fact=f"{folder} {'is' if nearest == place else 'can be made and is'} writable",
    )


def _disk(folder: Path) -> Line:
    place = folder.absolute()
    nearest = next(parent for parent in (place, *place.parents) if parent.is_dir())
    free = shutil.disk_usage(nearest).free
    fact = f"{free / 1e9:.1f} GB free for runs"
    low = free < LOW_DISK_BYTES
    return Line(name="disk", state="warning" if low else "ok", fact=fact, remedy="Free some space." if low else "")


def _chroma(url: str | None) -> Line:
    version = package_version("chromadb")
    if not version:
        return Line(name="Chroma", state="missing", fact="not installed", remedy="pip install chromadb")
    if not url:
        return Line(name="Chroma", state="ok", fact=f"{version}, embedded (one process at a time)")
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/api/v2/heartbeat", timeout=2):
            return Line(name="Chroma", state="ok", fact=f"{version}, the server answers")
    except (OSError, ValueError, urllib.error.URLError) as error:
        remedy = "Start it (chroma run), or unset HTAM_CHROMA_URL to use a folder."
        return Line(
            name="Chroma",
            state="missing",
            fact=f"the server of HTAM_CHROMA_URL does not answer: {error}",
            remedy=remedy,
        )


def _of(name: str, found: Availability) -> Line:
    return Line(name=name, state="missing", fact=found.reason, remedy=found.remedy)


def _ask(command: list[str]) -> str | None:
    """What a short command prints; None when it fails."""
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout if ran.returncode == 0 else None
