"""Null kernels: what would pass for a task without computing it - zeros, ones, an input copied, means.

A task that one of them passes proves little, and the result says so. On KernelBench's own values that is no rarity: the
outputs of its L1/23 (softmax), 37 and 39 (norms over many elements) and 53 (minima of many) are so small that zeros lie
within an absolute tolerance, and a ReLU of positive inputs is their copy. A null is followed through the trials of a
protocol as a candidate would be: one that passes the plain values may fail under other ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from htam_agent.evaluation.verify import compare, rms

if TYPE_CHECKING:
    import torch

    from htam_agent.words import Protocol

SAMPLE = 1 << 16
"""Elements on which most nulls are refuted at once."""

Case = tuple[Sequence["torch.Tensor"], Sequence["torch.Tensor"]]
"""Inputs and expected outputs of one trial."""
Make = Callable[["torch.Tensor", Sequence["torch.Tensor"]], "torch.Tensor | None"]


def passing_nulls(cases: Iterable[Case], protocol: Protocol) -> list[str]:
    """Names of the nulls that pass every case under a protocol, tried in turn; cases are asked for only while any is
    left. Outputs that are not floating are left out of account; without floating ones there is no null."""
    left: dict[str, Make] | None = None
    for inputs, expected in cases:
        floating = [tensor for tensor in expected if tensor.is_floating_point() and tensor.numel() > 0]
        if left is None:
            left = nulls_for(len(inputs)) if floating else {}
        scales = [rms(tensor) for tensor in floating] if protocol == "strict" else [1.0] * len(floating)
        pairs = list(zip(floating, scales, strict=True))
        left = {
            name: make
            for name, make in left.items()
            if all(_passes(make, tensor, inputs, protocol, scale) for tensor, scale in pairs)
        }
        if not left:
            break
    return list(left or {})


def nulls_for(inputs: int) -> dict[str, Make]:
    """The nulls of a task with so many inputs."""
    import torch

    made: dict[str, Make] = {
        "zeros": lambda tensor, _: torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape),
        "ones": lambda tensor, _: torch.ones((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape),
    }
    for index in range(inputs):
        made[f"a copy of input {index}"] = _copying(index)
    made["the mean"] = lambda tensor, _: _mean(tensor)
    made["the mean of each row"] = lambda tensor, _: _row_means(tensor)
    return made


def _copying(index: int) -> Make:
    def copy(tensor: torch.Tensor, inputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
        given = inputs[index]
        return given if given.shape == tensor.shape and given.dtype == tensor.dtype else None

    return copy


def _mean(tensor: torch.Tensor) -> torch.Tensor | None:
    """None for one number, which is its own mean."""
    import torch

    if tensor.numel() == 1:
        return None
    return tensor.mean(dtype=torch.float64).to(tensor.dtype).expand(tensor.shape)


def _row_means(tensor: torch.Tensor) -> torch.Tensor | None:
    """Means over the last axis; None for rows of one number, and for a single row, whose mean is `the mean`."""
    import torch

    if tensor.ndim < 2 or tensor.shape[-1] == 1 or tensor.numel() == tensor.shape[-1]:
        return None
    return tensor.mean(-1, keepdim=True, dtype=torch.float64).to(tensor.dtype).expand(tensor.shape)


def _passes(make: Make, tensor: torch.Tensor, inputs: Sequence[torch.Tensor], protocol: Protocol, scale: float) -> bool:
    null = make(tensor, inputs)
    if null is None:
        return False
    first = max(1, SAMPLE // max(1, tensor[0].numel())) if tensor.ndim else 1
    large = tensor.ndim > 0 and tensor.numel() > 2 * SAMPLE
    if large and not compare(null[:first], tensor[:first], protocol, scale=scale).passed:
        return False
    return compare(null, tensor, protocol, scale=scale).passed
