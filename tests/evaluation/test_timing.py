"""Statistics of the ratio, sizes of blocks, the device's lock."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.evaluation.judge import MachineFault
from htam_agent.evaluation.timing import (
    BLOCK_SECONDS,
    LEAST_ROUNDS,
    MOST_CALLS,
    calls_for,
    device_lock,
    lock_name,
    more_calls,
    order_interval,
    settled,
    to_interval,
    works_elsewhere,
)

values = st.lists(st.floats(0.1, 10), min_size=1, max_size=60)


@given(values)
def test_the_interval_holds_the_median_and_needs_six_values(ratios: list[float]) -> None:
    interval = order_interval(ratios)
    assert (interval is None) == (len(ratios) < LEAST_ROUNDS)
    if interval is not None:
        assert interval[0] <= statistics.median(ratios) <= interval[1]
        assert order_interval(list(reversed(ratios))) == interval


@pytest.mark.parametrize("count", [6, 9, 15, 30])
def test_the_interval_covers_the_true_median(count: int) -> None:
    """Of 2000 skewed samples at least 95 % (less three standard errors) have the true median in their interval."""
    generator = random.Random(count)
    true_median = 1.0  # of exp(normal)
    hits = 0
    for _ in range(2000):
        interval = order_interval([generator.lognormvariate(0.0, 0.7) for _ in range(count)])
        assert interval is not None
        hits += interval[0] <= true_median <= interval[1]
    assert hits / 2000 > 0.95 - 3 * (0.05 * 0.95 / 2000) ** 0.5


def test_known_ranks() -> None:
    ordered = [float(value) for value in range(1, 21)]
    assert order_interval(ordered) == (6.0, 15.0)  # the table value for n = 20
    record = to_interval(ordered)
    assert record is not None
    assert (record.low, record.high) == (6.0, 15.0)
    assert to_interval([1.0]) is None


def test_rounds_end_when_the_interval_is_narrow_or_clear() -> None:
    assert settled([1.0, 1.001, 1.002, 0.999, 1.0, 1.001])
    assert not settled([1.0, 1.001, 1.002, 0.999, 1.0])
    assert settled([2.0, 2.05, 2.1, 1.95, 2.0, 2.02])
    assert not settled([0.9, 1.1, 1.0, 1.05, 0.95, 1.0])


@given(st.floats(1e-6, 1e5))
def test_blocks_are_bounded(milliseconds: float) -> None:
    assert 1 <= calls_for(milliseconds, "cpu") <= MOST_CALLS
    assert calls_for(milliseconds, "cuda:0") <= calls_for(milliseconds, "cpu")


@given(st.integers(1, MOST_CALLS), st.floats(0, 1e4))
def test_short_blocks_get_more_calls_by_the_harness_clock(calls: int, wall: float) -> None:
    more = more_calls(calls, wall, "cpu")
    assert calls <= more <= min(4 * calls, MOST_CALLS)
    assert (more == calls) == (wall >= BLOCK_SECONDS["cpu"] * 1e3 / 2 or calls == MOST_CALLS)
    assert more_calls(calls, wall, "cuda:0") <= more


def test_the_lock_is_exclusive_and_dies_with_its_owner() -> None:
    name = "test-device:7"
    code = (
        "import time\nfrom htam_agent.evaluation.timing import device_lock\n"
        f"with device_lock({name!r}):\n    print('held', flush=True)\n    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        waiter = subprocess.Popen(
            [sys.executable, "-c", code.replace("time.sleep(60)", "pass")], stdout=subprocess.PIPE, text=True
        )
        with pytest.raises(subprocess.TimeoutExpired):
            waiter.wait(0.7)
        holder.kill()
        output, _ = waiter.communicate(timeout=20)
        assert output == "held\n"
        with device_lock(name) as waited:
            assert waited < 1.0
        with device_lock(name), pytest.raises(MachineFault, match="held"), device_lock(name, 0.2):
            pass


def test_a_lock_is_named_by_the_gpu_and_not_by_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes that see other devices under one index wait for nobody; two indices of one device do."""
    monkeypatch.setattr("htam_agent.backends.nvml.unique_name", lambda index: {0: "GPU-a", 1: "GPU-a"}.get(index, ""))
    assert lock_name("cuda:0") == lock_name("cuda:1") == "htam-GPU-a.lock"
    assert lock_name("cuda:2") == "htam-cuda-2.lock", "the index, where nobody names the device"
    assert lock_name("cpu") == "htam-cpu.lock"


@given(st.floats(0.001, 100), st.floats(0, 200))
def test_work_after_the_events_is_noticed_and_a_wait_for_an_idle_device_is_not(claimed: float, hidden: float) -> None:
    assert bool(works_elsewhere([claimed] * 3, hidden)) == (hidden > 0.05 + 0.1 * claimed)
    assert not works_elsewhere([claimed] * 3, 0.02)
