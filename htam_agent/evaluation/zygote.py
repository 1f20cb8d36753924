"""The zygote: imports torch once, stays single-threaded and free of CUDA, and forks every worker of a Bench.

Run as `python -m htam_agent.evaluation.zygote DESCRIPTOR`, a connected UNIX socket to the main process. It forks on
request, reports deaths, kills a worker's whole process group at the main process's word and everything that a dead
worker left behind: as a child subreaper it inherits every orphan, however often the orphan forked away. When the main
process goes, so does all of this.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

from htam_agent.evaluation.channel import Channel, Closed
from htam_agent.evaluation.commands import Command, Report
from htam_agent.evaluation.descendants import children_of, left_by

PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS = 5.0


class Zygote:
    """The loop: one command at a time, and deaths as they come."""

    def __init__(self, control: Channel, wake: int) -> None:
        self._control = control
        self._wake = wake
        self._workers: set[int] = set()
        self._left: dict[int, int] = {}
        """How many processes each worker that is being killed had started."""

    def serve(self) -> None:
        """Serves until the main process hangs up or says stop."""
        self._control.send(Report(event="ready"))
        sources: list[int] = [self._control.fileno(), self._wake]
        while True:
            readable = select.select(sources, [], [])[0]
            if self._wake in readable:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
                self._reap()
            if self._control.fileno() in readable:
                try:
                    command, descriptors = self._control.receive_with_descriptors(Command)
                except Closed:
                    break
                if command.op == "stop":
                    break
                if command.op == "kill":
                    self._kill(command.pid)
                else:
                    self._fork(command, descriptors[0])
        for pid in tuple(self._workers):
            self._kill(pid)
        self._sweep()

    def _fork(self, command: Command, descriptor: int) -> None:
        pid = os.fork()
        if pid == 0:
            become_worker(command, descriptor, self._control, self._wake)
        os.close(descriptor)
        self._workers.add(pid)
        self._control.send(Report(event="started", pid=pid))

    def _kill(self, pid: int) -> None:
        if pid in self._workers:
            self._left[pid] = left_by(pid, self._workers)
            _signal_group(pid)
        self._reap()

    def _reap(self) -> None:
        """Collects every dead child; the death of a worker is reported after its left-overs are gone."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid not in self._workers:
                continue
            self._workers.discard(pid)
            left = self._left.pop(pid, None)
            if left is None:
                left = left_by(pid, self._workers)
            _signal_group(pid)
            self._sweep()
            with contextlib.suppress(Closed):
                self._control.send(Report(event="exit", pid=pid, status=status, left_behind=left))

    def _sweep(self) -> None:
        """Kills orphans until none is left."""
        deadline = time.monotonic() + SWEEP_SECONDS
        while time.monotonic() < deadline:
            orphans = [pid for pid in children_of(os.getpid()) if pid not in self._workers]
            if not orphans:
                break
            for pid in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in orphans:  # one that cannot die (a driver's call) is not waited for beyond the deadline
                _await_end(pid, deadline)


def _await_end(pid: int, deadline: float) -> bool:
    """Collects a dying child; False where it still lived at the deadline (of time.monotonic)."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.001)
    return True


def _signal_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def become_worker(command: Command, descriptor: int, control: Channel, wake: int) -> NoReturn:
    """Turns this forked child into the worker that was asked for; never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        _redirect_output(command.log)
        control.close()
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, max(descriptor + 1, 256))
        channel = Channel(socket.socket(fileno=descriptor))
        from htam_agent.evaluation.kernel_calls import die_with_parent

        die_with_parent()
        _enter(command, channel)
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it was, the log is the only place left for it
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _enter(command: Command, channel: Channel) -> None:
    if command.op == "reference":
        from htam_agent.evaluation.reference import serve_reference

        serve_reference(channel)
    elif command.op == "candidate":
        from htam_agent.evaluation.candidate import serve_candidate

        serve_candidate(channel)
    else:
        from htam_agent.evaluation.building import serve_build

        serve_build(channel)


def _redirect_output(log: str) -> None:
    """Standard input from nowhere, output and errors into the log."""
    nothing = os.open("/dev/null", os.O_RDONLY)
    target = os.open(log or "/dev/null", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
    os.dup2(nothing, 0)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(nothing)
    os.close(target)


def _import_everything() -> None:
    """Imports what the workers need, so that they start warm and need nothing that their confinement hides."""
    import ctypes
    import importlib.util

    from htam_agent.evaluation import launch_counting

    launch_counting.load()  # before torch, which is to bind to it
    from htam_agent.evaluation import building, confinement, own_processes, reference  # noqa: F401
    from htam_agent.evaluation.candidate import warm_up
    from htam_agent.evaluation.stopwatch import native_clock

    warm_up()
    native_clock()  # here, where its file can be read: workers find it loaded
    if importlib.util.find_spec("cuda") is not None and importlib.util.find_spec("cuda.bindings") is not None:
        _load_cuda_libraries()
        own_processes.why_no_own_proc()  # answered once, for every worker
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _load_cuda_libraries() -> None:
    """Loads the driver's library and NVRTC without initialising CUDA; where one is missing, who needs it says so."""
    import ctypes

    from htam_agent.backends.cuda import preload
    from htam_agent.errors import HtamError

    with contextlib.suppress(ImportError, OSError):
        from cuda.bindings import driver  # noqa: F401

        ctypes.CDLL("libcuda.so.1")
    with contextlib.suppress(HtamError):
        preload()


def main() -> None:
    """Entry point of the process."""
    descriptor = int(sys.argv[1])
    _import_everything()
    gc.collect()
    gc.freeze()  # forked children then do not touch the shared pages
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the main process, which then hangs up
    control = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(Closed):
        Zygote(control, reading).serve()


if __name__ == "__main__":
    main()
