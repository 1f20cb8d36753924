"""A candidate runs while it is asked, and never else: its processes are stopped between an answer and the next order.

Without that a thread of its own could watch the shared inputs while the harness writes them, compute ahead while the
reference is timed, or finish between the end of a block and the moment at which outputs are looked at. Signals are sent
by the main process, which no candidate can signal; a stopped process cannot go on by itself. Source: signal(7).
"""

from __future__ import annotations

import contextlib
import os
import signal

from htam_agent.evaluation.activity import family

ATTEMPTS = 5
"""Looks for processes that were started while others were being stopped."""


def freeze(pid: int) -> str:
    """Stops `pid` and all its descendants; why that was not possible, empty where it was. The dead need no stopping."""
    stopped: set[int] = set()
    for _ in range(ATTEMPTS):
        waiting = [process for process in family(pid) if process not in stopped]
        if not waiting:
            return ""
        reason = _signal(waiting, signal.SIGSTOP)
        if reason:
            return reason
        stopped.update(waiting)
    return "it starts processes faster than they can be stopped"


def thaw(pid: int) -> None:
    """Lets `pid` and its descendants go on."""
    _signal(family(pid), signal.SIGCONT)


def _signal(processes: list[int], number: signal.Signals) -> str:
    for process in processes:
        try:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        except PermissionError as error:
            return f"a process of the candidate cannot be stopped: {error.strerror}"
    return ""
