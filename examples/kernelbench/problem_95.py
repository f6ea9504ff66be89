"""KernelBench level 1, problem 95: the cross entropy. The reference, in the form the benchmark asks for."""

import torch
from torch import Tensor, nn

SHAPE = (32768, 4096)  # the benchmark's; run.py sets a smaller one for small machines


class Model(nn.Module):
    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(predictions, targets)


def get_inputs() -> list[Tensor]:
    return [torch.rand(SHAPE), torch.randint(0, SHAPE[1], SHAPE[:1])]


def get_init_inputs() -> list:
    return []
