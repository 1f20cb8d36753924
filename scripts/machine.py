"""What this machine must have before anything is installed. Standard library only; also read by an older Python."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

OLDEST, NEWEST = (3, 11), (3, 14)
RANGE = "Python 3.11 to 3.14"
DISK_BYTES = 3 * 2**30

OPENMP_PROGRAM = """
#include <cstdio>
#include <omp.h>
int main() {
    int sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (int i = 0; i < 100; ++i) sum += 1;
    std::printf("%d %d", sum, omp_get_max_threads());
    return sum == 100 ? 0 : 1;
}
"""

# Prints nothing when the interpreter fits, else which part is missing.
PYTHON_PROBE = """
import sys
missing = []
if not (%r <= sys.version_info[:2] <= %r): missing.append("version %%d.%%d" %% sys.version_info[:2])
for name in ("venv", "ensurepip"):
    try: __import__(name)
    except ImportError: missing.append(name)
print(",".join(missing))
"""


class Problem(NamedTuple):
    """What is missing, in one sentence, and what to do."""

    sentence: str
    remedy: str


def check_system(system: str | None = None) -> Problem | None:
    """Linux, or the way to get one."""
    system = system or platform.system()
    if system == "Linux":
        return None
    if system == "Darwin":
        return Problem(
            "htam_agent runs on Linux, and this is macOS.",
            'Use a container: docker run --rm -it -v "$PWD":/htam -w /htam python:3.13 make demo',
        )
    if system == "Windows" or system.startswith(("MINGW", "MSYS", "CYGWIN")):
        return Problem(
            "htam_agent runs on Linux, and this is Windows.",
            "Use WSL2: run `wsl --install` once, then clone and run make inside it.",
        )
    return Problem(f"htam_agent runs on Linux, and this is {system}.", "Use a Linux container or virtual machine.")


def check_make() -> Problem | None:
    if shutil.which("make"):
        return None
    return Problem("make was not found.", "Install it (Debian and Ubuntu: apt-get install make).")


def check_compiler(compiler: str = "g++") -> Problem | None:
    """Builds an OpenMP program and runs it."""
    if shutil.which(compiler) is None:
        return Problem(f"{compiler} was not found.", "Install it (Debian and Ubuntu: apt-get install g++).")
    with tempfile.TemporaryDirectory() as folder:
        source, program = os.path.join(folder, "probe.cpp"), os.path.join(folder, "probe")
        with open(source, "w") as file:
            file.write(OPENMP_PROGRAM)
        try:
            built = _run([compiler, "-fopenmp", source, "-o", program])
            if built.returncode != 0:
                return Problem(
                    f"{compiler} does not build an OpenMP program: {_first_line(built.stderr)}.",
                    "Install g++ with OpenMP and the C++ library (Debian and Ubuntu: apt-get install g++).",
                )
            ran = _run([program])
        except (OSError, subprocess.TimeoutExpired) as error:
            return Problem(f"An OpenMP program could not be built and run: {error}.", "Check g++ and $TMPDIR.")
    if ran.returncode == 0:
        return None
    reason = _first_line(ran.stderr) or f"status {ran.returncode}"
    return Problem(f"An OpenMP program builds but does not run: {reason}.", "Install libgomp1, or reinstall g++.")


def check_disk(folder: str, wanted: int = DISK_BYTES) -> Problem | None:
    free = shutil.disk_usage(folder).free
    if free >= wanted:
        return None
    sentence = f"There are {free / 1e9:.1f} GB free in {folder}; the environment needs {wanted / 1e9:.0f} GB."
    return Problem(sentence, "Free some space, or clone into another file system.")


def find_python(first: str = sys.executable) -> tuple[str, Problem | None]:
    """An interpreter that can make the environment: `first`, else one found on PATH. Newer versions come first."""
    names = [f"python3.{minor}" for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    shortcomings = []
    for candidate in [first, *filter(None, map(shutil.which, names))]:
        missing = python_lacks(candidate)
        if not missing:
            return candidate, None
        shortcomings.append(f"{candidate} {'is' if 'version' in missing else 'lacks'} {missing}")
    return first, Problem(
        "No {} with venv and ensurepip was found: {}.".format(RANGE, "; ".join(shortcomings)),
        "Install one (Debian and Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=python3.12 ...",
    )


def python_lacks(candidate: str) -> str:
    """What this interpreter lacks ("version 3.9", "venv,ensurepip"); empty when it fits."""
    try:
        answer = _run([candidate, "-c", PYTHON_PROBE % (OLDEST, NEWEST)])
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"a working start ({error})"
    return answer.stdout.strip() if answer.returncode == 0 else f"a working start ({_first_line(answer.stderr)})"


def has_nvidia_driver() -> bool:
    """True when NVIDIA's kernel driver is loaded here (or WSL2 offers Windows' driver)."""
    if os.path.exists("/proc/driver/nvidia/version") or os.path.exists("/usr/lib/wsl/lib/libcuda.so.1"):
        return True
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    try:
        return _run([tool, "-L"]).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else ""
