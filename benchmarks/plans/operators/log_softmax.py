"""Logarithm of the softmax of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.log_softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(256, 1000)]


def get_init_inputs():
    return []
