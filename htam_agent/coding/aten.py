"""What each ATen operator means in scalar operations, reductions and shape changes.

One entry an operator; formulas are those of the operator's documentation at pytorch.org. An operator without an entry
is unsupported by name. Normalisations and reductions are in aten_rows.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from htam_agent.coding.call import Call
from htam_agent.coding.program import Op
from htam_agent.coding.tensors import Tensor, apply, constant, expand, permute, view

Meaning = Callable[[Call], Tensor | list[Tensor | None]]
"""A result, or several (None for one that cannot be had)."""


def _unary(op: Op) -> Meaning:
    return lambda call: apply(op, call.tensor(0))


def _binary(op: Op) -> Meaning:
    return lambda call: apply(op, call.operand(0), call.operand(1))


def _add(call: Call) -> Tensor:
    return apply("add", call.operand(0), _scaled(call))


def _sub(call: Call) -> Tensor:
    return apply("sub", call.operand(0), _scaled(call))


def _rsub(call: Call) -> Tensor:
    alpha = call.number(2, "alpha", 1.0)
    left = call.tensor(0) if alpha == 1.0 else apply("mul", call.tensor(0), alpha)
    return apply("sub", call.operand(1), left)


def _scaled(call: Call) -> Tensor | float:
    alpha = call.number(2, "alpha", 1.0)
    right = call.operand(1)
    if alpha == 1.0:
        return right
    return right * alpha if isinstance(right, float) else apply("mul", right, alpha)


def _div(call: Call) -> Tensor:
    quotient = apply("div", call.operand(0), call.operand(1))
    mode = call.given(2, "rounding_mode")
    return quotient if mode is None else apply("trunc" if mode == "trunc" else "floor", quotient)


def _pow(call: Call) -> Tensor:
    base, exponent = call.operand(0), call.operand(1)
    if not isinstance(exponent, float) or not isinstance(base, Tensor):
        return apply("pow", base, exponent)
    special: dict[float, Op] = {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}
    if exponent in special:
        return apply(special[exponent], base)
    if exponent == 3.0:
        return apply("mul", apply("square", base), base)
    if exponent == 1.0:
        return base
    return apply("pow", base, exponent)


def _gelu(call: Call) -> Tensor:
    x = call.tensor(0)
    half = apply("mul", x, 0.5)
    if call.given(1, "approximate") == "tanh":
        cubic = apply("mul", apply("square", x), x)
        inner = apply("mul", apply("add", x, apply("mul", cubic, 0.044715)), math.sqrt(2.0 / math.pi))
        return apply("mul", half, apply("add", apply("tanh", inner), 1.0))
    return apply("mul", half, apply("add", apply("erf", apply("mul", x, math.sqrt(0.5))), 1.0))


def _silu(call: Call) -> Tensor:
    return apply("mul", call.tensor(0), apply("sigmoid", call.tensor(0)))


def _softplus_of(x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = x if beta == 1.0 else apply("mul", x, beta)
    soft = apply("log1p", apply("exp", scaled))
    soft = soft if beta == 1.0 else apply("div", soft, beta)
    return apply("where", apply("gt", scaled, threshold), x, soft)


def _softplus(call: Call) -> Tensor:
    return _softplus_of(call.tensor(0), call.number(1, "beta", 1.0), call.number(2, "threshold", 20.0))


def _mish(call: Call) -> Tensor:
    return apply("mul", call.tensor(0), apply("tanh", _softplus_of(call.tensor(0), 1.0, 20.0)))


def _elu(call: Call) -> Tensor:
    x, scale = call.tensor(0), call.number(2, "scale", 1.0)
    input_scale = call.number(3, "input_scale", 1.0)
    bent = apply("mul", apply("expm1", apply("mul", x, input_scale)), call.number(1, "alpha", 1.0) * scale)
    return apply("where", apply("gt", x, 0.0), apply("mul", x, scale), bent)


def _celu(call: Call) -> Tensor:
    x, alpha = call.tensor(0), call.number(1, "alpha", 1.0)
    bent = apply("mul", apply("expm1", apply("div", x, alpha)), alpha)
    return apply("where", apply("gt", x, 0.0), x, bent)


def _clamp(call: Call) -> Tensor:
    low, high, answer = call.limit(1, "min"), call.limit(2, "max"), call.tensor(0)
    answer = answer if low is None else apply("maximum", answer, low)
    return answer if high is None else apply("minimum", answer, high)


def _hardtanh(call: Call) -> Tensor:
    low, high = call.number(1, "min_val", -1.0), call.number(2, "max_val", 1.0)
    return apply("minimum", apply("maximum", call.tensor(0), low), high)


def _hard_gate(x: Tensor) -> Tensor:
    return apply("div", apply("minimum", apply("maximum", apply("add", x, 3.0), 0.0), 6.0), 6.0)


def _leaky_relu(call: Call) -> Tensor:
    x = call.tensor(0)
    return apply("where", apply("gt", x, 0.0), x, apply("mul", x, call.number(1, "negative_slope", 0.01)))


def _prelu(call: Call) -> Tensor:
    x = call.tensor(0)
    return apply("where", apply("gt", x, 0.0), x, apply("mul", x, call.tensor(1)))


def _log_sigmoid(call: Call) -> list[Tensor | None]:
    x = call.tensor(0)
    tail = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
    return [apply("sub", apply("minimum", x, 0.0), tail), None]


def _threshold(call: Call) -> Tensor:
    x = call.tensor(0)
    return apply("where", apply("le", x, call.number(1)), call.number(2), x)


def _softshrink(call: Call) -> Tensor:
    x, width = call.tensor(0), call.number(1, "lambd", 0.5)
    inside = apply("mul", x, 0.0)
    lower = apply("where", apply("lt", x, -width), apply("add", x, width), inside)
    return apply("where", apply("gt", x, width), apply("sub", x, width), lower)


def _hardshrink(call: Call) -> Tensor:
    x, width = call.tensor(0), call.number(1, "lambd", 0.5)
    return apply("where", apply("le", apply("abs", x), width), 0.0, x)


def _lerp(call: Call) -> Tensor:
    start, end = call.tensor(0), call.tensor(1)
    return apply("add", start, apply("mul", apply("sub", end, start), call.operand(2)))


def _addcmul(op: Op) -> Meaning:
    def meaning(call: Call) -> Tensor:
        product = apply(op, call.tensor(1), call.tensor(2))
        return apply("add", call.tensor(0), apply("mul", product, call.number(3, "value", 1.0)))

    return meaning


def _masked_fill(call: Call) -> Tensor:
    return apply("where", call.tensor(1), call.operand(2), call.tensor(0))


def _where(call: Call) -> Tensor:
    return apply("where", call.tensor(0), call.operand(1), call.operand(2))


def _same(call: Call) -> Tensor:
    return call.tensor(0)


def _reshaped(call: Call) -> Tensor:
    return view(call.tensor(0), call.shape)


def _expand(call: Call) -> Tensor:
    return expand(call.tensor(0), call.shape)


def _permute(call: Call) -> Tensor:
    rank = len(call.shape)
    order = call.integers(1, "dims") or tuple(range(rank))
    return permute(call.tensor(0), tuple(place % rank for place in order))


def _transpose(call: Call) -> Tensor:
    rank = len(call.shape)
    order = list(range(rank))
    if rank > 1:
        given = (call.integers(1), call.integers(2)) if len(call.arguments) > 1 else ((0,), (1,))
        first, second = ((item or (0,))[0] % rank for item in given)
        order[first], order[second] = order[second], order[first]
    return permute(call.tensor(0), tuple(order))


def _filled(value: float) -> Meaning:
    return lambda call: expand(constant(value), call.shape)


def _full(call: Call) -> Tensor:
    return expand(constant(call.number(1, "fill_value")), call.shape)


def _dropout(call: Call) -> list[Tensor | None]:
    if call.given(2) is not False and call.number(1) > 0.0:
        raise call.unsupported("it draws random numbers in training mode")
    return [call.tensor(0), None]


def _logical_not(call: Call) -> Tensor:
    return apply("not", call.tensor(0))


_UNARY: tuple[Op, ...] = (
    "neg", "abs", "exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "reciprocal", "square", "tanh",
    "sigmoid", "erf", "relu", "sin", "cos", "floor", "ceil", "round", "trunc", "sign", "isnan",
)  # fmt: skip
_BINARY: dict[str, Op] = {
    "mul": "mul", "maximum": "maximum", "minimum": "minimum", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le",
    "gt": "gt", "ge": "ge", "logical_and": "and", "logical_or": "or", "bitwise_and": "and", "bitwise_or": "or",
    "clamp_min": "maximum", "clamp_max": "minimum",
}  # fmt: skip

POINTWISE: dict[str, Meaning] = {
    **{name: _unary(name) for name in _UNARY},
    **{name: _binary(op) for name, op in _BINARY.items()},
    "add": _add, "sub": _sub, "rsub": _rsub, "div": _div, "true_divide": _div, "pow": _pow, "gelu": _gelu,
    "silu": _silu, "softplus": _softplus, "mish": _mish, "elu": _elu, "celu": _celu, "clamp": _clamp,
    "hardtanh": _hardtanh, "hardsigmoid": lambda call: _hard_gate(call.tensor(0)),
    "hardswish": lambda call: apply("mul", call.tensor(0), _hard_gate(call.tensor(0))),
    "leaky_relu": _leaky_relu, "_prelu_kernel": _prelu, "prelu": _prelu, "log_sigmoid_forward": _log_sigmoid,
    "threshold": _threshold, "softshrink": _softshrink, "hardshrink": _hardshrink, "lerp": _lerp,
    "addcmul": _addcmul("mul"), "addcdiv": _addcmul("div"), "masked_fill": _masked_fill, "where": _where,
    "native_dropout": _dropout, "logical_not": _logical_not, "bitwise_not": _logical_not,
}  # fmt: skip

SHAPES: dict[str, Meaning] = {
    **dict.fromkeys(
        ("clone", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "_to_copy", "positive"), _same
    ),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze"), _reshaped),
    "expand": _expand, "permute": _permute, "transpose": _transpose, "t": _transpose,
    "ones": _filled(1.0), "zeros": _filled(0.0), "ones_like": _filled(1.0), "zeros_like": _filled(0.0),
    "full": _full, "full_like": _full,
    "scalar_tensor": lambda call: constant(call.number(0)),
}  # fmt: skip
