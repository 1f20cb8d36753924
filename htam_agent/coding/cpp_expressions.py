"""C++ text of row-program instructions. Every value is a `const real`; the op_ functions stand in the skeleton."""

from __future__ import annotations

import math

from htam_agent.coding.program import Constant, Op, Operand, Use, Value
from htam_agent.words import DType

STORAGE: dict[DType, str] = {
    "float32": "float", "float64": "double", "float16": "half_t", "bfloat16": "bfloat_t", "bool": "bool_t",
}  # fmt: skip
"""C++ type of one stored element; load() and store() are overloaded on it."""

_TEXT: dict[Op, str] = {
    "neg": "-{0}", "abs": "op_abs({0})", "exp": "op_exp({0})", "exp2": "std::exp2({0})", "expm1": "op_expm1({0})",
    "log": "op_log({0})", "log2": "std::log2({0})", "log1p": "op_log1p({0})", "sqrt": "std::sqrt({0})",
    "rsqrt": "real(1) / std::sqrt({0})", "reciprocal": "real(1) / {0}", "square": "{0} * {0}", "tanh": "op_tanh({0})",
    "sigmoid": "op_sigmoid({0})", "erf": "op_erf({0})", "relu": "op_relu({0})", "sin": "std::sin({0})",
    "cos": "std::cos({0})", "floor": "std::floor({0})", "ceil": "std::ceil({0})", "round": "std::nearbyint({0})",
    "trunc": "std::trunc({0})", "sign": "real({0} > 0) - real({0} < 0)", "isnan": "real({0} != {0})",
    "not": "real({0} == 0)", "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}",
    "maximum": "op_max({0}, {1})", "minimum": "op_min({0}, {1})", "pow": "std::pow({0}, {1})", "eq": "real({0} == {1})",
    "ne": "real({0} != {1})", "lt": "real({0} < {1})", "le": "real({0} <= {1})", "gt": "real({0} > {1})",
    "ge": "real({0} >= {1})", "and": "real(({0} != 0) & ({1} != 0))", "or": "real(({0} != 0) | ({1} != 0))",
    "where": "{0} != 0 ? {1} : {2}",
}  # fmt: skip


def number(value: float) -> str:
    """A constant as C++ text, exact after the cast to `real`."""
    if math.isnan(value):
        return "real(NAN)"
    if math.isinf(value):
        return "real(INFINITY)" if value > 0 else "real(-INFINITY)"
    return f"real({float(value)!r})"


def argument(item: Use | Constant) -> str:
    """An argument as C++ text."""
    return number(item.value) if isinstance(item, Constant) else item.name


def statement(value: Value) -> str:
    """`const real v3 = v1 + v2;`"""
    return f"const real {value.name} = {_TEXT[value.op].format(*(argument(item) for item in value.arguments))};"


def row_index(operand: Operand, rows: int) -> str:
    """The row of an operand that iteration row `row` reads. Free of the number of rows where the batch is in it."""
    if operand.modulus == 1:
        return "0"
    index = "row" if operand.divisor == 1 else f"(row / {operand.divisor})"
    return index if operand.divisor * operand.modulus == rows else f"({index} % {operand.modulus})"
