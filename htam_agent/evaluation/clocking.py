"""Rounds of A B B A between the reference and one candidate, driven from the main process."""

from __future__ import annotations

import math
import random
import time

from htam_agent.evaluation.judge import Reference, Stop, Subject, Verification
from htam_agent.evaluation.messages import Answer, Ask, Block, Measure, Order, Prepare, Trial, Variant, Warm
from htam_agent.evaluation.timing import (
    LEAST_ROUNDS,
    ROBUST_ROUNDS,
    Span,
    calls_for,
    clocks_disagree,
    more_calls,
    settled,
    typical,
    works_elsewhere,
)
from htam_agent.words import Protocol

WARM_SECONDS = {"cpu": 0.1, "cuda": 0.05}
BUDGET_SECONDS = {"cpu": 2.0, "cuda": 0.5}
MOST_ROUNDS = 60


class Rounds:
    """What the rounds gave: one ratio each, and milliseconds of the blocks' medians on both sides."""

    def __init__(self) -> None:
        self.ratios: list[float] = []
        self.reference: list[float] = []
        self.candidate: list[float] = []
        self.busy_elsewhere: list[str] = []
        self.ours: list[Span] = []
        self.theirs: list[Span] = []
        self.idle_ms = 0.0
        self.refreshed = 0

    @property
    def distrust(self) -> str:
        """Why the candidate's own times cannot be believed; empty when they can."""
        if 2 * len(self.busy_elsewhere) > len(self.ours):
            return self.busy_elsewhere[0]
        return clocks_disagree(self.ours, self.theirs, self.idle_ms)


class Clocking:
    """The timing of one candidate against one variant of the reference. The device's lock is held by the caller."""

    def __init__(
        self,
        reference: Reference,
        subject: Subject,
        verification: Verification,
        protocol: Protocol,
        device: str,
        seed: int,
        *,
        writes_inputs: bool = False,
        stateful: bool = False,
    ) -> None:
        self._reference = reference
        self._subject = subject
        self._verification = verification
        self._protocol = protocol
        self._device = device
        self._kind = "cpu" if device == "cpu" else "cuda"
        self._random = random.Random(seed)
        self._writes_inputs = writes_inputs
        self._alone = writes_inputs or stateful

    def run(self, variant: Variant) -> Rounds:
        """Rounds until the interval is narrow or the budget ends, at least as many as an interval needs.

        Every round has other values, and the outputs of one of its calls are compared. Raises Stop when the candidate
        fails, or is wrong in a timed call.
        """
        rounds = Rounds()
        self._begin(variant, rounds)
        deadline, robust = time.monotonic() + BUDGET_SECONDS[self._kind], ROBUST_ROUNDS[self._kind]
        while len(rounds.ratios) < MOST_ROUNDS:
            self._round(variant, rounds)
            done, late = len(rounds.ratios), time.monotonic() - deadline
            if done >= LEAST_ROUNDS and settled(rounds.ratios):
                break
            # Long calls fit few rounds into the budget: they get as much again for an interval without the extremes.
            if late > 0.0 and (done >= robust or (done >= LEAST_ROUNDS and late > BUDGET_SECONDS[self._kind])):
                break
            if self._subject.left() < 10.0:
                break
        return rounds

    def _begin(self, variant: Variant, rounds: Rounds) -> None:
        """One judged call on the inputs that will be timed, then both sides run until they are warm."""
        self._reference.prepare(Prepare(seed=self._verification.draw_seed()))
        answer = self._subject.order(Order(trial=Trial()), "time")
        self._judge(answer, "timed inputs", state=True)
        seconds = WARM_SECONDS[self._kind]
        told = self._reference.ask(Ask(warm=Warm(variant=variant, seconds=seconds))).timed
        assert told is not None, "a warm is answered by times"
        rounds.idle_ms = told.idle_ms
        self._reference_calls = calls_for(_credible(told.milliseconds)[0], self._device)
        warm = self._subject.order(Order(measure=Measure(warm_seconds=seconds)), "time")
        self._candidate_calls = calls_for(_credible(warm.milliseconds)[0], self._device)

    def _round(self, variant: Variant, rounds: Rounds) -> None:
        self._refresh(rounds)
        first = self._reference_block(variant, rounds)
        ours = self._candidate_block(rounds) + self._candidate_block(rounds)
        self._compare_a_call()
        theirs = typical(first + self._reference_block(variant, rounds))
        rounds.reference.append(theirs)
        rounds.candidate.append(typical(ours))
        rounds.ratios.append(theirs / max(typical(ours), 1e-9))

    def _refresh(self, rounds: Rounds) -> None:
        """Other values at the same addresses, in the domain of the inputs: a blend of two draws, times a factor."""
        factor = 1.0 - 0.25 * self._random.random()
        seed = self._random.getrandbits(56)
        self._values = Prepare(seed=seed, factor=factor, redraw=False, blend=True)
        if not self._reference.prepare(self._values).usable:
            self._values = Prepare(seed=seed)
            self._reference.prepare(self._values)
        rounds.refreshed += 1

    def _compare_a_call(self) -> None:
        """Judges the outputs of the round's last call. Where calls move inputs or state on, that is one more call,
        timed like the others and on both as they were."""
        if self._writes_inputs:
            self._reference.prepare(self._values)
        if self._alone:
            self._subject.order(Order(measure=Measure(calls=1, alone=True)), "time")
        answer = self._subject.order(Order(hand_over=True), "time")
        self._judge(answer, "a timed call", state=False)

    def _reference_block(self, variant: Variant, rounds: Rounds) -> list[float]:
        begin = time.perf_counter()
        told = self._reference.ask(Ask(block=Block(variant=variant, calls=self._reference_calls))).timed
        assert told is not None, "a block is answered by times"
        wall = (time.perf_counter() - begin) * 1e3
        rounds.theirs.append(Span(wall, sum(told.milliseconds) + told.first_ms, self._reference_calls))
        return told.milliseconds

    def _candidate_block(self, rounds: Rounds) -> list[float]:
        begin = time.perf_counter()
        answer = self._subject.order(Order(measure=Measure(calls=self._candidate_calls)), "time")
        wall = (time.perf_counter() - begin) * 1e3
        block = _credible(answer.milliseconds, self._candidate_calls)
        rounds.ours.append(Span.of(wall, block, *_credible([answer.first_ms + 1e-9])))
        elsewhere = works_elsewhere(block, answer.hidden_ms)
        if elsewhere:
            rounds.busy_elsewhere.append(elsewhere)
        # By the harness's own clock: a claim of long calls buys no short blocks, whose sum nothing vouches for.
        self._candidate_calls = more_calls(self._candidate_calls, wall, self._device)
        return block

    def _judge(self, answer: Answer, label: str, state: bool) -> None:
        self._verification.judge(answer, label, [self._protocol], state=state)
        if self._verification.verdicts[self._protocol] != "correct":
            raise Stop("wrong", "time", self._verification.reasons[self._protocol])


def _credible(milliseconds: list[float], count: int = 1) -> list[float]:
    """The times of `count` calls. Raises Stop for others than finite ones above zero."""
    if len(milliseconds) != count or not all(math.isfinite(time_ms) and time_ms > 0.0 for time_ms in milliseconds):
        raise Stop("quarantined", "time", "the candidate's process gave times that cannot be")
    return milliseconds
