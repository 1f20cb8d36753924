"""GELU of the layer normalisation of a sum of two tensors."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x, residual):
        return functional.gelu(self.norm(x + residual))


def get_inputs():
    return [torch.randn(256, 1024), torch.randn(256, 1024)]


def get_init_inputs():
    return [1024]
