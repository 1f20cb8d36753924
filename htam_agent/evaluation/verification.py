"""The trials of one candidate: what it is asked for, what the reference worker says of its answers, the verdicts."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation.accuracy_report import AccuracyReport
from htam_agent.evaluation.families import EQUAL_TERMS
from htam_agent.evaluation.judge import Reference, Stop, Subject
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
    Trial,
)
from htam_agent.evaluation.plans import TrialPlan, in_place_of, plan_trials
from htam_agent.evaluation.policy import forbidden_operators, forbidden_recorded, library_operators
from htam_agent.failures import Difference, seen_again
from htam_agent.verdict import Check, Launch
from htam_agent.words import Policy, Verdict
from htam_agent.words import Protocol as ProtocolName

if TYPE_CHECKING:
    from htam_agent.evaluation.messages import Loaded

CALLS_IN_A_ROW = 4
"""Where calls move inputs or state on."""


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
        if any(entry.changes for entry in self._loaded.blueprint.state) or self._loaded.writes_inputs:
            self._in_a_row()
        self.settle()
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

    def _in_a_row(self) -> None:
        """Calls that each go on from the state and the inputs that the one before left: outputs, inputs and state after
        each of them."""
        for number in range(1, CALLS_IN_A_ROW + 1):
            if self.verdicts.get("strict") != "correct":
                return
            label = f"call {number} in a row"
            prepared = self._reference.prepare(Prepare(seed=self.draw_seed(), go_on=number > 1))
            if not prepared.usable:
                self._dropped.append(f"{label}: {prepared.reason}")
                return
            answer = self._subject.order(Order(trial=Trial(load_state=number == 1)), "run")
            self.judge(answer, label, ["strict"])
            self._done += 1

    @property
    def affordable_timed(self) -> int:
        """Outputs of timed calls that may be compared with float64 as well."""
        return self._accuracy.affordable_timed()

    def settle(self) -> None:
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
