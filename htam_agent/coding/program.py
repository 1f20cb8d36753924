"""The row program: what a template kernel computes, independent of backend and plan.

A traced ATen graph that the template coder supports is lowered (coding/lowering.py) to a straight-line program over an
iteration space of `rows` x `columns`. Every value lives in one space:

- `element`: one value for each (row, column);
- `row`: one value for each row (the result of a reduction over columns, or an operand without columns);
- `scalar`: one value.

Values are in single assignment and execution order. All arithmetic is in float32 (float64 programs in float64),
whatever the storage types: a kernel rounds once, on its store.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from htam_agent.words import DType, Record

Space = Literal["element", "row", "scalar"]

Op = Literal[
    # element by element, one argument
    "neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "tanh",
    "sigmoid", "erf", "relu", "sin", "cos", "floor", "ceil", "round", "trunc", "sign", "isnan", "not",
    # two arguments
    "add", "sub", "mul", "div", "maximum", "minimum", "pow", "eq", "ne", "lt", "le", "gt", "ge", "and", "or",
    # three arguments
    "where",
    # over the columns of one row: element -> row. reduce_max and reduce_min propagate NaN.
    "reduce_sum", "reduce_max", "reduce_min",
]  # fmt: skip

REDUCTIONS: tuple[Op, ...] = ("reduce_sum", "reduce_max", "reduce_min")


class Operand(Record):
    """A tensor that the kernel reads. Element (row, column) lies at
    `((row // divisor) % modulus) * (columns if has_columns else 1) + (column if has_columns else 0)`,
    so that a full input has divisor 1 and modulus rows, a weight of one row modulus 1, a channel bias has no columns.
    """

    name: str
    """C identifier: "x0", "p0"."""
    source: str
    """"input:0", "input:1.mask", "parameter:norm.weight" or "buffer:running_mean"."""
    dtype: DType
    shape: tuple[int, ...]
    divisor: int = 1
    modulus: int
    has_columns: bool = True

    def is_full(self, rows: int) -> bool:
        """True when every element of the iteration space reads its own element."""
        return self.has_columns and self.divisor == 1 and self.modulus == rows


class Constant(Record):
    """A number as an argument."""

    value: float


class Use(Record):
    """The name of an operand or of an earlier value as an argument."""

    name: str


class Value(Record):
    """One instruction."""

    name: str
    """C identifier: "v3"."""
    op: Op
    arguments: list[Use | Constant]
    space: Space


class Output(Record):
    """A tensor that the kernel writes: `value` names a Value or Operand; `space` element or row."""

    name: str
    """C identifier: "y0"."""
    value: str
    space: Space
    dtype: DType
    shape: tuple[int, ...]
    """Of the torch tensor that forward returns."""


class RowProgram(Record):
    """The whole operator. `layout` says how forward packs its outputs: a tensor, a tuple or list, or a dict."""

    rows: int
    columns: int
    operands: list[Operand]
    values: list[Value]
    outputs: list[Output]
    layout: Literal["tensor", "tuple", "list", "dict"] = "tensor"
    keys: list[str] = Field(default_factory=list)
    """Keys of a dict layout, in the order of `outputs`."""
    inputs: list[str] = Field(default_factory=list)
    """Forward's positional argument paths in order, used or not: "0", "1.mask"."""
    scalars: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    """Plain Python arguments by path. The program holds for these values only."""

    @property
    def reductions(self) -> list[Value]:
        return [value for value in self.values if value.op in REDUCTIONS]


class Pass(Record):
    """One walk over the columns of a row: `values` are the element instructions that it evaluates (in order, operands
    loaded as needed), ending in `reductions`; the last pass has `outputs` instead. `before` are the row and scalar
    instructions to evaluate once for each row before the walk."""

    before: list[Value] = Field(default_factory=list)
    values: list[Value]
    reductions: list[Value] = Field(default_factory=list)
    outputs: list[Output] = Field(default_factory=list)
