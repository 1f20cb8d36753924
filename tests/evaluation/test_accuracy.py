"""The float64 rule: honest float32 arithmetic in any order passes, arithmetic in a shorter type does not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from htam_agent.evaluation import accuracy, families
from htam_agent.evaluation.accuracy import Errors, measure
from htam_agent.evaluation.bench import Bench
from htam_agent.evaluation.float64 import Float64Model
from htam_agent.evaluation.reference_model import ReferenceModel
from htam_agent.evaluation.rounding import to_tf32
from htam_agent.evaluation.strictness import Situation, StrictJudge
from htam_agent.task import Task
from tests.evaluation.samples import candidate

Tensor = torch.Tensor
Call = Callable[..., Tensor]
seeds = st.integers(0, 2**40)


class Module(nn.Module):
    """A function as a model."""

    def __init__(self, function: Call) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


TASK = Task(name="function", kind="file", path="function.py", digest="0" * 64)


def problems(
    function: Call,
    way: Call,
    inputs: Sequence[Tensor],
    declared: Call | None = None,
    allowance: float = 0.0,
    rounds: bool = False,
) -> list[str]:
    """What strict says against a kernel on its inputs and on every family of them."""
    given_inputs = list(inputs)
    model = ReferenceModel(TASK, Module(function), list(given_inputs))
    strict = StrictJudge(Float64Model(model, list(given_inputs), "cpu"), allowance, model if rounds else None)
    strict.begin()
    natures = [families.nature_of(x, x + torch.rand_like(x)) for x in given_inputs]
    found = []
    for number, family in enumerate(("", *families.FAMILIES)):
        values = given_inputs
        if family:
            values = [families.member(family, x, n, 3 + number, 0) for x, n in zip(given_inputs, natures, strict=True)]
        expected = [function(*values)]
        if not bool(expected[0].isfinite().all()):
            continue
        situation = Situation(list(values), [], expected, [declared(*values)] if declared else expected)
        findings = strict.judge([way(*values)], situation, exact=True)
        found += [f"{family}: {finding.detail}" for finding in findings if not finding.passed]
    return found + [f"settled: {finding.detail}" for finding in strict.settle() if not finding.passed]


def tf32(x: Tensor) -> Tensor:
    """Rounded to ten bits, to nearest, as tensor cores take their inputs."""
    return to_tf32(x, cut=False)


SHORTER: dict[str, Callable[[Tensor], Tensor]] = {
    "float16": lambda x: x.half().float(),
    "bfloat16": lambda x: x.bfloat16().float(),
    "tf32": tf32,
}


def serial(x: Tensor) -> Tensor:
    total = torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        total = total + column
    return total


def online_softmax(x: Tensor) -> Tensor:
    most, total = torch.full_like(x[:, :1], -math.inf), torch.zeros_like(x[:, :1])
    for block in x.split(16, 1):
        seen = torch.maximum(most, block.amax(1, keepdim=True))
        total = total * torch.exp(most - seen) + serial(torch.exp(block - seen)).unsqueeze(1)
        most = seen
    return torch.exp(x - most) / total


def one_pass_norm(x: Tensor) -> Tensor:
    mean, square = serial(x) / x.shape[-1], serial(x * x) / x.shape[-1]
    return (x - mean.unsqueeze(1)) * torch.rsqrt((square - mean * mean).clamp_min(0) + 1e-5).unsqueeze(1)


def norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


OPERATORS: dict[str, tuple[Call, Call, int]] = {
    "silu": (functional.silu, lambda x: x * (1.0 / (1.0 + torch.exp(-x))), 1),
    "tanh": (torch.tanh, lambda x: 2.0 / (1.0 + torch.exp(-2.0 * x)) - 1.0, 1),
    "softmax": (lambda x: torch.softmax(x, 1), online_softmax, 1),
    "layer norm": (norm, one_pass_norm, 1),
    "row sums": (lambda x: x.sum(1), serial, 1),
    "matmul": (torch.matmul, lambda x, y: serial(x.unsqueeze(1) * y.t().unsqueeze(0)), 2),
    "loss": (functional.mse_loss, lambda x, y: serial(serial((x - y) * (x - y))) / x.numel(), 2),
}
"""name -> (reference, an honest rearrangement, inputs)."""


def draw(count: int, seed: int, positive: bool) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    make = torch.rand if positive else torch.randn
    first = make(96, 192, generator=generator)
    return [first] if count == 1 else [first, make(192, 96, generator=generator)]


def inputs_of(name: str, seed: int, positive: bool) -> list[Tensor]:
    inputs = draw(OPERATORS[name][2], seed, positive)
    return [inputs[0], inputs[1].t().contiguous()] if name == "loss" else inputs


@pytest.mark.parametrize("name", OPERATORS)
@given(seed=seeds, positive=st.booleans())
@settings(max_examples=3)
def test_an_honest_rearrangement_passes(name: str, seed: int, positive: bool) -> None:
    function, way, _ = OPERATORS[name]
    assert problems(function, way, inputs_of(name, seed, positive)) == []


@pytest.mark.parametrize("shorter", SHORTER)
@pytest.mark.parametrize("name", OPERATORS)
@given(seed=seeds, positive=st.booleans())
@settings(max_examples=2)
def test_a_shorter_type_inside_is_found(name: str, shorter: str, seed: int, positive: bool) -> None:
    function, _, _ = OPERATORS[name]
    cut = SHORTER[shorter]
    assert problems(function, lambda *inputs: function(*map(cut, inputs)), inputs_of(name, seed, positive))


@given(seed=seeds, positive=st.booleans())
@settings(max_examples=3)
def test_tf32_may_be_used_where_the_reference_does(seed: int, positive: bool) -> None:
    def in_tf32(x: Tensor, y: Tensor) -> Tensor:
        return torch.matmul(tf32(x), tf32(y))

    def in_bfloat16(x: Tensor, y: Tensor) -> Tensor:
        return torch.matmul(x.bfloat16().float(), y.bfloat16().float())

    inputs = draw(2, seed, positive)
    serial_tf32: Call = lambda x, y: serial(tf32(x).unsqueeze(1) * tf32(y).t().unsqueeze(0))  # noqa: E731
    assert problems(torch.matmul, serial_tf32, inputs, in_tf32, allowance=2e-3) == []
    assert problems(torch.matmul, in_bfloat16, inputs, in_tf32, allowance=2e-3)


@pytest.mark.parametrize("positive", [False, True])
def test_tf32_may_be_used_where_a_library_prefers_float32(positive: bool) -> None:
    """The reference's own error is that of float32 there (a product with a vector); shorter types are found still."""
    inputs = [draw(2, 1, positive)[0], draw(2, 1, positive)[1][:, :1].contiguous()]
    ways = {name: lambda x, y, cut=cut: torch.matmul(cut(x), cut(y)) for name, cut in SHORTER.items()}
    assert problems(torch.matmul, ways["tf32"], inputs, rounds=True) == []
    cut_off: Call = lambda x, y: torch.matmul(to_tf32(x, cut=True), to_tf32(y, cut=True))  # noqa: E731
    assert problems(torch.matmul, cut_off, inputs, rounds=True) == []
    assert problems(torch.matmul, ways["bfloat16"], inputs, rounds=True)
    assert problems(torch.matmul, ways["tf32"], inputs)


@given(seeds)
def test_rounding_to_tf32_keeps_ten_bits(seed: int) -> None:
    values = torch.randn(500, generator=torch.Generator().manual_seed(seed))
    for cut, most in ((False, 2.0**-11), (True, 2.0**-10)):
        rounded = to_tf32(values, cut=cut)
        assert float(((rounded - values) / values).abs().max()) <= most
        assert torch.equal(to_tf32(rounded, cut=cut), rounded)
        assert not cut or bool((rounded.abs() <= values.abs()).all())


@given(st.floats(1e-20, 1e20), seeds)
def test_the_measures_are_relative_to_the_output(scale: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(70, dtype=torch.float64, generator=generator)
    ours, theirs = exact * (1 + 3e-6), exact * (1 - 1e-6)
    errors = measure(ours * scale, theirs * scale, exact * scale)
    assert errors.count == 70
    assert math.sqrt(errors.ours / 70) == pytest.approx(3e-6, rel=1e-3)
    assert errors.ours_most == pytest.approx(3e-6 * errors.peak, rel=1e-3)
    assert errors.theirs_most == pytest.approx(1e-6 * errors.peak, rel=1e-3)


def test_one_wrong_element_is_found_by_the_maximum() -> None:
    exact = torch.randn(100_000, dtype=torch.float64)
    ours = exact.float()
    assert measure(ours, ours, exact).excess("float32") < 1
    ours[777] += 1e-3
    assert measure(ours, exact.float(), exact).excess("float32") > 1


def test_what_is_not_finite_is_left_to_the_tolerance() -> None:
    exact = torch.tensor([1.0, math.inf, 2.0, math.nan], dtype=torch.float64)
    errors = measure(exact.float(), exact.float(), exact)
    assert errors.count == 2
    assert errors.excess("float32") == 0.0
    assert measure(exact[1:2].float(), exact[1:2].float(), exact[1:2]) == Errors()


def test_zeros_allow_nothing_else() -> None:
    exact = torch.zeros(500, dtype=torch.float64)
    assert measure(exact.float(), exact.float(), exact).excess("float32") == 0.0
    assert measure(exact.float() + 1e-9, exact.float(), exact).excess("float32") == math.inf


def test_few_elements_are_judged_together() -> None:
    """A scalar that is right by chance once proves nothing; wrong by the same share every time it is found."""
    one = Errors(count=1, ours=1e-10, theirs=0.0, peak=1.0, ours_most=1e-5)
    two = one.pooled(Errors(count=1, ours=0.0, theirs=1e-14, peak=1.0, theirs_most=1e-7))
    assert (two.count, two.ours, two.theirs) == (2, 1e-10, 1e-14)
    assert two.ours_most == 1e-5


def test_noise_is_no_ground_for_a_verdict() -> None:
    """The mean of what a norm has made zero in the mean: every kernel returns rounding noise of its own."""

    def mean_of_norm(x: Tensor) -> Tensor:
        return functional.group_norm(x, 2).mean((1, 2))

    def by_hand(x: Tensor) -> Tensor:
        groups = x.reshape(len(x), 2, -1)
        centred = groups - groups.mean(-1, keepdim=True)
        return serial((centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + 1e-5)).flatten(1)) / x[0].numel()

    assert problems(mean_of_norm, by_hand, [torch.rand(300, 4, 50)]) == []


def test_an_operator_that_rounds_nothing_leaves_no_room_for_errors() -> None:
    """A maximum is one of its inputs: a rule in units of the whole output would hide what is small beside it."""
    inputs = [torch.randn(61, 517) * torch.logspace(-4, 2, 61).unsqueeze(1)]

    def flushed(x: Tensor) -> Tensor:
        return torch.where(x.abs() < 1e-3, 0.0, x).amax(1)

    assert problems(lambda x: x.amax(1), lambda x: x.max(1).values, inputs) == []
    assert problems(lambda x: x.amax(1), flushed, inputs)
    exact, rounded = Errors(count=300, peak=3.0), Errors(count=300, peak=3.0, theirs=1e-13, theirs_most=1e-7)
    assert exact.floor("float32") == accuracy.EXACT_FLOOR < rounded.floor("float32")
    assert exact.floor("float32", single=True) == accuracy.HIGHEST_FLOOR, "float32 itself says nothing of its errors"


def test_a_long_sum_has_a_higher_floor_and_no_floor_covers_ten_bits() -> None:
    short, long, endless = (Errors(terms=terms).floor("float32") for terms in (1, 1000, 10**9))
    assert short < long < endless == accuracy.HIGHEST_FLOOR
    assert endless * accuracy.UNIT["float32"] < 2.0**-11 / math.sqrt(3) / 2


def test_the_judge_knows_how_many_terms_the_reference_adds() -> None:
    """Equal terms in one accumulator are rounded alike each time: off by a hundred units, where torch is exact."""
    inputs = [torch.linspace(0.1, 0.19, 300).unsqueeze(1).repeat(1, 4096)]
    errors = measure(serial(inputs[0]), inputs[0].sum(1), inputs[0].double().sum(1))
    assert errors.excess("float32") > 1.0
    assert problems(lambda x: x.sum(1), serial, inputs) == []
    assert problems(lambda x: x.sum(1), lambda x: x.half().float().sum(1), inputs)


SOFTMAX = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(8, 4096)]

def get_init_inputs():
    return []
"""
PLAIN_SOFTMAX = """
#include <cmath>
extern "C" void kernel(const float* x, float* z, long rows, long columns) {
  for (long row = 0; row < rows; ++row) {
    const float* from = x + row * columns;
    float peak = from[0], sum = 0.0f;
    for (long column = 1; column < columns; ++column) peak = std::fmax(peak, from[column]);
    for (long column = 0; column < columns; ++column) sum += std::exp(from[column] - peak);
    for (long column = 0; column < columns; ++column) z[row * columns + column] = std::exp(from[column] - peak) / sum;
  }
}
"""


def test_a_softmax_with_one_accumulator_a_row_is_right_whatever_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(SOFTMAX)
    text = candidate(
        """
        z = torch.empty_like(x)
        LIBRARY.kernel(pointer(x), pointer(z), ctypes.c_long(8), ctypes.c_long(4096))
        LAUNCHES[:] = [("kernel", (1, 1, 1), (1, 1, 1), 0)]
        return z
        """,
        kernel=PLAIN_SOFTMAX,
    )
    text = text.replace("self, columns", "self").replace("self.weight = nn.Parameter(torch.ones(columns))", "")
    (tmp_path / "kernel.py").write_text(text.replace("self, x, y", "self, x"))
    with Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run") as bench:
        for _ in range(3):
            result = bench.run(bench.compile(tmp_path / "kernel.py"), timing=False)
            assert result.verdict == "correct", result.reason


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.float() * 2.0, "float32 values by itself"),
        (lambda x: (x.float() @ x.double().t()).to(x.dtype) if x.dtype == torch.float64 else x @ x.t(), "RuntimeError"),
        (lambda x: (x > 0).long(), "no output is floating"),
    ],
)
def test_where_float64_cannot_be_used_it_says_why(function: Call, reason: str) -> None:
    inputs: list[object] = [torch.randn(8, 8)]
    wide = Float64Model(ReferenceModel(TASK, Module(function), inputs), inputs, "cpu")
    assert reason in wide.reason
    assert wide.run(inputs, []) is None


def test_without_float64_a_shorter_type_is_found_all_the_same() -> None:
    def stubborn(x: Tensor) -> Tensor:
        return torch.tanh(x.float())

    x = torch.randn(64, 64)
    assert problems(stubborn, lambda x: 2.0 * torch.sigmoid(2.0 * x) - 1.0, [x]) == []
    found = problems(stubborn, lambda x: torch.tanh(x.bfloat16().float()), [x])
    assert any("float32 without TF32" in text or "tolerance" in text for text in found)


def test_a_slow_reference_is_not_run_in_float64(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from htam_agent.evaluation import float64

    monkeypatch.setitem(float64.FIRST_CALL_SECONDS, "cpu", 1e-9)
    inputs: list[object] = [torch.randn(8, 8)]
    assert "a call takes" in Float64Model(ReferenceModel(TASK, Module(torch.tanh), inputs), inputs, "cpu").reason
