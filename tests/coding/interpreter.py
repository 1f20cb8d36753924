"""Evaluates a row program in float64, element by element as its records say: the meaning that kernels must have."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from htam_agent.coding.program import Constant, Operand, RowProgram, Use, Value

UNARY = {
    "neg": torch.neg, "abs": torch.abs, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log,
    "log2": torch.log2, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal,
    "square": torch.square, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "erf": torch.erf, "relu": torch.relu,
    "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round,
    "trunc": torch.trunc, "sign": torch.sign, "isnan": torch.isnan, "not": torch.logical_not,
}  # fmt: skip
BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum,
    "minimum": torch.minimum, "pow": torch.pow, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge, "and": torch.logical_and, "or": torch.logical_or,
}  # fmt: skip


def evaluate(program: RowProgram, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
    """Outputs in order; `tensors` by source ("input:0")."""
    found = {operand.name: _read(program, operand, tensors[operand.source]) for operand in program.operands}
    for value in program.values:
        found[value.name] = _compute(program, value, found)
    answers = []
    for output in program.outputs:
        value = found[output.value]
        space = (program.rows, program.columns if output.space == "element" else 1)
        answers.append(value.expand(space).reshape(output.shape))
    return answers


def _read(program: RowProgram, operand: Operand, tensor: torch.Tensor) -> torch.Tensor:
    width = program.columns if operand.has_columns else 1
    rows = (torch.arange(program.rows) // operand.divisor) % operand.modulus
    return tensor.double().reshape(-1, width)[rows]


def _compute(program: RowProgram, value: Value, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
    arguments = [_argument(item, found) for item in value.arguments]
    if value.op in UNARY:
        return UNARY[value.op](*arguments).double()
    if value.op in BINARY:
        return BINARY[value.op](*arguments).double()
    if value.op == "where":
        return torch.where(arguments[0] != 0, arguments[1], arguments[2])
    row = arguments[0].expand(program.rows, program.columns)
    if value.op == "reduce_sum":
        return row.sum(1, keepdim=True)
    return (row.amax if value.op == "reduce_max" else row.amin)(1, keepdim=True)


def _argument(item: Use | Constant, found: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.tensor(item.value, dtype=torch.float64) if isinstance(item, Constant) else found[item.name]
