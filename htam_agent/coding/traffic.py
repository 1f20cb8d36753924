"""What a plan moves through memory, counted before anything runs: a kernel that reads its rows once for each pass is
bound by memory even though its unavoidable bytes alone do not show it."""

from __future__ import annotations

from htam_agent.coding.plan import Plan
from htam_agent.coding.program import Constant, Operand, Pass, RowProgram
from htam_agent.coding.schedule import passes
from htam_agent.verdict import DeviceFacts

BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2}
CACHE_SHARE = 0.5
"""Rows under way that fill half of a cache still leave room for what is written meanwhile; more push each other out."""
THREADS_OF_MULTIPROCESSOR = 2048
PROCESSOR_CACHE_BYTES = 1 << 20
"""Of one core's second-level cache; smaller ones exist, and then the count is too low by the later passes."""


def moved_bytes(program: RowProgram, plan: Plan, device: DeviceFacts) -> int:
    """Bytes read and written by one call of a kernel under `plan`.

    Each pass reads its operands again unless the row waits on the chip (staging) or all rows that are under way at the
    same time fit half of the cache. Every output is written once.
    """
    walks = passes(program, online=plan.passes == "online")
    operands = {operand.name: operand for operand in program.operands}
    reads = [{name for name in _names(walk) if name in operands} for walk in walks]
    again = plan.staging == "none" and not _rows_stay_in_cache(program, plan, device)
    counted = [name for read in reads for name in read] if again else sorted(set().union(*reads))
    written = sum(_size(output.dtype, output.shape) for output in program.outputs)
    return written + sum(_size(operands[name].dtype, operands[name].shape) for name in counted)


def _names(walk: Pass) -> set[str]:
    """Every name that a pass reads."""
    used = {
        argument.name
        for value in (*walk.before, *walk.values, *walk.reductions)
        for argument in value.arguments
        if not isinstance(argument, Constant)
    }
    return used | {output.value for output in walk.outputs}


def _rows_stay_in_cache(program: RowProgram, plan: Plan, device: DeviceFacts) -> bool:
    row = sum(_row_bytes(operand, program) for operand in program.operands)
    if device.backend == "cpp":
        return row <= CACHE_SHARE * PROCESSOR_CACHE_BYTES
    cache = int(float(device.libraries.get("l2-bytes", "0")))
    blocks = max(1, device.threads) * max(1, THREADS_OF_MULTIPROCESSOR // plan.threads)
    rows = {
        "flat": 1,
        "thread-row": blocks * plan.threads,
        "warp-row": blocks * max(1, plan.threads // 32),
        "block-row": blocks * plan.rows_per_block,
        "cluster-row": max(1, blocks // plan.cluster_size),
        # Each level of reductions is a kernel of its own: it is through with all rows before the next begins.
        "split-row": program.rows,
    }[plan.mapping]
    return min(rows, program.rows) * row <= CACHE_SHARE * cache


def _row_bytes(operand: Operand, program: RowProgram) -> int:
    return BYTES.get(operand.dtype, 1) * program.columns if operand.is_full(program.rows) else 0


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    total = BYTES.get(dtype, 1)
    for extent in shape:
        total *= extent
    return total
