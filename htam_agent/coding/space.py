"""Where a tensor's elements lie in the iteration space: arithmetic on runs.

Number the iteration space in row-major order. A tensor dimension of extent n and stride t holds index (e // t) % n at
iteration element e. Adjacent dimensions merge into *runs* [low, high): the part of e between the strides low and high
that the tensor depends on, in row-major order. A full tensor of N elements is the one run [1, N); a weight of C columns
is [1, C); a value for each row of C columns is [C, N); a channel bias of (B, C, H, W) is [HW, CHW).
"""

from __future__ import annotations

Run = tuple[int, int]


def contiguous(shape: tuple[int, ...], first: int = 1) -> tuple[int, ...]:
    """Row-major strides, the last dimension's being `first`; 0 for extents of 1."""
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(0 if extent == 1 else first)
        first *= extent
    return tuple(reversed(strides))


def runs_of(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Run, ...] | None:
    """Merged runs from the outermost to the innermost; None when the dimensions are not in row-major order."""
    runs: list[Run] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        run = (stride, stride * extent)
        if runs and runs[-1][0] == run[1]:
            runs[-1] = (run[0], runs[-1][1])
        elif runs and runs[-1][0] < run[1]:
            return None
        else:
            runs.append(run)
    return tuple(runs)


def reshaped(shape: tuple[int, ...], strides: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...] | None:
    """Strides of the same elements under another shape; None when a dimension would straddle two runs."""
    runs = runs_of(shape, strides)
    if runs is None:
        return None
    pending = list(runs)
    answer: list[int] = []
    for extent in reversed(wanted):
        if extent == 1:
            answer.append(0)
            continue
        if not pending:
            return None
        low, high = pending.pop()
        if (high // low) % extent:
            return None
        answer.append(low)
        if low * extent < high:
            pending.append((low * extent, high))
    return None if pending else tuple(reversed(answer))


def split(runs: tuple[Run, ...], columns: int) -> tuple[int, int, bool] | None:
    """(divisor, modulus, has_columns) of an operand when rows have `columns` elements; None when not expressible."""
    low_part: list[Run] = []
    high_part: list[Run] = []
    for low, high in runs:
        if low < columns:
            low_part.append((low, min(high, columns)))
        if high > columns:
            high_part.append((max(low, columns), high))
    if len(high_part) > 1 or low_part not in ([], [(1, columns)]):
        return None
    if any(low % columns or high % columns for low, high in high_part):
        return None
    divisor, modulus = (high_part[0][0] // columns, high_part[0][1] // high_part[0][0]) if high_part else (1, 1)
    return divisor, modulus, bool(low_part)


def best_columns(total: int, operands: list[tuple[Run, ...]]) -> int | None:
    """The longest row under which every operand is expressible, for programs without reductions: all elements are one
    row when every operand is full or one element."""
    edges = {1, total} | {edge for runs in operands for run in runs for edge in run}
    for columns in sorted((edge for edge in edges if edge and total % edge == 0), reverse=True):
        if all(split(runs, columns) is not None for runs in operands):
            return columns
    return None
