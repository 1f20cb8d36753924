"""How many flushes before each call keep a GPU busy until its host has launched the call.

The inner clock starts when the flush has ended. With a host that needs longer than that it would read the host's time
into the device's, and the host's is the one that varies. So short calls get more flushes, the same number on both
sides; what a call costs with its host is reported beside it (latency.py).
"""

from __future__ import annotations

import math

MOST_FLUSHES = 16
MARGIN = 1.3
"""The device is busy for so many times what the host takes for a call."""
GUESSED_FLUSH_MS, LONG_MS = 0.03, 0.4
"""A flush, where nobody measured it; a call above the other is no short one."""


def flushes_for(call_ms: float, block_ms: float, flush_ms: float) -> int:
    """`call_ms`: of a call back to back; `block_ms`: of one in a block with a flush before each; `flush_ms`: of an
    empty one there. One where the host is hidden already: a call then takes flush and call, not the longer of both."""
    if block_ms - flush_ms / 2 >= 1.25 * call_ms or flush_ms <= 0.0:
        return 1
    return max(1, min(MOST_FLUSHES, math.ceil(MARGIN * call_ms / flush_ms)))


def flushes_for_short(synchronous_ms: float) -> int:
    """The same for a call of which only its time from launch to end is known."""
    if synchronous_ms > LONG_MS:
        return 1
    return min(MOST_FLUSHES, math.ceil(MARGIN * synchronous_ms / GUESSED_FLUSH_MS))
