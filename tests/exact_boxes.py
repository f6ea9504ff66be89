"""The values of losses of pairs of boxes as torchvision computes them, for autograd in float64; and boxes to try."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _areas(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The intersection, the union, and width and height of the box around both."""
    low, high = torch.max(a[..., :2], b[..., :2]), torch.min(a[..., 2:], b[..., 2:])
    apart = (high <= low).any(-1)
    sides = torch.where(apart[..., None], 0, high - low)
    intersection = sides[..., 0] * sides[..., 1]
    whole = sum((x[..., 2] - x[..., 0]) * (x[..., 3] - x[..., 1]) for x in (a, b))
    around = torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])
    return intersection, whole - intersection, around


def generalized_box_iou(a: Tensor, b: Tensor, eps: float = 1e-7) -> Tensor:
    intersection, union, around = _areas(a, b)
    area = around[..., 0] * around[..., 1]
    return 1 - (intersection / (union + eps) - (area - union) / (area + eps))


def _overlap_and_distance(a: Tensor, b: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    intersection, union, around = _areas(a, b)
    iou = intersection / (union + eps)
    centres = (a[..., 2:] + a[..., :2] - b[..., 2:] - b[..., :2]) / 2
    return iou, (centres**2).sum(-1) / ((around**2).sum(-1) + eps)


def distance_box_iou(a: Tensor, b: Tensor, eps: float = 1e-7) -> Tensor:
    iou, distance = _overlap_and_distance(a, b, eps)
    return 1 - iou + distance


def complete_box_iou(a: Tensor, b: Tensor, eps: float = 1e-7) -> Tensor:
    iou, distance = _overlap_and_distance(a, b, eps)
    angles = [torch.atan((x[..., 2] - x[..., 0]) / (x[..., 3] - x[..., 1])) for x in (a, b)]
    v = 4 / math.pi**2 * (angles[1] - angles[0]) ** 2
    with torch.no_grad():
        alpha = v / (1 - iou + v + eps)
    return 1 - iou + distance + alpha * v


TRUTHS = {f.__name__: f for f in (generalized_box_iou, distance_box_iou, complete_box_iou)}


def drawn(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
    """Boxes of an image and others beside them: from nearly the same to far apart, some inside others. The image has
    640 pixels a side; of halves 8, so that each box has a size."""
    corner, size = 0.6 * torch.rand(*shape, 2), 1 / 32 + 0.4 * torch.rand(*shape, 2)
    noise = torch.linspace(1e-6, 0.5, math.prod(shape)).view(*shape, 1)
    moved = corner + noise * torch.randn(*shape, 2)
    grown = (size * torch.exp(2 * noise * torch.randn(*shape, 2).clamp(-1, 1))).clamp(min=1 / 32)
    boxes = torch.cat((corner, corner + size), -1), torch.cat((moved, moved + grown), -1)
    return [(x * (8 if dtype.itemsize == 2 else 640)).to(dtype).to(device) for x in boxes]


# Pairs whose ends are equal, that touch, that have no area, or that are the same.
EDGES = torch.tensor(
    [
        [[0, 0, 2, 2], [0, 0, 2, 2]],
        [[0, 0, 2, 2], [0, 0, 3, 1]],
        [[0, 0, 2, 2], [2, 0, 4, 2]],
        [[0, 0, 2, 2], [2, 2, 4, 4]],
        [[0, 0, 2, 2], [5, 7, 6, 9]],
        [[0, 0, 9, 9], [2, 3, 4, 4]],
        [[0, 0, 0, 2], [0, 0, 2, 2]],
        [[0, 0, 2, 0], [0, 0, 2, 2]],
        [[1, 1, 1, 1], [0, 0, 2, 2]],
        [[1, 1, 1, 1], [1, 1, 1, 1]],
        [[1, 1, 1, 1], [4, 4, 4, 4]],
        [[0, 0, 3, 0], [0, 0, 0, 3]],
    ],
    dtype=torch.float64,
).unbind(1)
