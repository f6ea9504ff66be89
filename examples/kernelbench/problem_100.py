"""KernelBench level 1, problem 100: the hinge loss. The reference, in the form the benchmark asks for."""

import torch
from torch import Tensor, nn

SHAPE = (32768, 32768)  # the benchmark's; run.py sets a smaller one for small machines


class Model(nn.Module):
    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return torch.mean(torch.clamp(1 - predictions * targets, min=0))


def get_inputs() -> list[Tensor]:
    """One target a column: the benchmark draws one a sample, and they broadcast along the columns of a square."""
    return [torch.rand(SHAPE), torch.randint(0, 2, SHAPE[-1:]).float() * 2 - 1]


def get_init_inputs() -> list:
    return []
