"""Both sides of one evaluation as the main process talks to them, and how it ends early.

The candidate's answers are evidence. What is right is said by the reference worker, what is fast by clocks on both
sides under this process's own clock.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from pydantic import BaseModel

from htam_agent.errors import TaskError, WorkerError
from htam_agent.evaluation.channel import Garbled
from htam_agent.evaluation.freezing import freeze, thaw
from htam_agent.evaluation.messages import (
    Answer,
    Ask,
    Judge,
    Judged,
    Order,
    Prepare,
    Prepared,
    Told,
)
from htam_agent.evaluation.plans import PROTOCOLS
from htam_agent.evaluation.process import Gone, Hung, Worker
from htam_agent.evaluation.stages import StageClock, kind_of
from htam_agent.words import Stage, Verdict

__all__ = ["PROTOCOLS", "MachineFault", "Reference", "Stop", "Subject", "raise_trouble"]

T = TypeVar("T", bound=BaseModel)


REFERENCE_KILLED = "reference-killed"


class MachineFault(WorkerError):
    """The machine failed a candidate of which nothing had run, or in a way that is none of its doing: a device that
    others hold, memory that the reference lost. No fact about a kernel."""


class Stop(Exception):
    """The evaluation ends here with this verdict."""

    def __init__(self, verdict: Verdict, stage: Stage, reason: str, evidence: str = "") -> None:
        super().__init__(reason)
        self.verdict = verdict
        self.stage = stage
        self.reason = reason
        self.evidence = evidence


class Reference:
    """The reference worker as the main process talks to it."""

    def __init__(self, worker: Worker, seconds: float, stages: StageClock | None = None) -> None:
        self.worker = worker
        self.seconds = seconds
        self.stages = stages or StageClock()

    def ask(self, question: Ask, seconds: float | None = None) -> Told:
        """The answer. Raises TaskError for a fault of the task, WorkerError when the worker is gone or hangs."""
        try:
            with self.stages.stage(f"reference {kind_of(question)}"):
                told = self.worker.ask(question, Told, seconds or self.seconds)
        except (Gone, Hung, Garbled) as error:
            said = f"The process that holds the reference model failed: {error}."
            remedy = "Run it again; if it happens again, check the machine's memory and `htam doctor`."
            if isinstance(error, Gone) and killed_from_outside(error):
                raise MachineFault(said, remedy, REFERENCE_KILLED) from error
            raise WorkerError(said, remedy) from error
        return raise_trouble(told)

    def prepare(self, order: Prepare) -> Prepared:
        told = self.ask(Ask(prepare=order))
        assert told.prepared is not None, "a prepare is answered by a prepared"
        return told.prepared

    def judge(self, order: Judge) -> Judged:
        told = self.ask(Ask(judge=order))
        assert told.judged is not None, "a judge is answered by a judged"
        return told.judged


def killed_from_outside(error: Gone) -> bool:
    """Whether it ended by the signal that a system short of memory sends. A candidate's confinement lets it signal its
    own processes only."""
    return error.status is not None and os.WIFSIGNALED(error.status) and os.WTERMSIG(error.status) == signal.SIGKILL


def raise_trouble(told: Told) -> Told:
    """The answer itself, or the error that it carries."""
    trouble = told.trouble
    if trouble is not None:
        kind = TaskError if trouble.usage else WorkerError
        raise kind(trouble.message, trouble.remedy, trouble.code)
    return told


class Deadline(Protocol):
    """Limits that an evaluation keeps; `bench.Limits` fits."""

    @property
    def run_seconds(self) -> float: ...

    @property
    def total_seconds(self) -> float: ...


class Subject:
    """A candidate worker under evaluation: every failure to answer becomes a Stop that names it."""

    def __init__(self, worker: Worker, limits: Deadline, stages: StageClock | None = None) -> None:
        self.worker = worker
        self.stages = stages or StageClock()
        self._limits = limits
        self._begin = time.monotonic()
        self.frozen = False
        self.wall_ms = 0.0
        """Of the last order: from sending it to the arrival of the answer."""
        self.unstoppable = ""
        """Why its processes could not be stopped between two orders; empty where they were."""

    def left(self) -> float:
        """Seconds until the total limit."""
        return self._limits.total_seconds - (time.monotonic() - self._begin)

    def extend(self, seconds: float) -> None:
        """Moves the total limit on: for time in which it was not the candidate that was waited for."""
        self._begin += seconds

    def order(
        self, order: Order, stage: Stage, seconds: float | None = None, descriptors: Sequence[int] = ()
    ) -> Answer:
        """The candidate's answer; raises Stop when it fails, crashes, hangs or answers nonsense."""
        limit = min(seconds or self._limits.run_seconds, self.left())
        if limit <= 0:
            self.worker.kill()
            raise Stop("failed", stage, f"the evaluation took longer than {self._limits.total_seconds:g} s in all")
        try:
            with self.stages.stage(f"candidate {kind_of(order)}"):
                answer = self._ask(order, limit, descriptors)
        except Hung as error:
            named = " (the setting run_seconds)" if limit == self._limits.run_seconds else ""
            # A rest of the total limit proves no hang: other words, so that it is not remembered (hung.py).
            how = "hang" if limit >= (seconds or self._limits.run_seconds) else "out of time"
            raise Stop("failed", stage, f"{how}: {error} with its process group{named}") from error
        except Gone as error:
            hint = " (out of memory, most likely)" if "SIGKILL" in str(error) else ""
            raise Stop("failed", stage, f"crash: {error}{hint}") from error
        except Garbled as error:
            self.worker.kill()
            raise Stop("failed", stage, f"the process answered nonsense: {error}") from error
        if not answer.ok:
            raise Stop("failed", stage, answer.reason, answer.evidence)
        return answer

    def _ask(self, order: Order, limit: float, descriptors: Sequence[int]) -> Answer:
        """The answer, between which and the next order its processes are stopped (freezing.py)."""
        if self.frozen:
            thaw(self.worker.pid)
        begin = time.perf_counter()
        answer = self.worker.ask(order, Answer, limit, descriptors)
        self.wall_ms = (time.perf_counter() - begin) * 1e3
        self.unstoppable = self.unstoppable or freeze(self.worker.pid)
        self.frozen = True
        return answer

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Its processes go on inside, unasked: to see whether any of them does something."""
        thaw(self.worker.pid)
        try:
            yield
        finally:
            freeze(self.worker.pid)
