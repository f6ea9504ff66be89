"""KernelBench level 1, problem 94: the mean squared error. The reference, in the form the benchmark asks for."""

import torch
from torch import Tensor, nn

SHAPE = (32768, 32768)  # the benchmark's; run.py sets a smaller one for small machines


class Model(nn.Module):
    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return torch.mean((predictions - targets) ** 2)


def get_inputs() -> list[Tensor]:
    return [torch.rand(SHAPE) * torch.rand(()), torch.rand(SHAPE)]


def get_init_inputs() -> list:
    return []
