"""Counting launches of the CUDA runtime by the module that makes them (native/launches.c), and leaving own ones out.

`load` is called in the zygote before torch is imported; a candidate's process inherits the library. A launch that goes
past the runtime's functions is not seen: a launcher on the driver's own functions, Triton's, a runtime that is linked
statically.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from htam_agent.evaluation.messages import LaunchCounts, LaunchMode

_loaded: list[ctypes.CDLL] = []


def load() -> str:
    """Loads the library so that what is loaded later binds to it. Says why not where there is no GPU or no compiler."""
    from htam_agent.backends.probe_cuda import has_device_file
    from htam_agent.evaluation.native import native_library

    if not has_device_file():
        return "no GPU"
    found = native_library("launches")
    if found.path:
        _loaded.append(ctypes.CDLL(found.path, mode=ctypes.RTLD_GLOBAL))
    return found.reason


class Counting:
    """Launches of one block; `counts` is there after it."""

    counts: LaunchCounts = LaunchCounts()


@contextmanager
def counted(folder: Path, launches: LaunchMode) -> Iterator[Counting]:
    """Counts launches inside the block, those of libraries in `folder` as the candidate's own; "drop" leaves these out.

    `known` stays false where nothing was to be counted, or the library is not loaded.
    """
    counting = Counting()
    if not _loaded or not launches:
        yield counting
        return
    library, numbers = _loaded[0], (ctypes.c_long * 3)()
    library.htam_launches_watch(str(folder).encode(), int(launches == "drop"))
    try:
        yield counting
    finally:
        library.htam_launches_end(numbers)
    own, others, graphs = numbers
    counting.counts = LaunchCounts(known=True, own=own, others=others, graphs=graphs)
