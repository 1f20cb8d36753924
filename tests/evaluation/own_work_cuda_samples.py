"""CUDA candidates that use a library beside their own kernels, honestly and as decoys, in every way of launching."""

from __future__ import annotations

import textwrap

MATMUL = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, y):
        return torch.relu(x @ y)

def get_inputs():
    return [torch.randn(1024, 512), torch.randn(512, 2048)]
"""
PRODUCT = MATMUL.replace("torch.relu(x @ y)", "x @ y")
RELU = MATMUL.replace("torch.relu(x @ y)", "torch.relu(x)").replace("def forward(self, x, y)", "def forward(self, x)")
RELU = RELU.replace("[torch.randn(1024, 512), torch.randn(512, 2048)]", "[torch.randn(8192, 2048)]")

KERNELS = """
extern "C" __global__ void relu(float* z, long long count) {
  long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) z[index] = z[index] > 0 ? z[index] : 0;
}
extern "C" __global__ void decoy(float* z, long long count) {
  long long index = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) z[index] = 1;
}
"""

DRIVER = '''
import ctypes, hashlib, os
import torch
from torch import nn

CUDA_SRC = r"""{kernels}"""
DRIVER = ctypes.CDLL("libcuda.so.1")


def checked(status):
    if status:
        raise RuntimeError(f"CUDA: {{status}}")


def load():
    target = "sm_%d%d" % torch.cuda.get_device_capability()
    name = hashlib.sha256(CUDA_SRC.encode() + b"\\0" + target.encode()).hexdigest()[:32] + ".cubin"
    torch.empty(1, device="cuda")
    module = ctypes.c_void_p()
    with open(os.path.join(os.environ["HTAM_KERNEL_DIR"], name), "rb") as file:
        checked(DRIVER.cuModuleLoadData(ctypes.byref(module), file.read()))
    return module


{load}


def run(name, tensor):
    function = ctypes.c_void_p()
    checked(DRIVER.cuModuleGetFunction(ctypes.byref(function), MODULE, name.encode()))
    values = [ctypes.c_void_p(tensor.data_ptr()), ctypes.c_longlong(tensor.numel())]
    packed = (ctypes.c_void_p * 2)(*map(ctypes.addressof, values))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    blocks = -(-tensor.numel() // 256)
    checked(DRIVER.cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, packed, None))
    return tensor

'''

RUNTIME = '''
import ctypes, os, subprocess
import torch
from torch import nn

TEXT = r"""#include <cuda_runtime.h>
{kernels}
extern "C" int launch_relu(float* z, long long n, void* s) {{
  relu<<<(n + 255) / 256, 256, 0, (cudaStream_t)s>>>(z, n);
  return cudaGetLastError();
}}
extern "C" int launch_decoy(float* z, long long n, void* s) {{
  decoy<<<(n + 255) / 256, 256, 0, (cudaStream_t)s>>>(z, n);
  return cudaGetLastError();
}}
"""


def cuda_compile():
    open("kernel.cu", "w").write(TEXT)
    major, minor = torch.cuda.get_device_capability()
    command = ["nvcc", "-O2", f"-arch=sm_{{major}}{{minor}}", "-shared", "-Xcompiler", "-fPIC", "--cudart=shared"]
    result = subprocess.run([*command, "kernel.cu", "-o", "kernel.so"], capture_output=True, text=True)
    if result.returncode:
        raise RuntimeError(result.stderr[-1000:])
    return ctypes.CDLL(os.path.abspath("kernel.so"))


LIBRARY = cuda_compile()


def run(name, tensor):
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    status = getattr(LIBRARY, "launch_" + name)(
        ctypes.c_void_p(tensor.data_ptr()), ctypes.c_longlong(tensor.numel()), stream)
    if status:
        raise RuntimeError(f"CUDA: {{status}}")
    return tensor

'''

TRITON = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def relu(z, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(z + places, mask=places < count)
    tl.store(z + places, tl.maximum(values, 0.0), mask=places < count)


def run(name, tensor):
    relu[(triton.cdiv(tensor.numel(), 1024),)](tensor, tensor.numel(), BLOCK=1024)
    return tensor

"""

MODEL = """
class ModelNew(nn.Module):
    def forward(self, {arguments}):
{forward}
"""


def with_model(head: str, forward: str, arguments: str = "x, y") -> str:
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    return head + MODEL.format(arguments=arguments, forward=body)


def by_driver(forward: str, arguments: str = "x, y", load: str = "MODULE = load()") -> str:
    """Kernels by the driver's functions, as the launcher of this project loads them."""
    return with_model(DRIVER.format(kernels=KERNELS, load=load), forward, arguments)


def by_runtime(forward: str) -> str:
    """Kernels by the CUDA runtime, built by the file itself."""
    return with_model(RUNTIME.format(kernels=KERNELS), forward)


EPILOGUE = "return run('relu', x @ y)"
DECOY = "run('decoy', torch.empty(1000, device=x.device))\nreturn x @ y"
NEVER_CALLED = "return x @ y"
