"""Which sizes a kernel of a row program serves besides the traced ones.

The traced graph holds the traced extents as plain numbers (a mean divides by the number of columns), so only those
extents are general on which no number can depend.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from htam_agent.coding.program import Constant, Operand, RowProgram
from htam_agent.words import Record


class Sizes(Record):
    """- `any`: all full operands share one shape, whatever it is; the output has it too.
    - `batch`: the leading extent is free: the tensors in `batched` (sources) and every output have it in common.
      `rows_per_item` rows belong to one item of the batch.
    - `fixed`: the traced shapes only.
    """

    generality: Literal["any", "batch", "fixed"]
    batched: list[str] = Field(default_factory=list)
    rows_per_item: int = 0


FIXED = Sizes(generality="fixed")


def sizes_of(program: RowProgram) -> Sizes:
    """The sizes that a kernel of this program may serve. It is careful: a constant that equals an extent, or its
    inverse, may have come from the shape, and then the extent is not free."""
    if _is_any(program):
        return Sizes(generality="any")
    shapes = [output.shape for output in program.outputs]
    batch = shapes[0][0] if shapes and shapes[0] else 0
    if batch < 2 or any(not shape or shape[0] != batch for shape in shapes) or program.rows % batch:
        return FIXED
    if _mentions(program, {batch}):
        return FIXED
    batched: list[str] = []
    for operand in program.operands:
        if _holds_batch(operand, program.rows, batch):
            batched.append(operand.source)
        elif (program.rows // batch) % (operand.divisor * operand.modulus):
            return FIXED
    if not batched or any(not source.startswith("input:") for source in batched):
        return FIXED
    return Sizes(generality="batch", batched=list(dict.fromkeys(batched)), rows_per_item=program.rows // batch)


def _is_any(program: RowProgram) -> bool:
    full = [operand for operand in program.operands if operand.has_columns]
    shapes = {operand.shape for operand in full} | {output.shape for output in program.outputs}
    if program.reductions or program.rows != 1 or not full or len(shapes) != 1:
        return False
    if any(operand.modulus != 1 for operand in program.operands):
        return False
    if any(output.space != "element" for output in program.outputs):
        return False
    shape = shapes.pop()
    extents = {extent for extent in shape if extent > 2} | {math.prod(shape)}
    return all(operand.source.startswith("input:") for operand in full) and not _mentions(program, extents)


def _holds_batch(operand: Operand, rows: int, batch: int) -> bool:
    reaches_top = operand.divisor * operand.modulus == rows and operand.modulus > 1
    return reaches_top and bool(operand.shape) and operand.shape[0] == batch and operand.modulus % batch == 0


def _mentions(program: RowProgram, extents: set[int]) -> bool:
    numbers = {item.value for value in program.values for item in value.arguments if isinstance(item, Constant)}
    return any(number in extents or (number and 1.0 / number in extents) for number in numbers)
