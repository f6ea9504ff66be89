"""What the clients have in common: seeds, and what is compared of a model."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn


def seed() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def state(name: str, model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers, under names of their own."""
    return {f"{name}: {key}": x.detach().clone() for key, x in model.state_dict().items() if x.is_floating_point()}


def gradients(name: str, model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """The loss, and all gradients after its backward in one: some, of a key's bias say, are 0 but for rounding."""
    loss.backward()
    found = [x.grad.flatten() for x in model.parameters() if x.grad is not None]
    return {f"{name}: loss": loss.detach().clone(), f"{name}: gradients": torch.cat(found)}
