"""What a process does when it should be idle, seen from outside: processor time of all its threads and descendants.

Read by the main process from the kernel (clocks of processes; proc(5), schedstat in nanoseconds), so that nothing in
the watched process has a say.
"""

from __future__ import annotations

import contextlib
import functools
import os
import time

SETTLE_SECONDS = 0.015
"""Threads of OpenMP may spin this long for more work before they sleep."""
WATCH_SECONDS = 0.03
IDLE_MS = 8.0
"""Processor time that an idle process may take meanwhile."""


def processor_ms(pid: int) -> float:
    """Milliseconds of processor time that `pid` and its descendants which live now have taken, threads that have ended
    included. By the kernel's clock of each process: some microseconds, however many threads there are."""
    total = 0.0
    for process in family(pid):
        with contextlib.suppress(OSError):  # it ended meanwhile
            total += time.clock_gettime_ns(_clock_of(process)) / 1e6
    return total


def threads_ms(pid: int) -> dict[int, tuple[float, float]]:
    """Of each thread of `pid` and of its descendants the milliseconds that it has run, and those that it has been ready
    to run and had no processor."""
    times = {}
    for process in family(pid):
        for thread in _threads(process):
            with contextlib.suppress(OSError, ValueError, IndexError):
                ran, waited = _read(f"/proc/{process}/task/{thread}/schedstat").split()[:2]
                times[int(thread)] = int(ran) / 1e6, int(waited) / 1e6
    return times


def longest_wait(
    before: dict[int, tuple[float, float]],
    after: dict[int, tuple[float, float]],
    wall_ms: float,
    own_wait_ms: float = 0.0,
) -> float:
    """Milliseconds of `wall_ms` for which others kept a process, or this one (`own_wait_ms`), from going on in between:
    those of the thread that waited most, but no more than the busiest thread leaves of the wall time. Without this
    bound a thread that has nothing to do, and waits while another computes, would excuse what that one takes."""
    changes = [
        (ran - before.get(thread, (0.0, 0.0))[0], waited - before.get(thread, (0.0, 0.0))[1])
        for thread, (ran, waited) in after.items()
    ]
    busiest = max((ran for ran, _ in changes), default=0.0)
    longest = max((waited for _, waited in changes), default=0.0)
    return max(0.0, min(longest + own_wait_ms, wall_ms - busiest))


def own_wait_ms() -> float:
    """Milliseconds that this very thread has been ready to run and had no processor."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(_read("/proc/thread-self/schedstat").split()[1]) / 1e6
    return 0.0


def works_on(pid: int) -> str:
    """Why a process that has answered is not done: its threads or processes go on. Empty when they sleep.

    Takes some 45 ms.
    """
    time.sleep(SETTLE_SECONDS)
    before = processor_ms(pid)
    time.sleep(WATCH_SECONDS)
    taken = processor_ms(pid) - before
    if taken <= IDLE_MS:
        return ""
    return (
        f"threads or processes of the candidate went on after its calls had returned: {taken:.3g} ms of processor time "
        f"in {1e3 * WATCH_SECONDS:g} ms"
    )


def _clock_of(pid: int) -> int:
    """The clock of a process's processor time; the layout of such numbers is fixed (clock_getcpuclockid(3))."""
    return ~pid << 3 | 2


@functools.cache
def not_watched() -> str:
    """Why what a process does cannot be seen here; empty when it can. Tried once, on this very process: a kernel may
    lack the files of children (CONFIG_PROC_CHILDREN), and a sandbox the clocks of others."""
    try:
        _read("/proc/thread-self/children")
        if not time.clock_gettime_ns(_clock_of(os.getpid())):
            return "the clock of a process says nothing"
        if os.getppid():  # that of another process, where there is one
            time.clock_gettime_ns(_clock_of(os.getppid()))
    except OSError as error:
        return f"children or clocks of processes cannot be read ({error})"
    return ""


_families: dict[int, tuple[str, list[int]]] = {}
"""Of the processes asked for last, each with the newest process or thread of the machine when it was found."""
FAMILIES_KEPT = 16


def family(pid: int) -> list[int]:
    """The process and its descendants. A look at all of their threads, which takes a millisecond for a hundred, is
    needed only where a process or thread was started somewhere since the last one."""
    newest = _newest()
    if newest and pid in _families and _families[pid][0] == newest:
        return _families[pid][1]
    found = [pid]
    for process in found:
        for thread in _threads(process):
            with contextlib.suppress(OSError, ValueError):
                found.extend(int(word) for word in _read(f"/proc/{process}/task/{thread}/children").split())
    while len(_families) >= FAMILIES_KEPT:
        del _families[next(iter(_families))]
    _families[pid] = newest, found
    return found


def _newest() -> str:
    """The number last given to a process or thread of this PID namespace, those inside it included; empty where the
    kernel does not say. Source: proc_loadavg(5)."""
    with contextlib.suppress(OSError, IndexError):
        number = _read("/proc/loadavg").split()[4]
        return "" if number == "0" else number
    return ""


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16).decode("ascii")
    finally:
        os.close(descriptor)


def _threads(process: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{process}/task")
    return []
