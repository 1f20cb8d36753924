"""What the processes of this benchmark hold of the machine: descendants, resident memory, device memory."""

from __future__ import annotations

import ctypes
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, a descendant whose parent ends becomes a child of this process: none can hide by being orphaned."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int) -> dict[int, str]:
    """Living processes below `root` with their command lines; zombies are not counted."""
    parents: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # "pid (name) state parent ...": the name may hold anything, so that the last bracket is looked for.
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            line = (folder / "cmdline").read_text().replace("\0", " ")[:200]
        except (OSError, ValueError):
            continue
        if state != "Z":
            parents[int(folder.name)] = (int(parent), line)
    found: dict[int, str] = {}
    for pid, (parent, line) in parents.items():
        above = parent
        while above not in (root, 0) and above in parents:
            above = parents[above][0]
        if above == root:
            found[pid] = line
    return found


def resident_megabytes(pid: int) -> float | None:
    """Anonymous and shared resident memory of a process (files that are mapped do not count); null when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")) / 1024


class DeviceMemory:
    """Device memory in use by everybody, as NVML counts it; null without NVML."""

    def __init__(self) -> None:
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        if library.nvmlInit_v2() == 0 and library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)) == 0:
            self._library = library

    def used_megabytes(self) -> float | None:
        if self._library is None:
            return None
        figures = (ctypes.c_ulonglong * 3)()  # total, free, used
        if self._library.nvmlDeviceGetMemoryInfo(self._handle, figures) != 0:
            return None
        return figures[2] / (1 << 20)


def growth(values: list[float | None]) -> float | None:
    """Median of the last quarter less the median of the second: what is learned and cached at first does not count."""
    known = [value for value in values if value is not None]
    quarter = len(known) // 4
    if quarter == 0:
        return None

    def middle(part: list[float]) -> float:
        return sorted(part)[len(part) // 2]

    return middle(known[-quarter:]) - middle(known[quarter : 2 * quarter])
