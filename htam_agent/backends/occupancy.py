"""Static occupancy of CUDA kernels.

The limits are those of the table "Technical Specifications per Compute Capability" in NVIDIA's CUDA programming guide
(section Compute Capabilities); the rules of allocation are those of the occupancy calculator in the CUDA toolkit:
registers go to a warp in units of 256 (so the register count of a thread is rounded up to 8), shared memory to a block
in units of 128 bytes (256 before compute capability 8.0), of which the system takes 1 KiB a block from 8.0 on.
"""

from __future__ import annotations

import re

from htam_agent.backends.base import Occupancy
from htam_agent.words import Record

WARP = 32
REGISTERS_PER_MULTIPROCESSOR = 65_536
REGISTERS_PER_THREAD = 255
REGISTER_UNIT = 256
"""Registers of one allocation step of a warp."""


class ArchitectureLimits(Record):
    """What one multiprocessor of a compute capability holds at most. Shared memory in bytes."""

    threads: int
    blocks: int
    shared_bytes: int
    shared_bytes_per_block: int
    shared_unit: int = 128
    reserved_shared_bytes: int = 1024


def _limits(threads: int, blocks: int, shared: int, per_block: int) -> ArchitectureLimits:
    return ArchitectureLimits(
        threads=threads, blocks=blocks, shared_bytes=shared << 10, shared_bytes_per_block=per_block << 10
    )


def _limits_before_8(threads: int, blocks: int, shared: int) -> ArchitectureLimits:
    return _limits(threads, blocks, shared, shared).model_copy(update={"shared_unit": 256, "reserved_shared_bytes": 0})


LIMITS: dict[int, ArchitectureLimits] = {
    70: _limits_before_8(2048, 32, 96),
    75: _limits_before_8(1024, 16, 64),
    80: _limits(2048, 32, 164, 163),
    86: _limits(1536, 16, 100, 99),
    87: _limits(1536, 16, 164, 163),
    89: _limits(1536, 24, 100, 99),
    90: _limits(2048, 32, 228, 227),
    100: _limits(2048, 32, 228, 227),
    103: _limits(2048, 32, 228, 227),
    120: _limits(1536, 24, 100, 99),
    121: _limits(1536, 24, 100, 99),
}


def compute_capability(architecture: str) -> int | None:
    """90 for "sm_90" or "sm_90a"; None for anything else."""
    match = re.fullmatch(r"sm_(\d+)[af]?", architecture)
    return int(match[1]) if match else None


def limits_of(architecture: str) -> ArchitectureLimits | None:
    """The limits of an architecture, or None when the table does not have it (nothing is guessed)."""
    capability = compute_capability(architecture)
    return LIMITS.get(capability) if capability is not None else None


def occupancy(limits: ArchitectureLimits, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """Occupancy of blocks of `threads` threads, `registers` a thread, `shared_bytes` a block (static and dynamic).

    Raises ValueError unless threads is 1 to 1024, registers 0 to 255 and shared_bytes not negative.
    """
    if not (1 <= threads <= 1024 and 0 <= registers <= REGISTERS_PER_THREAD and shared_bytes >= 0):
        raise ValueError(f"impossible block: {threads} threads, {registers} registers, {shared_bytes} bytes shared")
    warps = -(-threads // WARP)
    held = {
        "threads": limits.threads // WARP // warps,
        "blocks": limits.blocks,
        "registers": _by_registers(warps, registers),
        "shared memory": _by_shared(limits, shared_bytes),
    }
    blocks = min(held.values())
    # Of equal bounds the one that a coder can change most easily is named.
    cause = next(name for name in ("registers", "shared memory", "blocks", "threads") if held[name] == blocks)
    return Occupancy(fraction=blocks * warps / (limits.threads // WARP), blocks=blocks, limited_by=cause)


def _by_registers(warps: int, registers: int) -> int:
    if registers == 0:
        return 1 << 30
    warp_registers = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    # Warps are spread over four schedulers, each with a quarter of the registers.
    return REGISTERS_PER_MULTIPROCESSOR // 4 // warp_registers * 4 // warps


def _by_shared(limits: ArchitectureLimits, shared_bytes: int) -> int:
    if shared_bytes > limits.shared_bytes_per_block:
        return 0
    taken = shared_bytes + limits.reserved_shared_bytes
    taken = -(-taken // limits.shared_unit) * limits.shared_unit
    return limits.shared_bytes // taken if taken else 1 << 30
