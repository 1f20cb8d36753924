"""Blocks of calls on either side, each under the main process's own clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from htam_agent.evaluation.judge import Reference, Stop, Subject
from htam_agent.evaluation.messages import Ask, Block, Measure, Order, Variant, Warm


@dataclass
class Seen:
    """One block: what its process says (milliseconds of each call, or one median; of the first call on a CPU; of the
    device after the last event) and what this process's clock saw from order to answer."""

    wall_ms: float
    milliseconds: list[float] = field(default_factory=list)
    first_ms: float = 0.0
    hidden_ms: float = 0.0
    reason: str = ""


class Sides:
    """The reference under one variant, and the candidate."""

    def __init__(self, reference: Reference, subject: Subject, variant: Variant) -> None:
        self.reference = reference
        self.subject = subject
        self.variant = variant

    def warm_theirs(self, seconds: float) -> float:
        """Milliseconds of a call when the reference is warm."""
        told = self.reference.ask(Ask(warm=Warm(variant=self.variant, seconds=seconds))).timed
        assert told is not None, "a warm is answered by times"
        return credible(told.milliseconds)[0]

    def warm_ours(self, seconds: float, slots: int) -> float:
        """Milliseconds of a call when the candidate is warm. Raises Stop when it fails."""
        answer = self.subject.order(Order(measure=Measure(warm_seconds=seconds, slots=slots)), "time")
        return credible(answer.milliseconds)[0]

    def theirs(
        self, calls: int, slots: int = 1, *, empty: bool = False, summary: bool = False, back_to_back: bool = False,
        graph: bool = False, cold: bool = True,
    ) -> Seen:  # fmt: skip
        """A block of the reference's, or of nothing (`empty`)."""
        block = Block(
            variant=self.variant, calls=calls, slots=slots, empty=empty, summary=summary, back_to_back=back_to_back,
            graph=graph, cold=cold,
        )  # fmt: skip
        begin = time.perf_counter()
        told = self.reference.ask(Ask(block=block)).timed
        wall = (time.perf_counter() - begin) * 1e3
        assert told is not None, "a block is answered by times"
        return Seen(wall, told.milliseconds, told.first_ms, reason=told.reason)

    def ours(
        self, calls: int, slots: int = 1, *, summary: bool = False, back_to_back: bool = False, graph: bool = False,
        cold: bool = True,
    ) -> Seen:  # fmt: skip
        """A block of the candidate's. Raises Stop when it fails, or claims times that cannot be."""
        measure = Measure(calls=calls, slots=slots, summary=summary, back_to_back=back_to_back, graph=graph, cold=cold)
        begin = time.perf_counter()
        answer = self.subject.order(Order(measure=measure), "time")
        wall = (time.perf_counter() - begin) * 1e3
        if back_to_back or graph:
            return Seen(wall, reason=answer.reason[:300])
        times = credible(answer.milliseconds, 1 if summary else calls)
        first, hidden = credible([answer.first_ms + 1e-9])[0], answer.hidden_ms
        return Seen(wall, times, first, hidden if math.isfinite(hidden) else math.inf)


def credible(milliseconds: list[float], count: int = 1) -> list[float]:
    """The times of `count` calls. Raises Stop for others than finite ones above zero."""
    if len(milliseconds) != count or not all(math.isfinite(time_ms) and time_ms > 0.0 for time_ms in milliseconds):
        raise Stop("quarantined", "time", "the candidate's process gave times that cannot be")
    return milliseconds
