"""Tasks that ask for places of values: equal values say nothing, and must not keep the other odd values away."""

from __future__ import annotations

from pathlib import Path

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from tests.evaluation.samples import candidate

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return torch.argmax(x, dim=1)

def get_inputs():
    return [torch.randn(61, 130), torch.randn(61, 130)]

def get_init_inputs():
    return []
"""
KERNEL = """
#include <cmath>
extern "C" void kernel(const float* x, const float* y, const float* w, long* z, long rows, long columns) {
  for (long row = 0; row < rows; ++row) {
    float peak = -INFINITY;
    for (long i = row * columns; i < (row + 1) * columns; ++i)
      if (x[i] > peak) {
        peak = x[i];
        z[row] = i - row * columns;
      }
  }
}
"""


def arg_max(kernel: str) -> str:
    text = candidate("return launch(x, y, x, torch.zeros(x.shape[0], dtype=torch.int64))", kernel=kernel)
    return text.replace("self, columns", "self").replace("self.weight = nn.Parameter(torch.ones(columns))", "pass")


def test_rows_below_a_wrong_identity_and_tiny_rows_are_tried_without_equal_values(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    faulty = {
        "a maximum that begins at zero": KERNEL.replace("-INFINITY", "0.0f"),
        "a maximum that flushes small values": KERNEL.replace(
            "peak = x[i];", "peak = std::fabs(x[i]) < 1e-3f ? 0.0f : x[i];"
        ),
    }
    limits = Limits(run_seconds=20)
    with Bench(Task.parse(str(tmp_path / "task.py")), backend="cpp", folder=tmp_path / "run", limits=limits) as bench:

        def judged(kernel: str) -> tuple[str, str]:
            (tmp_path / "kernel.py").write_text(arg_max(kernel))
            result = bench.run(bench.compile(tmp_path / "kernel.py"), timing=False)
            return result.verdict, next((c.detail for c in result.checks if c.name == "trials"), result.reason)

        verdict, trials = judged(KERNEL)
        assert verdict == "correct", trials
        assert "extreme-rows" not in trials, "no family was dropped for equal values"
        for name, kernel in faulty.items():
            assert judged(kernel)[0] == "wrong", name
