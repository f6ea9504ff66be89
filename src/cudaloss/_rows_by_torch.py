"""Losses of rows in plain PyTorch: what each row is, which rows count, and their derivatives."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._options import Options
from ._specs import RowNumbers


class Row(NamedTuple):
    """The operands in the dtype of the arithmetic, and of 0 where a row does not count."""

    logits: Tensor  # capped
    slope: Tensor | None  # of the cap
    index: Tensor | None  # each row's class; None: the target is probabilities
    share: Tensor  # what each class's -log p is multiplied by
    class_dim: int
    z_loss: float

    @property
    def lse(self) -> Tensor:
        return self.logits.logsumexp(self.class_dim)

    def over_classes(self, x: Tensor) -> Tensor:
        """One number a row, as each class has it."""
        return x.unsqueeze(self.class_dim)


def class_dim(input: Tensor) -> int:
    """The dimension of the classes: PyTorch's."""
    return 1 if input.dim() > 1 else 0


def left_out(shape: torch.Size, target: Tensor, options: Options, rows: RowNumbers) -> Tensor | None:
    """Where rows, of this shape, do not count; None: nowhere."""
    ignored = None if target.is_floating_point() else target == rows.ignore_index
    if options.mask is None:
        return ignored
    return (~options.mask if ignored is None else ~options.mask | ignored).expand(shape)


def _weights(class_weight: Tensor | None, dim: int, input: Tensor) -> Tensor | None:
    """Class weights as they broadcast to input."""
    return None if class_weight is None else class_weight.view((-1,) + (1,) * (input.dim() - dim - 1))


def row_weights(target: Tensor, class_weight: Tensor | None, out: Tensor | None) -> Tensor | None:
    """The class weight of each row's index."""
    if class_weight is None or target.is_floating_point():
        return None
    index = target.long() if out is None else torch.where(out, 0, target.long())
    return class_weight[index]


def row_of(
    input: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    out: Tensor | None,
    smoothing: float,
    rows: RowNumbers,
    compute: torch.dtype,
) -> Row:
    dim = class_dim(input)
    x = input.to(compute)
    x = x if out is None else torch.where(out.unsqueeze(dim), 0, x)
    slope = None
    if rows.softcap:
        bent = torch.tanh(x / rows.softcap)
        x, slope = rows.softcap * bent, 1 - bent * bent
    weights = _weights(None if class_weight is None else class_weight.to(compute), dim, input)
    each, index = smoothing / input.shape[dim], None
    if target.is_floating_point():
        share = target.to(compute) * (1 - smoothing) + each
        share = share if weights is None else share * weights
        share = share if out is None else torch.where(out.unsqueeze(dim), 0, share)
    else:
        index = target.long() if out is None else torch.where(out, 0, target.long())
        share = torch.zeros_like(x).scatter(dim, index.unsqueeze(dim), 1 - smoothing)
        share = share + each if smoothing else share
        share = share if weights is None else share * weights
    return Row(x, slope, index, share, dim, rows.z_loss)


def values(row: Row) -> Tensor:
    """The rows' losses."""
    logs = torch.log_softmax(row.logits, row.class_dim)
    # 0 times an infinite log counts as 0 where it is the share that is 0 of an index.
    terms = -row.share * logs
    if row.index is not None:
        terms = torch.where(row.share == 0, torch.where(logs.isnan(), logs, 0), terms)
    found = terms.sum(row.class_dim)
    return found + row.z_loss * row.lse.square() if row.z_loss else found


def slopes(row: Row, smoothing: float, class_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The derivatives for input and for a target of probabilities."""
    logs = torch.log_softmax(row.logits, row.class_dim)
    total = row.share.sum(row.class_dim, keepdim=True)
    if row.z_loss:
        total = total + 2 * row.z_loss * row.over_classes(row.lse)
    for_input = logs.exp() * total - row.share
    for_input = for_input if row.slope is None else for_input * row.slope
    if row.index is not None:
        return for_input, None
    weights = _weights(class_weight, row.class_dim, row.logits)
    for_target = -logs * (1 - smoothing)
    return for_input, for_target if weights is None else for_target * weights
