"""The share of the remaining gap that a step closes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.memory.index import share_of
from htam_agent.memory.share import FAILURE_COST, share_closed
from tests.support.memory import experience

TIMES = st.floats(1e-4, 1e5)


@pytest.mark.parametrize(
    ("before", "after", "floor", "share"),
    [
        (8, 2, 2, 1.0),
        (8, 8, 2, 0.0),
        (8, 4, 2, 0.5),
        (8, 16, 2, -0.5),
        (8, 1, 2, 1.0),
        (8, 4000, 2, -1.0),
        (8, 4, None, 0.5),
    ],
)
def test_known_values(before: float, after: float, floor: float | None, share: float) -> None:
    assert share_closed(before, after, floor) == pytest.approx(share)


@given(TIMES, TIMES, st.none() | TIMES)
def test_it_is_bounded_and_its_sign_says_whether_the_kernel_became_faster(
    before: float, after: float, floor: float | None
) -> None:
    share = share_closed(before, after, floor)
    assert -1 <= share <= 1
    assert (share > 0) == (math.log(after) < math.log(before))


@given(TIMES, TIMES, TIMES, TIMES)
def test_a_faster_kernel_never_closes_less(before: float, one: float, other: float, floor: float) -> None:
    slow, fast = max(one, other), min(one, other)
    assert share_closed(before, fast, floor) >= share_closed(before, slow, floor)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.01, 0.09), st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(before: float, after: float, floor: float, unit: float) -> None:
    scaled = share_closed(before * unit, after * unit, floor * unit)
    assert scaled == pytest.approx(share_closed(before, after, floor), abs=1e-9)


@given(st.floats(2, 100), st.floats(0.1, 0.9))
def test_shares_of_two_steps_compose(before: float, part: float) -> None:
    """Closing p of the gap and then p of what remains leaves (1 - p) squared of it."""
    middle = before ** (1 - part)
    first, second = share_closed(before, middle, 1.0), share_closed(middle, middle ** (1 - part), 1.0)
    whole = share_closed(before, middle ** (1 - part), 1.0)
    if middle > 1.05:
        assert 1 - whole == pytest.approx((1 - first) * (1 - second), abs=1e-6)


def test_at_the_floor_noise_is_not_taken_for_progress() -> None:
    assert abs(share_closed(2.0, 1.99, 2.0)) < 0.15
    assert abs(share_closed(2.0, 2.01, 2.5)) < 0.15


@pytest.mark.parametrize("times", [(0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, math.nan), (math.inf, 1.0, 1.0)])
def test_impossible_times_are_refused(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="positive, finite"):
        share_closed(*times)


def test_failures_cost_and_kernels_left_at_the_floor_do_not() -> None:
    assert share_of(experience("a", "wide", "wide-loads", None)) == -FAILURE_COST
    assert share_of(experience("a", "wide", "wide-loads", 0.7)) == pytest.approx(0.7)
    assert share_of(experience("a", "wide", "wide-loads", 0.7, verdict="wrong")) == -FAILURE_COST
    assert share_of(experience("a", "wide", "wide-loads", 0.7, verdict="at-floor")) == 0
