"""NaN patterns in free memory: a kernel that relies on zeros, or on what a call before left behind, is found out.

Bytes of 255 are NaN in every floating type and -1 in integers. What is filled is given back at once, so that the next
allocations of the candidate are likely to get it: outputs and scratch memory alike.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SMALL = tuple(1 << power for power in range(6, 21))
"""Bytes: from one cache line to the size from which allocators go other ways."""
OF_EACH = 4
"""Blocks of each small size: a call makes a handful of temporaries."""
LARGEST_BLOCKS = 256
"""Free blocks of the CUDA allocator that are filled, the largest first."""


def poison(output_bytes: int, device: str) -> None:
    """Fills free memory of the allocator: a block of the outputs' size, blocks of many small sizes, and on CUDA the
    free blocks that the caching allocator holds."""
    import torch

    sizes = [output_bytes, *(size for size in SMALL for _ in range(OF_EACH))]
    if device != "cpu":
        sizes = [*_free_blocks(device), *sizes]
    held = []
    for size in sizes:
        try:
            held.append(_filled(size, device))
        except (torch.OutOfMemoryError, RuntimeError):
            break  # memory is scarce: what could be filled is
    del held


def _filled(size: int, device: str) -> torch.Tensor:
    """A block of `size` bytes of 255. On a processor by this thread alone: a team of threads for some kilobytes waits
    for each other up to a second where others use the processor too."""
    import torch

    if device != "cpu":
        return torch.full((size,), 255, dtype=torch.uint8, device=device)
    block = torch.empty(size, dtype=torch.uint8)
    ctypes.memset(block.data_ptr(), 255, size)
    return block


def _free_blocks(device: str) -> list[int]:
    """Bytes of the free blocks that the caching allocator holds on the device, largest first."""
    import torch

    index = torch.device(device).index or 0
    snapshot: Callable[[], list[dict[str, object]]] = torch.cuda.memory_snapshot
    segments = snapshot()
    sizes = [
        block["size"]
        for segment in segments
        if segment["device"] == index
        for block in _list(segment["blocks"])
        if block["state"] == "inactive"
    ]
    return sorted((size for size in sizes if isinstance(size, int)), reverse=True)[:LARGEST_BLOCKS]


def _list(value: object) -> list[dict[str, object]]:
    return value if isinstance(value, list) else []
