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
SURELY_LIBRARY = re.compile(
    r"\bat::native\b|\bat_cuda_detail\b|\bc10::|cublas|cudnn|cufft|curand|cusparse|cusolver|^nvjet_|xmma_|"
    r"\bpytorch_flash\b|fmha_cutlassF|gemvx::"
)
"""Names that no file's own text explains."""
LIBRARY = re.compile(
    r"^(volta|turing|ampere|hopper|maxwell|sm[5-9]\d|sm1\d\d)_[a-z0-9]+_?(gemm|cudnn|scudnn|xmma|s?gemm|conv)|"
    r"implicit_convolve|explicit_convolve|winograd|splitKreduce_kernel|\bgemv(2[NT]|[NT]+SP|NSP)_kernel|"
    r"^triton_(poi|red|per|tem)_fused|nchwToNhwc|nhwcToNchw|vectorized_elementwise_kernel"
)
UNCLEAR = re.compile(r"\bcutlass\b|\bcub::|\bthrust::|\bcute::|\bflash::")
WRITTEN = re.compile(
    r"__global__\s+(?:(?:static|inline|__forceinline__|void|auto|__launch_bounds__\s*\([^()]*\))\s+)*"
    r"(?:__launch_bounds__\s*\([^()]*\)\s*)?([A-Za-z_]\w*)\s*\(|jit(?:\([^()]*\))?\s*\n\s*def\s+([A-Za-z_]\w*)"
)
"""A kernel in CUDA C++, or in Triton, as a file's text has it."""


def written_names(text: str) -> frozenset[str]:
    """Names of the kernels that a file's text holds."""
    return frozenset(name for found in WRITTEN.findall(text) for name in found if name)


def owner_of(name: str, own: Collection[str] = (), written: Collection[str] = ()) -> Owner:
    """Whose a kernel of this name is: the candidate's own when it is among `own`, the names in its binary, or among
    `written`, those in its text, or when the name is no library's. A copy or a fill is what the policy leaves to torch.
    """
    if name in own:
        return "own"
    if COPY.search(name):
        return "copy"
    if SURELY_LIBRARY.search(name):
        return "library"
    if plain_name(name) in written:
        return "own"
    if LIBRARY.search(name):
        return "library"
    return "unclear" if UNCLEAR.search(name) else "own"


def plain_name(name: str) -> str:
    """The name in the source: "f" of "void (anonymous namespace)::f<float, 4>(float*)" and of "_Z1fPf"."""
    part, rest = "", name[3:] if name.startswith("_ZN") else name[2:] if name.startswith("_Z") else ""
    while length := re.match(r"\d+", rest):  # in Itanium's mangling each name follows its length, outermost first
        end = length.end() + int(length.group())
        part, rest = rest[length.end() : end], rest[end:]
    if part:
        return part
    head = re.split(r"[<(]", name.replace("(anonymous namespace)::", ""), maxsplit=1)[0]
    return head.rpartition("::")[2].split(" ")[-1]


class Kernels:
    """The kernels of one call by owner; `own` and `written` as in owner_of."""

    def __init__(self, kernels: Iterable[KernelTime], own: Collection[str] = (), written: Collection[str] = ()) -> None:
        self._of: dict[Owner, list[KernelTime]] = {"own": [], "library": [], "copy": [], "unclear": []}
        for kernel in kernels:
            self._of[owner_of(kernel.name, own, written)].append(kernel)

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
