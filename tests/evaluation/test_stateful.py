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

IN_A_ROW = {
    "a buffer counted from what it was at first": (
        KERNEL.replace("count[0] += 1;", "static float first = count[0];\n  count[0] = first + 1;"),
        ("call 2 in a row", "buffer count"),
    ),
    "an input that is written to once": (
        KERNEL.replace(
            "x[column * 20 + row] *= 2;",
            "float twice = x[column * 20 + row] * 2;\n      if (count[0] < 1) x[column * 20 + row] = twice;",
        ).replace("= x[column * 20 + row] +", "= twice +"),
        ("call 2 in a row", "input 0"),
    ),
    "right in the first two calls": (
        KERNEL.replace("+ ids[", "+ (count[0] < 2 ? 1 : 3) * ids["),
        ("call 3 in a row", "output"),
    ),
}
"""kernel, and where it is found: each is right in a call on inputs and state as they were."""
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
    assert any("in a row from inputs and state" in check.detail for check in result.checks)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("name", WRONG)
def test_state_inputs_and_every_output_count(bench: Bench, tmp_path: Path, name: str) -> None:
    kernel, rows, word = WRONG[name]
    result = bench.run(bench.compile(write(tmp_path, kernel, rows)), timing=False)
    assert result.verdict == "wrong", result
    assert word in result.reason


@pytest.mark.parametrize("name", IN_A_ROW)
def test_calls_go_on_from_each_other(bench: Bench, tmp_path: Path, name: str) -> None:
    kernel, (call, what) = IN_A_ROW[name]
    result = bench.run(bench.compile(write(tmp_path, kernel)), timing=False)
    assert result.verdict == "wrong", result
    assert result.reason.startswith(call), result.reason
    assert what in result.reason


def test_a_kernel_that_keeps_no_state_while_it_is_timed_is_wrong(bench: Bench, tmp_path: Path) -> None:
    """It works in the trials, and in timed calls gives the outputs alone."""
    text = CANDIDATE.format(kernel=KERNEL, rows="20").replace(
        "        LIBRARY.kernel(",
        "        if timed():\n            tensors[3] = self.count.clone()\n        LIBRARY.kernel(",
    )
    timed = """
import sys
def timed():
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_measure":
        frame = frame.f_back
    return frame is not None
"""
    (tmp_path / "kernel.py").write_text(timed + text)
    result = bench.run(bench.compile(tmp_path / "kernel.py"))
    assert (result.verdict, result.stage) == ("wrong", "time"), result
    assert "buffer count afterwards" in result.reason
