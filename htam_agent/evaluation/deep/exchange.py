"""Tensors in files: how inputs and outputs cross between processes of a deep check."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from htam_agent.evaluation.files import open_plain
from htam_agent.evaluation.trees import TensorSpec, dtype_name

if TYPE_CHECKING:
    import torch


class BadFile(ValueError):
    """A file of tensors that is not what it was said to be."""


def write_tensors(path: Path, tensors: Sequence[torch.Tensor]) -> list[TensorSpec]:
    """Writes tensors of any device and layout, contiguous, one after the other; returns where each lies (bytes)."""
    import torch

    specs: list[TensorSpec] = []
    offset = 0
    with open(path, "wb") as file:
        for tensor in tensors:
            packed = tensor.detach().cpu().contiguous()
            specs.append(
                TensorSpec(
                    shape=list(packed.shape),
                    stride=list(packed.stride()),
                    dtype=dtype_name(packed.dtype),
                    offset=offset,
                )
            )
            flat = packed.reshape(-1).view(torch.uint8)
            file.write(flat.numpy().tobytes())
            offset += flat.numel()
    return specs


def read_tensors(path: Path, specs: Sequence[TensorSpec], device: str, limit: int) -> list[torch.Tensor]:
    """The tensors of a file, each in memory of its own that is exactly as large as it is.

    The file may come from a hostile process. Raises BadFile when it is no plain file, is too short, or holds more than
    `limit` bytes, and OSError when it cannot be read.
    """
    import torch

    tensors = []
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        for spec in specs:
            dtype = getattr(torch, spec.dtype, None)
            if not isinstance(dtype, torch.dtype) or any(extent < 0 for extent in spec.shape):
                raise BadFile(f"a tensor {spec.describe()} cannot be")
            count = math.prod(spec.shape) * dtype.itemsize
            if spec.offset < 0 or spec.offset + count > size or size > limit:
                raise BadFile(f"{size} bytes where {spec.describe()} should lie at {spec.offset}")
            tensor = torch.empty(spec.shape, dtype=dtype)
            if count:
                file.seek(spec.offset)
                data = torch.frombuffer(bytearray(file.read(count)), dtype=torch.uint8)
                tensor.reshape(-1).view(torch.uint8).copy_(data)
            tensors.append(tensor.to(device))
    return tensors
