"""Compiler options, the same for every kernel: harness and launcher must build the same binary."""

from __future__ import annotations

CPP_FLAGS: tuple[str, ...] = (
    "-O3",
    "-march=native",
    "-std=c++17",
    "-fopenmp",
    "-fPIC",
    "-shared",
    "-fno-math-errno",
    "-fno-trapping-math",
)
"""g++ options. Both -fno options leave every value of IEEE arithmetic as it is; they only let loops with calls and
selections vectorise. -ffast-math is absent on purpose: it assumes that there is no NaN."""

DEFAULT_ARCHITECTURE = "sm_90"
"""What CUDA sources are compiled for where there is no GPU to ask (HTAM_CUDA_ARCH overrides)."""


def nvrtc_options(architecture: str) -> tuple[str, ...]:
    """NVRTC options for one architecture ("sm_90"). No fast-math: a kernel that wants it uses intrinsics, visibly."""
    return (f"--gpu-architecture={architecture}", "--std=c++17")
