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
BUILT_AGAIN = candidate(
    "return run('relu', x @ y)",
    """
    open("again.cpp", "w").write(CPP_SRC)
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", "again.cpp", "-o", "again.so"], check=True)
    LIBRARY = ctypes.CDLL(os.path.abspath("again.so"))
    """,
)
