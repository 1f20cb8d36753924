"""Honest candidates for tasks that are easily misjudged: each was a false alarm once."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.ties import Ties, looking, told_apart
from htam_agent.task import Task
from htam_agent.verdict import RunResult
from htam_agent.words import Precision

HEAD = '''
import ctypes, hashlib, os
import torch
from torch import nn

CPP_SRC = r"""{source}"""
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))

def run(*arguments):
    LIBRARY.kernel(*(
        ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else ctypes.c_long(one) for one in arguments
    ))

'''


def judged(
    folder: Path, task: str, source: str, model: str, *, precision: Precision = "tf32"
) -> tuple[RunResult, list[str]]:
    """The result without timing, and the notes on the task."""
    (folder / "task.py").write_text("import torch\nfrom torch import nn\n" + textwrap.dedent(task))
    (folder / "kernel.py").write_text(HEAD.format(source=source) + textwrap.dedent(model))
    limits = Limits(run_seconds=20)
    task_file = Task.parse(str(folder / "task.py"))
    with Bench(task_file, backend="cpp", folder=folder / "run", precision=precision, limits=limits) as bench:
        result = bench.run(bench.compile(folder / "kernel.py"), timing=False)
        return result, [f"{note.name}: {note.detail}" for note in bench.notes]


TOPK = """
class Model(nn.Module):
    def forward(self, x):
        return torch.topk(x, 4, dim=-1)

def get_inputs():
    return [torch.randn(64, 256)]
"""
LARGEST = """
extern "C" void kernel(const float* x, float* values, long long* places, long rows, long columns) {
  for (long r = 0; r < rows; ++r) {
    const float* p = x + r * columns;
    char used[256] = {};
    for (int k = 0; k < 4; ++k) {
      int best = -1;
      for (int i = 0; i < columns; ++i)
        if (!used[i] && (best < 0 || p[i] > p[best])) best = i;
      used[best] = 1; values[r * 4 + k] = p[best]; places[r * 4 + k] = best;
    }
  }
}
"""
FIND = """
class ModelNew(nn.Module):
    def forward(self, x):
        values, places = torch.empty(x.shape[0], 4), torch.empty(x.shape[0], 4, dtype=torch.int64)
        run(x, values, places, *x.shape)
        return values, places
"""


def test_places_of_equal_values_are_not_judged(tmp_path: Path) -> None:
    result, _ = judged(tmp_path, TOPK, LARGEST, FIND)
    assert result.verdict == "correct", result
    trials = next(check.detail for check in result.checks if check.name == "trials")
    assert "extreme-rows" not in trials, "a milder one without rows of zeros is used"


def test_wrong_places_are_wrong(tmp_path: Path) -> None:
    result, _ = judged(tmp_path, TOPK, LARGEST.replace("= best;\n", "= best ^ (p[best] > 6.0f);\n"), FIND)
    assert result.verdict == "wrong", result


OPERATORS = {
    "argmax": lambda x: torch.argmax(x, -1),
    "max": lambda x: torch.max(x, -1)[1],
    "topk": lambda x: torch.topk(x, 2)[1],
    "sort": lambda x: torch.sort(x)[1],
}


@pytest.mark.parametrize("name", OPERATORS)
@given(values=st.lists(st.integers(-3, 12), min_size=2, max_size=8))
@settings(deadline=None, max_examples=40)
def test_ties_are_seen_where_they_matter_and_nowhere_else(name: str, values: list[int]) -> None:
    tensor, ties = torch.tensor(values, dtype=torch.float32), Ties()
    with looking(ties):
        OPERATORS[name](tensor)
    ordered = sorted(values, reverse=True)
    looked_at = {"argmax": 2, "max": 2, "topk": 3, "sort": len(values)}[name]
    first = ordered[:looked_at]
    if len(set(first)) == len(first):
        assert not ties.operator
    assert ties.looked
    apart = told_apart(tensor, 0)
    assert len(set(apart.tolist())) == len(values)
    assert tensor[apart.argsort()].tolist() == sorted(values)


def test_ties_among_many_are_found() -> None:
    for name, operator in OPERATORS.items():
        ties = Ties()
        with looking(ties):
            operator(torch.zeros(4, 32))
        assert ties.operator == name


HIDDEN = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = torch.zeros(8, 64)

    def forward(self, x):
        self.hidden = torch.tanh(x + self.hidden)
        return self.hidden

def get_inputs():
    return [torch.randn(8, 64)]
"""
TANH = """
#include <cmath>
extern "C" void kernel(const float* x, float* z, long n) { for (long i = 0; i < n; ++i) z[i] = std::tanh(x[i]); }
"""
FRESH = """
class ModelNew(nn.Module):
    def forward(self, x):
        z = torch.empty_like(x)
        run(x, z, x.numel())
        return z
"""


def test_a_tensor_kept_beside_the_buffers_is_said_and_the_reference_lives(tmp_path: Path) -> None:
    result, notes = judged(tmp_path, HIDDEN, TANH, FRESH)
    assert result.verdict == "correct", result
    assert any("hidden" in note and "no buffer" in note for note in notes), notes


WIDENING = """
class Model(nn.Module):
    def forward(self, x):
        m = x.mean(-1, keepdim=True)
        v = (x * x).mean(-1, keepdim=True) - m * m
        y = (x - m) / torch.sqrt(v + 1e-3)
        return torch.softmax(y.float(), -1).to(x.dtype) * x

def get_inputs():
    return [torch.randn(256, 128) + 4.0]
"""


def test_an_exact_kernel_in_half_precision_is_correct_where_the_task_widens_by_itself(tmp_path: Path) -> None:
    source = """
    #include <cmath>
    extern "C" void kernel(const _Float16* x, _Float16* z, long rows, long c) {
      for (long r = 0; r < rows; ++r) {
        const _Float16* p = x + r * c;
        double m = 0, v = 0, t = 0, most = -1e30;
        for (int i = 0; i < c; ++i) m += p[i];
        m /= c;
        for (int i = 0; i < c; ++i) v += (p[i] - m) * (p[i] - m);
        double s = 1 / std::sqrt(v / c + 1e-3);
        for (int i = 0; i < c; ++i) most = std::fmax(most, (p[i] - m) * s);
        for (int i = 0; i < c; ++i) t += std::exp((p[i] - m) * s - most);
        for (int i = 0; i < c; ++i) z[r * c + i] = (_Float16)(std::exp((p[i] - m) * s - most) / t * p[i]);
      }
    }
    """
    result, _ = judged(tmp_path, WIDENING, source, FRESH.replace("x.numel()", "*x.shape"), precision="fp16")
    assert result.protocols["strict"] == "correct", result
