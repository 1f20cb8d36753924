"""GELU with the error function."""

import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def forward(self, x):
        return functional.gelu(x)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return []
