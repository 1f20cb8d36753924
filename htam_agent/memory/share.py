"""The one unit of selection: the share of the remaining gap to the floor that a step closes."""

from __future__ import annotations

import math

FAILURE_COST = 0.1
"""What a step without a correct kernel costs. A run has about six steps, and each should close about a tenth of the gap
on average to end near the floor: that much progress is forgone by a failure."""

CLOSED_NOTHING = 0.01
"""A step that closed no more than this was in vain: a hundredth of the gap is below the spread of a measurement."""

ASSUMED_GAP = 4.0
"""Speedup that is taken as possible when no floor is known: a fused kernel over a chain of four memory passes."""

SMALLEST_GAP = 1.05
"""Within 5 % of the floor counts as at the floor: a smaller gap would turn the noise of a clock into whole shares."""


def share_closed(before_ms: float, after_ms: float | None, floor_ms: float | None) -> float:
    """log(before / after) / log(before / floor), clipped to [-1, 1].

    1 means that the step reached the floor, 0 that it changed nothing, a negative share that the kernel became slower.
    Logarithms make shares add up: closing half of the gap twice in a row is as much as going there at once, and the
    share does not depend on the unit of time. `after_ms` None is a failed step and counts 0 minus FAILURE_COST. A floor
    that is unknown is taken as before / ASSUMED_GAP, a gap below SMALLEST_GAP as SMALLEST_GAP.

    Raises ValueError when a time is not a positive, finite number of milliseconds.
    """
    for name, value in (("before_ms", before_ms), ("after_ms", after_ms), ("floor_ms", floor_ms)):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value!r}; a positive, finite number of milliseconds is needed.")
    if after_ms is None:
        return -FAILURE_COST
    gap = math.log(ASSUMED_GAP) if floor_ms is None else math.log(before_ms) - math.log(floor_ms)
    share = (math.log(before_ms) - math.log(after_ms)) / max(gap, math.log(SMALLEST_GAP))
    return max(-1.0, min(1.0, share))
