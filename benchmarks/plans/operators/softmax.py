"""Softmax of each row."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(512, 1024)]


def get_init_inputs():
    return []
