"""Timing: the stopwatch that both sides use, and the statistics of the ratio.

Both sides run the same code on the same shared inputs in processes with the same allocator, A B B A in turn, never at
once. On CUDA every call stands between two events with a cold L2 (a buffer of twice its size is written before the
first event); on the CPU every call is timed by the monotonic clock. The speedup is the median over rounds of the
ratio of the blocks' medians; its interval is distribution-free (order statistics; Hahn and Meeker, Statistical
Intervals, 5.2).
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.errors import WorkerError
from htam_agent.verdict import Interval

if TYPE_CHECKING:
    import torch

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
IDLE_CALLS = 32
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

    def idle_ms(self) -> float:
        """Milliseconds that a block takes for each call beside what it times; the median of three blocks of nothing."""
        beside = []
        for _ in range(3):
            begin = time.perf_counter()
            times, _ = self.block(lambda: None, IDLE_CALLS)
            beside.append(((time.perf_counter() - begin) * 1e3 - sum(times)) / IDLE_CALLS)
        return max(0.0, statistics.median(beside))

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


@dataclass(frozen=True)
class Span:
    """One block on two clocks, in milliseconds: `wall_ms` from the order to the answer by the harness's own,
    `claimed_ms` what the worker says of all its calls, the first untimed one included."""

    wall_ms: float
    claimed_ms: float
    calls: int

    @classmethod
    def of(cls, wall_ms: float, block: Sequence[float], first_ms: float) -> Span:
        """`first_ms` explains wall time as far as a first call can be slower than the others: four times, and 1 ms."""
        first = min(first_ms, 4.0 * statistics.median(block) + 1.0)
        return cls(wall_ms, sum(block) + first, len(block))


def clocks_disagree(ours: Sequence[Span], theirs: Sequence[Span], idle_ms: float) -> str:
    """Why the candidate's times cannot be believed: the harness's clock saw more than they add up to; empty when not.

    What a block takes beside its calls is known from the reference's blocks (`theirs`), which ran in turn with the
    candidate's under the same load, and from `idle_ms`, what each call of the stopwatch takes beside what it times
    (flush of the L2, events, the loop). Medians over blocks: a busy machine lets single ones disagree.
    """
    fixed = sorted(span.wall_ms - span.claimed_ms - idle_ms * span.calls for span in theirs)
    usual = max(0.0, fixed[3 * len(fixed) // 4])
    excess = statistics.median(
        span.wall_ms - 1.15 * span.claimed_ms - 1.25 * idle_ms * span.calls - 1.5 * usual for span in ours
    )
    if excess <= 1.0:
        return ""
    wall, claimed = (
        statistics.median(values) for values in zip(*((s.wall_ms, s.claimed_ms) for s in ours), strict=True)
    )
    return f"a block of calls is claimed to take {claimed:.4g} ms, and the harness's clock saw {wall:.4g} ms"


def typical(block: Sequence[float]) -> float:
    """Milliseconds of a call in a block: the median, and not below half the mean. The harness's clock vouches for the
    sum of a block only: a median far below the mean is not believed, on either side."""
    return max(statistics.median(block), statistics.fmean(block) / 2.0)


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

    `name` is "cpu" or "cuda:0". Processes of all users share it. Raises WorkerError when it is not had in `seconds`.
    """
    path = Path(tempfile.gettempdir()) / f"htam-{name.replace(':', '-')}.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _wait_for(descriptor, path, seconds)
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int, path: Path, seconds: float) -> float:
    begin = time.monotonic()
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return time.monotonic() - begin
        if time.monotonic() - begin > seconds:
            raise WorkerError(
                f"Another process has held the device's lock {str(path)!r} for {seconds:g} s.",
                "Wait for the other run on this device, or end it.",
                "device-busy",
            )
        time.sleep(0.02)
