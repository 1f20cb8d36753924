"""Files that build themselves when they are imported: torch's load_inline inside the confinement."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.evaluation.confinement import LAYERS
from htam_agent.task import Task
from tests.evaluation.samples import TASK

SOURCE = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = """
torch::Tensor fused(torch::Tensor x, torch::Tensor y, torch::Tensor w) {{
  auto z = torch::empty_like(x);
  const float *a = x.data_ptr<float>(), *b = y.data_ptr<float>(), *c = w.data_ptr<float>();
  float* d = z.data_ptr<float>();
  for (long i = 0; i < x.numel(); ++i) {{
    float value = a[i] * c[i % w.numel()] + b[i];
    d[i] = value < 0 ? 0 : value;
  }}
  return z;
}}
"""
module = load_inline(name="{name}", cpp_sources=CPP, functions=["fused"], verbose=True)

class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x, y):
        return module.fused(x, y, self.weight)
'''


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    if shutil.which("ninja") is None:
        pytest.skip("torch builds extensions with ninja, which is not installed")
    folder = tmp_path_factory.mktemp("patient")
    (folder / "task.py").write_text(TASK)
    limits = Limits(build_seconds=300, total_seconds=400)
    with Bench(Task.parse(str(folder / "task.py")), backend="cpp", folder=folder / "run", limits=limits) as bench:
        yield bench


@pytest.mark.slow
def test_load_inline_builds_inside_every_layer(patient: Bench, tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(SOURCE.format(name="fused_extension"))
    compiled = patient.compile(file)
    assert compiled.deferred
    result = patient.run(compiled, timing=False)
    assert result.verdict == "correct", result
    assert result.confinement == list(LAYERS), result.confinement_missing
