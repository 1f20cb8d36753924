"""What the reductions, softmax, normalisations and losses of ATen mean; see aten.py."""

from __future__ import annotations

import math

from htam_agent.coding.aten import Meaning
from htam_agent.coding.call import Call
from htam_agent.coding.program import Op
from htam_agent.coding.tensors import Tensor, apply, reduce, view


def _keep(call: Call, result: Tensor, places: tuple[int, ...], keepdim: bool) -> Tensor:
    """Drop the reduced dimensions unless they are kept."""
    if keepdim:
        return result
    return view(result, tuple(extent for place, extent in enumerate(result.shape) if place not in places))


def _extent(x: Tensor, places: tuple[int, ...]) -> int:
    return math.prod(x.shape[place] for place in places)


def _mean_of(x: Tensor, places: tuple[int, ...]) -> Tensor:
    return apply("div", reduce("reduce_sum", x, places), float(_extent(x, places)))


def _sum(call: Call) -> Tensor:
    x = call.tensor(0)
    places = call.dimensions(len(x.shape), 1)
    return _keep(call, reduce("reduce_sum", x, places), places, call.flag(2, "keepdim"))


def _mean(call: Call) -> Tensor:
    x = call.tensor(0)
    places = call.dimensions(len(x.shape), 1)
    return _keep(call, _mean_of(x, places), places, call.flag(2, "keepdim"))


def _extreme(op: Op) -> Meaning:
    def meaning(call: Call) -> Tensor:
        x = call.tensor(0)
        places = call.dimensions(len(x.shape), 1)
        return _keep(call, reduce(op, x, places), places, call.flag(2, "keepdim"))

    return meaning


def _max_or_min(op: Op, pairwise: Op) -> Meaning:
    """max() over all, max(dim) with indices (which are not available), and max(other)."""

    def meaning(call: Call) -> Tensor | list[Tensor | None]:
        x = call.tensor(0)
        if isinstance(call.given(1, "other"), Tensor):
            return apply(pairwise, x, call.tensor(1))
        places = call.dimensions(len(x.shape), 1)
        if call.given(1, "dim") is None:
            return _keep(call, reduce(op, x, places), places, False)
        return [_keep(call, reduce(op, x, places), places, call.flag(2, "keepdim")), None]

    return meaning


def _norm_of(call: Call, x: Tensor, order: float, places: tuple[int, ...]) -> Tensor:
    magnitude = apply("abs", x)
    if order == 2.0:
        return apply("sqrt", reduce("reduce_sum", apply("square", x), places))
    if order == 1.0:
        return reduce("reduce_sum", magnitude, places)
    if math.isinf(order):
        return reduce("reduce_max" if order > 0 else "reduce_min", magnitude, places)
    if order == 0.0:
        return reduce("reduce_sum", apply("ne", x, 0.0), places)
    return apply("pow", reduce("reduce_sum", apply("pow", magnitude, order), places), 1.0 / order)


def _vector_norm(call: Call) -> Tensor:
    x = call.tensor(0)
    places = call.dimensions(len(x.shape), 2)
    return _keep(call, _norm_of(call, x, call.number(1, "ord", 2.0), places), places, call.flag(3, "keepdim"))


def _norm(call: Call) -> Tensor:
    """aten.norm: p None means the 2-norm."""
    x = call.tensor(0)
    places = call.dimensions(len(x.shape), 2)
    return _keep(call, _norm_of(call, x, call.number(1, "p", 2.0), places), places, call.flag(3, "keepdim"))


def _variance_of(call: Call, x: Tensor, places: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    mean = _mean_of(x, places)
    centred = apply("sub", x, mean)
    freedom = _extent(x, places) - call.number(2, "correction", 1.0)
    total = reduce("reduce_sum", apply("square", centred), places)
    if freedom <= 0:
        return apply("div", total, 0.0), mean
    return apply("div", total, freedom), mean


def _variance(root: bool, with_mean: bool) -> Meaning:
    def meaning(call: Call) -> Tensor | list[Tensor | None]:
        x = call.tensor(0)
        places = call.dimensions(len(x.shape), 1)
        if "correction" not in call.keywords and len(call.arguments) > 2:
            raise call.unsupported("this overload of it is not known")
        variance, mean = _variance_of(call, x, places)
        spread = apply("sqrt", variance) if root else variance
        keepdim = call.flag(9, "keepdim")
        first = _keep(call, spread, places, keepdim)
        return [first, _keep(call, mean, places, keepdim)] if with_mean else first

    return meaning


def _softmax_parts(call: Call) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    x = call.tensor(0)
    places = call.dimensions(len(x.shape), 1)
    return x, apply("sub", x, reduce("reduce_max", x, places)), places


def _softmax(call: Call) -> Tensor:
    _, shifted, places = _softmax_parts(call)
    powers = apply("exp", shifted)
    return apply("mul", powers, apply("reciprocal", reduce("reduce_sum", powers, places)))


def _log_softmax(call: Call) -> Tensor:
    _, shifted, places = _softmax_parts(call)
    return apply("sub", shifted, apply("log", reduce("reduce_sum", apply("exp", shifted), places)))


def _logsumexp(call: Call) -> Tensor:
    """The maximum is replaced by 0 where it is infinite, as torch does, so that inf - inf never arises."""
    x = call.tensor(0)
    places = call.dimensions(len(x.shape), 1)
    top = reduce("reduce_max", x, places)
    safe = apply("where", apply("eq", apply("abs", top), math.inf), 0.0, top)
    total = reduce("reduce_sum", apply("exp", apply("sub", x, safe)), places)
    return _keep(call, apply("add", apply("log", total), safe), places, call.flag(2, "keepdim"))


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    scaled = x if weight is None else apply("mul", x, weight)
    return scaled if bias is None else apply("add", scaled, bias)


def _layer_norm(call: Call) -> list[Tensor | None]:
    x = call.tensor(0)
    normalized = call.integers(1) or ()
    places = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    mean = _mean_of(x, places)
    centred = apply("sub", x, mean)
    variance = _mean_of(apply("square", centred), places)
    scale = apply("rsqrt", apply("add", variance, call.number(4)))
    return [_affine(apply("mul", centred, scale), call.optional(2), call.optional(3)), mean, scale]


def _rms_norm(call: Call) -> list[Tensor | None]:
    x = call.tensor(0)
    normalized = call.integers(1) or ()
    places = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    scale = apply("rsqrt", apply("add", _mean_of(apply("square", x), places), call.number(3, "eps")))
    return [_affine(apply("mul", x, scale), call.optional(2), None), scale]


def _channel(x: Tensor, operand: Tensor) -> Tensor:
    """A tensor of one value for each channel (dimension 1), shaped to broadcast over `x`."""
    return view(operand, (x.shape[1],) + (1,) * (len(x.shape) - 2))


def _normalised_by_statistics(
    call: Call, x: Tensor, mean: Tensor, variance: Tensor, epsilon: float, places: tuple[int | None, int | None]
) -> list[Tensor | None]:
    scale = apply("rsqrt", apply("add", variance, epsilon))
    weight, bias = (None if place is None else call.optional(place) for place in places)
    centred = apply("mul", apply("sub", x, mean), scale)
    return [
        _affine(centred, weight and _channel(x, weight), bias and _channel(x, bias)),
        None,
        None,
    ]


def _batch_norm(call: Call) -> list[Tensor | None]:
    """With running statistics; in training mode only where one instance is one row (instance normalisation)."""
    x = call.tensor(0)
    if call.flag(5):
        if x.shape[0] != 1 or call.given(3) is not None:
            raise call.unsupported("in training mode it reduces over the batch, which is not the last dimension")
        places = (0, *range(2, len(x.shape)))
        mean = _mean_of(x, places)
        variance = _mean_of(apply("square", apply("sub", x, mean)), places)
        return _normalised_by_statistics(call, x, mean, variance, call.number(7), (1, 2))
    mean, variance = _channel(x, call.tensor(3)), _channel(x, call.tensor(4))
    return _normalised_by_statistics(call, x, mean, variance, call.number(7), (1, 2))


def _batch_norm_inference(call: Call) -> list[Tensor | None]:
    x = call.tensor(0)
    mean, variance = _channel(x, call.tensor(3)), _channel(x, call.tensor(4))
    return _normalised_by_statistics(call, x, mean, variance, call.number(6), (1, 2))


def _batch_norm_training(call: Call) -> list[Tensor | None]:
    raise call.unsupported("in training mode it reduces over the batch, which is not the last dimension")


def _reduced_loss(call: Call, loss: Tensor, mode: float) -> Tensor:
    places = tuple(range(len(loss.shape)))
    if mode == 0:
        return loss
    total = _mean_of(loss, places) if mode == 1 else reduce("reduce_sum", loss, places)
    return view(total, ())


def _mse_loss(call: Call) -> Tensor:
    loss = apply("square", apply("sub", call.tensor(0), call.tensor(1)))
    return _reduced_loss(call, loss, call.number(2, "reduction", 1.0))


def _huber_like(smooth: bool) -> Meaning:
    """smooth_l1_loss (scaled by 1/beta) and huber_loss."""

    def meaning(call: Call) -> Tensor:
        width = call.number(3, "beta" if smooth else "delta", 1.0)
        distance = apply("abs", apply("sub", call.tensor(0), call.tensor(1)))
        if smooth and width == 0.0:
            return _reduced_loss(call, distance, call.number(2, "reduction", 1.0))
        near = apply("mul", apply("square", distance), 0.5 / width if smooth else 0.5)
        far = apply("sub", distance, 0.5 * width)
        far = far if smooth else apply("mul", far, width)
        loss = apply("where", apply("lt", distance, width), near, far)
        return _reduced_loss(call, loss, call.number(2, "reduction", 1.0))

    return meaning


ROWS: dict[str, Meaning] = {
    "sum": _sum, "mean": _mean, "amax": _extreme("reduce_max"), "amin": _extreme("reduce_min"),
    "max": _max_or_min("reduce_max", "maximum"), "min": _max_or_min("reduce_min", "minimum"),
    "linalg_vector_norm": _vector_norm, "norm": _norm,
    "var": _variance(False, False), "std": _variance(True, False),
    "var_mean": _variance(False, True), "std_mean": _variance(True, True),
    "_softmax": _softmax, "_log_softmax": _log_softmax, "logsumexp": _logsumexp,
    "native_layer_norm": _layer_norm, "_fused_rms_norm": _rms_norm,
    "native_batch_norm": _batch_norm, "cudnn_batch_norm": _batch_norm, "miopen_batch_norm": _batch_norm,
    "_native_batch_norm_legit": _batch_norm_training,
    "_native_batch_norm_legit_no_training": _batch_norm_inference,
    "mse_loss": _mse_loss, "smooth_l1_loss": _huber_like(True), "huber_loss": _huber_like(False),
}  # fmt: skip
