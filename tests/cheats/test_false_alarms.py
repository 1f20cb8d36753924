"""Honest files of unusual form: a false alarm counts like a miss. Each task has its own bench."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task
from tests.cheats.flavours import CPP_LAUNCHER, PREAMBLE

TASK = """
import torch
from torch import nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {arguments}):
{reference}

def get_inputs():
    return {inputs}

def get_init_inputs():
    return []
"""
FILE = '''
import ctypes, hashlib, os
import torch
from torch import nn
import torch.nn.functional as F
{top}
CPP_SRC = r"""{kernel}"""
LAUNCHES = []
{launcher}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
{init}

    def forward(self, {arguments}):
{forward}
'''
LOOP = """extern "C" void kernel({parameters}, integer n) {{ for (integer i = 0; i < n; ++i) {{ {body} }} }}\n"""
ONE_INPUT = "[torch.randn(16, 64)]"

Parts = dict[str, str]

IN_PLACE: Parts = {
    "arguments": "x, y",
    "reference": "x.mul_(2).add_(y)\nreturn x",
    "inputs": "[torch.randn(16, 64), torch.randn(16, 64)]",
    "parameters": "float* x, const float* y",
    "body": "x[i] = x[i] * 2 + y[i];",
    "forward": "run('kernel', x.numel(), x, y)\nreturn x",
}
BATCH_NORM: Parts = {
    "arguments": "x",
    "init": "self.norm = nn.BatchNorm1d(8)",
    "reference": "return torch.relu(self.norm(x))",
    "inputs": "[torch.randn(64, 8)]",
    "parameters": "const float* x, float* z, const float* w, const float* b, float* mean, float* var, integer rows",
    "body": """
      float sum = 0, squares = 0;
      for (integer r = 0; r < rows; ++r) sum += x[r * n + i];
      float m = sum / rows;
      for (integer r = 0; r < rows; ++r) squares += (x[r * n + i] - m) * (x[r * n + i] - m);
      float v = squares / rows, scale = w[i] / sqrtf(v + 1e-5f);
      for (integer r = 0; r < rows; ++r) {
        float value = (x[r * n + i] - m) * scale + b[i];
        z[r * n + i] = value > 0 ? value : 0;
      }
      mean[i] = 0.9f * mean[i] + 0.1f * m;
      var[i] = 0.9f * var[i] + 0.1f * squares / (rows - 1);""",
    "forward": """
        z, b = torch.empty_like(x), self.norm
        run('kernel', 8, x, z, b.weight, b.bias, b.running_mean, b.running_var, x.shape[0])
        run('count', 1, b.num_batches_tracked)
        return z""",
    "more": 'extern "C" void count(integer* tracked, integer n) { tracked[0] += n; }\n',
}
DROPOUT: Parts = {
    "arguments": "x",
    "init": "self.drop = nn.Dropout(0.5)\nself.eval()",
    "reference": "return self.drop(x) * 3",
    "inputs": ONE_INPUT,
    "parameters": "const float* x, float* z",
    "body": "z[i] = x[i] * 3;",
    "forward": "z = torch.empty_like(x)\nrun('kernel', x.numel(), x, z)\nreturn z",
}
NESTED: Parts = {
    "arguments": "x",
    "reference": "return {'twice': x * 2, 'parts': (x + 1, [x.shape[0], 'name'])}",
    "inputs": ONE_INPUT,
    "parameters": "const float* x, float* z, float* o",
    "body": "z[i] = x[i] * 2; o[i] = x[i] + 1;",
    "forward": """
        z, o = torch.empty_like(x), torch.empty_like(x)
        run('kernel', x.numel(), x, z, o)
        return {'twice': z, 'parts': (o, [x.shape[0], 'name'])}""",
}
ALIAS: Parts = {
    "arguments": "x",
    "reference": "return x, x[:, ::2], x * 2",
    "inputs": ONE_INPUT,
    "parameters": "const float* x, float* z",
    "body": "z[i] = x[i] * 2;",
    "forward": "z = torch.empty_like(x)\nrun('kernel', x.numel(), x, z)\nreturn x, x[:, ::2], z",
}
STRIDED: Parts = {
    "arguments": "x",
    "reference": "return x.t() * 2",
    "inputs": "[torch.randn(32, 48).t()]",
    "parameters": "const float* x, float* z",
    "body": "z[i] = x[i] * 2;",
    "forward": "z = torch.empty(x.shape[1], x.shape[0])\nassert x.t().is_contiguous()\n"
    "run('kernel', x.numel(), x, z)\nreturn z",
}
MASK: Parts = {
    "arguments": "x, mask, shift",
    "reference": "return torch.where(mask, x + shift, torch.zeros_like(x))",
    "inputs": "[torch.randn(16, 64), torch.rand(16, 64) > 0.5, 3]",
    "parameters": "const float* x, const unsigned char* mask, float* z, integer shift",
    "body": "z[i] = mask[i] ? x[i] + shift : 0.0f;",
    "forward": "z = torch.empty_like(x)\nrun('kernel', x.numel(), x, mask, z, shift)\nreturn z",
}
PROBABILITIES: Parts = {
    "arguments": "p, q",
    "reference": "return F.binary_cross_entropy(p, q)",
    "inputs": "[torch.rand(64, 128) * 0.98 + 0.01, (torch.rand(64, 128) > 0.5).float()]",
    "parameters": "const float* p, const float* q, float* z, integer count",
    "body": """
      double sum = 0;
      for (integer k = 0; k < count; ++k) {
        float a = fmaxf(logf(p[k]), -100.0f), b = fmaxf(log1pf(-p[k]), -100.0f);
        sum -= q[k] * a + (1 - q[k]) * b;
      }
      z[0] = (float)(sum / count);""",
    "forward": "z = torch.empty(())\nrun('kernel', 1, p, q, z, p.numel())\nreturn z",
}
CHATTY: Parts = {
    **DROPOUT,
    "init": "self.work = None",
    "reference": "return x * 3",
    "top": "import warnings, math\nfrom functools import lru_cache",
    "forward": """
        if self.work is None:
            self.work = torch.empty(1 << 16)
            print('allocated a workspace')
        warnings.warn('a word of warning', stacklevel=1)
        z = torch.empty(x.shape)
        run('kernel', math.prod(x.shape), x, z)
        return z""",
}
HONEST = {
    "an operator that works in place": IN_PLACE,
    "batch normalisation in training mode": BATCH_NORM,
    "dropout that is switched off": DROPOUT,
    "outputs in dicts, tuples and lists": NESTED,
    "outputs that alias the input where the reference's do": ALIAS,
    "inputs and outputs with odd strides": STRIDED,
    "booleans and a plain number": MASK,
    "probabilities, and a scalar loss": PROBABILITIES,
    "a workspace, a print and a warning": CHATTY,
}
FAST = ("batch normalisation in training mode", "outputs that alias the input where the reference's do")


def indented(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip("\n"), " " * 8)


def write(folder: Path, parts: Parts) -> tuple[Path, Path]:
    init = parts.get("init", "pass")
    task, kernel = folder / "task.py", folder / "kernel.py"
    task.write_text(
        TASK.format(
            init=indented(init),
            arguments=parts["arguments"],
            reference=indented(parts["reference"]),
            inputs=parts["inputs"],
        )
    )
    code = LOOP.format(parameters=parts["parameters"], body=parts["body"]) + parts.get("more", "")
    kernel.write_text(
        FILE.format(
            top=parts.get("top", ""),
            kernel=PREAMBLE["cpp"] + code,
            launcher=CPP_LAUNCHER,
            init=indented(init),
            arguments=parts["arguments"],
            forward=indented(parts["forward"]),
        )
    )
    return task, kernel


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in HONEST]
)
def test_an_honest_file_of_unusual_form_is_correct(tmp_path: Path, name: str) -> None:
    task, kernel = write(tmp_path, HONEST[name])
    with Bench(Task.parse(str(task)), backend="cpp", folder=tmp_path / "run", limits=Limits(run_seconds=30)) as bench:
        result = bench.run(bench.compile(kernel))
    assert result.verdict == "correct", result
    assert result.times_ms.candidate is not None
