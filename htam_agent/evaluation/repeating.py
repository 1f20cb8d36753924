"""Calls repeated as an order says, in the reference's and in the candidate's process alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from htam_agent.evaluation.graphs import CaptureFailed, Replay
from htam_agent.evaluation.messages import Repeat
from htam_agent.evaluation.stopwatch import Call, Stopwatch


@dataclass
class Taken:
    """What repeating gave: milliseconds of each call (one median where only a summary was asked for, none where the
    asker times), of the untimed first one (back to back: of the host for each), and of the device's work after the last
    event."""

    milliseconds: list[float] = field(default_factory=list)
    first_ms: float = 0.0
    hidden_ms: float = 0.0
    reason: str = ""
    """Why there is nothing, or what speaks against the times."""


class Repeater:
    """Carries out Repeat orders on one stopwatch; keeps a captured graph from its first order to the next capture."""

    def __init__(self, device: str) -> None:
        self.stopwatch = Stopwatch(device)
        self._replay: Replay | None = None

    def kept(self, place: int) -> object:
        """The last result of the block's callable at `place`."""
        return self.stopwatch.kept[place]

    def forget(self) -> None:
        """Frees the kept results and a captured graph."""
        self.stopwatch.kept, self._replay = [], None

    def repeat(self, order: Repeat, calls: Sequence[Call], *, alone: bool = False) -> Taken:
        """Does what the order says with these callables, in turn."""
        if order.graph:
            return self._replayed(order, calls[0])
        self._replay = None
        if order.back_to_back:
            return Taken(first_ms=self.stopwatch.back_to_back(calls, order.calls))
        watch = self.stopwatch
        times, _ = watch.block(calls, order.calls, alone=alone, flushes=order.flushes)
        if order.summary:
            times = [statistics.median(times)]
        aside = f"its calls set {watch.set_aside} bytes of the L2 aside, where data outlive a flush"
        return Taken(times, watch.first_ms, watch.hidden_ms, aside if watch.set_aside else "")

    def _replayed(self, order: Repeat, call: Callable[[], object]) -> Taken:
        """With no calls asked for the graph is captured, else it is replayed."""
        if order.calls and self._replay is not None:
            self._replay.run(order.calls)
            return Taken()
        try:
            self._replay = Replay(call)
        except CaptureFailed as error:
            return Taken(reason=str(error))
        return Taken()
