"""KernelBench level 1, problem 98: the KL divergence. The reference, in the form the benchmark asks for."""

import torch
from torch import Tensor, nn

SHAPE = (16384, 16384)  # the benchmark's; run.py sets a smaller one for small machines


class Model(nn.Module):
    def forward(self, predictions: Tensor, targets: Tensor) -> Tensor:
        return torch.nn.functional.kl_div(torch.log(predictions), targets, reduction="batchmean")


def get_inputs() -> list[Tensor]:
    return [(torch.rand(SHAPE) * torch.rand(())).softmax(-1), torch.rand(SHAPE).softmax(-1)]


def get_init_inputs() -> list:
    return []
