"""GELU(LayerNorm(x + residual)): the end of a transformer block, in KernelBench form.

Try it: htam optimize examples/gelu_layernorm.py
"""

import torch
from torch import nn
from torch.nn import functional

ROWS = 4096
WIDTH = 4096


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return functional.gelu(self.norm(x + residual))


def get_inputs():
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
