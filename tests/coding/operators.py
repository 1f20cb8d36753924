"""Small operators for the tests of the template coder, in the form in which users write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional


class Function(nn.Module):
    """A module that calls a function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> object:
        return self.function(*inputs)


def statistics(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.mean(1), x.var(1, correction=0), x - x.mean(1, keepdim=True)


class ResidualNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.norm(x + residual))


class RootMeanSquare(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class ChannelAffine(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels, 1))
        self.register_buffer("shift", torch.zeros(channels, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.hardswish(x * self.scale + self.shift)


Case = tuple[nn.Module, list[torch.Tensor]]


def cases(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Case]:
    """Modules with inputs of `rows` x `columns` (ChannelAffine: rows are 3 channels of each item)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 2).to(dtype)

    x = draw(rows, columns)
    found: dict[str, Case] = {
        "relu": (Function(torch.relu), [x]),
        "swish-scaled": (Function(lambda a, b: 0.5 * functional.silu(a) + b), [x, draw(rows, columns)]),
        "mish": (Function(functional.mish), [x]),
        "selu": (Function(functional.selu), [x]),
        "gelu-tanh": (Function(lambda a: functional.gelu(a, approximate="tanh")), [x]),
        "log-abs": (Function(lambda a: torch.log(a.abs() + 1.0)), [x]),
        "softmax": (Function(lambda a: torch.softmax(a, -1)), [x]),
        "log-softmax": (Function(lambda a: torch.log_softmax(a, -1)), [x]),
        "residual-norm-gelu": (ResidualNorm(columns), [x, draw(rows, columns)]),
        "rms-norm": (RootMeanSquare(columns), [x]),
        "l1-norm": (Function(lambda a: a / a.abs().mean(1, keepdim=True)), [x]),
        "l2-norm": (Function(lambda a: functional.normalize(a, dim=1)), [x]),
        "row-max": (Function(lambda a: a.amax(1)), [x]),
        "row-statistics": (Function(statistics), [x]),
        "channel-affine": (ChannelAffine(3), [draw(rows, 3, columns)]),
    }
    for module, _ in found.values():
        for parameter in [*module.parameters(), *module.buffers()]:
            with torch.no_grad():
                parameter.copy_(1.0 + 0.5 * torch.randn(parameter.shape, generator=generator))
        module.to(dtype)
    return found
