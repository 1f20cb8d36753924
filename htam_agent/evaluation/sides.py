"""Blocks of calls on either side, each under the main process's own clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from htam_agent.evaluation.activity import longest_wait, own_wait_ms, processor_ms, threads_ms
from htam_agent.evaluation.baselines import COMPILE_SECONDS
from htam_agent.evaluation.judge import Reference, Stop, Subject
from htam_agent.evaluation.messages import Answer, Ask, Block, Measure, Order, Regime, Variant, Warm

MEANWHILE_MS, MEANWHILE_SHARE = 20.0, 0.15
"""Processor time that an idle process may take beside the reference's blocks: threads of OpenMP that wait for more."""


@dataclass
class Seen:
    """One block: what its process says (milliseconds of each call, or one median; of the first call on a CPU, or,
    back to back, of the host for each; of the device after the last event) and what this process's clock saw from order
    to answer."""

    wall_ms: float
    milliseconds: list[float] = field(default_factory=list)
    first_ms: float = 0.0
    hidden_ms: float = 0.0
    reason: str = ""
    waited_ms: float = 0.0
    """Of the wall time: for which its process, or this one, was ready to go on and others had the processor."""


class NoTimes(Exception):
    """The reference gave no times under a variant: its torch.compile failed, say. No fact about the candidate."""


class Sides:
    """The reference under one variant, and the candidate under the flags of `regime`. `kind` is "cpu" or "cuda"."""

    def __init__(
        self, reference: Reference, subject: Subject, variant: Variant, kind: str, regime: Regime = "declared"
    ) -> None:
        self.reference = reference
        self.subject = subject
        self.variant = variant
        self.regime: Regime = regime
        self._kind = kind
        self._their_ms = 0.0
        self._meanwhile_ms = 0.0

    @property
    def works_meanwhile(self) -> str:
        """Why the reference's times are not its own: the candidate's process was busy while it was timed."""
        if self._meanwhile_ms <= MEANWHILE_MS + MEANWHILE_SHARE * self._their_ms:
            return ""
        return (
            f"threads or processes of the candidate took {self._meanwhile_ms:.4g} ms of processor time while the "
            f"reference was timed for {self._their_ms:.4g} ms"
        )

    def _waits(self, side: Reference | Subject) -> dict[int, tuple[float, float]]:
        """On a processor alone: a GPU goes on while its host waits, and a look at many threads takes milliseconds."""
        return threads_ms(side.worker.pid) if self._kind == "cpu" else {}

    def warm_theirs(self, seconds: float) -> float:
        """Milliseconds of a call when the reference is warm. Raises NoTimes."""
        limit = COMPILE_SECONDS if self.variant == "compile" else None  # a resumed run has not compiled it yet
        told = self.reference.ask(Ask(warm=Warm(variant=self.variant, seconds=seconds)), limit).timed
        assert told is not None, "a warm is answered by times"
        if not told.milliseconds:
            raise NoTimes(told.reason or "it gave no times")
        return told.milliseconds[0]

    def warm_ours(self, seconds: float, slots: int) -> float:
        """Milliseconds of a call when the candidate is warm. Raises Stop when it fails."""
        answer = self.subject.order(
            Order(measure=Measure(warm_seconds=seconds, slots=slots, regime=self.regime)), "time"
        )
        return credible(answer.milliseconds)[0]

    def theirs(
        self, calls: int, slots: int = 1, *, empty: bool = False, summary: bool = False, back_to_back: bool = False,
        graph: bool = False, flushes: int = 1,
    ) -> Seen:  # fmt: skip
        """A block of the reference's, or of nothing (`empty`). Raises NoTimes."""
        block = Block(
            variant=self.variant, calls=calls, slots=slots, empty=empty, summary=summary, back_to_back=back_to_back,
            graph=graph, flushes=flushes,
        )  # fmt: skip
        idle, waits = processor_ms(self.subject.worker.pid), self._waits(self.reference)
        own = own_wait_ms()
        begin = time.perf_counter()
        told = self.reference.ask(Ask(block=block)).timed
        wall = (time.perf_counter() - begin) * 1e3
        self._meanwhile_ms += processor_ms(self.subject.worker.pid) - idle
        self._their_ms += wall
        waited = longest_wait(waits, self._waits(self.reference), wall, own_wait_ms() - own)
        assert told is not None, "a block is answered by times"
        if not (told.milliseconds or back_to_back or graph or empty):
            raise NoTimes(told.reason or "it gave no times")
        return Seen(wall, told.milliseconds, told.first_ms, reason=told.reason, waited_ms=waited)

    def ours(
        self, calls: int, slots: int = 1, *, summary: bool = False, back_to_back: bool = False, graph: bool = False,
        flushes: int = 1,
    ) -> Seen:  # fmt: skip
        """A block of the candidate's. Raises Stop when it fails, or claims times that cannot be."""
        measure = Measure(
            calls=calls, slots=slots, summary=summary, back_to_back=back_to_back, graph=graph, flushes=flushes,
            regime=self.regime,
        )  # fmt: skip
        waits, own = self._waits(self.subject), own_wait_ms()
        answer = self.subject.order(Order(measure=measure), "time")
        wall = self.subject.wall_ms
        waited = longest_wait(waits, self._waits(self.subject), wall, own_wait_ms() - own)
        if back_to_back or graph:
            host_ms = credible([answer.first_ms + 1e-9])[0] if back_to_back else 0.0
            return Seen(wall, first_ms=host_ms, reason=answer.reason[:300])
        times = credible(answer.milliseconds, 1 if summary else calls)
        first, hidden = credible([answer.first_ms + 1e-9])[0], answer.hidden_ms
        hidden = hidden if math.isfinite(hidden) else math.inf
        return Seen(wall, times, first, hidden, answer.reason[:300], waited)

    def handed_over(self, slot: int, *, state: bool) -> tuple[Answer, float]:
        """The outputs of the last call on a slot, and the milliseconds that handing them over took without waits for a
        processor that others had. Raises Stop when the candidate fails."""
        waits, own = self._waits(self.subject), own_wait_ms()
        answer = self.subject.order(Order(hand_over=True, kept=slot, state=state), "time")
        wall = self.subject.wall_ms
        waited = longest_wait(waits, self._waits(self.subject), wall, own_wait_ms() - own) if waits else 0.0
        return answer, wall - waited


def credible(milliseconds: list[float], count: int = 1) -> list[float]:
    """The times of `count` calls. Raises Stop for others than finite ones above zero."""
    if len(milliseconds) != count or not all(math.isfinite(time_ms) and time_ms > 0.0 for time_ms in milliseconds):
        raise Stop("quarantined", "time", "the candidate's process gave times that cannot be")
    return milliseconds
