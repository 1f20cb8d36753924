"""Candidates with real CUDA kernels and a launcher of their own, right and wrong in named ways."""

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
    return [torch.randn(4096, 2048), torch.randn(4096, 2048)]

def get_init_inputs():
    return [2048]
"""

KERNEL = """
extern "C" __global__ void kernel(
    const float* x, const float* y, const float* w, float* z, long long total, int columns) {
  long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index < total) {
    float value = x[index] * w[index % columns] + y[index];
    z[index] = value < 0 ? 0 : value;
  }
}
"""

HEAD = '''
import ctypes, hashlib, os
import torch
from torch import nn

CUDA_SRC = r"""{kernel}"""
DRIVER = ctypes.CDLL("libcuda.so.1")
LAUNCHES = []


def checked(status):
    if status:
        text = ctypes.c_char_p()
        DRIVER.cuGetErrorName(status, ctypes.byref(text))
        raise RuntimeError(text.value.decode())


def load():
    target = "sm_%d%d" % torch.cuda.get_device_capability()
    name = hashlib.sha256(CUDA_SRC.encode() + b"\\0" + target.encode()).hexdigest()[:32] + ".cubin"
    torch.empty(1, device="cuda")
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with open(os.path.join(os.environ["HTAM_KERNEL_DIR"], name), "rb") as file:
        checked(DRIVER.cuModuleLoadData(ctypes.byref(module), file.read()))
    checked(DRIVER.cuModuleGetFunction(ctypes.byref(function), module, b"kernel"))
    return function


FUNCTION = load()


def launch(x, y, w, z, stream=None):
    stream = stream or torch.cuda.current_stream()
    values = [ctypes.c_void_p(t.data_ptr()) for t in (x, y, w, z)]
    values += [ctypes.c_longlong(x.numel()), ctypes.c_int(x.shape[-1])]
    packed = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
    blocks = -(-x.numel() // 256)
    handle = ctypes.c_void_p(stream.cuda_stream)
    checked(DRIVER.cuLaunchKernel(FUNCTION, blocks, 1, 1, 256, 1, 1, 0, handle, packed, None))
    LAUNCHES[:] = [("kernel", (blocks, 1, 1), (256, 1, 1), 0)]
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


def candidate(forward: str = FORWARD, *, kernel: str = KERNEL, init: str = "") -> str:
    """A candidate file; `forward` and `init` are bodies without indentation."""
    return HEAD.format(
        kernel=kernel,
        init=textwrap.indent(textwrap.dedent(init).strip(), " " * 8),
        forward=textwrap.indent(textwrap.dedent(forward).strip(), " " * 8),
    )


def with_kernel(old: str, new: str) -> str:
    """The right candidate with one change in its CUDA."""
    assert old in KERNEL
    return candidate(kernel=KERNEL.replace(old, new))


WRONG = {
    "off by one": with_kernel("w[index % columns]", "w[(index + 1) % columns]"),
    "last element left out": with_kernel("index < total", "index < total - 1"),
    "NaN": with_kernel("value < 0 ? 0 : value", "0.0f / 0.0f"),
    "zeros": with_kernel("value < 0 ? 0 : value", "0"),
    "input changed": candidate("z = launch(x, y, self.weight, torch.empty_like(x))\nx.copy_(z)\nreturn z"),
    "cached output": candidate(
        """
        key = (x.data_ptr(), y.data_ptr())
        if key not in self.known:
            self.known[key] = launch(x, y, self.weight, torch.empty_like(x)).clone()
        return self.known[key]
        """,
        init="self.known = {}",
    ),
}

FAILURES = {
    "illegal access": (with_kernel("z[index] =", "z[index + (1LL << 40)] ="), "run", "illegal memory access"),
    "hang": (
        with_kernel("if (index < total)", "while (x != y) __nanosleep(100);\n  if (index < total)"),
        "run",
        "hang",
    ),
    "out of memory": (candidate("return torch.empty(1 << 46, device='cuda')"), "run", "out of memory"),
    "on the processor": (candidate("return torch.empty(x.shape)"), "run", "lies on cpu"),
    "does not compile": (candidate(kernel="extern \"C\" __global__ void kernel( {"), "compile", "compiler"),
}  # fmt: skip

SIDE_STREAM = candidate(
    """
    z = torch.empty_like(x)
    for _ in range(40):
        launch(x, y, self.weight, z, self.stream)
    return z
    """,
    init="self.stream = torch.cuda.Stream()",
)
"""Works on a stream that the events do not see, faster than the launches can be made."""
