"""How the row program's instructions and storage types are written in CUDA C++.

Every operation is a small device function `op_<name>` over `real`, so that a strategy's block can replace one (a block
that defines `op_exp(real` supplies it, and the plain form is left out). Candidates include no header: half-precision
values are converted by PTX.
"""

from __future__ import annotations

import math

from htam_agent.coding.program import Constant, Op, Use
from htam_agent.words import DType

UNARY: dict[Op, str] = {
    "neg": "-a",
    "abs": "fabs{s}(a)",
    "exp": "exp{s}(a)",
    "exp2": "exp2{s}(a)",
    "expm1": "expm1{s}(a)",
    "log": "log{s}(a)",
    "log2": "log2{s}(a)",
    "log1p": "log1p{s}(a)",
    "sqrt": "sqrt{s}(a)",
    "rsqrt": "rsqrt{s}(a)",
    "reciprocal": "real(1) / a",
    "square": "a * a",
    "tanh": "tanh{s}(a)",
    "sigmoid": "real(1) / (real(1) + exp{s}(-a))",
    "erf": "erf{s}(a)",
    "relu": "a < real(0) ? real(0) : a",
    "sin": "sin{s}(a)",
    "cos": "cos{s}(a)",
    "floor": "floor{s}(a)",
    "ceil": "ceil{s}(a)",
    "round": "rint{s}(a)",
    "trunc": "trunc{s}(a)",
    "sign": "real(a > real(0)) - real(a < real(0))",
    "isnan": "real(a != a)",
    "not": "real(a == real(0))",
}
BINARY: dict[Op, str] = {
    "add": "a + b",
    "sub": "a - b",
    "mul": "a * b",
    "div": "a / b",
    "maximum": "a > b || a != a ? a : b",
    "minimum": "a < b || a != a ? a : b",
    "pow": "pow{s}(a, b)",
    "eq": "real(a == b)",
    "ne": "real(a != b)",
    "lt": "real(a < b)",
    "le": "real(a <= b)",
    "gt": "real(a > b)",
    "ge": "real(a >= b)",
    "and": "real(a != real(0) && b != real(0))",
    "or": "real(a != real(0) || b != real(0))",
}
TERNARY: dict[Op, str] = {"where": "a != real(0) ? b : c"}
"""`a`, `b`, `c` are the arguments, `{s}` the suffix of the float functions. Comparisons with a NaN on either side leave
the NaN in maximum and minimum: `a` when it is NaN, else `b`."""

STORAGE: dict[DType, str] = {
    "float32": "float",
    "float64": "double",
    "float16": "Half",
    "bfloat16": "Bfloat",
    "int64": "long long",
    "int32": "int",
    "int16": "short",
    "int8": "signed char",
    "uint8": "unsigned char",
    "bool": "Bool",
}
SIZES: dict[DType, int] = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8,
    "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of one element."""

WRAPPERS: dict[DType, str] = {
    "float16": "struct Half { unsigned short bits; };",
    "bfloat16": "struct Bfloat { unsigned short bits; };",
    "bool": "struct Bool { unsigned char bits; };",
}
TO_REAL: dict[DType, str] = {
    "float16": "half_to_float(value.bits)",
    "bfloat16": "bfloat_to_float(value.bits)",
    "bool": "value.bits != 0",
}
FROM_REAL: dict[DType, str] = {
    "float16": "Half{float_to_half(value)}",
    "bfloat16": "Bfloat{float_to_bfloat(value)}",
    "bool": "Bool{static_cast<unsigned char>(value != real(0))}",
}


def literal(value: float, double: bool) -> str:
    """A number as a `real` literal that reads back exactly."""
    if math.isnan(value):
        return "real(__int_as_float(0x7fc00000))"
    if math.isinf(value):
        return f"real({'-' if value < 0 else ''}infinity())"
    text = repr(float(value))
    return f"({text}{'' if double else 'f'})" if value < 0 else f"{text}{'' if double else 'f'}"


def argument(item: Use | Constant, double: bool) -> str:
    """An argument: the local variable of that name, or a literal."""
    return item.name if isinstance(item, Use) else literal(item.value, double)


def functions(used: set[Op], double: bool) -> list[tuple[Op, str]]:
    """The device function of each operation in `used`."""
    lines: list[tuple[Op, str]] = []
    for table, parameters in ((UNARY, "real a"), (BINARY, "real a, real b"), (TERNARY, "real a, real b, real c")):
        for op, text in table.items():
            if op in used:
                body = text.format(s="" if double else "f")
                lines.append((op, f"__device__ __forceinline__ real op_{op}({parameters}) {{ return {body}; }}"))
    return lines


def conversions(dtypes: list[DType]) -> list[str]:
    """`to_real` and `from_real` for each storage type."""
    lines = []
    for dtype in dtypes:
        name = STORAGE[dtype]
        into = TO_REAL.get(dtype, "value")
        out = FROM_REAL.get(dtype, f"static_cast<{name}>(value)")
        lines.append(f"__device__ __forceinline__ real to_real({name} value) {{ return static_cast<real>({into}); }}")
        lines.append(f"__device__ __forceinline__ void from_real({name}& target, real value) {{ target = {out}; }}")
    return lines
