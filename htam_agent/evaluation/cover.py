"""How many flushes before each call keep a GPU busy until its host has launched the call.

The inner clock starts when the flush has ended. With a host that needs longer than that it would read the host's time
into the device's, and the host's is the one that varies. So short calls get more flushes, the same number on both
sides; what a call costs with its host is reported beside it (latency.py).

How long a call keeps its host is said by its process, which may lie: with too few flushes its own clock reads more,
with too many it is more exact, so that neither is a gain. The proof's blocks show whether they suffice (proof.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MOST_FLUSHES = 32
MARGIN = 1.5
"""The device is busy for so many times what the host takes for a call."""
LAUNCH_MS = 0.003
"""What one more flush costs the host."""
GUESSED_FLUSH_MS, LONG_MS = 0.03, 0.4
"""A flush, where nobody measured it; a call above the other is no short one."""


@dataclass(frozen=True)
class Cover:
    """Flushes before each call, and whether they hide the host."""

    flushes: int
    hides: bool = True


def cover_for(host_ms: float, call_ms: float, flush_ms: float) -> Cover:
    """The fewest flushes that keep the device busy with flush and call for `MARGIN` times the host's time.

    `host_ms`: for which a call keeps the host; `call_ms`: of a call back to back, that is of the slower of host and
    device; `flush_ms`: of one flush on the device, 0 where none is wanted. One flush, which hides nothing, where even
    the most do not suffice.
    """
    host_ms = min(host_ms, call_ms)
    device_ms = call_ms if call_ms >= 1.2 * host_ms else 0.0
    missing = MARGIN * host_ms - device_ms
    if flush_ms <= 0.0:
        return Cover(0, missing <= 0.0)
    effective = flush_ms - MARGIN * LAUNCH_MS
    if effective <= 0.0:
        return Cover(1, missing + MARGIN * LAUNCH_MS <= flush_ms)
    flushes = max(1, math.ceil(missing / effective))
    return Cover(flushes) if flushes <= MOST_FLUSHES else Cover(1, hides=False)


def joined(covers: list[Cover]) -> Cover:
    """The same flushes for both sides: the most that one needs; none of them hides what one cannot."""
    return Cover(max(cover.flushes for cover in covers), all(cover.hides for cover in covers))


def flushes_for_short(synchronous_ms: float) -> int:
    """The same for a call of which only its time from launch to end is known."""
    if synchronous_ms > LONG_MS:
        return 1
    return min(MOST_FLUSHES, math.ceil(MARGIN * synchronous_ms / GUESSED_FLUSH_MS))
