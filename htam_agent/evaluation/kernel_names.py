"""Whose a GPU kernel is, by its name as the driver's profiler reports it: evidence, since names can be chosen.

Patterns are the naming of PyTorch's, cuBLAS's, cuDNN's, cuFFT's and CUTLASS's kernels as profiles of PyTorch programs
show them. A kernel that a candidate makes of CUTLASS or CUB templates bears their names too, so those say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

from htam_agent.evaluation.messages import KernelTime

Owner = Literal["own", "library", "copy", "unclear"]

COPY = re.compile(r"^(Memcpy|Memset)\b|at::native::.*(direct_copy|FillFunctor|CatArrayBatchedCopy|copy_kernel)")
LIBRARY = re.compile(
    r"\bat::native\b|\bat_cuda_detail\b|\bc10::|cublas|cudnn|cufft|curand|cusparse|cusolver|^nvjet_|xmma_|"
    r"^(volta|turing|ampere|hopper|maxwell|sm[5-9]\d|sm1\d\d)_[a-z0-9]+_?(gemm|cudnn|scudnn|xmma|s?gemm|conv)|"
    r"implicit_convolve|explicit_convolve|winograd|splitKreduce_kernel|gemv[2nNT]*_kernel|gemvx::|internal::gemvx|"
    r"pytorch_flash|fmha_cutlassF|^triton_(poi|red|per|tem)_fused|nchwToNhwc|nhwcToNchw|vectorized_elementwise_kernel"
)
UNCLEAR = re.compile(r"\bcutlass\b|\bcub::|\bthrust::|\bcute::|\bflash::")


def owner_of(name: str) -> Owner:
    """Whose a kernel of this name is: the candidate's own unless the name is a library's. A copy or a fill is what the
    policy leaves to torch."""
    if COPY.search(name):
        return "copy"
    if LIBRARY.search(name):
        return "library"
    return "unclear" if UNCLEAR.search(name) else "own"


def microseconds_by_owner(kernels: Iterable[KernelTime]) -> dict[Owner, float]:
    """The kernels' times, added up."""
    total: dict[Owner, float] = {"own": 0.0, "library": 0.0, "copy": 0.0, "unclear": 0.0}
    for kernel in kernels:
        total[owner_of(kernel.name)] += kernel.microseconds
    return total


def named(kernels: Iterable[KernelTime], owner: Owner) -> str:
    """The longest-running kernels of an owner, by name."""
    found = sorted((kernel for kernel in kernels if owner_of(kernel.name) == owner), key=lambda k: -k.microseconds)
    return ", ".join(kernel.name[:80] for kernel in found[:3])
