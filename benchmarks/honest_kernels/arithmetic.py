"""Float32 building blocks as kernels have them: sums in several orders, exponentials, error functions.

Each is written in elementwise torch operators on float32 tensors, so that every intermediate result is rounded as in a
kernel, on a CPU and on a GPU alike. Sums run over the last axis.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor


def serial(x: Tensor) -> Tensor:
    """One accumulator, from left to right: what a naive loop does."""
    total = torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        total = total + column
    return total


def lanes(x: Tensor, width: int = 32) -> Tensor:
    """`width` accumulators that are combined at the end: SIMD registers, or the threads of a warp."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % width))
    total = torch.zeros_like(padded[..., :width])
    for piece in padded.split(width, -1):
        total = total + piece
    return tree(total)


def tree(x: Tensor) -> Tensor:
    """Halves added pairwise: a block-wide reduction in shared memory."""
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = torch.nn.functional.pad(x, (0, 1))
        half = x.shape[-1] // 2
        x = x[..., :half] + x[..., half:]
    return x[..., 0]


def kahan(x: Tensor) -> Tensor:
    """Compensated: the rounding error of each addition is carried along."""
    total, lost = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for column in x.unbind(-1):
        wanted = column - lost
        moved = total + wanted
        lost, total = (moved - total) - wanted, moved
    return total


def double_sum(x: Tensor) -> Tensor:
    """A float64 accumulator, rounded once."""
    return x.double().sum(-1).float()


SUMS = {"serial": serial, "lanes": lanes, "tree": tree, "kahan": kahan, "double": double_sum}


def exp_by_two(x: Tensor) -> Tensor:
    """exp(x) as 2^(x log2 e), the instruction that GPUs have."""
    return torch.exp2(x * math.log2(math.e))


def exp_polynomial(x: Tensor) -> Tensor:
    """Range reduction by a two-part ln 2, a Taylor polynomial of degree 6, scaling by a power of two."""
    power = torch.round(x.clamp(-100.0, 88.0) * math.log2(math.e))
    rest = (x.clamp(-100.0, 88.0) - power * 0.693359375) + power * 2.12194440e-4
    value = torch.full_like(rest, 1.0 / 720.0)
    for factor in (120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        value = value * rest + 1.0 / factor
    return torch.ldexp(value, power.to(torch.int32))


EXPONENTIALS = {"exp": torch.exp, "exp2": exp_by_two, "polynomial": exp_polynomial}


def erf_rational(x: Tensor) -> Tensor:
    """Abramowitz and Stegun 7.1.26: |error| <= 1.5e-7."""
    t = 1.0 / (1.0 + 0.3275911 * x.abs())
    value = torch.full_like(t, 1.061405429)
    for coefficient in (-1.453152027, 1.421413741, -0.284496736, 0.254829592):
        value = value * t + coefficient
    return torch.copysign(1.0 - value * t * torch.exp(-x * x), x)


def tanh_by_exp(x: Tensor) -> Tensor:
    """(1 - e) / (1 + e) with e = exp(-2 |x|): cancels near zero, where it is absolute precision that is left."""
    small = torch.exp(-2.0 * x.abs())
    return torch.copysign((1.0 - small) / (1.0 + small), x)


def sigmoid_plain(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + torch.exp(-x))
