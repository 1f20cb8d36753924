"""A PID namespace: a hostile process sees and signals nothing but what it started, and all of it ends with it.

The process that asks stays outside and waits. Its child is process 1 of the namespace, which only collects the dead
(a process 1 ignores most signals, so that an abort in it would not be one), and *its* child goes on as the worker. The
outer process ends just as the worker did, so that whoever forked it sees one process with one status.
Source: pid_namespaces(7).
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
from typing import NoReturn

from htam_agent.evaluation.kernel_calls import CLONE_NEWPID, MS_NODEV, MS_NOEXEC, MS_NOSUID, die_with_parent, unshare
from htam_agent.evaluation.kernel_calls import mount as mount_at


def enter_own_processes() -> None:
    """Returns in the worker alone. Raises OSError where the namespace cannot be had; nothing was forked then."""
    unshare(CLONE_NEWPID, "a PID namespace")
    reading, writing = os.pipe()
    first = os.fork()
    if first:
        os.close(writing)
        _close_all_but(reading)
        _end_like_worker(reading, first)
    die_with_parent()
    second = os.fork()
    if second:
        _close_all_but(writing)
        _collect(second, writing)
    os.close(reading)
    os.close(writing)
    die_with_parent()


def mount_own_proc() -> None:
    """A /proc that shows this namespace alone; the mounts must be this process's own."""
    mount_at("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _close_all_but(descriptor: int) -> None:
    """The channel, above all: its end must be the worker's."""
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, 1 << 16)


def _end_like_worker(reading: int, first: int) -> NoReturn:
    """Ends this outer process by the signal or with the code of the worker."""
    status = 1 << 8
    try:
        answer = os.read(reading, 4)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(first, 0)
        status = struct.unpack("i", answer)[0] if len(answer) == 4 else signal.SIGKILL
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
    finally:
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 1)


def _collect(worker: int, writing: int) -> NoReturn:
    """Process 1: waits for the worker, collecting orphans, and ends; the kernel then kills what is left."""
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == worker:
                os.write(writing, struct.pack("i", status))
                break
    finally:
        os._exit(0)
