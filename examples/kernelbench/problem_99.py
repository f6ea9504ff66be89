"""KernelBench level 1, problem 99: the triplet margin loss. The reference, in the form the benchmark asks for."""

import torch
from torch import Tensor, nn

SHAPE = (32768, 8192)  # the benchmark's; run.py sets a smaller one for small machines


class Model(nn.Module):
    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.loss_fn = torch.nn.TripletMarginLoss(margin=margin)

    def forward(self, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return self.loss_fn(anchor, positive, negative)


def get_inputs() -> list[Tensor]:
    return [torch.rand(SHAPE) * torch.rand(()), torch.rand(SHAPE), torch.rand(SHAPE)]


def get_init_inputs() -> list:
    return [1.0]  # the margin
