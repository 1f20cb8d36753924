"""One candidate's evaluation, driven from the main process: load, construct, trials, then rounds of timing.

The candidate's answers are evidence. What is right is said by the reference worker, what is fast by clocks on both
sides under this process's own clock.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from pydantic import BaseModel

from htam_agent.errors import TaskError, WorkerError
from htam_agent.evaluation.accuracy_report import AccuracyReport
from htam_agent.evaluation.channel import Garbled
from htam_agent.evaluation.families import EQUAL_TERMS
from htam_agent.evaluation.freezing import freeze, thaw
from htam_agent.evaluation.messages import (
    SHIFT_BYTES,
    SHIFTS,
    Answer,
    Ask,
    Finding,
    Judge,
    Judged,
    Order,
    Prepare,
    Prepared,
    Told,
    Trial,
)
from htam_agent.evaluation.plans import PROTOCOLS, TrialPlan, in_place_of, plan_trials
from htam_agent.evaluation.policy import forbidden_operators, forbidden_recorded, library_operators
from htam_agent.evaluation.process import Gone, Hung, Worker
from htam_agent.evaluation.stages import StageClock, kind_of
from htam_agent.failures import Difference, seen_again
from htam_agent.verdict import Check, Launch
from htam_agent.words import Policy, Stage, Verdict
from htam_agent.words import Protocol as ProtocolName

if TYPE_CHECKING:
    from htam_agent.evaluation.messages import Loaded

__all__ = ["PROTOCOLS", "MachineFault", "Reference", "Stop", "Subject", "Verification", "raise_trouble"]

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


class Verification:
    """The trials of one candidate and what each protocol makes of them."""

    def __init__(
        self,
        reference: Reference,
        subject: Subject,
        loaded: Loaded,
        policy: Policy,
        protocols: Sequence[ProtocolName],
        seed: int,
    ) -> None:
        self._reference = reference
        self._subject = subject
        self._loaded = loaded
        self._policy = policy
        self._random = random.Random(seed)
        self._flags_matter = loaded.flags_matter
        self._accuracy = AccuracyReport(loaded)
        self._done = 0
        self._dropped: list[str] = []
        self._shift = 0
        self.verdicts: dict[ProtocolName, Verdict] = dict.fromkeys(protocols, "correct")
        self.reasons: dict[ProtocolName, str] = {}
        self.differences: dict[ProtocolName, Difference] = {}
        self.checks: list[Check] = []
        self.launches: list[Launch] = []

    def run(self) -> None:
        """All trials, or as many as it takes until no protocol calls it correct. Raises Stop for a failure."""
        # Besides the first: a kernel that falls back to torch later on. The first is seen both ways.
        self._watched, self._recorded = self._random.randint(1, 3), {0, self._random.randint(1, 4)}
        plans = self._plans()
        first = plans[0]
        self._attempt(first, exact=True)
        if self._flags_matter != self._loaded.flags_matter:
            plans = self._plans()
        exact = self._exact_trials(plans)
        for number, plan in enumerate(plans):
            if plan.label != first.label:
                self._attempt(plan, exact=number in exact)
        for plan in in_place_of(self._dropped):
            self._attempt(plan, exact=False)
        self._settle()
        detail = f"{self._done} trials" + (f"; dropped: {', '.join(self._dropped)}" if self._dropped else "")
        self.checks.append(Check(name="trials", passed=True, detail=detail))
        if "strict" in self.verdicts:
            self.checks.append(self._accuracy.check())

    def _plans(self) -> list[TrialPlan]:
        has_parameters = any(entry.parameter for entry in self._loaded.blueprint.state)
        return plan_trials(list(self.verdicts), has_parameters, flags_matter=self._flags_matter)

    def _exact_trials(self, plans: Sequence[TrialPlan]) -> set[int]:
        """Which trials are compared with float64 besides the first: all that can be, as far as the budget allows."""
        numbers = [
            number
            for number, plan in enumerate(plans)
            if number and "strict" in plan.protocols and plan.family not in EQUAL_TERMS
        ]
        return set(self._random.sample(numbers, min(len(numbers), self._accuracy.affordable() - 1)))

    def _attempt(self, plan: TrialPlan, *, exact: bool) -> None:
        """One trial, if a protocol still wants it and the reference can do it."""
        wanted = [name for name in plan.protocols if self.verdicts.get(name) == "correct"]
        if not wanted:
            return
        if self._done % 2 == 0:  # every second trial brings new values to the same address
            self._shift = self._random.randrange(SHIFTS) * SHIFT_BYTES
        order = Prepare(
            seed=self.draw_seed(),
            factor=plan.factor,
            shift=self._shift,
            changed_parameters=plan.changed_parameters,
            family=plan.family,
            regime=plan.regime,
            first=self._done == 0,
            redraw=not plan.blend,
            blend=plan.blend,
        )
        prepared = self._reference.prepare(order)
        if not prepared.usable:
            self._dropped.append(f"{plan.label}: {prepared.reason}")
            return
        self._one(plan, wanted, exact=exact)
        self._done += 1

    def draw_seed(self) -> int:
        """A fresh secret seed."""
        return self._random.getrandbits(63)

    def _one(self, plan: TrialPlan, wanted: list[ProtocolName], exact: bool) -> None:
        watch, record = self._done in (0, self._watched), self._done in self._recorded
        trial = Trial(shift=self._shift, watch=watch, record=record, regime=plan.regime)
        answer = self._subject.order(Order(trial=trial), "run")
        if watch or record:
            self.check_operators(answer)
        if watch:
            self._flags_matter = self._flags_matter or self._runs_library(answer)
        self.launches = self.launches or answer.launches
        self.judge(answer, plan.label, wanted, self._shift, exact=exact)
        if "strict" in wanted and "strict" in self.differences and not self._writes():
            self._ask_again(trial)
        if answer.unlaunched and "correct" in self.verdicts.values():
            raise Stop("failed", "policy", "none of its kernels was launched: LAUNCHES is empty after a call")

    def _writes(self) -> bool:
        """Whether a second call would not see what the first one saw."""
        stateful = any(entry.changes for entry in self._loaded.blueprint.state) or self._loaded.writes_inputs
        return stateful or any(check.name.endswith("afterwards") for check in self.checks)

    def _ask_again(self, trial: Trial) -> None:
        """A wrong answer is asked for once more, on the same inputs: another one tells of a race or of memory that was
        never written. It changes what is said, not the verdict."""
        before = self.differences["strict"]
        try:
            answer = self._subject.order(Order(trial=trial.model_copy(update={"watch": False, "record": False})), "run")
        except Stop:
            return  # it was found wrong already
        if answer.outputs is None:
            return
        order = Judge(
            outputs=answer.outputs, tensors=answer.tensors, protocols=["strict"], shift=self._shift, state=False
        )
        findings = self._reference.judge(order).findings["strict"]
        again = next((found.difference for found in findings if found.difference), None)
        self.differences["strict"] = seen_again(before, again)

    def _runs_library(self, answer: Answer) -> bool:
        """Whether operators that depend on the precision flags run, on a device where there are such flags."""
        return self._loaded.blueprint.device != "cpu" and bool(library_operators(answer.operators))

    def _settle(self) -> None:
        """The verdict on outputs of few elements, over all trials together."""
        if self.verdicts.get("strict") != "correct" or not self._done:
            return
        judged = self._reference.ask(Ask(settle=True)).judged
        assert judged is not None, "a settle is answered by a judged"
        self._accuracy.add(judged)
        self._take(judged, "float64")

    def judge(
        self,
        answer: Answer,
        label: str,
        wanted: Sequence[ProtocolName],
        shift: int = 0,
        state: bool = True,
        *,
        slot: int = 0,
        exact: bool = False,
        overwritten: bool = False,
    ) -> None:
        """Has the reference compare what the candidate left in shared memory, and notes it."""
        if answer.outputs is None:
            raise Stop("failed", "run", "the process answered nonsense: no outputs")
        order = Judge(
            outputs=answer.outputs,
            tensors=answer.tensors,
            protocols=list(wanted),
            shift=shift,
            slot=slot,
            state=state,
            exact=exact,
            overwritten=overwritten,
        )
        judged = self._reference.judge(order)
        if "strict" in wanted:
            self._accuracy.add(judged, label)
        self._take(judged, label)

    def _take(self, judged: Judged, label: str) -> None:
        for name, findings in judged.findings.items():
            wrong = [finding for finding in findings if not finding.passed]
            if wrong:
                self.verdicts[name] = "wrong"
                self.reasons[name] = f"{label}: {wrong[0].detail}"
                self._note(name, label, wrong)
                if wrong[0].difference is not None:
                    self.differences[name] = wrong[0].difference.model_copy(update={"trial": label})

    def _note(self, name: ProtocolName, label: str, wrong: Sequence[Finding]) -> None:
        for finding in wrong:
            self.checks.append(Check(name=f"{name}: {label}: {finding.name}", passed=False, detail=finding.detail))

    def check_operators(self, answer: Answer) -> None:
        """Raises Stop where a watched call ran what the policy forbids."""
        own = answer.own_namespaces
        forbidden = forbidden_operators(answer.operators, self._policy, own)
        forbidden = forbidden or forbidden_recorded(answer.recorded, self._policy, own)
        if forbidden:
            names = ", ".join(forbidden[:6])
            raise Stop(
                "failed", "policy", f"forward runs {names}, which the policy {self._policy} does not leave to torch"
            )
        if not any(check.name == "policy" for check in self.checks):
            self.checks.append(Check(name="policy", passed=True, detail=self._policy))
