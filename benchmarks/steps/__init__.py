"""What a training step is: a model, its optimizer, and losses that all compute the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Call = Callable[[], Tensor]


class Step(NamedTuple):
    text: str  # the model, its batch and its optimizer
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: dict[str, Call]  # by name: the forward and the loss; the first is as people write it
    factors: dict[str, float] = {}  # of losses that are multiplied  # noqa: RUF012


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def sgd(model: nn.Module, momentum: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-5, momentum=momentum, nesterov=True, fused=True)


def compiled(loss: Callable[..., Tensor], is_small: bool) -> dict[str, Callable[..., Tensor]]:
    """`loss` under torch.compile; none where the step is small, because compiling takes longer than all else there."""
    return {} if is_small else {"compiled": torch.compile(loss, dynamic=False)}


def of_outputs(forward: Callable[[], Any], losses: dict[str, Callable[..., Tensor]]) -> dict[str, Call]:
    """Each loss of what `forward` returns: a tuple of its arguments."""

    def call(loss: Callable[..., Tensor]) -> Call:
        return lambda: loss(*forward())

    return {name: call(loss) for name, loss in losses.items()}
