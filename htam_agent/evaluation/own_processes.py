"""A PID namespace: a hostile process sees and signals nothing but what it started, and all of it ends with it.

The process that asks stays outside and waits. Its child is process 1 of the namespace, which only collects the dead
(a process 1 ignores most signals, so that an abort in it would not be one), and *its* child goes on as the worker. The
outer process ends just as the worker did, so that whoever forked it sees one process with one status.
Source: pid_namespaces(7).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import struct
from typing import NoReturn

from htam_agent.evaluation.kernel_calls import (
    CLONE_NEWNS,
    CLONE_NEWPID,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    die_with_parent,
    unshare,
)
from htam_agent.evaluation.kernel_calls import mount as mount_at


def enter_own_processes(*, with_proc: bool) -> None:
    """Returns in the worker alone. Raises OSError where the namespace cannot be had or, `with_proc`, where /proc cannot
    be made to show it; nothing was forked then.
    """
    if with_proc and why_no_own_proc():
        raise OSError(f"CUDA needs a /proc of the namespace, which cannot be mounted: {why_no_own_proc()}")
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


@functools.cache
def why_no_own_proc() -> str:
    """Why a /proc of the own cannot be had here, tried in processes of their own; empty where it can.

    Asked once, in the process that forks the workers: without it CUDA, which looks for its process by number, fails in
    a PID namespace with error 304.
    """
    child = os.fork()
    if child == 0:
        _try_own_proc()
    status = os.waitpid(child, 0)[1]
    number = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO
    return os.strerror(number) if number else ""


def _try_own_proc() -> NoReturn:
    """Exits with the number of the error, or with 0."""
    number = errno.EIO
    try:
        unshare(CLONE_NEWPID, "a PID namespace")
        unshare(CLONE_NEWNS, "a mount namespace")
        child = os.fork()
        if child == 0:
            mount_at("none", "/", "", MS_REC | MS_PRIVATE)
            mount_own_proc()
            number = 0
        else:
            status = os.waitpid(child, 0)[1]
            number = os.WEXITSTATUS(status) if os.WIFEXITED(status) else errno.EIO
    except OSError as error:
        number = error.errno or errno.EIO
    finally:
        os._exit(number)


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
