"""Lowering: the row program means what the module computes, and what it cannot express is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from htam_agent.coding.lowering import Unsupported, lower
from htam_agent.coding.sizes import sizes_of
from htam_agent.tracing import trace_model
from tests.coding.interpreter import evaluate
from tests.coding.operators import ChannelAffine, Function, ResidualNorm, RootMeanSquare

POINTWISE: dict[str, Callable[..., object]] = {
    "arithmetic": lambda x: (3.0 - x * 2.0 + 1.0) / 4.0,
    "alpha": lambda x: torch.add(x, x, alpha=2.5) - torch.sub(x, 1.0, alpha=0.5),
    "powers": lambda x: x**2 + x.abs() ** 0.5 + (x.abs() + 1) ** -1 + x**3 + (x.abs() + 1) ** 1.7 + 2.0**x,
    "gelu": functional.gelu,
    "gelu-tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "softplus": lambda x: functional.softplus(x * 9, beta=2.0, threshold=5.0),
    "softsign": functional.softsign,
    "elu": lambda x: functional.elu(x, alpha=0.7),
    "celu": lambda x: functional.celu(x, alpha=0.7),
    "selu": functional.selu,
    "hardtanh": lambda x: functional.hardtanh(x, -0.3, 0.9),
    "relu6": functional.relu6,
    "hardsigmoid": functional.hardsigmoid,
    "hardswish": functional.hardswish,
    "leaky": lambda x: functional.leaky_relu(x, 0.2),
    "mish": functional.mish,
    "logsigmoid": functional.logsigmoid,
    "softshrink": functional.softshrink,
    "hardshrink": functional.hardshrink,
    "tanhshrink": functional.tanhshrink,
    "threshold": lambda x: functional.threshold(x, 0.1, 20.0),
    "clamp": lambda x: x.clamp(min=-0.5).clamp(max=0.5),
    "where": lambda x: torch.where(x > 0, x, x * 0.1),
    "masked": lambda x: torch.exp(x.masked_fill(x > 1, float("-inf"))),
    "compare": lambda x: (x > 0).float() + (x <= 0.5).float() * 2,
    "logic": lambda x: ((x > 0) & ~(x > 1) | (x < -1)).to(x.dtype),
    "round": lambda x: torch.round(x * 2) + torch.floor(x) + torch.trunc(x) + torch.sign(x),
    "inplace": lambda x: (x * 2).add_(1.0).mul_(x),
    "reshaped": lambda x: (x.view(-1) * 2).view(x.shape[0], -1, 1).squeeze(-1)[None].expand(1, -1, -1).view(x.shape),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5) + torch.lerp(x, x * 2, 0.3),
    "ones": lambda x: x + torch.ones_like(x) * 3 + torch.full((1,), 0.5),
}

ROWS: dict[str, Callable[..., object]] = {
    "sum": lambda x: x.sum(-1),
    "mean-keep": lambda x: x.mean(1, keepdim=True),
    "extremes": lambda x: (x.amax(1), x.amin(-1), x.max(1)[0], x.min(1, keepdim=True)[0]),
    "norms": lambda x: x.norm(dim=1) + x.norm(p=1, dim=1) + x.norm(p=float("inf"), dim=1),
    "norm-3": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "variance": lambda x: (x.var(1), x.std(1, keepdim=True), x.var(1, unbiased=False)),
    "softmax": lambda x: torch.softmax(x, 1),
    "log-softmax": lambda x: functional.log_softmax(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "normalize": functional.normalize,
    "l1": lambda x: x / torch.mean(torch.abs(x), dim=1, keepdim=True),
    "composition": lambda x: functional.silu(torch.softmax(x * 0.5 + 1, -1) * 3 + x),
    "rms": lambda x: functional.rms_norm(x, (x.shape[1],)),
    "two-norms": lambda x: functional.layer_norm(functional.layer_norm(x, (x.shape[1],)) + x, (x.shape[1],)),
    "whole": lambda x: x / x.norm(),
    "mean-square": lambda x: functional.mse_loss(x, x * 0.5) + functional.smooth_l1_loss(x, -x),
    "huber": lambda x: functional.huber_loss(x, -x, delta=0.3),
    "dict": lambda x: {"a": x.sum(1), "b": x * 2},
    "expanded-mean": lambda x: x.mean(1, keepdim=True).expand_as(x),
}


def meaning(module: nn.Module, inputs: list[torch.Tensor]) -> None:
    profile = trace_model(module, list(inputs), "case")
    assert profile.untraceable is None
    program = lower(profile)
    tensors = {f"input:{place}": tensor for place, tensor in enumerate(inputs)}
    tensors |= {f"parameter:{name}": tensor.detach() for name, tensor in module.named_parameters()}
    tensors |= {f"buffer:{name}": tensor for name, tensor in module.named_buffers()}
    with torch.no_grad():
        answer = module(*inputs)
    several = list(answer.values()) if isinstance(answer, dict) else answer
    expected = [several] if isinstance(several, torch.Tensor) else list(several)
    found = evaluate(program, tensors)
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine.to(theirs.dtype), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_means_the_same(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(5, 7, generator=generator)
    meaning(Function(POINTWISE[name]), [x])
    program = lower(trace_model(Function(POINTWISE[name]), [x], name))
    assert (program.rows, program.columns) == (1, 35)


@pytest.mark.parametrize("name", ROWS)
def test_rows_mean_the_same(name: str) -> None:
    x = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))
    meaning(Function(ROWS[name]), [x])


@pytest.mark.parametrize(
    ("module", "shapes"),
    [
        (ResidualNorm(7), [(2, 3, 7), (2, 3, 7)]),
        (ResidualNorm(7), [(2, 3, 7), (3, 7)]),
        (RootMeanSquare(9), [(4, 9)]),
        (ChannelAffine(3), [(4, 3, 5)]),
        (nn.LayerNorm((3, 4)), [(5, 3, 4)]),
        (nn.LayerNorm(6, elementwise_affine=False), [(5, 6)]),
        (nn.RMSNorm(6), [(5, 6)]),
        (nn.BatchNorm2d(3).eval(), [(2, 3, 4, 5)]),
        (nn.InstanceNorm2d(3, affine=False), [(2, 3, 4, 5)]),
        (nn.PReLU(), [(4, 6)]),
        (nn.PReLU(3), [(4, 3, 5)]),
        (Function(lambda x, y: x * y), [(4, 1), (1, 6)]),
        (Function(lambda x, y: x * y + y), [(4, 3, 6), (4, 1, 6)]),
        (Function(lambda x, y: x + y), [(2, 3, 4, 5), (3, 1, 1)]),
        (Function(lambda x, s: x * s), [(3, 4), ()]),
        (Function(lambda x, y: (x - x.mean(-1, keepdim=True)) * y), [(3, 4), (4,)]),
        (Function(lambda x, y: x.permute(1, 0).contiguous().permute(1, 0) + y), [(3, 4), (3, 4)]),
    ],
)
def test_operands_of_fewer_dimensions(module: nn.Module, shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(5)
    for parameter in module.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    training = module.training
    inputs = [torch.randn(shape, generator=generator) for shape in shapes]
    profile = trace_model(module, list(inputs), "case", training=training)
    program = lower(profile)
    tensors = {f"input:{place}": tensor for place, tensor in enumerate(inputs)}
    tensors |= {f"parameter:{name}": tensor.detach() for name, tensor in module.named_parameters()}
    tensors |= {f"buffer:{name}": tensor for name, tensor in module.named_buffers()}
    with torch.no_grad():
        expected = module(*inputs)
    torch.testing.assert_close(evaluate(program, tensors)[0].float(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("module", "operator"),
    [
        (nn.Linear(4, 4), "aten."),
        (Function(lambda x: torch.cumsum(x, 1)), "aten.cumsum"),
        (Function(lambda x: x.sum(0)), "aten.permute"),
        (Function(lambda x: x.argmax(1)), "aten.argmax"),
        (Function(lambda x: x.max(1)[1]), "aten.max"),
        (Function(lambda x: x[:, :2] * 1.0), "aten.slice"),
        (Function(lambda x: x.sum(1).sum(0)), "output"),
        (nn.Dropout(0.5), "aten."),
        (nn.BatchNorm1d(4), "aten."),
        (Function(lambda x: (x, (x, x))), "output"),
        (Function(lambda x: x.add_(1.0)), "aten.copy_"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(module: nn.Module, operator: str) -> None:
    with pytest.raises(Unsupported) as caught:
        lower(trace_model(module, [torch.randn(4, 4)], "case"))
    assert caught.value.operator.startswith(operator)
    assert caught.value.reason in str(caught.value)


def test_untraceable_is_refused_with_its_reason() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(Unsupported, match="could not be traced"):
        lower(trace_model(Function(forward), [torch.randn(4, 4)], "case"))


@pytest.mark.parametrize(
    ("module", "shapes", "generality"),
    [
        (Function(functional.gelu), [(3, 4)], "any"),
        (Function(lambda x: torch.softmax(x, 1)), [(3, 4)], "batch"),
        (ResidualNorm(5), [(3, 7, 5), (3, 7, 5)], "batch"),
        (Function(lambda x: x / x.norm()), [(3, 4)], "fixed"),
        (Function(lambda x: x / x.shape[0]), [(3, 4)], "fixed"),
        (Function(lambda x, y: x + y), [(3, 4), (4, 1)], None),
        (ChannelAffine(3), [(4, 3, 5)], "batch"),
        (Function(lambda x, y: x + y), [(2, 3), (3,)], "batch"),
    ],
)
def test_sizes(module: nn.Module, shapes: list[tuple[int, ...]], generality: str | None) -> None:
    if generality is None:
        assert trace_model(module, [torch.randn(shape) for shape in shapes], "case").untraceable
        return
    program = lower(trace_model(module, [torch.randn(shape) for shape in shapes], "case"))
    assert sizes_of(program).generality == generality
