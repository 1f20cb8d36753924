"""The main process's side of the zygote: starting it, asking for workers, talking to them, and ending them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

import htam_agent
from htam_agent.errors import WorkerError
from htam_agent.evaluation.channel import Channel, ChannelError, Closed, Silent
from htam_agent.evaluation.commands import Command, Report, WorkerKind
from htam_agent.evaluation.files import tail
from htam_agent.evaluation.package_folders import package_folders

PASSED_ON = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HTAM_CUDA_ARCH", "OMP_NUM_THREADS",
)  # fmt: skip
"""The only variables of the user's environment that reach the zygote: no key or token is among them."""
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
"""glibc keeps big blocks instead of returning them: page faults of fresh ones would dominate CPU times on one side."""
START_SECONDS = 120.0
EXIT_SECONDS = 10.0

R = TypeVar("R", bound=BaseModel)


class Gone(Exception):
    """A worker ended before it answered. `status` is as os.waitpid gives it, None when unknown."""

    def __init__(self, status: int | None, left_behind: int = 0) -> None:
        super().__init__(describe_exit(status))
        self.status = status
        self.left_behind = left_behind


class Hung(Exception):
    """A worker did not answer within its limit and was killed with its process group."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s: killed")
        self.seconds = seconds


def describe_exit(status: int | None) -> str:
    """An exit in words: "killed by SIGSEGV", "exited with code 0 before it answered"."""
    if status is None:
        return "ended for an unknown reason"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(number).name}"
        return f"killed by signal {number}"
    return f"exited with code {os.WEXITSTATUS(status)} before it answered"


class Harness:
    """A running zygote. `visible`: the GPUs that its workers see, as CUDA_VISIBLE_DEVICES has them."""

    def __init__(self, log: Path, visible: str = "") -> None:
        self._log = log
        # Several builds are under way at once, each with a thread of its own that asks for a worker and ends it.
        self._talking = threading.RLock()
        self._exits: dict[int, Report] = {}
        self._channels: list[Channel] = []
        self._control, theirs = Channel.pair()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ} | ALLOCATOR
        environment["CUDA_VISIBLE_DEVICES"] = visible
        # Where the package itself was found: it need not be installed.
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(htam_agent.__path__[0]).parent), *package_folders()])
        with open(log, "ab") as output, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "htam_agent.evaluation.zygote", str(theirs.fileno())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._ready = False

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    def spawn(self, kind: WorkerKind, log: Path | None) -> Worker:
        """Forks a worker of this kind. Raises WorkerError when the zygote is dead."""
        hostile = kind == "candidate"
        ours, theirs = Channel.pair(hostile=hostile)
        with self._talking:
            with theirs:
                self._channels = [channel for channel in self._channels if channel.fileno() >= 0] + [ours]
                self._send(Command(op=kind, log=str(log) if log else ""), [theirs.fileno()])
            return Worker(self, self._await("started").pid, kind, ours)

    def kill(self, pid: int) -> Report | None:
        """Kills a worker and its process group, waits for its end and returns the report of it."""
        with self._talking:
            if pid not in self._exits:
                self._send(Command(op="kill", pid=pid))
            return self.exit_of(pid, EXIT_SECONDS)

    def exit_of(self, pid: int, seconds: float) -> Report | None:
        """The report of a worker's death, waiting up to `seconds`; None when it lives on."""
        deadline = time.monotonic() + seconds
        with self._talking:
            while pid not in self._exits:
                try:
                    self._read(max(0.0, deadline - time.monotonic()))
                except Silent:
                    return None
            return self._exits[pid]

    def close(self) -> None:
        """Ends the zygote and with it every worker; closing twice is fine."""
        for channel in self._channels:
            channel.close()
        with contextlib.suppress(ChannelError):
            self._control.send(Command(op="stop"), seconds=5)
        self._control.close()
        try:
            self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, command: Command, descriptors: Sequence[int] = ()) -> None:
        if not self._ready:
            self._await("ready")
            self._ready = True
        try:
            self._control.send(command, descriptors)
        except ChannelError as error:
            raise self._dead() from error

    def _await(self, event: str) -> Report:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                report = self._read(max(0.0, deadline - time.monotonic()))
            except Silent as error:
                raise self._dead() from error
            if report.event == event:
                return report

    def _read(self, seconds: float) -> Report:
        try:
            report = self._control.receive(Report, seconds)
        except Silent:
            raise
        except ChannelError as error:
            raise self._dead() from error
        if report.event == "exit":
            self._exits[report.pid] = report
        elif report.event == "started":  # the system gives numbers again: an earlier end under it is no longer its own
            self._exits.pop(report.pid, None)
        return report

    def _dead(self) -> WorkerError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1)
        return WorkerError(
            f"The evaluation's parent process does not answer (exit code {self._process.poll()}): {tail(self._log)}",
            f"Look into {str(self._log)!r} and run `htam doctor`.",
        )


class Worker:
    """A forked worker and the channel to it."""

    def __init__(self, harness: Harness, pid: int, kind: WorkerKind, channel: Channel) -> None:
        self._harness = harness
        self.pid = pid
        self.kind = kind
        self._channel = channel
        self.left_behind = 0

    def ask(self, question: BaseModel, answer: type[R], seconds: float, descriptors: Sequence[int] = ()) -> R:
        """Sends a question and waits for its answer.

        Raises Gone when the worker ends first, Hung when `seconds` pass (the worker is killed then), and
        channel.Garbled when it answers nonsense.
        """
        deadline = time.monotonic() + seconds
        try:
            self.tell(question, descriptors, seconds)
        except Silent as error:
            self.kill()
            raise Hung(seconds) from error
        except Closed as error:
            raise self._gone() from error
        return self.hear(answer, max(0.0, deadline - time.monotonic()), seconds)

    def tell(self, question: BaseModel, descriptors: Sequence[int] = (), seconds: float = 60.0) -> None:
        """Sends a question whose answer is heard later. Raises Closed and Silent."""
        self._channel.send(question, descriptors, seconds)

    def hear(self, answer: type[R], seconds: float, limit: float | None = None) -> R:
        """The answer to what was told; `limit` is what a Hung names in place of `seconds`. Raises as `ask`."""
        try:
            return self._channel.receive(answer, seconds)
        except Silent as error:
            self.kill()
            raise Hung(limit or seconds) from error
        except Closed as error:
            raise self._gone() from error

    def _gone(self) -> Gone:
        report = self._harness.exit_of(self.pid, 2.0) or self._harness.kill(self.pid)
        self._channel.close()
        self.left_behind = report.left_behind if report else 0
        return Gone(report.status if report else None, self.left_behind)

    def ask_for_buffers(self, question: BaseModel, answer: type[R], seconds: float) -> tuple[R, list[int]]:
        """Like `ask`, for the trusted reference worker, whose answer brings descriptors."""
        try:
            self._channel.send(question)
            return self._channel.receive_with_descriptors(answer, seconds)
        except Silent as error:
            self.kill()
            raise Hung(seconds) from error
        except Closed as error:
            report = self._harness.exit_of(self.pid, 2.0)
            raise Gone(report.status if report else None) from error

    def kill(self) -> None:
        """Ends the worker with its group and whatever it left behind."""
        report = self._harness.kill(self.pid)
        self.left_behind = report.left_behind if report else 0
        self._channel.close()

    def alive(self) -> bool:
        """Whether no end was reported."""
        return self._harness.exit_of(self.pid, 0.0) is None
