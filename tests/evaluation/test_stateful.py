"""A task with everything at once: buffers that change, an input that is written to, dicts, integers, odd strides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from htam_agent.evaluation.bench import Bench, Limits
from htam_agent.task import Task

TASK = """
import torch
from torch import nn

print("noise on stdout")

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, options, scale):
        self.count += 1
        x.mul_(2)
        return {"y": x + options["ids"] * scale, "n": (options["ids"][0].clone(), x.shape[0])}

def get_inputs():
    return [torch.randn(30, 20).t(), {"ids": torch.randint(0, 50, (20, 30))}, 3]
"""

KERNEL = """
extern "C" void kernel(float* x, const long* ids, float* y, float* count, long scale) {
  for (long row = 0; row < 20; ++row)
    for (long column = 0; column < 30; ++column) {
      x[column * 20 + row] *= 2;
      y[row * 30 + column] = x[column * 20 + row] + ids[row * 30 + column] * scale;
    }
  count[0] += 1;
}
"""

CANDIDATE = '''
import ctypes, hashlib, os
import torch
from torch import nn
CPP_SRC = r"""{kernel}"""
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, options, scale):
        assert x.stride() == (1, 20)
        y = torch.empty(20, 30)
        tensors = [x, options["ids"], y, self.count]
        LIBRARY.kernel(*(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors), ctypes.c_long(scale))
        return {{"y": y, "n": (options["ids"][0].clone(), {rows})}}
'''

WRONG = {
    "the buffer is not counted up": (KERNEL.replace("count[0] += 1;", ""), "20", "count"),
    "the input is not written to": (
        KERNEL.replace("*= 2;", "*= 1;").replace("= x[column * 20 + row] +", "= 2 * x[column * 20 + row] +"),
        "20",
        "input 0",
    ),
    "a plain value differs": (KERNEL, "21", "21"),
    "the second output is missing": (KERNEL, "20), 'more': (", "more"),
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("stateful")
    (folder / "task.py").write_text(TASK)
    task = Task.parse(str(folder / "task.py"))
    with Bench(task, backend="cpp", folder=folder / "run", limits=Limits(run_seconds=20), seed=5) as opened:
        yield opened


def write(folder: Path, kernel: str = KERNEL, rows: str = "20") -> Path:
    file = folder / "kernel.py"
    file.write_text(CANDIDATE.format(kernel=kernel, rows=rows))
    return file


def test_a_right_kernel_is_correct_and_timed(bench: Bench, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    result = bench.run(bench.compile(write(tmp_path)))
    assert result.verdict == "correct", result
    assert result.interval is not None
    assert any("one more call" in check.detail for check in result.checks)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", WRONG)
def test_state_inputs_and_every_output_count(bench: Bench, tmp_path: Path, name: str) -> None:
    kernel, rows, word = WRONG[name]
    result = bench.run(bench.compile(write(tmp_path, kernel, rows)), timing=False)
    assert result.verdict == "wrong", result
    assert word in result.reason
