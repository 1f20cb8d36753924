"""Timing: the stopwatch that both sides use, and the statistics of the ratio.

Both sides run the same code on the same shared inputs in processes with the same allocator, A B B A in turn, never at
once. On CUDA every call stands between two events with a cold L2 (a buffer of twice its size is written before the
first event); on the CPU every call is timed by the monotonic clock. The speedup is the median over rounds of the
ratio of the blocks' medians; its interval is distribution-free (order statistics; Hahn and Meeker, Statistical
Intervals, 5.2).
"""

from __future__ import annotations

import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.verdict import Interval

if TYPE_CHECKING:
    import torch

CONFIDENCE = 0.95
LEAST_ROUNDS = 6
"""Fewest values whose extremes cover the median with 95 %: 1 - 2 (1/2)^6 = 0.969."""
ROBUST_ROUNDS = 9
"""Fewest values whose extremes may be left out: 1 - 2 * 10 (1/2)^9 = 0.961."""
NARROW = 0.02
MOST_CALLS = 400
BLOCK_SECONDS = {"cpu": 0.06, "cuda": 0.015}


class Stopwatch:
    """Times calls on one device. On CUDA it owns the flush buffer (2 x L2, at least 64 MiB)."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.hidden_ms = 0.0
        """Milliseconds for which the device went on after the last call of a CUDA block had ended by its events."""
        self.first_ms = 0.0
        """Milliseconds of a CPU block's first call, which is not among its times."""
        self._flush: torch.Tensor | None = None
        if device != "cpu":
            import torch

            size = max(64 << 20, 2 * torch.cuda.get_device_properties(device).L2_cache_size)
            self._flush = torch.empty(size // 4, dtype=torch.int32, device=device)

    def warm(self, call: Callable[[], object], seconds: float) -> float:
        """Runs `call` for at least `seconds` and twice; milliseconds of a call, the first one left out."""
        call()
        self.synchronize()
        begin = time.perf_counter()
        calls = 0
        while calls < 1 or time.perf_counter() - begin < seconds:
            call()
            self.synchronize()
            calls += 1
        return (time.perf_counter() - begin) * 1e3 / calls

    def block(self, call: Callable[[], object], calls: int, *, alone: bool = False) -> tuple[list[float], object]:
        """Milliseconds of each of `calls` calls, and the last call's result. On a CPU an untimed call comes first,
        unless `alone`."""
        return self._block_cpu(call, calls, alone) if self._flush is None else self._block_cuda(call, calls)

    def synchronize(self) -> None:
        """Waits for the device."""
        if self._flush is not None:
            import torch

            torch.cuda.synchronize(self._device)

    def _block_cpu(self, call: Callable[[], object], calls: int, alone: bool) -> tuple[list[float], object]:
        clock = time.perf_counter_ns
        times = []
        begin = clock()
        # Not among the times: the other side ran last, so this side's threads sleep and its data have left the caches.
        result: object = None if alone else call()
        self.first_ms = (clock() - begin) / 1e6
        for _ in range(calls):
            result = None  # freed before the next call on both sides, so that its memory can be used again
            begin = clock()
            result = call()
            times.append((clock() - begin) / 1e6)
        return times, result

    def _block_cuda(self, call: Callable[[], object], calls: int) -> tuple[list[float], object]:
        import torch

        assert self._flush is not None
        event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        begins = [event(enable_timing=True) for _ in range(calls)]
        ends = [event(enable_timing=True) for _ in range(calls)]
        result: object = None
        for begin, end in zip(begins, ends, strict=True):
            result = None
            self._flush.zero_()
            begin.record()
            result = call()
            end.record()
        ends[-1].synchronize()
        ended = time.perf_counter()
        torch.cuda.synchronize(self._device)
        self.hidden_ms = (time.perf_counter() - ended) * 1e3
        return [begin.elapsed_time(end) for begin, end in zip(begins, ends, strict=True)], result


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


def clocks_disagree(block: Sequence[float], wall_ms: float, device: str) -> str:
    """Why a block's own times cannot be believed: the harness's wall clock saw far more; empty when they agree.

    The wall clock of the whole block includes the flush of the L2 and the exchange of messages, so only a coarse lie
    shows: twice the claimed time and 0.3 ms (CUDA 0.6 ms) a call more than claimed.
    """
    calls = len(block) + (device == "cpu")  # the first call of a CPU block is not timed
    spare = 20.0 / calls + (0.3 if device == "cpu" else 0.6)
    claimed = statistics.median(block)
    seen = wall_ms / calls
    if seen > 2.0 * claimed + spare:
        return f"a call is claimed to take {claimed:.4g} ms, and the harness's clock saw {seen:.4g} ms"
    return ""


def works_elsewhere(block: Sequence[float], hidden_ms: float) -> str:
    """Why a CUDA block's own times cannot be believed: when the last call had ended by its events, the device was still
    busy (another stream). Waiting for an idle device takes some 10 us of the host's time; 50 us and a tenth of the call
    are work."""
    claimed = statistics.median(block)
    if hidden_ms > 0.05 + 0.1 * claimed:
        return f"the device was busy for {hidden_ms:.4g} ms after a call that is claimed to take {claimed:.4g} ms"
    return ""


@contextmanager
def device_lock(name: str) -> Iterator[None]:
    """Holds the machine-wide lock of a device while timing; the kernel frees it when its owner dies.

    `name` is "cpu" or "cuda:0". Processes of all users share it.
    """
    path = Path(tempfile.gettempdir()) / f"htam-{name.replace(':', '-')}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
