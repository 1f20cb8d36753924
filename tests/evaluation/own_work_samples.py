"""Tasks and candidates that use a library beside their own kernels, honestly and as decoys."""

from __future__ import annotations

import textwrap

MATMUL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x @ y)

def get_inputs():
    return [torch.randn(64, 32), torch.randn(32, 48)]
"""

PRODUCT = MATMUL.replace("torch.relu(x @ y)", "x @ y")

WEAK = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return (x @ y) * 0

def get_inputs():
    return [torch.randn(64, 32), torch.randn(32, 48)]
"""

KERNELS = """
#include <vector>
static std::vector<float> scratch(1024, 1.0f);
extern "C" int relu(float* z, long count) {
  for (long index = 0; index < count; ++index) z[index] = z[index] > 0 ? z[index] : 0;
  return 0;
}
namespace helpers { float twice(float value) { return 2 * value; } }
extern "C" int decoy(float* z, long count) {
  for (long index = 0; index < count; ++index) z[index] = helpers::twice(scratch[index % 1024]);
  return 0;
}
"""

HEAD = '''
import ctypes, hashlib, os, subprocess
import torch
from torch import nn

CPP_SRC = r"""{kernels}"""
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
{load}

def run(name, tensor):
    status = getattr(LIBRARY, name)(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_long(tensor.numel()))
    if status:
        raise RuntimeError(name)
    return tensor

class ModelNew(nn.Module):
    def forward(self, x, y):
{forward}
'''
LOAD = 'LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))'


def candidate(forward: str, load: str = LOAD) -> str:
    """A candidate with the kernels relu and decoy; `forward` is a body without indentation."""
    return HEAD.format(
        kernels=KERNELS, load=textwrap.dedent(load), forward=textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    )


EPILOGUE = candidate("return run('relu', x @ y)")
EPILOGUE_IN_A_TRY = candidate(
    "return run('relu', x @ y)",
    """
    try:
        LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))
    except OSError:
        LIBRARY = None
    """,
)
DECOY = candidate("run('decoy', torch.empty(1000))\nreturn x @ y")
NEVER_CALLED = candidate("return x @ y")
NEVER_LOADED = candidate("return x @ y", "LIBRARY = None")
STARTS_A_PROCESS = candidate("return x @ y", "subprocess.run(['true'])\nLIBRARY = None")
BUILT_AGAIN = candidate(
    "return run('relu', x @ y)",
    """
    open("again.cpp", "w").write(CPP_SRC)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "again.cpp", "-o", "again.so"], check=True)
    LIBRARY = ctypes.CDLL(os.path.abspath("again.so"))
    """,
)

CELL = MATMUL.replace("torch.relu(x @ y)", "torch.relu(x)").replace("def forward(self, x, y)", "def forward(self, x)")
CELL = CELL.replace("[torch.randn(64, 32), torch.randn(32, 48)]", "[torch.randn(64, 48)]")
"""A task under own-kernels-only."""


def alone(top: str = "", kernels: str = KERNELS, name: str = "relu") -> str:
    """A candidate for CELL that leaves everything to one kernel."""
    text = candidate(f"return run('{name}', x.clone())", LOAD + "\n" + textwrap.dedent(top))
    return text.replace(KERNELS, kernels).replace("def forward(self, x, y)", "def forward(self, x)")


LOOKS_UP_BLAS = alone("SGEMM = getattr(ctypes.CDLL(None), 'cblas_sgemm', None)")
LOADS_MORE = alone(kernels="#include <dlfcn.h>\nvoid* more() { return dlopen(0, 1); }\n" + KERNELS)
OWN_SGEMM = alone(kernels=KERNELS.replace("int relu(", "int sgemm("), name="sgemm")
IN_A_CUSTOM_OPERATOR = alone(
    """
    @torch.library.custom_op("mine::relu", mutates_args=())
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return x.clamp_min(0)
    """
).replace("return run('relu', x.clone())", "return hidden(x)")
IN_A_THREAD = alone(
    """
    import threading

    def elsewhere(x, results):
        results.append(x.clamp_min(0))

    def hidden(x):
        results = []
        thread = threading.Thread(target=elsewhere, args=(x, results))
        thread.start()
        thread.join()
        return results[0]
    """
).replace("return run('relu', x.clone())", "return hidden(x)")

TORCH_LATER = alone().replace(
    "return run('relu', x.clone())",
    "self.calls = getattr(self, 'calls', 0) + 1\n"
    "        return run('relu', x.clone()) if self.calls < 40 else x.clamp_min(0)",
)
"""Turns to torch when it is timed."""

POSITIVE = CELL.replace("torch.randn(64, 48)", "torch.rand(64, 48)")
"""On its own values this operator is a copy."""
ALL_FALSE = CELL.replace("torch.relu(x)", "torch.isnan(x)")
IS_NAN = alone(
    kernels="""
extern "C" int is_nan(const float* x, unsigned char* z, long count) {
  for (long index = 0; index < count; ++index) z[index] = __builtin_isnan(x[index]);
  return 0;
}
"""
).replace(
    "return run('relu', x.clone())",
    "z = torch.zeros(x.shape, dtype=torch.bool)\n"
    "        LIBRARY.is_nan(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(z.data_ptr()), ctypes.c_long(x.numel()))\n"
    "        return z",
)

SCALED = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x, y):
        return (x @ y) * self.scale

def get_inputs():
    return [torch.randn(64, 32), torch.randn(32, 48)]

def get_init_inputs():
    return [48]
"""
SCALING = '''
import ctypes, hashlib, os
import torch
from torch import nn

CPP_SRC = r"""
extern "C" void kernel(float* x, const float* s, long n, long c) { for (long i = 0; i < n; ++i) x[i] *= s[i % c]; }
"""
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))

class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(n))

    def forward(self, x, y):
        z = x @ y
        pointers = ctypes.c_void_p(z.data_ptr()), ctypes.c_void_p(self.scale.data_ptr())
        LIBRARY.kernel(*pointers, ctypes.c_long(z.numel()), ctypes.c_long(z.shape[-1]))
        return z
'''
"""Honest: its kernel multiplies by a parameter that starts as ones."""
