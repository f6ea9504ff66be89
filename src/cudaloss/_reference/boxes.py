"""Losses of pairs of boxes in plain PyTorch: the values, and the derivatives in closed form."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_OF_SQUARE = 4 / math.pi**2


def _share(inner: Tensor, outer: Tensor) -> Tensor:
    """Of an end of the intersection: as in ``torch.minimum``, equal ends share the gradient."""
    return (inner < outer).to(inner.dtype) + (inner == outer).to(inner.dtype) / 2


class _Axis(NamedTuple):
    """Two boxes along one axis: their sizes, those of their intersection and of the box around both, and how far their
    centres are apart; and the own box's shares in the ends of the intersection."""

    own: Tensor
    other: Tensor
    inner: Tensor
    outer: Tensor
    apart: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def of(cls, a1: Tensor, a2: Tensor, b1: Tensor, b2: Tensor) -> _Axis:
        inner = torch.minimum(a2, b2) - torch.maximum(a1, b1)
        outer = torch.maximum(a2, b2) - torch.minimum(a1, b1)
        return cls(a2 - a1, b2 - b1, inner, outer, ((a1 + a2) - (b1 + b2)) / 2, _share(b1, a1), _share(a2, b2))


class _Areas(NamedTuple):
    overlap: Tensor
    intersection: Tensor
    union: Tensor

    @classmethod
    def of(cls, x: _Axis, y: _Axis) -> _Areas:
        overlap = (x.inner > 0) & (y.inner > 0)
        intersection = torch.where(overlap, x.inner * y.inner, 0)
        return cls(overlap, intersection, x.own * y.own + x.other * y.other - intersection)


def _turn(sine: Tensor, cosine: Tensor) -> Tensor:
    """The angle between the diagonals, of its sine and cosine, times both lengths. A point has no diagonal: 0."""
    right = cosine == 0
    return torch.where(right, math.pi / 2 * sine.sign(), torch.atan(sine / torch.where(right, 1, cosine)))


def _inverse(square: Tensor) -> Tensor:
    return torch.where(square == 0, 0, 1 / torch.where(square == 0, 1, square))


def _axes(boxes: tuple[Tensor, Tensor], dim: int) -> tuple[_Axis, _Axis]:
    (x1, y1, x2, y2), (u1, v1, u2, v2) = (x.unbind(dim) for x in boxes)
    return _Axis.of(x1, x2, u1, u2), _Axis.of(y1, y2, v1, v2)


def _shape(x: _Axis, y: _Axis, iou: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """How far the boxes' angles differ, v, and its factor, which has no gradient."""
    turned = _turn(x.own * y.other - x.other * y.own, y.own * y.other + x.own * x.other)
    v = _OF_SQUARE * turned * turned
    return turned, v, (v / (1 - iou + v + eps)).detach()


def value(name: str, boxes: tuple[Tensor, Tensor], dim: int, eps: float) -> Tensor:
    x, y = _axes(boxes, dim)
    _, intersection, union = _Areas.of(x, y)
    iou = intersection / (union + eps)
    if name == "generalized_box_iou":
        around = x.outer * y.outer
        return 1 - iou + (around - union) / (around + eps)
    loss = 1 - iou + (x.apart**2 + y.apart**2) / (x.outer**2 + y.outer**2 + eps)
    if name == "distance_box_iou":
        return loss
    _, v, factor = _shape(x, y, iou, eps)
    return loss + factor * v


def slopes(name: str, boxes: tuple[Tensor, Tensor], dim: int, eps: float) -> tuple[Tensor, Tensor]:
    """The derivatives of each pair's loss for both boxes."""
    x, y = _axes(boxes, dim)
    overlap, intersection, union = _Areas.of(x, y)
    inverse = 1 / (union + eps)
    iou, zero = intersection * inverse, torch.zeros_like(union)
    of_union, of_outer = iou * inverse, [zero, zero]
    of_apart, of_own, of_other = [zero, zero], [zero, zero], [zero, zero]
    if name == "generalized_box_iou":
        around = 1 / (x.outer * y.outer + eps)
        of_around, of_union = (union + eps) * around * around, of_union - around
        of_outer = [of_around * y.outer, of_around * x.outer]
    else:
        diagonal = 1 / (x.outer**2 + y.outer**2 + eps)
        ratio = (x.apart**2 + y.apart**2) * diagonal
        of_apart = [2 * axis.apart * diagonal for axis in (x, y)]
        of_outer = [-2 * axis.outer * ratio * diagonal for axis in (x, y)]
    if name == "complete_box_iou":
        turned, _, factor = _shape(x, y, iou, eps)
        slope = 2 * _OF_SQUARE * factor * turned
        own, other = slope * _inverse(x.own**2 + y.own**2), -slope * _inverse(x.other**2 + y.other**2)
        of_own, of_other = [own * y.own, -own * x.own], [other * y.other, -other * x.other]
    of_inner = torch.where(overlap, -inverse - of_union, 0)
    lows: list[list[Tensor]] = [[], []]
    highs: list[list[Tensor]] = [[], []]
    for k, (axis, across) in enumerate(((x, y), (y, x))):
        inner, outer, apart = of_inner * across.inner, of_outer[k], of_apart[k] / 2
        own, other = of_union * across.own + of_own[k], of_union * across.other + of_other[k]
        low, high = 1 - axis.low, 1 - axis.high
        lows[0].append(apart - own - axis.low * inner - low * outer)
        highs[0].append(apart + own + axis.high * inner + high * outer)
        lows[1].append(-apart - other - low * inner - axis.low * outer)
        highs[1].append(-apart + other + high * inner + axis.high * outer)
    own, other = (torch.stack((*lows[i], *highs[i]), dim) for i in (0, 1))
    return own, other
