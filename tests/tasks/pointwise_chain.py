import torch
from torch import nn


class Model(nn.Module):
    """Fifteen calls that each move the whole tensor: a fused kernel is far faster on any machine."""

    def __init__(self, columns):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(columns))

    def forward(self, x):
        y = torch.abs(x * 1.5 + 0.25) * self.scale - 0.5
        y = torch.clamp(y * x, -3.0, 3.0) * 0.75 + x
        y = torch.relu(y) * 0.5 - torch.abs(y) * 0.125
        return torch.clamp(y + 0.1, -2.0, 2.0) * x


def get_inputs():
    return [torch.rand(1024, 1024)]


def get_init_inputs():
    return [1024]
