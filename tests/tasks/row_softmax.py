"""softmax(x * scale + bias) over the last dimension."""

import torch
from torch import nn


class Model(nn.Module):
    """Scales each column, adds a bias and takes the softmax of each row."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns))
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * self.scale + self.bias, dim=-1)


def get_inputs() -> list[torch.Tensor]:
    return [torch.randn(512, 1024)]


def get_init_inputs() -> list[int]:
    return [1024]
