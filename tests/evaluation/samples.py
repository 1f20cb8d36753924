"""Task and candidate texts for the tests of the evaluation: real C++ kernels, right and wrong in named ways."""

from __future__ import annotations

import textwrap

TASK = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))

    def forward(self, x, y):
        return torch.relu(x * self.weight + y)

def get_inputs():
    return [torch.randn(32, 100), torch.randn(32, 100)]

def get_init_inputs():
    return [100]
"""

KERNEL = """
extern "C" void kernel(const float* x, const float* y, const float* w, float* z, long rows, long columns) {
  for (long row = 0; row < rows; ++row)
    for (long column = 0; column < columns; ++column) {
      float value = x[row * columns + column] * w[column] + y[row * columns + column];
      z[row * columns + column] = value < 0 ? 0 : value;
    }
}
"""

HEAD = '''
import ctypes, hashlib, os
import torch
from torch import nn
{top}
CPP_SRC = r"""{kernel}"""
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))
LAUNCHES = []

def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())

def launch(x, y, w, z):
    LIBRARY.kernel(pointer(x), pointer(y), pointer(w), pointer(z), ctypes.c_long(x.shape[0]), ctypes.c_long(x.shape[1]))
    LAUNCHES[:] = [("kernel", (1, 1, 1), (1, 1, 1), 0)]
    return z

class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(columns))
{init}

    def forward(self, x, y):
{forward}
'''

FORWARD = "return launch(x, y, self.weight, torch.empty_like(x))"


def candidate(forward: str = FORWARD, *, kernel: str = KERNEL, top: str = "", init: str = "") -> str:
    """A candidate file; `forward` and `init` are bodies without indentation."""
    return HEAD.format(
        top=textwrap.dedent(top),
        kernel=kernel,
        init=textwrap.indent(textwrap.dedent(init).strip(), " " * 8),
        forward=textwrap.indent(textwrap.dedent(forward).strip(), " " * 8),
    )


def with_kernel(old: str, new: str) -> str:
    """The right candidate with one change in its C++."""
    assert old in KERNEL
    return candidate(kernel=KERNEL.replace(old, new))


WRONG = {
    "off by one column": with_kernel("w[column]", "w[column + 1 < columns ? column + 1 : column]"),
    "last column left out": with_kernel("column < columns;", "column < columns - 1;"),
    "NaN everywhere": with_kernel("value < 0 ? 0 : value", "0.0f / 0.0f"),
    "one NaN": candidate(FORWARD.replace("return ", "z = ") + "\nz[3, 7] = float('nan')\nreturn z"),
    "half the rows": with_kernel("row < rows;", "row < rows / 2;"),
    "zeros": with_kernel("value < 0 ? 0 : value", "0"),
    "wrong dtype": candidate(FORWARD + ".to(torch.float64)"),
    "wrong shape": candidate(FORWARD + ".unsqueeze(0)"),
    "a tuple": candidate("return (launch(x, y, self.weight, torch.empty_like(x)),)"),
    "its input changed": candidate("z = launch(x, y, self.weight, torch.empty_like(x))\nx.copy_(z)\nreturn z"),
    "its parameter changed": candidate(
        "z = launch(x, y, self.weight, torch.empty_like(x))\nself.weight.data.zero_()\nreturn z"
    ),
    "the first output again": candidate(
        """
        if self.last is None:
            self.last = launch(x, y, self.weight, torch.empty_like(x)).clone()
        return self.last
        """,
        init="self.last = None",
    ),
    "outputs cached by address": candidate(
        """
        key = (x.data_ptr(), y.data_ptr())
        if key not in self.known:
            self.known[key] = launch(x, y, self.weight, torch.empty_like(x)).clone()
        return self.known[key]
        """,
        init="self.known = {}",
    ),
    "the parameter as constructed": candidate(
        "return launch(x, y, self.kept, torch.empty_like(x))", init="self.kept = torch.ones(columns)"
    ),
}
"""name -> text: each builds and runs, and is wrong."""

NAMED_FAILURES = {
    "crash by signal": (candidate("ctypes.string_at(8)"), "run", "SIGSEGV"),
    "abort in a kernel": (
        candidate(kernel="#include <cstdlib>\n" + KERNEL.replace("for (long row", "abort();\n  for (long row", 1)),
        "run",
        "SIGABRT",
    ),
    "quiet exit": (candidate("os._exit(0)"), "run", "exited with code 0"),
    "sys.exit": (candidate("import sys\nsys.exit(0)"), "run", "SystemExit"),
    "exception": (candidate("raise ValueError('no such shape')"), "run", "ValueError: no such shape (line"),
    "exception in the constructor": (candidate(init="raise ValueError('bad columns')"), "construct", "bad columns"),
    "exception at import": (candidate(top="raise RuntimeError('at import')"), "load", "RuntimeError: at import"),
    "exit at import": (candidate(top="os._exit(3)"), "load", "code 3"),
    "another constructor": (
        candidate().replace("def __init__(self, columns):", "def __init__(self, columns, more):"),
        "construct",
        "TypeError",
    ),
    "another forward": (
        candidate().replace("def forward(self, x, y):", "def forward(self, x):\n        y = x"),
        "run",
        "TypeError",
    ),
    "no parameter": (
        candidate().replace("self.weight = nn.Parameter(torch.ones(columns))", "self.columns = columns"),
        "construct",
        "parameters",
    ),
    "a parameter of another shape": (
        candidate().replace("torch.ones(columns)", "torch.ones(columns + 1)"),
        "construct",
        "shape",
    ),
    "a parameter more": (candidate(init="self.extra = nn.Parameter(torch.ones(3))"), "construct", "extra"),
    "torch from the second call on": (
        candidate(
            f"self.n += 1\nif self.n > 1: return (x * self.weight + y).clamp_min(0)\n{FORWARD}", init="self.n = 0"
        ),
        "policy",
        "aten.mul",
    ),
    "operators of torch under another name": (
        candidate("return P.add(P.mul(x, x), y)", top="P = torch.ops.prims"),
        "policy",
        "prims.mul",
    ),
    "a kernel that is never launched": (
        candidate(
            "LIBRARY.kernel(*map(pointer, (x, y, self.weight, z := torch.empty_like(x))), "
            "ctypes.c_long(32), ctypes.c_long(100))\nreturn z"
        ),
        "policy",
        "launched",
    ),
    "no tensor": (candidate("return 'a tensor, I swear'"), "verify", "value"),
    "a subclass": (
        candidate(FORWARD + ".as_subclass(Fake)", top="class Fake(torch.Tensor): pass"),
        "run",
        "not exactly a torch.Tensor",
    ),
    "a lazy tensor": (candidate("return torch.empty(x.shape, device='meta')"), "run", "no dense tensor with storage"),
    "torch does it": (candidate("return torch.relu(x * self.weight + y)"), "policy", "torch.relu"),
    "torch does it unseen": (candidate("return (x * self.weight + y).clamp_min(0)"), "policy", "aten.mul"),
    "memory": (candidate("return torch.zeros(1 << 44)"), "run", "out of memory"),
}  # fmt: skip
"""name -> (text, stage, part of the reason): each is a failure with a name (a wrong type of result is `wrong`)."""
