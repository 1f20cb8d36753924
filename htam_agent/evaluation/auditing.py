"""What a candidate's file opens, loads and starts, by Python's audit events (PEP 578).

An audit hook cannot be taken away again from inside Python, and it costs a fraction of a microsecond an event: so it
is set in processes that are not timed. What it saw is evidence.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

BINARIES = (".so", ".cubin", ".ptx", ".fatbin")
BUILDERS = {"cupy", "triton", "numba", "pycuda", "tilelang", "cutlass", "tvm", "tvm_ffi", "warp"}
"""Packages that make kernels of their own from a candidate's text."""
COMPILING_CALLS = ("nvrtc", "nvJitLink", "cuModuleLoadData", "cuLibraryLoadData", "cuModuleLoadFatBinary", "cuLinkAdd")
STARTING = {"subprocess.Popen", "os.posix_spawn", "os.exec", "os.system"}
MOST = 4000


class Audit:
    """The events since it was made, each once, as "open /path", "dlopen name", "dlsym name", "run program" or
    "import name"."""

    def __init__(self) -> None:
        self._seen: dict[str, None] = {}
        sys.addaudithook(self._note)

    def seen(self) -> list[str]:
        """What was noted so far, in order."""
        return list(self._seen)

    def _note(self, event: str, arguments: tuple[object, ...]) -> None:
        try:
            words = _words(event, arguments)
            if words and len(self._seen) < MOST:
                self._seen[words[:500]] = None
        except Exception:  # noqa: BLE001 - an error here would be an error of the file's own call
            return


def _words(event: str, arguments: tuple[object, ...]) -> str:
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.fsdecode(arguments[0])
        return f"open {path}" if path.endswith(BINARIES) else ""
    if event == "ctypes.dlopen":
        return f"dlopen {arguments[0]}"
    if event in ("ctypes.dlsym", "ctypes.dlsym/handle"):
        return f"dlsym {arguments[1]}"
    if event in STARTING:
        return f"run {arguments[0]}"
    if event == "import":
        if len(arguments) > 1 and str(arguments[1]).endswith(".so"):
            return f"dlopen {arguments[1]}"
        return f"import {arguments[0]}" if str(arguments[0]).partition(".")[0] in BUILDERS else ""
    return ""


def loads(seen: Iterable[str], name: str) -> bool:
    """Whether a file of this name was opened or loaded."""
    return any(words.endswith(f"/{name}") and words.startswith(("open ", "dlopen ")) for words in seen)


def builds_itself(seen: Iterable[str], folder: Path, *, device: str) -> bool:
    """Whether it runs kernels from elsewhere than the binary that was built for the file: it loaded a binary that lies
    in `folder`, the only one that it may write. On a GPU, where a profiler then tells what runs, a package that makes
    kernels or CUDA code given to the driver is enough. That some process was started shows nothing."""
    seen = list(seen)
    signs = ("import ", *(f"dlsym {name}" for name in COMPILING_CALLS))
    if device != "cpu" and any(words.startswith(signs) for words in seen):
        return True
    names = [words.removeprefix("dlopen ") for words in seen if words.startswith("dlopen ")]
    return any(folder in (folder / name).parents for name in names if "/" in name)


def looked_up(seen: Iterable[str]) -> list[str]:
    """Names of functions that were looked up in libraries by ctypes."""
    return [words.removeprefix("dlsym ") for words in seen if words.startswith("dlsym ")]
