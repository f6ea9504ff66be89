"""Shapes of losses and of their operands."""

from __future__ import annotations

import torch
from torch import Tensor


def joint_shape(input: Tensor, target: Tensor) -> torch.Size:
    return input.shape if input.shape == target.shape else torch.broadcast_shapes(input.shape, target.shape)


def class_dim(input: Tensor) -> int:
    """The dimension of the classes: the second, or the first of a 1-D tensor, as in PyTorch."""
    return 1 if input.dim() > 1 else 0


def rows_shape(input: Tensor) -> torch.Size:
    """The shape of the rows of `input`: its shape without the classes."""
    return torch.Size((*input.shape[:1], *input.shape[2:])) if input.dim() > 1 else torch.Size()
