"""Whose a GPU kernel is, by its name as the driver's profiler reports it: evidence, since names can be chosen.

Patterns are the naming of PyTorch's, cuBLAS's, cuDNN's, cuFFT's and CUTLASS's kernels as profiles of PyTorch programs
show them. A kernel that a candidate makes of CUTLASS or CUB templates bears their names too, so those say nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
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


def owner_of(name: str, own: Collection[str] = ()) -> Owner:
    """Whose a kernel of this name is: the candidate's own when it is among `own`, the names in its binary, or when the
    name is no library's. A copy or a fill is what the policy leaves to torch."""
    if name in own:
        return "own"
    if COPY.search(name):
        return "copy"
    if LIBRARY.search(name):
        return "library"
    return "unclear" if UNCLEAR.search(name) else "own"


class Kernels:
    """The kernels of one call by owner."""

    def __init__(self, kernels: Iterable[KernelTime], own: Collection[str] = ()) -> None:
        self._of: dict[Owner, list[KernelTime]] = {"own": [], "library": [], "copy": [], "unclear": []}
        for kernel in kernels:
            self._of[owner_of(kernel.name, own)].append(kernel)

    def microseconds(self, owner: Owner) -> float:
        """Their times, added up."""
        return sum(kernel.microseconds for kernel in self._of[owner])

    def named(self, owner: Owner) -> str:
        """The longest-running ones by name."""
        longest = sorted(self._of[owner], key=lambda kernel: -kernel.microseconds)[:3]
        return ", ".join(kernel.name[:80] for kernel in longest)

    @property
    def share(self) -> float:
        """Share of own kernels, with those of unclear owners, of the GPU's time; 0 where nothing ran."""
        total = sum(map(self.microseconds, self._of))
        return (self.microseconds("own") + self.microseconds("unclear")) / total if total else 0.0

    def describe(self) -> str:
        """Times and names of each owner that has any."""
        words = {"own": "own", "library": "a library's", "copy": "copies", "unclear": "of CUTLASS or CUB templates"}
        parts = [
            f"{words[owner]} {self.microseconds(owner):.4g} us ({self.named(owner)})"
            for owner, kernels in self._of.items()
            if kernels
        ]
        return "; ".join(parts)
