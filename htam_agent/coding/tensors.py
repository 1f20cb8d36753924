"""Symbolic tensors between a traced ATen graph and the row program.

They are single scalar operations, reductions and shape changes. The ATen table (aten.py) builds them bottom up;
lowering.py then walks them top down from the outputs, where it is known which element of the iteration space each
tensor element meets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from htam_agent.coding.program import Op
from htam_agent.words import DType


class Unsupported(Exception):
    """What the row program cannot express. `operator` is the ATen name ("aten.convolution"), `reason` a sentence."""

    def __init__(self, operator: str, reason: str) -> None:
        super().__init__(f"the template coder cannot render {operator}: {reason}")
        self.operator = operator
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Tensor:
    """One symbolic tensor. `arguments` are broadcast to `shape` for kind "op", and single for the other kinds.

    - leaf: a tensor that the caller gives (`source` as in Operand, `dtype` its storage type);
    - constant: `value` everywhere;
    - op: `op` element by element;
    - reduce: `op` over `dimensions`, which stay with extent 1;
    - view: the same elements in row-major order with another shape;
    - permute: `dimensions[i]` is the argument's dimension at place i;
    - expand: broadcasting alone.
    """

    kind: Literal["leaf", "constant", "op", "reduce", "view", "permute", "expand"]
    shape: tuple[int, ...]
    op: Op | None = None
    arguments: tuple[Tensor, ...] = ()
    dimensions: tuple[int, ...] = ()
    value: float = 0.0
    source: str = ""
    dtype: DType = "float32"
    operator: str = field(default="", compare=False)
    """The ATen operator that it comes from, for messages."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def constant(value: float) -> Tensor:
    """A number, 0-d."""
    return Tensor("constant", (), value=float(value))


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by torch's rule. The tracer has checked already that the shapes fit."""
    length = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (length - len(shape)) + shape for shape in shapes]
    return tuple(next((extent for extent in column if extent != 1), 1) for column in zip(*padded, strict=True))


def apply(name: Op, *arguments: Tensor | float) -> Tensor:
    """One scalar operation on tensors and numbers, element by element; numbers fold where both sides are numbers."""
    tensors = tuple(item if isinstance(item, Tensor) else constant(item) for item in arguments)
    return Tensor("op", broadcast_shape(*(item.shape for item in tensors)), op=name, arguments=tensors)


def reduce(name: Op, argument: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    """`name` over `dimensions` (non-negative), which stay with extent 1."""
    shape = tuple(1 if place in dimensions else extent for place, extent in enumerate(argument.shape))
    if shape == argument.shape:
        return argument
    return Tensor("reduce", shape, op=name, arguments=(argument,), dimensions=dimensions)


def view(argument: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The same elements with another shape, which may hold one -1."""
    if -1 in shape:
        known = -math.prod(shape)
        shape = tuple(argument.elements // known if extent == -1 and known else extent for extent in shape)
    if shape == argument.shape:
        return argument
    return Tensor("view", shape, arguments=(argument,))


def expand(argument: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Broadcast to `shape`, where -1 keeps an extent."""
    padded = (1,) * (len(shape) - len(argument.shape)) + argument.shape
    full = tuple(mine if wanted == -1 else wanted for wanted, mine in zip(shape, padded, strict=True))
    return argument if full == argument.shape else Tensor("expand", full, arguments=(argument,))


def permute(argument: Tensor, dimensions: tuple[int, ...]) -> Tensor:
    """Dimensions in another order."""
    if dimensions == tuple(range(len(dimensions))):
        return argument
    shape = tuple(argument.shape[place] for place in dimensions)
    return Tensor("permute", shape, arguments=(argument,), dimensions=dimensions)
