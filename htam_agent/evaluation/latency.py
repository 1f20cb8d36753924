"""What a call costs its caller: calls one after the other by the harness's clock; whether the host holds them up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from htam_agent.evaluation.judge import Stop
from htam_agent.evaluation.sides import Seen, Sides
from htam_agent.verdict import BothSides

SPAN_MS = {"cpu": 40.0, "cuda": 20.0}
MOST_CALLS = 10_000
CLEARLY, SLACK_MS = 1.3, 0.002
"""A call is launch-bound when one after the other they take this many times the device's time, and this much, longer:
back to back no cache is flushed, so that a call which the host does not hold up is faster, not slower."""


@dataclass(frozen=True)
class Latency:
    """`graph_ms`: of replayed CUDA graphs, where a side is launch-bound; `note`: why one is null."""

    call_ms: BothSides
    launch_bound: bool | None = None
    graph_ms: BothSides | None = None
    note: str = ""


def measure_latency(sides: Sides, device_ms: BothSides, slots: int, kind: str, *, host_bound: bool = False) -> Latency:
    """Calls back to back on both sides; on CUDA replays of a captured call as well where a side is launch-bound.
    `host_bound`: that the candidate is so is known.

    Raises Stop when the candidate fails in plain calls; a call that cannot be captured is said in the note.
    """
    ours, theirs = _count(device_ms.candidate, kind), _count(device_ms.reference, kind)
    overhead = sides.theirs(1, slots, empty=True, back_to_back=True).wall_ms
    call_ms = BothSides(
        candidate=_each(_own_ms(sides.ours(ours, slots, back_to_back=True), kind), overhead, ours),
        reference=_each(_own_ms(sides.theirs(theirs, slots, back_to_back=True), kind), overhead, theirs),
    )
    if kind == "cpu":
        return Latency(call_ms)
    bound = host_bound or _launch_bound(call_ms.candidate, device_ms.candidate)
    if not bound and not _launch_bound(call_ms.reference, device_ms.reference):
        return Latency(call_ms, launch_bound=False)
    graph_ms, note = _replayed(sides, ours, theirs, overhead)
    return Latency(call_ms, bound, graph_ms, note)


def _replayed(sides: Sides, ours: int, theirs: int, overhead: float) -> tuple[BothSides | None, str]:
    reason = sides.theirs(0, graph=True).reason
    if reason:
        return None, f"the reference: {reason}"
    reference = _each(sides.theirs(theirs, graph=True).wall_ms, overhead, theirs)
    sides.theirs(1, empty=True)  # frees the captured graph
    try:
        reason = sides.ours(0, graph=True).reason
        if reason:
            return None, f"the candidate: {reason}"
        candidate = _each(sides.ours(ours, graph=True).wall_ms, overhead, ours)
    except Stop as stop:  # whatever a capture does to a process, its verdict was reached before
        return None, f"the candidate: {stop.reason[:300]}"
    return BothSides(candidate=candidate, reference=reference), ""


def _count(device_ms: float, kind: str) -> int:
    return max(2, min(MOST_CALLS, math.ceil(SPAN_MS[kind] / max(device_ms, 1e-3))))


def _own_ms(seen: Seen, kind: str) -> float:
    """Wall time without waits for a processor that others had: on a CPU, whose users are many."""
    return seen.wall_ms - (seen.waited_ms if kind == "cpu" else 0.0)


def _each(wall_ms: float, overhead_ms: float, calls: int) -> float:
    return max(0.0, wall_ms - overhead_ms) / calls


def _launch_bound(call_ms: float, device_ms: float) -> bool:
    return call_ms > CLEARLY * device_ms + SLACK_MS
