"""Timing: how many calls a block has, and the statistics of the ratio.

Both sides run the same code on the same shared inputs in processes with the same allocator, A B B A in turn, never at
once. The speedup is the median over rounds of the ratio of the blocks' medians; its interval is distribution-free
(order statistics; Hahn and Meeker, Statistical Intervals, 5.2).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from htam_agent.evaluation.judge import MachineFault
from htam_agent.verdict import Interval

CONFIDENCE = 0.95
LEAST_ROUNDS = 6
"""Fewest values whose extremes cover the median with 95 %: 1 - 2 (1/2)^6 = 0.969."""
ROBUST_ROUNDS = {"cpu": 15, "cuda": 9}
"""Rounds of which the extremes may be left out: one on either side of 9 (1 - 2 * 10 (1/2)^9 = 0.961), three of 15
(0.965), since a processor is shared with everything else that a machine does."""
NARROW = 0.02
MOST_CALLS = 1000
LOCK_SECONDS = 1800.0
"""Longest wait for a device that others time on."""
BLOCK_SECONDS = {"cpu": 0.03, "cuda": 0.008}


def calls_for(milliseconds: float, device: str) -> int:
    """Calls of one block for a call of this length."""
    kind = "cpu" if device == "cpu" else "cuda"
    return max(1, min(MOST_CALLS, round(BLOCK_SECONDS[kind] * 1e3 / max(milliseconds, 1e-4))))


def order_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Distribution-free confidence interval of the median: [x(k), x(n + 1 - k)] with the largest k whose coverage,
    1 - 2 P(Binomial(n, 1/2) < k), is at least `confidence`. None when n is too small for any."""
    count = len(values)
    below = 0.0
    rank = 0
    while rank < count // 2:
        below += math.comb(count, rank) * 0.5**count
        if 1.0 - 2.0 * below < confidence:
            break
        rank += 1
    if rank == 0:
        return None
    ordered = sorted(values)
    return ordered[rank - 1], ordered[count - rank]


def settled(ratios: Sequence[float]) -> bool:
    """Whether more rounds are unnecessary: the interval is narrow, or clearly on one side of 1 and near so."""
    interval = order_interval(ratios)
    if interval is None:
        return False
    low, high = interval
    width = (high - low) / statistics.median(ratios)
    return width <= NARROW or ((low > 1.1 or high < 0.9) and width <= 0.1)


def to_interval(ratios: Sequence[float]) -> Interval | None:
    """The interval of the speedup as a record; None with too few rounds."""
    interval = order_interval(ratios)
    return None if interval is None else Interval(low=interval[0], high=interval[1])


def more_calls(calls: int, wall_ms: float, device: str) -> int:
    """Calls of the next block: as many, or up to four times as many where the harness's clock says that this one was
    shorter than half of what a block should be."""
    wanted = BLOCK_SECONDS["cpu" if device == "cpu" else "cuda"] * 1e3
    if wall_ms >= wanted / 2:
        return calls
    return min(MOST_CALLS, math.ceil(calls * min(4.0, wanted / max(wall_ms, 1e-3))))


def works_elsewhere(block: Sequence[float], hidden_ms: float) -> str:
    """Why a CUDA block's own times cannot be believed: when the last call had ended by its events, the device was still
    busy (another stream). Waiting for an idle device takes some 10 us of the host's time; 50 us and a tenth of the call
    are work."""
    claimed = statistics.median(block)
    if hidden_ms > 0.05 + 0.1 * claimed:
        return f"the device was busy for {hidden_ms:.4g} ms after a call that is claimed to take {claimed:.4g} ms"
    return ""


@contextmanager
def device_lock(name: str, seconds: float = LOCK_SECONDS) -> Iterator[float]:
    """Holds the machine-wide lock of a device while timing; the kernel frees it when its owner dies. Gives the seconds
    that were waited for it, which no candidate is to be charged with.

    `name` is "cpu" or "cuda:0". Processes of all users share it. Raises MachineFault when it is not had in `seconds`.
    """
    path = Path(tempfile.gettempdir()) / lock_name(name)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _wait_for(descriptor, path, seconds)
    finally:
        os.close(descriptor)


def lock_name(name: str) -> str:
    """The lock's file. A GPU's own name is the same for all who see it, its index is not: that stands for it only where
    the driver's library gives no name."""
    kind, _, index = name.partition(":")
    known = ""
    if kind == "cuda" and index.isdecimal():
        from htam_agent.backends.nvml import unique_name

        known = unique_name(int(index))
    return f"htam-{known or name.replace(':', '-')}.lock"


def _wait_for(descriptor: int, path: Path, seconds: float) -> float:
    begin = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            raise MachineFault(
                f"Another process has held the device's lock {str(path)!r} for {seconds:g} s.",
                "Wait for the other run on this device, or end it.",
                "device-busy",
            )
        time.sleep(0.02)
