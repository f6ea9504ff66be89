"""Losses of rows in plain PyTorch: the values, which rows count, and the derivatives.

With the class weights w, label_smoothing s and a target's probabilities q (for an index: 1 for its class, 0 for the
others), a class has the share ``w * ((1 - s) * q + s / classes)``, and a row's loss is::

    (-share * log_softmax(logits)).sum() + z_loss * logsumexp(logits)**2

where logits are input, or ``softcap * tanh(input / softcap)``. If a loss reads only its target's class, input has the
logarithms already.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import class_dim
from ._options import Options
from ._specs import LossSpec, RowNumbers, VectorNumbers


class RowOperands(NamedTuple):
    """The values from which all rows are computed, in the dtype of the arithmetic; 0 for rows that do not count."""

    logits: Tensor  # in input's shape, after the softcap
    cap_slope: Tensor | None  # the derivative of the softcap, in input's shape; None: no softcap
    share: Tensor  # in input's shape: the factor of each class's -log_softmax
    are_logs: bool  # whether the logits are log-probabilities
    has_indices: bool  # whether the target has class indices; otherwise probabilities
    class_dim: int
    z_loss: float

    @property
    def logs(self) -> Tensor:
        return self.logits if self.are_logs else torch.log_softmax(self.logits, self.class_dim)

    @property
    def lse(self) -> Tensor:
        return self.logits.logsumexp(self.class_dim)

    def over_classes(self, x: Tensor) -> Tensor:
        """Reshapes a number for each row so that it broadcasts to input."""
        return x.unsqueeze(self.class_dim)


def left_out(shape: torch.Size, target: Tensor, options: Options, rows: RowNumbers | VectorNumbers) -> Tensor | None:
    """Which rows of this shape do not count; None: all count."""
    ignored = None
    if isinstance(rows, RowNumbers) and not target.is_floating_point():
        ignored = target.long() == rows.ignore_index  # as uint8, 156 would be -100
    if options.mask is None:
        return ignored
    return (~options.mask if ignored is None else ~options.mask | ignored).expand(shape)


def _over_input(class_weight: Tensor | None, dim: int, input: Tensor) -> Tensor | None:
    """Class weights in a shape that broadcasts to input."""
    return None if class_weight is None else class_weight.view((-1,) + (1,) * (input.dim() - dim - 1))


def _indices(target: Tensor, out: Tensor | None) -> Tensor:
    """Class indices, with 0 for rows that do not count."""
    return target.long() if out is None else torch.where(out, 0, target.long())


def counted_weight(
    target: Tensor, sample_weight: Tensor | None, class_weight: Tensor | None, out: Tensor | None
) -> Tensor | None:
    """What each row adds to a mean's denominator; None: 1. With an index it includes the weight of the row's class."""
    if class_weight is None or target.is_floating_point():
        return sample_weight
    of_class = class_weight[_indices(target, out)]
    return of_class if sample_weight is None else sample_weight.double() * of_class


def operands(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    out: Tensor | None,
    smoothing: float,
    rows: RowNumbers,
    compute: torch.dtype,
) -> RowOperands:
    """The arguments of :func:`values` and :func:`slopes`. `out` marks rows that are left out, `compute` is the dtype of
    the arithmetic."""
    dim = class_dim(input)
    x = input.to(compute)
    x = x if out is None else torch.where(out.unsqueeze(dim), 0, x)
    cap_slope = None
    if rows.softcap:
        bent = torch.tanh(x / rows.softcap)
        x, cap_slope = rows.softcap * bent, 1 - bent * bent
    weight = _over_input(None if class_weight is None else class_weight.to(compute), dim, input)
    each, has_indices = smoothing / input.shape[dim], not target.is_floating_point()
    if has_indices:
        share = torch.zeros_like(x).scatter(dim, _indices(target, out).unsqueeze(dim), 1 - smoothing)
        share = share + each if smoothing else share
    else:
        share = target.to(compute) * (1 - smoothing) + each
    share = share if weight is None else share * weight
    if not has_indices and out is not None:
        share = torch.where(out.unsqueeze(dim), 0, share)
    return RowOperands(x, cap_slope, share, spec.takes_indices_alone, has_indices, dim, rows.z_loss)


def values(row: RowOperands) -> Tensor:
    """The losses, of the rows' shape."""
    logs = row.logs
    terms = -row.share * logs
    if row.has_indices:  # other classes count as 0, also if their logarithm is infinite
        nothing = 0 if row.are_logs else torch.where(logs.isnan(), logs, 0)
        terms = torch.where(row.share == 0, nothing, terms)
    found = terms.sum(row.class_dim)
    return found + row.z_loss * row.lse.square() if row.z_loss else found


def slopes(row: RowOperands, smoothing: float, class_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The derivatives of each row's loss for input and for a target of probabilities (None for indices), in input's
    shape."""
    if row.are_logs:
        return -row.share, None
    logs = row.logs
    total = row.share.sum(row.class_dim, keepdim=True)
    if row.z_loss:
        total = total + 2 * row.z_loss * row.over_classes(row.lse)
    for_input = logs.exp() * total - row.share
    for_input = for_input if row.cap_slope is None else for_input * row.cap_slope
    if row.has_indices:
        return for_input, None
    weight = _over_input(class_weight, row.class_dim, row.logits)
    for_target = -logs * (1 - smoothing)
    return for_input, for_target if weight is None else for_target * weight
