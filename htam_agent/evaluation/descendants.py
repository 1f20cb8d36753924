"""Which processes a worker has started and not ended, read from /proc. Source: proc(5)."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

OURS_IN_NAMESPACE = (1, 2)
"""In a worker's PID namespace: the process that collects the dead, and the worker itself."""


def left_by(worker: int, workers: AbstractSet[int]) -> int:
    """Processes of `worker`, which may be dead, that still run: its descendants, and orphans that have become children
    of this process. `workers`: this process's children that belong to others."""
    me = os.getpid()
    depth = len(_namespace_pids(me))
    waiting = [pid for pid in children_of(me) if pid not in workers or pid == worker]
    found = 0
    while waiting:
        pid = waiting.pop()
        waiting.extend(children_of(pid))
        inner = _namespace_pids(pid)
        ours = pid == worker or (len(inner) > depth and inner[-1] in OURS_IN_NAMESPACE)
        found += bool(inner) and not ours
    return found


def children_of(pid: int) -> list[int]:
    """Process ids of the children of all threads of `pid`; none when it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except OSError:
        pass  # it ended meanwhile; its children have become somebody else's
    return found


def _namespace_pids(pid: int) -> list[int]:
    """The process's number in each of its PID namespaces, outermost first; empty when it is dead or gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return []
    if fields["State"].split()[0] in ("Z", "X"):
        return []
    return [int(word) for word in fields["NSpid"].split()]
