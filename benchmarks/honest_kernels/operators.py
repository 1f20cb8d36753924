"""Operators and, for each, honest ways to write it: name -> Operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch.nn import functional

from honest_kernels import arithmetic as a

Tensor = torch.Tensor
Draw = Callable[[], list[Tensor]]


@dataclass
class Operator:
    """`reference(*inputs)` in the inputs' own type; `draw` gives its own inputs; `ways`: the honest kernels."""

    reference: Callable[..., Tensor]
    draw: Draw
    ways: dict[str, Callable[..., Tensor]] = field(default_factory=dict)


def normal(*shape: int) -> Draw:
    return lambda: [torch.randn(*shape)]


def uniform(*shape: int) -> Draw:
    return lambda: [torch.rand(*shape)]


def pointwise() -> dict[str, Operator]:
    """Activations, each in the forms that are in use."""
    root = 0.7071067811865476
    forms: dict[str, tuple[Callable[..., Tensor], dict[str, Callable[..., Tensor]]]] = {
        "gelu": (
            functional.gelu,
            {
                "half-first": lambda x: 0.5 * x * (1.0 + torch.erf(x * root)),
                "half-last": lambda x: x * (0.5 * torch.erf(x * root) + 0.5),
                "rational-erf": lambda x: 0.5 * x * (1.0 + a.erf_rational(x * root)),
                "erfc": lambda x: 0.5 * x * torch.erfc(-x * root),
            },
        ),
        "gelu-tanh": (
            lambda x: functional.gelu(x, approximate="tanh"),
            {
                "tanh": lambda x: 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x))),
                "exp": lambda x: 0.5 * x * (1.0 + a.tanh_by_exp(0.7978845608 * x * (1.0 + 0.044715 * x * x))),
                "sigmoid": lambda x: x * a.sigmoid_plain(1.5957691216 * (x + 0.044715 * x * x * x)),
            },
        ),
        "silu": (
            functional.silu,
            {
                "divide": lambda x: x / (1.0 + torch.exp(-x)),
                "multiply": lambda x: x * a.sigmoid_plain(x),
                "exp2": lambda x: x / (1.0 + a.exp_by_two(-x)),
                "polynomial": lambda x: x / (1.0 + a.exp_polynomial(-x)),
                "tanh": lambda x: 0.5 * x * (1.0 + torch.tanh(0.5 * x)),
            },
        ),
        "sigmoid": (
            torch.sigmoid,
            {
                "plain": a.sigmoid_plain,
                "exp2": lambda x: 1.0 / (1.0 + a.exp_by_two(-x)),
                "polynomial": lambda x: 1.0 / (1.0 + a.exp_polynomial(-x)),
                "tanh": lambda x: 0.5 * torch.tanh(0.5 * x) + 0.5,
            },
        ),
        "tanh": (torch.tanh, {"exp": a.tanh_by_exp, "sigmoid": lambda x: 2.0 * a.sigmoid_plain(2.0 * x) - 1.0}),
        "softplus": (
            functional.softplus,
            {
                "log1p": lambda x: x.clamp_min(0.0) + torch.log1p(torch.exp(-x.abs())),
                "log": lambda x: torch.where(x > 20.0, x, torch.log(1.0 + torch.exp(x.clamp_max(20.0)))),
            },
        ),
        "mish": (
            functional.mish,
            {
                "tanh": lambda x: x * torch.tanh(x.clamp_min(0.0) + torch.log1p(torch.exp(-x.abs()))),
                "rational": _mish_rational,
            },
        ),
        "elu": (functional.elu, {"exp": lambda x: torch.where(x > 0, x, torch.exp(x.clamp_max(0.0)) - 1.0)}),
        "logsigmoid": (
            functional.logsigmoid,
            {
                "stable": lambda x: x.clamp_max(0.0) - torch.log1p(torch.exp(-x.abs())),
                "log": lambda x: x.clamp_max(0.0) - torch.log(1.0 + torch.exp(-x.abs())),
            },
        ),
    }
    made = {}
    for name, (reference, ways) in forms.items():
        for kind, draw in (("normal", normal(256, 1000)), ("uniform", uniform(256, 1000))):
            made[f"{name}, {kind}"] = Operator(reference, draw, ways)
    return made


def _mish_rational(x: Tensor) -> Tensor:
    e = torch.exp(x.clamp_max(20.0))
    n = e * (e + 2.0)
    return torch.where(x > 20.0, x, x * (n / (n + 2.0)))


def reductions() -> dict[str, Operator]:
    """Sums and what is made of them, with every order of summation."""
    made = {}
    for kind, draw in (("normal", normal(64, 1000)), ("uniform", uniform(64, 1000)), ("long", uniform(4, 8000))):
        made[f"sum, {kind}"] = Operator(lambda x: x.sum(-1), draw, dict(a.SUMS))
        made[f"l2 norm, {kind}"] = Operator(
            lambda x: x / torch.norm(x, dim=-1, keepdim=True),
            draw,
            {name: lambda x, s=s: x * torch.rsqrt(s(x * x)).unsqueeze(-1) for name, s in a.SUMS.items()},
        )
        made[f"rms norm, {kind}"] = Operator(
            lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
            draw,
            {n: lambda x, s=s: x / torch.sqrt(s(x * x) / x.shape[-1] + 1e-5).unsqueeze(-1) for n, s in a.SUMS.items()},
        )
        made[f"layer norm, {kind}"] = Operator(_layer_norm, draw, _layer_norms())
        made[f"softmax, {kind}"] = Operator(lambda x: torch.softmax(x, -1), draw, _softmaxes())
        made[f"log softmax, {kind}"] = Operator(lambda x: torch.log_softmax(x, -1), draw, _log_softmaxes())
    return made


def _layer_norm(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _layer_norms() -> dict[str, Callable[..., Tensor]]:
    def two_pass(x: Tensor, s: Callable[[Tensor], Tensor]) -> Tensor:
        centred = x - (s(x) / x.shape[-1]).unsqueeze(-1)
        return centred * torch.rsqrt(s(centred * centred) / x.shape[-1] + 1e-5).unsqueeze(-1)

    def one_pass(x: Tensor, s: Callable[[Tensor], Tensor]) -> Tensor:
        mean, square = s(x) / x.shape[-1], s(x * x) / x.shape[-1]
        scale = torch.rsqrt((square - mean * mean).clamp_min(0.0) + 1e-5)
        return (x - mean.unsqueeze(-1)) * scale.unsqueeze(-1)

    ways = {f"two passes, {name}": lambda x, s=s: two_pass(x, s) for name, s in a.SUMS.items()}
    ways |= {f"one pass, {name}": lambda x, s=s: one_pass(x, s) for name, s in a.SUMS.items()}
    return ways | {"Welford": _welford}


def _welford(x: Tensor) -> Tensor:
    mean, moment = torch.zeros_like(x[..., 0]), torch.zeros_like(x[..., 0])
    for count, column in enumerate(x.unbind(-1), 1):
        step = column - mean
        mean = mean + step / count
        moment = moment + step * (column - mean)
    return (x - mean.unsqueeze(-1)) * torch.rsqrt(moment / x.shape[-1] + 1e-5).unsqueeze(-1)


def _softmaxes() -> dict[str, Callable[..., Tensor]]:
    def stable(x: Tensor, s: Callable[[Tensor], Tensor], e: Callable[[Tensor], Tensor]) -> Tensor:
        raised = e(x - x.amax(-1, keepdim=True))
        return raised * (1.0 / s(raised)).unsqueeze(-1)

    ways = {
        f"{sum_name}, {exp_name}": lambda x, s=s, e=e: stable(x, s, e)
        for sum_name, s in a.SUMS.items()
        for exp_name, e in a.EXPONENTIALS.items()
    }
    return ways | {"online": lambda x: _online(x)[0], "base two throughout": _softmax_base_two}


def _online(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum and sum in one pass over blocks of 64."""
    most = torch.full_like(x[..., :1], -torch.inf)
    total = torch.zeros_like(most)
    for block in x.split(64, -1):
        seen = torch.maximum(most, block.amax(-1, keepdim=True))
        total = total * torch.exp(most - seen) + a.tree(torch.exp(block - seen)).unsqueeze(-1)
        most = seen
    return torch.exp(x - most) / total, most, total


def _softmax_base_two(x: Tensor) -> Tensor:
    """x log2 e first and its maximum subtracted then, as flash attention does it."""
    scaled = x * 1.4426950408889634
    raised = torch.exp2(scaled - scaled.amax(-1, keepdim=True))
    return raised / a.lanes(raised).unsqueeze(-1)


def _log_softmaxes() -> dict[str, Callable[..., Tensor]]:
    def stable(x: Tensor, s: Callable[[Tensor], Tensor]) -> Tensor:
        moved = x - x.amax(-1, keepdim=True)
        return moved - torch.log(s(torch.exp(moved))).unsqueeze(-1)

    def online(x: Tensor) -> Tensor:
        _, most, total = _online(x)
        return x - (most + torch.log(total))

    return {name: lambda x, s=s: stable(x, s) for name, s in a.SUMS.items()} | {"online": online}


def products() -> dict[str, Operator]:
    """Matrix products with several orders of summation, and losses, whose output is one number."""

    def matmul(x: Tensor, y: Tensor, s: Callable[[Tensor], Tensor]) -> Tensor:
        return s(x.unsqueeze(1) * y.t().unsqueeze(0))

    def split(x: Tensor, y: Tensor, parts: int) -> Tensor:
        return sum(p @ q for p, q in zip(x.chunk(parts, 1), y.chunk(parts, 0), strict=True))

    made = {}
    for kind, make in (("normal", torch.randn), ("uniform", torch.rand)):
        ways = {name: lambda x, y, s=s: matmul(x, y, s) for name, s in a.SUMS.items()}
        ways |= {f"split over {parts}": lambda x, y, parts=parts: split(x, y, parts) for parts in (2, 8, 64)}
        made[f"matmul, {kind}"] = Operator(torch.matmul, lambda make=make: [make(48, 1024), make(1024, 32)], ways)
        made[f"mean squared error, {kind}"] = Operator(
            functional.mse_loss,
            lambda make=make: [make(64, 512), make(64, 512)],
            {n: lambda x, y, s=s: _mean(((x - y) * (x - y)), s) for n, s in a.SUMS.items()},
        )
    return made


def _mean(x: Tensor, s: Callable[[Tensor], Tensor]) -> Tensor:
    """Rows first, then the rows' sums, by the same order of summation."""
    return s(s(x)) / x.numel()


def exact() -> dict[str, Operator]:
    """Operators that round nothing in float32, and ways to write them, some of which round all the same."""

    def halves(x: Tensor) -> Tensor:
        while x.shape[-1] > 1:
            half = x.shape[-1] // 2
            x = torch.cat([torch.maximum(x[..., :half], x[..., half : 2 * half]), x[..., 2 * half :]], -1)
        return x[..., 0]

    forms: dict[str, tuple[Callable[..., Tensor], Draw, dict[str, Callable[..., Tensor]]]] = {
        "relu": (
            torch.relu,
            normal(64, 1024),
            {
                "half of a sum": lambda x: 0.5 * (x + x.abs()),
                "product with a step": lambda x: x * (x > 0).to(x.dtype),
                "from above": lambda x: x - x.clamp_max(0.0),
            },
        ),
        "clamp": (
            lambda x: x.clamp(-1.0, 2.0),
            normal(64, 1024),
            {"two choices": lambda x: torch.where(x < -1.0, -1.0, torch.where(x > 2.0, 2.0, x))},
        ),
        "row maximum": (
            lambda x: x.amax(-1),
            normal(64, 1024),
            {"by halves": halves, "negated minimum": lambda x: -(-x).amin(-1)},
        ),
        "quarter": (
            lambda x: x / 4.0,
            normal(64, 1024),
            {"times 0.25": lambda x: x * 0.25, "in two steps": lambda x: x / 2.0 / 2.0},
        ),
        "affine of ones": (
            lambda x: x * torch.ones(x.shape[-1], dtype=x.dtype, device=x.device),
            normal(64, 1024),
            {
                "by a reciprocal": lambda x: x * torch.reciprocal(torch.ones(x.shape[-1], device=x.device)),
                "by exp of log": lambda x: x * torch.exp(torch.log(torch.ones(x.shape[-1], device=x.device))),
                "by a root": lambda x: x * torch.rsqrt(torch.ones(x.shape[-1], device=x.device)),
            },
        ),
        "max pool": (
            lambda x: functional.max_pool2d(x, 2),
            normal(2, 4, 32, 48),
            {"of columns first": lambda x: x.unfold(3, 2, 2).amax(-1).unfold(2, 2, 2).amax(-1)},
        ),
        "nearest, twice as large": (
            lambda x: functional.interpolate(x, scale_factor=2.0, mode="nearest"),
            normal(2, 4, 32, 48),
            {"repeated": lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3)},
        ),
    }
    return {name: Operator(reference, draw, ways) for name, (reference, draw, ways) in forms.items()}


def all_operators() -> dict[str, Operator]:
    """Every operator."""
    return pointwise() | reductions() | products() | exact()
