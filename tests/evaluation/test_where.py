"""Where and how a wrong output differs, in words and patterns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.evaluation import where
from htam_agent.evaluation.where import locate
from htam_agent.failures import Difference
from htam_agent.verdict import RunResult
from tests.evaluation.samples import KERNEL, candidate


def right(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def found(actual: torch.Tensor, expected: torch.Tensor) -> Difference:
    return locate(actual, expected, "output", 1e-4, 1.0)


def test_a_tail_that_a_vector_loop_leaves_out_is_a_boundary() -> None:
    expected = right(8, 517)
    actual = expected.clone()
    actual[:, 512:] += 1 + right(8, 5)
    difference = found(actual, expected)
    assert difference.pattern == "boundary"
    assert difference.region == "in the last dimension only 512 to 516, the last 5 of 517"
    assert (difference.wrong, difference.total) == (40, 8 * 517)


@pytest.mark.parametrize(
    ("change", "pattern", "said"),
    [
        (lambda t: t[:, 10:20].mul_(-3).add_(right(16, 10)), "part", "10 to 19 of 64"),
        (lambda t: t[:, 3::4].add_(right(16, 16).abs() + 1), "strided", "every 4th index from 3 on (16 of 64)"),
        (lambda t: t.index_copy_(0, torch.tensor([2, 3, 9]), right(3, 64) + 9), "scattered", "3 of 16 indices (2, 3"),
        (lambda t: t.mul_(0.5), "scaled", "0.5 times"),
        (lambda t: t.add_(2.0), "shifted", "+2 off"),
        (lambda t: t.zero_(), "zeros", "all of them are 0"),
        (lambda t: t[5].fill_(float("nan")), "unwritten", "NaN"),
        (lambda t: t[5, 1:3].copy_(torch.tensor([float("inf"), 3.0])), "not-finite", "inf for"),
        (lambda t: t.mul_(1 + 2e-3 * right(16, 64).clamp(-1, 1)), "close", "median error"),
        (lambda t: t.copy_(t.flip(0)), "misplaced", "at other places"),
        (lambda t: t.copy_(t.t().reshape(16, 64)), "transposed", "turned order"),
        (lambda t: t.copy_(right(17, 64)[1:].cos() + 3), "everywhere", "every dimension at every index"),
    ],
)  # fmt: skip
def test_each_kind_of_fault_has_its_pattern(change: Callable[[torch.Tensor], object], pattern: str, said: str) -> None:
    expected = right(16, 64)
    actual = expected.clone()
    change(actual)
    difference = found(actual, expected)
    assert difference.pattern == pattern
    assert said in difference.words()


def test_what_only_all_together_are_too_inaccurate_is_a_matter_of_precision() -> None:
    assert found(right(4, 4), right(4, 4)).pattern == "close"


def test_integers_scalars_and_complex_numbers_are_looked_at_too() -> None:
    assert found(torch.tensor([1, 2, 9]), torch.tensor([1, 2, 3])).wrong == 1
    assert found(torch.tensor(True), torch.tensor(False)).wrong == 1
    turned = torch.view_as_complex(right(5, 2))
    assert found(turned.conj(), turned).region == "in the last dimension only index 1 of 2"


def test_of_a_large_output_the_rows_round_the_first_difference_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "LIMIT", 64)
    expected = right(100, 8)
    actual = expected.clone()
    actual[50, 7] += 1
    difference = found(actual, expected)
    assert difference.wrong == 1
    assert "index 50 of" in difference.region
    assert "looked at [8, 8] of [100, 8]" in difference.region


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.data())
def test_the_count_is_that_of_the_wrong_elements(shape: list[int], data: st.DataObject) -> None:
    expected = right(*shape)
    if not expected.numel():
        assert found(expected, expected).wrong == 0
        return
    places = data.draw(st.sets(st.integers(0, expected.numel() - 1)))
    actual = expected.flatten().clone()
    value = data.draw(st.sampled_from([float("nan"), float("inf"), 1e6, -7.0]))
    actual[sorted(places)] = value
    difference = found(actual.reshape(shape), expected)
    assert difference.wrong == len(places)
    assert difference.words()


@pytest.mark.parametrize(
    ("old", "new", "pattern", "said"),
    [
        ("column < columns;", "column < columns - 4;", "unwritten", "96 to 99, the last 4 of 100"),
        ("value < 0 ? 0 : value", "value * 0.5f", "everywhere", "elements of output are wrong"),
        ("row < rows;", "row < rows / 2;", "unwritten", "16 to 31, the last 16 of 32"),
        ("value < 0 ? 0 : value", "value + row * column + (++calls)", "unstable", "called again on the same inputs"),
    ],
)
def test_the_judge_says_where_a_real_kernel_is_wrong(
    judge: Callable[..., RunResult], old: str, new: str, pattern: str, said: str
) -> None:
    kernel = "static int calls = 0;\n" + KERNEL.replace(old, new)
    result = judge(candidate(kernel=kernel))
    assert result.verdict == "wrong"
    assert result.difference is not None
    if (
        pattern == "unwritten" and result.difference.pattern == "unstable"
    ):  # the allocator gave memory that was not filled
        assert "called again on the same inputs" in result.difference.words()
        return
    assert result.difference.pattern == pattern, result.difference
    assert said in result.difference.words()
    assert result.difference.trial == "x1 #1"
    assert next(check for check in result.checks if check.name == "difference").detail == result.difference.words()


def test_a_kernel_that_changes_its_inputs_is_not_called_unstable(judge: Callable[..., RunResult]) -> None:
    wrong = KERNEL.replace("value < 0 ? 0 : value", "(value < 0 ? 0 : value) + 1")
    result = judge(candidate("z = launch(x, y, self.weight, torch.empty_like(x))\nx.copy_(z)\nreturn z", kernel=wrong))
    assert result.verdict == "wrong"
    assert result.difference is None or result.difference.pattern == "shifted"
