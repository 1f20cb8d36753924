"""How a kernel file is written for each backend: the same kernel body, forward and constructor, with another launcher.

A kernel's body is text for one index `i` of `n`; integers are `integer`. It is wrapped in a loop for C++ and in a guard
for CUDA, so that each cheat of the table is the same trick on both backends.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from htam_agent.words import Backend
from tests.cheats.tasks import TaskText

HEAD = '''
import ctypes, hashlib, os
import torch
from torch import nn
import torch.nn.functional as F
{top}
{constant} = r"""{kernel}"""
LAUNCHES = []
{launcher}
{after}


class ModelNew(nn.Module):
    def __init__(self, {init_arguments}):
        super().__init__()
{init}

    def forward(self, {arguments}):
{forward}
'''

CPP_LAUNCHER = """
NAME = hashlib.sha256(CPP_SRC.encode() + b"\\0cpp").hexdigest()[:32] + ".so"
LIBRARY = ctypes.CDLL(os.path.join(os.environ["HTAM_KERNEL_DIR"], NAME))

def run(name, n, *values):
    packed = [ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else ctypes.c_longlong(v) for v in values]
    getattr(LIBRARY, name)(*packed, ctypes.c_longlong(n))
    LAUNCHES[:] = [(name, (1, 1, 1), (1, 1, 1), 0)]
"""

CUDA_LAUNCHER = """
DRIVER = ctypes.CDLL("libcuda.so.1")

def checked(status):
    if status:
        text = ctypes.c_char_p()
        DRIVER.cuGetErrorName(status, ctypes.byref(text))
        raise RuntimeError(text.value.decode())

def load():
    target = "sm_%d%d" % torch.cuda.get_device_capability()
    name = hashlib.sha256(CUDA_SRC.encode() + b"\\0" + target.encode()).hexdigest()[:32] + ".cubin"
    torch.empty(1, device="cuda")
    module = ctypes.c_void_p()
    with open(os.path.join(os.environ["HTAM_KERNEL_DIR"], name), "rb") as file:
        checked(DRIVER.cuModuleLoadData(ctypes.byref(module), file.read()))
    return module

MODULE = load()
FUNCTIONS = {}

def function(name):
    if name not in FUNCTIONS:
        FUNCTIONS[name] = ctypes.c_void_p()
        checked(DRIVER.cuModuleGetFunction(ctypes.byref(FUNCTIONS[name]), MODULE, name.encode()))
    return FUNCTIONS[name]

def run(name, n, *values, stream=None):
    handle = ctypes.c_void_p((stream or torch.cuda.current_stream()).cuda_stream)
    packed = [ctypes.c_void_p(v.data_ptr()) if isinstance(v, torch.Tensor) else ctypes.c_longlong(v) for v in values]
    packed.append(ctypes.c_longlong(n))
    pointers = (ctypes.c_void_p * len(packed))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in packed))
    blocks = -(-n // 256)
    checked(DRIVER.cuLaunchKernel(function(name), blocks, 1, 1, 256, 1, 1, 0, handle, pointers, None))
    LAUNCHES[:] = [(name, (blocks, 1, 1), (256, 1, 1), 0)]
"""

CPP_KERNEL = """
extern "C" void {name}({parameters}, integer n) {{
  for (integer i = 0; i < n; ++i) {{
{body}
  }}
}}
"""

CUDA_KERNEL = """
extern "C" __global__ void {name}({parameters}, integer n) {{
  integer i = (integer)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{
{body}
  }}
}}
"""

PREAMBLE: dict[Backend, str] = {
    "cpp": "#include <cmath>\n#include <cstring>\ntypedef long long integer;\n#define DEVICE static inline\n",
    "cuda": "typedef long long integer;\n#define DEVICE static __device__ inline\n",
}


@dataclass(frozen=True)
class Flavour:
    """A backend's way to write a file."""

    backend: Backend

    @property
    def device(self) -> str:
        """Where tensors lie, as torch says it."""
        return "cuda" if self.backend == "cuda" else "cpu"

    def kernel(self, parameters: str, body: str, name: str = "kernel", before: str = "") -> str:
        """A kernel's text. `before` goes to file scope, in front of it."""
        shape = CUDA_KERNEL if self.backend == "cuda" else CPP_KERNEL
        text = shape.format(
            name=name, parameters=parameters, body=textwrap.indent(textwrap.dedent(body).strip(), "    ")
        )
        return textwrap.dedent(before) + text

    def of_task(self, task: TaskText, old: str = "", new: str = "", before: str = "") -> str:
        """The task's honest kernel, with one change if it is given."""
        assert old in task.body, f"the kernel of {task.name} has no {old!r}"
        return self.kernel(task.parameters, task.body.replace(old, new) if old else task.body, before=before)

    def file(
        self,
        task: TaskText,
        forward: str = "",
        *,
        kernel: str = "",
        top: str = "",
        after: str = "",
        init: str = "",
        weights: str | None = None,
    ) -> str:
        """A candidate file. All bodies are without indentation; what is empty is the task's honest one.

        `top` runs at import before anything of the file, `after` after the launcher. `weights` replaces the
        declaration of the parameters, `init` is added behind it.
        """
        own = task.weights if weights is None else weights
        return HEAD.format(
            top=textwrap.dedent(top),
            constant="CUDA_SRC" if self.backend == "cuda" else "CPP_SRC",
            kernel=PREAMBLE[self.backend] + (kernel or self.of_task(task)),
            launcher=CUDA_LAUNCHER if self.backend == "cuda" else CPP_LAUNCHER,
            after=textwrap.dedent(task.after) + textwrap.dedent(after),
            init_arguments=task.init_arguments,
            init=_indented(f"{textwrap.dedent(own)}\n{textwrap.dedent(init)}\npass"),
            arguments=task.arguments,
            forward=_indented(forward or task.forward),
        )


def _indented(text: str) -> str:
    return textwrap.indent(textwrap.dedent(text).strip(), " " * 8)


CPP, CUDA = Flavour("cpp"), Flavour("cuda")
FLAVOURS: dict[Backend, Flavour] = {"cpp": CPP, "cuda": CUDA}
