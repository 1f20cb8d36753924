"""How much host memory this process can still have: what the machine has, and what its control groups leave it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

# Where a version keeps its groups, and its files for the limit, what is taken, and lists of cached file pages.
_VERSION_2 = ("", "memory.max", "memory.current", ("inactive_file", "active_file"))
_VERSION_1 = (
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes of host memory that can be had without swapping: the least that the machine and any control group above
    this process leave. Cached file pages count as free, since the kernel gives them up.

    `root` is where /proc and /sys lie. Sources: proc_meminfo(5); the kernel's cgroup-v2 and cgroup-v1/memory documents.
    """
    return max(0, min([_machine(root), *_groups(root)]))


def _machine(root: Path) -> int:
    found = _numbers(root / "proc/meminfo").get("MemAvailable:")
    return found * 1024 if found is not None else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path) -> Iterator[int]:
    """Bytes that each group with a limit leaves."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            folder, limit, taken, lists = _VERSION_2
        elif "memory" in controllers.split(","):
            folder, limit, taken, lists = _VERSION_1
        else:
            continue
        top = root / "sys/fs/cgroup" / folder
        # In a container the path may be the host's: then the groups above it, down from the top, are there alone.
        group = top / path.strip("/")
        for place in (group, *group.parents):
            bound, used = _text(place / limit), _text(place / taken)
            if bound.isdecimal() and used.isdecimal():
                cached = _numbers(place / "memory.stat")
                yield int(bound) - int(used) + sum(cached.get(name, 0) for name in lists)
            if place == top:
                break


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line."""
    words = (line.split() for line in _text(path).splitlines())
    return {found[0]: int(found[1]) for found in words if len(found) > 1 and found[1].isdecimal()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
