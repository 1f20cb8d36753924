"""Rounds of A B B A between the reference and one candidate, driven from the main process.

Every round has values that were never there before, in each of the slots that calls take in turn. Where a block ends is
drawn at random, so that no call can be left out: after a block the outputs of its last call on one slot, drawn when it
has ended, are compared. Long blocks between the rounds prove the times by this process's clock (proof.py).
"""

from __future__ import annotations

import math
import random
import statistics
import time

from htam_agent.evaluation import proof
from htam_agent.evaluation.activity import works_on
from htam_agent.evaluation.cover import MOST_FLUSHES, Cover, cover_for, joined
from htam_agent.evaluation.judge import Reference, Stop, Subject
from htam_agent.evaluation.messages import Answer, Blueprint, Measure, Order, Prepare, Trial, Variant
from htam_agent.evaluation.plans import regime_of
from htam_agent.evaluation.proof import FirstCalls, ShortBlocks
from htam_agent.evaluation.rounds import Rounds
from htam_agent.evaluation.sides import Seen, Sides
from htam_agent.evaluation.timing import (
    BLOCK_SECONDS,
    LEAST_ROUNDS,
    ROBUST_ROUNDS,
    calls_for,
    more_calls,
    settled,
    works_elsewhere,
)
from htam_agent.evaluation.verification import Verification
from htam_agent.words import Protocol

WARM_SECONDS = {"cpu": 0.1, "cuda": 0.03}
BUDGET_SECONDS = {"cpu": 1.0, "cuda": 0.5}
MOST_ROUNDS = 60
MOST_PROOF_CALLS = {"cpu": 50_000, "cuda": 8192}
CHEAP_SECONDS = 0.006
"""A comparison that takes no longer is made after each block of a round, else after one of them."""
FRESH_SHARE = 0.6
"""Of the rounds, in which an output of the first few calls is compared: a file that leaves those out is found."""
HOST_MS, HOST_CALLS = 4.0, 200
"""Calls back to back for about this long, and no more than fit the device's queue, say what one costs the host."""
EXACT_SHARE = 0.3
"""Of the comparisons, which meet the float64 rule too, as long as that is affordable."""
MOST_IN_A_ROW = 4
"""Calls that go on from each other before one is compared, where calls move inputs or state on."""
MOST_DOUBLINGS = 2
"""More flushes where the clocks part, before it counts against the claim."""
OVERWRITE_SHARE = 0.5
"""Of the comparisons, before which the shared inputs are overwritten: nothing can be computed from them any more."""
HANDING_MS = 1.5
HANDING_BYTES_PER_MS = {"cpu": 1e6, "cuda": 2e8}
"""Handing outputs over is a message there and back and a copy, at a rate that is a fraction of any machine's."""
SECOND_LOOKS = 6
"""Rounds that look again whether calls on values that were never there stand out."""
PROOF_ROUNDS = {"cpu": (1, 3, 5), "cuda": (2, 5)}


class Clocking:
    """The timing of one candidate against one variant of the reference. The device's lock is held by the caller.

    `alone`: calls write inputs or state, so that there is one slot, and what is compared is a few more calls in a row
    from both as they were, with the state that they leave.
    """

    def __init__(
        self,
        reference: Reference,
        subject: Subject,
        verification: Verification,
        protocol: Protocol,
        blueprint: Blueprint,
        seed: int,
        *,
        writes_inputs: bool = False,
        aliases_inputs: bool = False,
        stateful: bool = False,
        cold: bool = True,
    ) -> None:
        self._reference = reference
        self._subject = subject
        self._verification = verification
        self._protocol = protocol
        self._regime = regime_of(protocol)
        self._plan = blueprint
        self._device = blueprint.device
        self._kind = "cpu" if blueprint.device == "cpu" else "cuda"
        self._random = random.Random(seed)
        self._writes_inputs = writes_inputs
        self._aliases_inputs = aliases_inputs
        self._alone = writes_inputs or stateful
        self._cold = cold
        self._flushes = 1 if cold else 0
        self._doublings = 0
        self._blends: bool | None = None
        self._comparing = 0.0
        self._exact_left = verification.affordable_timed if protocol == "strict" else 0

    def run(self, variant: Variant) -> Rounds:
        """Rounds until the interval is narrow or the budget ends, at least as many as an interval needs.

        Raises Stop when the candidate fails, or is wrong in a timed call.
        """
        self._sides = Sides(self._reference, self._subject, variant, self._kind, self._regime)
        rounds = Rounds(self._kind, 1 if self._alone else self._plan.slots)
        rounds.handing_limit_ms = HANDING_MS + self._plan.output_bytes / HANDING_BYTES_PER_MS[self._kind]
        self._begin(rounds)
        deadline, robust = time.monotonic() + BUDGET_SECONDS[self._kind], ROBUST_ROUNDS[self._kind]
        while len(rounds.ratios) < MOST_ROUNDS:
            self._round(rounds)
            done, late = len(rounds.ratios), time.monotonic() - deadline
            if done in PROOF_ROUNDS[self._kind]:
                deadline += self._prove(rounds)
            if done >= LEAST_ROUNDS and settled(rounds.ratios):
                break
            # Long calls fit few rounds into the budget: they get as much again for an interval without the extremes.
            if late > 0.0 and (done >= robust or (done >= LEAST_ROUNDS and late > BUDGET_SECONDS[self._kind])):
                break
            if self._subject.left() < 10.0:
                break
        self._end(rounds)
        return rounds

    def _begin(self, rounds: Rounds) -> None:
        """One judged call on the inputs that will be timed, then both sides run until they are warm."""
        self._reference.prepare(Prepare(seed=self._verification.draw_seed(), regime=self._regime))
        answer = self._subject.order(Order(trial=Trial(ordered=self._kind == "cuda", regime=self._regime)), "time")
        self._judge(answer, "a call whose inputs arrive late" if self._kind == "cuda" else "timed inputs", state=True)
        for slot in range(1, rounds.slots):
            self._reference.prepare(Prepare(seed=self._verification.draw_seed(), redraw=False, slot=slot, expect=False))
        seconds = WARM_SECONDS[self._kind]
        self._their_calls = calls_for(self._sides.warm_theirs(seconds), self._device)
        self._our_calls = calls_for(self._sides.warm_ours(seconds, rounds.slots), self._device)
        self._our_call_ms = 0.0
        if self._kind == "cuda":
            self._cover(rounds)

    def _cover(self, rounds: Rounds) -> None:
        """As many flushes as the slower host of both sides needs (cover.py)."""
        sides, slots = self._sides, rounds.slots
        overhead = sides.theirs(1, slots, empty=True, back_to_back=True).wall_ms
        flush_ms = 0.0
        if self._cold:
            calls = 32
            few, many = (sides.theirs(count, slots, empty=True, summary=True).wall_ms for count in (1, 1 + calls))
            flush_ms = max(0.0, many - few) / calls
        covers: list[Cover] = []
        call_ms: list[float] = []
        for block, about in ((sides.ours, self._our_calls), (sides.theirs, self._their_calls)):
            calls = max(5, min(HOST_CALLS, round(about * HOST_MS / (BLOCK_SECONDS["cuda"] * 1e3))))
            seen = [block(calls, slots, back_to_back=True) for _ in range(2)]
            call_ms.append(max(1e-3, (min(one.wall_ms for one in seen) - overhead) / calls))
            covers.append(cover_for(max(one.first_ms for one in seen), call_ms[-1], flush_ms))
        cover = joined(covers)
        self._flushes, rounds.host_bound = cover.flushes, not covers[0].hides
        rounds.flushes = self._flushes
        # With its flushes a call takes longer, and a block has fewer of them.
        between = self._flushes * flush_ms
        self._our_calls, self._their_calls = (
            max(1, min(about, calls_for(each + between, self._device)))
            for about, each in zip((self._our_calls, self._their_calls), call_ms, strict=True)
        )

    def _round(self, rounds: Rounds) -> None:
        turns = rounds.slots if self._our_calls > 1 else 1
        self._refresh(turns)
        theirs = self._their_block(rounds, turns, first=True)
        ours = self._our_blocks(rounds, turns)
        theirs += self._their_block(rounds, turns)
        rounds.reference.append(statistics.median(theirs))
        rounds.claimed.append(statistics.median(ours))
        rounds.candidate.append(rounds.claimed[-1])
        rounds.ratios.append(rounds.reference[-1] / max(rounds.candidate[-1], 1e-9))

    def _refresh(self, turns: int) -> None:
        """Other values at the same addresses, in the domain of the inputs: a blend of two draws, times a factor."""
        self._values = [self._other_values(slot) for slot in range(turns)]
        if self._blends is None:
            self._blends = self._reference.prepare(self._values[0].model_copy(update={"expect": True})).usable
            if not self._blends:
                self._values = [self._other_values(slot) for slot in range(turns)]
        for values in self._values:
            self._reference.prepare(values)

    def _other_values(self, slot: int) -> Prepare:
        factor, seed = 1.0 - 0.25 * self._random.random(), self._random.getrandbits(56)
        if self._blends is False:
            return Prepare(seed=seed, slot=slot, expect=False, regime=self._regime)
        return Prepare(seed=seed, factor=factor, redraw=False, blend=True, slot=slot, expect=False, regime=self._regime)

    def _their_block(self, rounds: Rounds, turns: int, first: bool = False) -> list[float]:
        seen = self._sides.theirs(self._their_calls, min(turns, self._their_calls), flushes=self._flushes)
        if first and len(seen.milliseconds) > 2 * turns > 2:
            rounds.their_first = _added(rounds.their_first, seen.milliseconds[1:turns], seen.milliseconds[turns:])
        elif first and turns == 1 and self._kind == "cpu":
            rounds.their_first = _added(rounds.their_first, [seen.first_ms], seen.milliseconds)
        self._their_calls = more_calls(self._their_calls, seen.wall_ms, self._device)
        return seen.milliseconds

    def _our_blocks(self, rounds: Rounds, turns: int) -> list[float]:
        """Calls on values that were never there, then two blocks' worth, cut at a place that is drawn."""
        fresh = self._short_blocks(rounds, turns) if turns > 1 else []
        if fresh and self._random.random() < FRESH_SHARE:
            self._compare_a_call(rounds, turns)
        whole = 2 * self._our_calls
        cut = self._random.randint(1, whole - 1)
        both = self._comparing < CHEAP_SECONDS
        one = self._random.random() < 0.5
        taken: list[float] = []
        for calls, compare in ((cut, both or one), (whole - cut, both or not one)):
            seen = self._our_block(rounds, calls, turns)
            taken += seen.milliseconds
            if turns == 1 and not taken[1:] and self._kind == "cpu":
                rounds.our_first = _added(rounds.our_first, [seen.first_ms], seen.milliseconds)
            if compare:
                last = calls == whole - cut and self._random.random() < OVERWRITE_SHARE
                self._compare_a_call(rounds, min(turns, calls), overwrite=last)
            if turns == 1 and not self._alone:
                self._refresh(turns)  # few calls, each on values that were never there
        if fresh:
            rounds.our_first = _added(rounds.our_first, fresh, taken)
        return taken

    def _short_blocks(self, rounds: Rounds, turns: int) -> list[float]:
        """One call on each new set of inputs, the candidate's first; milliseconds of its calls but the first."""
        if rounds.short is None or rounds.short.calls != turns:
            rounds.short = ShortBlocks(turns)
        seen = self._our_block(rounds, turns, turns)
        rounds.short.ours.append(seen.wall_ms)
        rounds.short.theirs.append(self._sides.theirs(turns, turns, flushes=self._flushes).wall_ms)
        rounds.short.empty.append(self._sides.theirs(turns, turns, empty=True, flushes=self._flushes).wall_ms)
        return seen.milliseconds[1:]

    def _our_block(self, rounds: Rounds, calls: int, turns: int) -> Seen:
        seen = self._sides.ours(calls, turns, flushes=self._flushes)
        rounds.blocks += 1
        rounds.set_aside = rounds.set_aside or seen.reason
        elsewhere = works_elsewhere(seen.milliseconds, seen.hidden_ms)
        if elsewhere:
            rounds.busy_elsewhere.append(elsewhere)
        if calls >= self._our_calls / 2:
            self._our_call_ms = seen.wall_ms / calls
            # By the harness's own clock: a claim of long calls buys no short blocks.
            scaled = seen.wall_ms * self._our_calls / calls
            self._our_calls = more_calls(self._our_calls, scaled, self._device)
        return seen

    def _prove(self, rounds: Rounds) -> float:
        """A block that is long enough by this process's clock, as many empty calls beside it, and what the reference
        makes of the same. Returns the seconds that it took."""
        begin = time.monotonic()
        turns = min(rounds.slots, len(self._values))
        block = self._proving(rounds, turns)
        while self._may_double(rounds, block):
            # A lie does not vanish behind more flushes, what a host does is hidden by them.
            self._doublings += 1
            self._flushes = min(MOST_FLUSHES, 2 * self._flushes)
            rounds.begin_again()
            rounds.flushes = self._flushes
            block = self._proving(rounds, turns)
        rounds.ours.append(block)
        if self._kind == "cpu":
            self._strain(rounds, turns)
        return time.monotonic() - begin

    def _may_double(self, rounds: Rounds, block: proof.Block) -> bool:
        more = 0 < self._flushes < MOST_FLUSHES and self._doublings < MOST_DOUBLINGS
        return self._kind == "cuda" and more and not rounds.host_bound and block.parts

    def _proving(self, rounds: Rounds, turns: int) -> proof.Block:
        """One such block on both clocks."""
        least = proof.LEAST_MS[self._kind]
        wanted = least * self._random.uniform(1.1, 1.3)
        guess = max(self._our_call_ms, wanted / MOST_PROOF_CALLS[self._kind])
        calls = max(1, math.ceil(wanted / guess))
        seen = self._sides.ours(calls, turns, summary=True, flushes=self._flushes)
        if seen.wall_ms < least and calls < MOST_PROOF_CALLS[self._kind]:
            calls = min(MOST_PROOF_CALLS[self._kind], math.ceil(calls * 1.2 * wanted / max(seen.wall_ms, 1e-3)))
            seen = self._sides.ours(calls, turns, summary=True, flushes=self._flushes)
        if not self._alone:
            self._compare_a_call(rounds, min(turns, calls), overwrite=True)
        empty = self._sides.theirs(calls, turns, empty=True, summary=True, flushes=self._flushes)
        return _block(seen, empty, calls, self._kind)

    def _strain(self, rounds: Rounds, turns: int) -> None:
        """The reference's own clocks on a processor that others may use too."""
        calls = max(1, 2 * self._their_calls)
        told = self._sides.theirs(calls, turns, summary=True)
        empty = self._sides.theirs(calls, turns, empty=True, summary=True)
        rounds.theirs.append(_block(told, empty, calls, self._kind))

    def _end(self, rounds: Rounds) -> None:
        """What may be left of the proof; then whether the process rests, and whether an output changes afterwards."""
        turns = min(rounds.slots, len(self._values))
        least = proof.BLOCKS[self._kind]
        while len(rounds.ours) < least + (proof.MORE_BLOCKS if rounds.refuted else 0) and self._subject.left() > 10.0:
            self._prove(rounds)
        while not rounds.ratios or (len(rounds.ratios) < LEAST_ROUNDS and self._subject.left() > 10.0):
            self._round(rounds)  # a proof that came last may have begun again
        rounds.take_proven()
        if rounds.suspected:
            self._look_again(rounds, turns)
        calls = max(turns, self._our_calls)
        self._sides.ours(calls, turns, flushes=self._flushes)
        with self._subject.awake():
            rounds.works_on = works_on(self._subject.worker.pid) or self._sides.works_meanwhile
        if not self._alone:
            self._compare_a_call(rounds, turns, overwrite=True)
        rounds.unstoppable = self._subject.unstoppable

    def _look_again(self, rounds: Rounds, turns: int) -> None:
        """Whether results are kept is only said when it shows again: behind twice the flushes, on blocks of the same
        length, each of which comes right after one of the other side's."""
        if turns == 1:
            rounds.look_at_first_calls(rounds.our_first, rounds.their_first)
            return
        flushes = min(MOST_FLUSHES, 2 * self._flushes)
        ours = theirs = FirstCalls([], [])
        for _ in range(SECOND_LOOKS):
            self._refresh(turns)
            blocks = []
            for _ in range(2):
                blocks.append(self._sides.theirs(turns, turns, flushes=flushes).milliseconds[1:])
                blocks.append(self._sides.ours(turns, turns, flushes=flushes).milliseconds[1:])
            theirs, ours = _added(theirs, blocks[0], blocks[2]), _added(ours, blocks[1], blocks[3])
        rounds.look_at_first_calls(ours, theirs)

    def _compare_a_call(self, rounds: Rounds, turns: int, *, overwrite: bool = False) -> None:
        """Judges the outputs of the last call on a slot that is drawn now. Where calls move inputs or state on, that is
        the last of a few more calls, timed like the others and from both as they were.

        `overwrite`: the inputs get other values first, for a file that would begin to compute when it is asked for its
        outputs; its processes are stopped meanwhile.
        """
        begin = time.monotonic()
        overwrite = overwrite and not self._alone and not self._aliases_inputs
        slot = self._random.randrange(turns)
        values = self._values[slot].model_copy(update={"expect": True, "write": self._writes_inputs})
        if overwrite:
            self._refresh(len(self._values))
        calls = self._usable_calls(values)
        if not calls:
            rounds.skipped += 1
            return
        if self._alone:
            self._subject.order(Order(measure=Measure(calls=calls, alone=True, regime=self._regime)), "time")
        answer, took_ms = self._sides.handed_over(slot, state=self._alone)
        rounds.handing_ms.append(took_ms)
        exact = calls == 1 and self._exact_left > 0 and self._random.random() < EXACT_SHARE
        self._judge(answer, "a timed call", state=self._alone, slot=slot, overwritten=overwrite, exact=exact)
        rounds.compared += 1
        rounds.exact += exact
        self._exact_left -= exact
        self._comparing = time.monotonic() - begin

    def _usable_calls(self, values: Prepare) -> int:
        """Has the reference compute what is expected after so many calls on these values: one, or where calls move
        inputs or state on, a number that is drawn. 0 where it is not finite even after one."""
        drawn = self._random.randint(1, MOST_IN_A_ROW) if self._alone else 1
        for calls in dict.fromkeys((drawn, 1)):
            if self._reference.prepare(values.model_copy(update={"calls": calls})).usable:
                return calls
        return 0

    def _judge(
        self,
        answer: Answer,
        label: str,
        state: bool,
        slot: int = 0,
        *,
        overwritten: bool = False,
        exact: bool = False,
    ) -> None:
        place = slot * self._plan.slot_bytes
        self._verification.judge(
            answer, label, [self._protocol], place, state=state, slot=0, overwritten=overwritten, exact=exact
        )
        if exact:
            self._verification.settle()
        if self._verification.verdicts[self._protocol] != "correct":
            raise Stop("wrong", "time", self._verification.reasons[self._protocol])


def _block(seen: Seen, empty: Seen, calls: int, kind: str) -> proof.Block:
    """A GPU goes on while its host waits for a processor: there such waits are no excuse."""
    waited, empty_waited = (seen.waited_ms, empty.waited_ms) if kind == "cpu" else (0.0, 0.0)
    return proof.Block(
        seen.milliseconds[0], seen.wall_ms, max(0.0, empty.wall_ms - empty_waited), calls, seen.first_ms, waited
    )


def _added(calls: FirstCalls, fresh: list[float], again: list[float]) -> FirstCalls:
    return FirstCalls([*calls.fresh, *fresh], [*calls.again, *again])
