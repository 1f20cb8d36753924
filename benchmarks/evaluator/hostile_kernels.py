"""Candidates of the hostile run: right ones, wrong ones, and a dozen that try to take the harness down."""

from __future__ import annotations

from benchmarks.evaluator.files import Backend, kernel_file

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
    return [torch.randn(128, 512), torch.randn(128, 512)]

def get_init_inputs():
    return [512]
"""

KERNEL = {
    "cuda": """
extern "C" __global__ void fused(const float* x, const float* y, const float* w, float* z, int total, int columns) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < total) {
    float value = x[index] * w[index % columns] + y[index];
    z[index] = value < 0 ? 0 : value;
  }
}
""",
    "cpp": """
#include <cstdlib>
extern "C" void fused(const float* x, const float* y, const float* w, float* z, int total, int columns) {
  for (int index = 0; index < total; ++index) {
    float value = x[index] * w[index % columns] + y[index];
    z[index] = value < 0 ? 0 : value;
  }
}
""",
}

FORWARD = """
z = torch.empty_like(x)
launch("fused", -(-x.numel() // 256), 256, x, y, self.weight, z, x.numel(), x.shape[1])
"""

WRONG = (("value < 0 ? 0 : value", "value"), ("index < total", "index < total - 1"), ("index % columns", "index % 256"))
"""Changes of the kernel: wrong everywhere where it matters, at the last element, at half of the columns."""

EVERYWHERE = {
    "crash": "ctypes.string_at(8)",
    "abort": "os.abort()",
    "quiet exit": "os._exit(0)",
    "exception": "raise ValueError('no such shape')",
    "hang in Python": "import time\ntime.sleep(3600)",
    "leak of host memory": "import builtins\nbuiltins.kept = bytearray(1 << 28)",
    "prints megabytes": "print('x' * (8 << 20), flush=True)",
    "forks": "if os.fork() == 0:\n    os.setsid()\n    import time\n    time.sleep(3600)",
    "threads": "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,)).start()",
    "fills the disk": "with open(os.path.join(os.environ['HOME'], 'big'), 'wb') as file:\n    file.truncate(1 << 40)",
}
DEVICE = {
    "cuda": {
        "illegal access": ("kernel", "z[index] =", "z[index + (1LL << 40)] ="),
        "misaligned access": ("kernel", "z[index] = value", "*(float4*)(z + index + 1) = make_float4(value, 0, 0, 0)"),
        "hang in a kernel": ("kernel", "if (index < total)", "while (x != y) __nanosleep(100);\n  if (index < total)"),
        "leak of device memory": ("forward", "self.kept = torch.empty(1 << 30, device='cuda')", ""),
        "device memory": ("forward", "torch.empty(1 << 46, device='cuda')", ""),
    },
    "cpp": {
        "illegal access": ("kernel", "z[index] =", "z[index + (1LL << 40)] ="),
        "abort in a kernel": ("kernel", "for (int index", "abort();\n  for (int index"),
        "hang in a kernel": ("kernel", "for (int index", "while (x != y) asm volatile(\"\");\n  for (int index"),
        "host memory": ("forward", "torch.empty(1 << 46)", ""),
    },
}  # fmt: skip
HARMLESS = {"leak of host memory", "leak of device memory", "prints megabytes"}
"""These may end in a correct verdict: what they took is gone with their process."""


def honest(backend: Backend, token: str) -> str:
    """A right kernel; `token` makes its text unlike any other."""
    return _file(backend, KERNEL[backend], FORWARD + "return z", token)


def wrong(backend: Backend, number: int, token: str) -> str:
    """A kernel that computes something else."""
    old, new = WRONG[number % len(WRONG)]
    return _file(backend, KERNEL[backend].replace(old, new), FORWARD + "return z", token)


def hostile_names(backend: Backend) -> list[str]:
    """What `hostile` knows."""
    return [*EVERYWHERE, *DEVICE[backend]]


def hostile(backend: Backend, name: str, token: str) -> str:
    """A kernel that does what its name says, at its first call."""
    kernel = KERNEL[backend]
    before = EVERYWHERE.get(name, "")
    if name in DEVICE[backend]:
        place, old, new = DEVICE[backend][name]
        if place == "kernel":
            assert old in kernel, name
            kernel = kernel.replace(old, new)
        else:
            before = old
    return _file(backend, kernel, f"{before}\n{FORWARD.strip()}\nreturn z", token)


def _file(backend: Backend, kernel: str, forward: str, token: str) -> str:
    return kernel_file(
        backend,
        f"// {token}\n{kernel.strip()}",
        forward=forward,
        inputs="x, y",
        parameters="columns",
        constructor="self.weight = nn.Parameter(torch.ones(columns))",
    )
