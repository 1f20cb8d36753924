"""Example operators on which a strategy is tried before it enters a memory, with sizes that fit its preconditions."""

from __future__ import annotations

from dataclasses import dataclass

from htam_agent.memory.model import Preconditions, SelectionState, Strategy
from htam_agent.memory.retrieval import applicable
from htam_agent.operator import OperatorClass, OperatorFeatures
from htam_agent.words import DType, Precision

ROWS, COLUMNS = 66, 1000
"""Sizes where the preconditions leave them open: more than a block's worth of rows, and no power of two."""

LARGEST_BYTES = 64 << 20
"""Of the example's input: beyond this a trial would take longer than a user waits."""

BYTES: dict[DType, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
PRECISIONS: dict[DType, Precision] = {"float32": "ieee", "float16": "fp16", "bfloat16": "bf16"}
"""The precision under which the evaluator runs an example in this type."""

SOURCE = """import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def forward(self, x):
        return {expression}


def get_inputs():
    return [torch.randn({rows}, {columns})]
"""


@dataclass(frozen=True)
class Operator:
    """What `expression` computes, and what a trace of it says (a test compares the two)."""

    expression: str
    operator_class: OperatorClass
    operators: tuple[str, ...]
    reductions: int
    transcendentals: int


OPERATORS = (
    Operator("torch.softmax(x, -1)", "softmax", ("aten._softmax",), 2, 1),
    Operator(
        "functional.gelu(functional.layer_norm(x, x.shape[-1:]))",
        "normalization", ("aten.native_layer_norm", "aten.gelu"), 2, 1,
    ),
    Operator("torch.log_softmax(x, -1)", "softmax", ("aten._log_softmax",), 2, 2),
    Operator("(x.mean(-1), x.var(-1, correction=0))", "reduction", ("aten.mean", "aten.var"), 2, 0),
    Operator("x.amax(-1)", "reduction", ("aten.amax",), 1, 0),
    Operator("functional.silu(x) * 2", "pointwise", ("aten.silu", "aten.mul"), 0, 1),
    Operator(
        "torch.tanh(x) * torch.exp(-x.abs()) + torch.erf(x)",
        "pointwise", ("aten.tanh", "aten.abs", "aten.neg", "aten.exp", "aten.mul", "aten.erf", "aten.add"), 0, 3,
    ),
    Operator("functional.mish(x)", "pointwise", ("aten.mish",), 0, 3),
    Operator("functional.selu(x)", "pointwise", ("aten.elu",), 0, 1),
    Operator("torch.log(x.abs() + 1)", "pointwise", ("aten.abs", "aten.add", "aten.log"), 0, 1),
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """An operator with sizes and type."""

    operator: Operator
    rows: int
    columns: int
    dtype: DType

    @property
    def source(self) -> str:
        """The task file."""
        return SOURCE.format(expression=self.operator.expression, rows=self.rows, columns=self.columns)

    @property
    def precision(self) -> Precision:
        return PRECISIONS[self.dtype]

    def state(self, strategy: Strategy) -> SelectionState:
        """The state before the first step, on a device that has whatever the strategy needs of one."""
        # A pointwise operator on contiguous data has one long row (tracing.features_of).
        rows, columns = (self.rows, self.columns) if self.operator.reductions else (1, self.rows * self.columns)
        item = BYTES[self.dtype]
        features = OperatorFeatures(
            operator_class=self.operator.operator_class,
            dtype=self.dtype,
            rows=rows,
            columns=columns,
            row_bytes=columns * item,
            reductions=self.operator.reductions,
            full_inputs=1,
            transcendentals=self.operator.transcendentals,
            arithmetic_intensity=1.0,
            unavoidable_bytes=2 * rows * columns * item,
        )
        needed = strategy.preconditions.compute_capability_min
        return SelectionState(
            backend=strategy.backend,
            features=features,
            operators=list(self.operator.operators),
            compute_capability=needed if strategy.backend == "cuda" else None,
        )


def examples_for(strategy: Strategy) -> list[Example]:
    """The examples whose facts fit the strategy's preconditions (those on the plan aside), in order."""
    needs = strategy.preconditions
    known = [dtype for dtype in needs.dtypes or ["float32"] if dtype in PRECISIONS]
    if not known:
        return []
    sizes = (known[0], *_sizes(needs, BYTES[known[0]]))
    found = [Example(operator, sizes[1], sizes[2], sizes[0]) for operator in OPERATORS]
    return [
        example
        for example in found
        if example.rows * example.columns * BYTES[example.dtype] <= LARGEST_BYTES
        and applicable(strategy, example.state(strategy)) is None
    ]


def _sizes(needs: Preconditions, item: int) -> tuple[int, int]:
    """Rows and columns within the ranges, near ROWS and COLUMNS."""
    low = max(needs.columns_min or 1, -(-(needs.row_bytes_min or 1) // item))
    high = min(needs.columns_max or 1 << 40, (needs.row_bytes_max or 1 << 42) // item)
    columns = min(max(COLUMNS, low), high)
    multiple = needs.columns_multiple_of or 1
    columns = -(-columns // multiple) * multiple
    rows = max(1, min(ROWS, LARGEST_BYTES // (columns * item)))
    return min(max(rows, needs.rows_min or 1), needs.rows_max or 1 << 40), columns
