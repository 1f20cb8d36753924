"""Complete candidate files from a kernel's text, a constructor and a forward: the vendored launcher alone."""

from __future__ import annotations

import textwrap
from typing import Literal

Backend = Literal["cuda", "cpp"]

TEMPLATE = '''"""{title}"""

{launcher}
from torch import nn

{name}_SRC = r"""
{kernel}
"""
{helper}

class ModelNew(nn.Module):
    def __init__({parameters}):
        super().__init__()
{constructor}

    def forward({inputs}):
{forward}
'''

HELPER = {
    "cuda": """
KERNELS = CudaKernels(CUDA_SRC)


def launch(name, blocks, threads, *arguments):
    KERNELS.launch(name, (blocks, 1, 1), (threads, 1, 1), list(arguments))
""",
    "cpp": """
LIBRARY = load_kernels(CPP_SRC)


def launch(name, blocks, threads, *arguments):
    getattr(LIBRARY, name)(*map(as_c, arguments))


def as_c(item):
    if isinstance(item, torch.Tensor):
        return ctypes.c_void_p(item.data_ptr())
    return ctypes.c_int(item) if isinstance(item, int) else ctypes.c_float(item)
""",
}
"""`launch(name, blocks, threads, *arguments)` on both backends: tensors, int (a C int) and float (a C float)."""


def kernel_file(
    backend: Backend,
    kernel: str,
    *,
    forward: str,
    inputs: str = "x",
    parameters: str = "",
    constructor: str = "",
    title: str = "A kernel written by hand.",
) -> str:
    """The file of one candidate. `inputs` and `parameters` are the names of forward's and of the constructor's
    arguments ("x, y"); `forward` and `constructor` are bodies, in which `launch` runs a kernel of the text."""
    from htam_agent.coding.assembly import launcher_text

    def body(text: str) -> str:
        return textwrap.indent(textwrap.dedent(text).strip() or "pass", " " * 8)

    launcher = launcher_text(backend)
    if "import torch" not in launcher:
        launcher = launcher.replace("import tempfile\n", "import tempfile\n\nimport torch\n", 1)
    return TEMPLATE.format(
        title=title,
        launcher=launcher,
        name=backend.upper(),
        kernel=kernel.strip(),
        helper=HELPER[backend],
        parameters=", ".join(filter(None, ["self", parameters])),
        constructor=body(constructor),
        inputs=", ".join(filter(None, ["self", inputs])),
        forward=body(forward),
    )
