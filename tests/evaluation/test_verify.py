"""Properties of the comparison."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.evaluation import verify
from htam_agent.evaluation.trees import flatten, specs_of
from htam_agent.words import Protocol

PROTOCOLS: tuple[Protocol, ...] = ("kernelbench", "verified", "verified-fair", "strict")
shapes = st.lists(st.integers(1, 7), max_size=3)
dtypes = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64])
seeds = st.integers(0, 2**32 - 1)


def draw(shape: list[int], dtype: torch.dtype, seed: int, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


@given(shapes, dtypes, seeds, st.sampled_from(PROTOCOLS))
def test_a_tensor_agrees_with_itself(shape: list[int], dtype: torch.dtype, seed: int, protocol: Protocol) -> None:
    tensor = draw(shape, dtype, seed)
    assert verify.compare(tensor.clone(), tensor, protocol).passed


@given(shapes, seeds, st.sampled_from(PROTOCOLS), st.sampled_from([math.nan, math.inf, -math.inf]), st.data())
def test_one_odd_value_is_found_where_it_lies(
    shape: list[int], seed: int, protocol: Protocol, odd: float, data: st.DataObject
) -> None:
    expected = draw(shape, torch.float32, seed)
    index = data.draw(st.integers(0, expected.numel() - 1))
    actual = expected.clone()
    actual.view(-1)[index] = odd
    finding = verify.compare(actual, expected, protocol)
    assert not finding.passed
    place = [int(axis) for axis in torch.unravel_index(torch.tensor(index), expected.shape)] if shape else []
    assert (str(place) in finding.detail) == bool(shape)
    wildcard = math.isnan(odd) and protocol != "strict"
    assert verify.compare(actual, actual.clone(), protocol).passed != wildcard, "allclose: NaN equals nothing"
    assert not verify.compare(expected, actual, protocol).passed


@given(shapes, seeds, st.floats(1e-30, 1e30))
def test_strict_is_free_of_scale(shape: list[int], seed: int, scale: float) -> None:
    expected = draw(shape, torch.float64, seed)
    actual = expected * (1 + 3e-11)
    assert verify.compare(actual * scale, expected * scale, "strict").passed
    if float(expected.abs().max()) > 1e-3:
        assert not verify.compare(expected * scale * 1.01, expected * scale, "strict").passed
        assert not verify.compare(torch.zeros_like(expected), expected * scale, "strict").passed


@given(shapes, seeds, st.sampled_from([1e-20, 1.0, 1e20]))
def test_a_detour_through_a_narrower_type_is_found_in_strict(shape: list[int], seed: int, scale: float) -> None:
    expected = torch.randn([*shape, 9], generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale
    assert not verify.compare(expected.float().double(), expected, "strict").passed
    assert verify.compare(expected.float().double(), expected, "verified").passed or scale > 1
    single = expected.float()
    assert not verify.compare(single.bfloat16().float(), single, "strict").passed
    assert verify.compare((single.double() * (1 + 1e-6)).float(), single, "strict").passed


def test_zeros_pass_an_absolute_tolerance_on_tiny_outputs_and_not_strict() -> None:
    expected = torch.softmax(torch.randn(16, 40000), -1)
    assert verify.compare(torch.zeros_like(expected), expected, "kernelbench").passed is False
    tiny = expected * 1e-2
    assert verify.compare(torch.zeros_like(tiny), tiny, "kernelbench").passed
    assert not verify.compare(torch.zeros_like(tiny), tiny, "strict").passed


@given(seeds, st.floats(1e-3, 0.5))
def test_the_allowance_widens_strict_only(seed: int, allowance: float) -> None:
    expected = draw([50], torch.float32, seed)
    actual = expected + expected.abs() * allowance * 2
    assert verify.compare(actual, expected, "strict", allowance).passed
    assert not verify.compare(expected + 9 * allowance, expected, "kernelbench", allowance).passed


@pytest.mark.parametrize(
    ("actual", "word"),
    [
        (torch.zeros(2, 3), "shape"),
        (torch.zeros(1, 3, 2), "shape"),
        (torch.zeros(0), "shape"),
        (torch.zeros(3, 2, dtype=torch.float64), "dtype"),
        (torch.zeros(3, 2, device="meta"), "meta"),
    ],
)
def test_the_form_is_compared_first(actual: torch.Tensor, word: str) -> None:
    assert word in verify.compare(actual, torch.zeros(3, 2), "kernelbench").detail


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=20), st.integers(1, 3))
def test_integers_are_compared_exactly(values: list[int], change: int) -> None:
    expected = torch.tensor(values)
    actual = expected.clone()
    assert verify.compare(actual, expected, "kernelbench").passed
    actual[-1] += change
    finding = verify.compare(actual, expected, "kernelbench")
    assert not finding.passed
    assert f"[{len(values) - 1}]" in finding.detail
    assert not verify.compare(expected > 9, expected < 9, "strict").passed


def test_complex_values_are_compared() -> None:
    expected = torch.randn(5, dtype=torch.complex64)
    assert verify.compare(expected.clone(), expected, "strict").passed
    assert not verify.compare(expected.conj().resolve_conj(), expected, "strict").passed


@pytest.mark.parametrize("size", [1000, 5000])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    expected = torch.linspace(1.0, 1.1, 37 * 41).reshape(37, 41)
    actual = expected.clone()
    actual[36, 40] += 1.0
    actual[0, 1] += 0.5
    whole = verify.compare(actual, expected, "strict")
    monkeypatch.setitem(verify.CHUNK_BYTES, "cpu", size)
    assert verify.compare(actual, expected, "strict") == whole
    assert "[36, 40]" in whole.detail
    assert "2 of 1517" in whole.detail
    assert verify.rms(expected) == pytest.approx(float(expected.double().square().mean().sqrt()))


def test_rms_leaves_out_what_is_not_finite() -> None:
    assert verify.rms(torch.tensor([3.0, math.nan, 4.0, math.inf])) == pytest.approx(math.sqrt(12.5))
    assert verify.rms(torch.tensor([])) == 0.0
    assert verify.rms(torch.tensor([1e30] * 4)) == pytest.approx(1e30)


@given(seeds)
def test_relative_error_is_the_strict_measure(seed: int) -> None:
    expected = draw([64], torch.float32, seed)
    actual = expected + 1e-3 * draw([64], torch.float32, seed + 1)
    error = verify.relative_error(actual, expected)
    assert verify.compare(actual, expected, "strict", error / 4 * 1.001).passed == (error * 1.001 >= error)
    assert not verify.compare(actual, expected, "strict", error / 4 * 0.9).passed or error * 0.9 < 1e-4


def test_same_bits_sees_what_a_tolerance_does_not() -> None:
    before = torch.tensor([1.0, math.nan, -0.0])
    assert verify.same_bits(before.clone(), before, "input").passed
    after = before.clone()
    after[0] = torch.nextafter(after[0], torch.tensor(2.0))
    assert "input[0]" in verify.same_bits(after, before, "input").detail


def test_the_tree_is_compared() -> None:
    value = {"a": torch.zeros(2), "b": [torch.ones(3, dtype=torch.int64), 4]}
    tree, tensors = flatten(value)
    assert verify.compare_tree(tree, specs_of(tensors), tree, tensors) == ""
    for other in (
        (torch.zeros(2), torch.ones(3, dtype=torch.int64)),
        {"a": torch.zeros(2), "b": [torch.ones(3, dtype=torch.int64), 5]},
        {"a": torch.zeros(2), "c": [torch.ones(3, dtype=torch.int64), 4]},
        {"a": torch.zeros(2), "b": (torch.ones(3, dtype=torch.int64), 4)},
        {"a": torch.zeros(3), "b": [torch.ones(3, dtype=torch.int64), 4]},
        {"a": torch.zeros(2), "b": [torch.ones(3), 4]},
    ):
        claimed, given_tensors = flatten(other)
        assert verify.compare_tree(claimed, specs_of(given_tensors), tree, tensors)


CHUNK = verify.CHUNK_BYTES["cpu"] // 4
odd_values = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1.0, 1.0001, 1.0003, 3e38, 1e-40])
places = st.sampled_from([0, 1, 17, CHUNK - 1, CHUNK, CHUNK + 5, 2 * CHUNK + 2])


@given(
    planted=st.lists(st.tuples(places, odd_values, odd_values), max_size=4),
    noise=st.sampled_from([0.0, 1e-7, 0.9e-4, 1.1e-4, 2.5e-4]),
    size=st.sampled_from([1.0, 1e-3, 1e-28, 1e30]),
    protocol=st.sampled_from(["kernelbench", "strict"]),
)
@settings(max_examples=40)
def test_chunks_that_need_no_second_look_change_no_decision(
    planted: list[tuple[int, float, float]], noise: float, size: float, protocol: Protocol
) -> None:
    """Against the rule as it is written, element by element."""
    generator = torch.Generator().manual_seed(len(planted))
    expected = torch.randn(2 * CHUNK + 3, generator=generator) * size
    actual = expected + noise * size * torch.randn(expected.shape, generator=generator).sign()
    for place, ours, theirs in planted:
        actual[place], expected[place] = ours, theirs
    scale = verify.rms(expected) if protocol == "strict" else 1.0
    limit = (expected.abs() + scale) * verify.tolerance(protocol, "float32")
    close = ((actual - expected).abs() <= limit) & expected.isfinite() & actual.isfinite()
    same = (actual == expected) | (actual.isnan() & expected.isnan() & (protocol == "strict"))
    finite = expected[expected.isfinite()].double()
    assert math.isclose(verify.rms(expected), float(finite.square().mean().sqrt()), rel_tol=1e-6)
    assert verify.compare(actual, expected, protocol).passed == bool((close | same).all())
