"""What a process does when it should be idle, seen from outside: processor time of all its threads and descendants.

Read from /proc by the main process (proc(5), schedstat in nanoseconds), so that nothing in the watched process has a
say.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

SETTLE_SECONDS = 0.015
"""Threads of OpenMP may spin this long for more work before they sleep."""
WATCH_SECONDS = 0.03
IDLE_MS = 8.0
"""Processor time that an idle process may take meanwhile."""


def processor_ms(pid: int) -> float:
    """Milliseconds of processor time that the threads of `pid` and of its descendants which live now have taken."""
    total = 0.0
    for process in _family(pid):
        for thread in _threads(process):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{process}/task/{thread}/schedstat").read_text(encoding="ascii")
                total += int(text.split()[0]) / 1e6
    return total


def waits_ms(pid: int) -> dict[int, float]:
    """Milliseconds that each thread of `pid` and of its descendants has been ready to run and had no processor."""
    waits = {}
    for process in _family(pid):
        for thread in _threads(process):
            with contextlib.suppress(OSError, ValueError, IndexError):
                text = Path(f"/proc/{process}/task/{thread}/schedstat").read_text(encoding="ascii")
                waits[int(thread)] = int(text.split()[1]) / 1e6
    return waits


def longest_wait(before: dict[int, float], after: dict[int, float]) -> float:
    """Milliseconds for which others kept a process from going on in between: those of the thread that waited most."""
    return max((after[thread] - before.get(thread, 0.0) for thread in after), default=0.0)


def own_wait_ms() -> float:
    """Milliseconds that this very thread has been ready to run and had no processor."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) / 1e6
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


def _family(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for process in found:
        for thread in _threads(process):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process}/task/{thread}/children").read_text(encoding="ascii")
                found.extend(int(word) for word in text.split())
    return found


def _threads(process: int) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(f"/proc/{process}/task")
    return []
