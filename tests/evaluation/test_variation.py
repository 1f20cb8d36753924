"""Other values for inputs: their domain is kept, and what a candidate had kept is wrong for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from htam_agent.errors import TaskError
from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.loading import Inputs
from htam_agent.evaluation.state import changed_values
from htam_agent.evaluation.variation import blended
from htam_agent.task import Task
from tests.evaluation.samples import KERNEL, TASK, candidate

seeds = st.integers(0, 2**56)
factors = st.floats(0.75, 1.0)


def draw(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    square = torch.randn(9, 9)
    return [
        torch.randn(8, 5).t(), torch.rand(7, 3), square.tril(), square + square.t(), torch.randint(0, 9, (20,)),
        torch.rand(6) < 0.5, torch.randn(4, dtype=torch.bfloat16), torch.softmax(torch.randn(3, 4), -1),
    ]  # fmt: skip


def mixed(seed: int, factor: float) -> list[torch.Tensor]:
    value = blended(draw(1), draw(2), factor, seed)
    assert isinstance(value, list)
    return [tensor for tensor in value if isinstance(tensor, torch.Tensor)]


@given(seeds, factors)
def test_a_blend_keeps_layouts_and_convex_domains(seed: int, factor: float) -> None:
    values = mixed(seed, factor)
    assert [(t.shape, t.stride(), t.dtype) for t in values] == [(t.shape, t.stride(), t.dtype) for t in draw(1)]
    assert 0 <= float(values[1].min()) <= float(values[1].max()) < 1
    assert torch.equal(values[2], values[2].tril())
    assert torch.allclose(values[3], values[3].t())
    assert torch.allclose(values[7].sum(-1), torch.full((3,), factor))
    wholes = [tuple(map(torch.equal, values[4:6], draw(first)[4:6])) for first in (1, 2)]
    assert (True, True) in wholes, "integers and booleans come from one draw"


@given(seeds, seeds, factors)
def test_no_two_blends_are_multiples_of_each_other(first: int, second: int, factor: float) -> None:
    if first != second:
        left, right = mixed(first, factor)[0], mixed(second, factor)[0]
        assert not torch.allclose(
            torch.nn.functional.layer_norm(left, (8,)), torch.nn.functional.layer_norm(right, (8,))
        )


def test_values_that_never_change_are_moved() -> None:
    fixed: Inputs = [torch.arange(10.0)]
    value = blended(fixed, fixed, 1.0, 5)
    assert isinstance(value, list)
    (moved,) = value
    assert isinstance(moved, torch.Tensor)
    assert not torch.equal(moved, torch.arange(10.0))
    assert torch.equal(moved.sort().values, torch.arange(10.0))


NORM = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x, y):
        z = x + y
        return z * torch.rsqrt((z * z).mean(-1, keepdim=True)) * self.weight

def get_inputs():
    return [torch.randn(32, 100), torch.randn(32, 100)]

def get_init_inputs():
    return [100]
"""
NORM_KERNEL = """
#include <cmath>
extern "C" void kernel(const float* x, const float* y, const float* w, float* z, long rows, long columns) {
  for (long row = 0; row < rows; ++row) {
    double squares = 0;
    for (long i = row * columns; i < (row + 1) * columns; ++i) squares += (double)(x[i] + y[i]) * (x[i] + y[i]);
    double scale = 1 / std::sqrt(squares / columns);
    for (long i = 0; i < columns; ++i) {
      long at = row * columns + i;
      z[at] = (x[at] + y[at]) * scale * w[i];
    }
  }
}
"""
WRITER = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x, y):
        self.calls += 1
        x.copy_(torch.relu(x * self.weight + y))
        return x + self.calls

def get_inputs():
    return [torch.randn(32, 100), torch.randn(32, 100)]

def get_init_inputs():
    return [100]
"""
WRITER_KERNEL = """
extern "C" void kernel(float* x, const float* y, const float* w, float* calls, float* z) {
  calls[0] += 1;
  for (long i = 0; i < 3200; ++i) {
    float value = x[i] * w[i % 100] + y[i];
    x[i] = value < 0 ? 0 : value;
    z[i] = x[i] + calls[0];
  }
}
"""
WRITE = """z = torch.empty_like(x)
LIBRARY.kernel(*(pointer(t) for t in (x, y, self.weight, self.calls, z)))
LAUNCHES[:] = [('kernel', (1, 1, 1), (1, 1, 1), 0)]"""
KEEPS = {
    "a norm": (NORM, NORM_KERNEL, "z = launch(x, y, self.weight, torch.empty_like(x))", ""),
    "pointwise": (TASK, KERNEL, "z = launch(x, y, self.weight, torch.empty_like(x))", ""),
    "it writes to inputs and state": (WRITER, WRITER_KERNEL, WRITE, "self.register_buffer('calls', torch.zeros(1))"),
}


@pytest.fixture(scope="module", params=KEEPS)
def sample(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bench, str]]:
    """An open bench on a task, and its name in KEEPS."""
    folder = tmp_path_factory.mktemp("keeps")
    (folder / "task.py").write_text(KEEPS[request.param][0])
    task, limits = Task.parse(str(folder / "task.py")), Limits(run_seconds=20)
    with Bench(task, backend="cpp", folder=folder / "run", limits=limits) as opened:
        yield opened, request.param


def text_of(name: str, before: str, after: str) -> str:
    _, kernel, body, init = KEEPS[name]
    text = "\n".join((before, body, after, "return z"))
    return candidate(text, kernel=kernel, init=f"{init}\nself.n, self.kept = 0, None")


def judge(bench: Bench, folder: Path, text: str) -> tuple[str, str, str]:
    file = folder / "kernel.py"
    file.write_text(text)
    result = bench.run(bench.compile(file))
    details = " ".join(check.detail for check in result.checks if check.name == "timed-outputs")
    return result.verdict, result.reason, details


def test_an_honest_kernel_is_correct(sample: tuple[Bench, str], tmp_path: Path) -> None:
    bench, name = sample
    verdict, reason, details = judge(bench, tmp_path, text_of(name, "", ""))
    assert verdict == "correct", reason
    assert "outputs compared" in details
    assert ("in a row from inputs and state" in details) == (name == "it writes to inputs and state")


@pytest.mark.parametrize("after", [20, 24, 200])
def test_an_output_that_is_kept_is_wrong(sample: tuple[Bench, str], tmp_path: Path, after: int) -> None:
    bench, name = sample
    before = f"self.n += 1\nif self.n > {after}: return self.kept.clone()"
    verdict, reason, _ = judge(bench, tmp_path, text_of(name, before, "self.kept = z.clone()"))
    assert verdict == "wrong"
    assert "timed" in reason


def test_doing_nothing_from_some_call_on_is_wrong(sample: tuple[Bench, str], tmp_path: Path) -> None:
    bench, name = sample
    verdict, _, _ = judge(bench, tmp_path, text_of(name, "self.n += 1\nif self.n > 12: return x", ""))
    assert verdict == "wrong"


STRICT_TASKS = {
    "binary cross-entropy": (
        """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, y):
        return nn.functional.binary_cross_entropy(x, y, reduction="none")
def get_inputs(): return [torch.rand(32, 100), torch.rand(32, 100)]
""",
        "x3: the reference fails on it",
    ),
    "an assertion on inputs": (
        """
import torch
from torch import nn
class Model(nn.Module):
    def forward(self, x, y):
        assert float(x.min()) >= 0, "x holds lengths"
        return x + y
def get_inputs(): return [torch.rand(32, 100), torch.rand(32, 100)]
""",
        "x-1: the reference fails on it",
    ),
    "an assertion on parameters": (
        """
import torch
from torch import nn
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.share = nn.Parameter(torch.tensor([0.3, 0.2, 0.5]))
    def forward(self, x, y):
        assert abs(float(self.share.sum()) - 1) < 1e-3, "shares add up to one"
        return x * self.share[0] + y
def get_inputs(): return [torch.rand(32, 100), torch.rand(32, 100)]
""",
        "parameters stay as constructed: the reference fails on it",
    ),
}


@pytest.mark.parametrize("name", STRICT_TASKS)
def test_a_reference_that_refuses_our_values_is_judged_on_its_own(tmp_path: Path, name: str) -> None:
    """A family that the reference's forward raises on is dropped and named; it is no fault of the task."""
    text, said = STRICT_TASKS[name]
    (tmp_path / "task.py").write_text(text)
    formula = {
        "binary cross-entropy": "-y[i] * fmaxf(logf(x[i]), -100) - (1 - y[i]) * fmaxf(log1pf(-x[i]), -100)",
        "an assertion on inputs": "x[i] + y[i]",
        "an assertion on parameters": "x[i] * w[0] + y[i]",
    }[name]
    kernel = f"""
#include <cmath>
extern "C" void kernel(const float* x, const float* y, const float* w, float* z, long rows, long columns) {{
  for (long i = 0; i < rows * columns; ++i) z[i] = {formula};
}}
"""
    weight = "nn.Parameter(torch.tensor([0.3, 0.2, 0.5]))" if "share" in text else "torch.zeros(1)"
    own = candidate(kernel=kernel).replace("nn.Parameter(torch.ones(columns))", weight)
    (tmp_path / "kernel.py").write_text(own.replace("self, columns", "self"))
    task = Task.parse(str(tmp_path / "task.py"))
    with Bench(task, backend="cpp", folder=tmp_path / "run") as bench:
        result = bench.run(bench.compile(tmp_path / "kernel.py"), timing=False)
        assert result.verdict == "correct", result
        assert any(said in check.detail for check in result.checks), result
        assert bench.run(bench.compile(tmp_path / "kernel.py")).verdict == "correct"


def test_a_reference_that_fails_on_its_own_values_is_the_tasks_fault(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK.replace("return torch", "assert x.sum() != x.sum()\n        return torch"))
    with pytest.raises(TaskError, match="fails in forward"):
        Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run").open()


@given(seeds)
def test_other_parameters_keep_what_they_are_and_bold_ones_change_the_sign_of_constants(seed: int) -> None:
    torch.manual_seed(seed)
    values = [torch.ones(300), torch.randn(50, 6), torch.arange(4), torch.full((9,), 2.0)]
    mild, bold = changed_values(values, [True, True, True, False], seed)
    assert bool((mild[0] > 0).all())
    assert 50 < int((bold[0] < 0).sum()) < 150
    assert torch.equal(mild[0].abs(), bold[0].abs())
    for changed in (mild, bold):
        assert [tensor.dtype for tensor in changed] == [tensor.dtype for tensor in values]
        assert not torch.equal(changed[1], values[1])
        assert changed[2] is values[2]
        assert changed[3] is values[3]
