"""Losses of rows in plain PyTorch: the values, which rows count, and the derivatives.

With the class weights w, label_smoothing s and a target's probabilities q (for an index: 1 for its class, 0 for the
others), a class has the share ``w * ((1 - s) * q + s / classes)``, and a row's loss is::

    (-share * log_softmax(logits)).sum() + z_loss * logsumexp(logits)**2

where logits are input, or ``softcap * tanh(input / softcap)``. If a loss reads only its target's class, input has the
logarithms already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._checks import class_dim
from ._closed_forms import Slopes, evaluate, savable
from ._options import Options
from ._specs import LossSpec, RowNumbers, VectorNumbers


@dataclass(frozen=True)
class Classes:
    """A row's loss as a function of the last five fields of :class:`RowOperands`."""

    dim: int  # of the classes
    are_logs: bool  # whether the logits are log-probabilities
    z_loss: float

    def _logs(self, logits: Tensor) -> Tensor:
        return logits if self.are_logs else torch.log_softmax(logits, self.dim)

    def value(self, *operands: Any) -> Tensor:
        row, terms = RowOperands(self, None, *operands), []
        logs = self._logs(row.logits)
        if row.q is not None:
            terms.append((-_times(row.q, row.weight) * logs).sum(self.dim))
        if row.index is not None:
            terms.append((-row.chosen * logs.gather(self.dim, row.index)).squeeze(self.dim))
        if self.z_loss != 0:
            terms.append(self.z_loss * row.logits.logsumexp(self.dim).square())
        return sum(terms[1:], terms[0])

    def slopes(self, needed: Sequence[bool], *operands: Any) -> Slopes:
        row, for_logits = RowOperands(self, None, *operands), None
        q, index = row.q, row.index
        if needed[0]:
            total, share = row.chosen, None if q is None else _times(q, row.weight)
            if share is not None:
                of_all = share.sum(self.dim, keepdim=True)
                total = of_all if total is None else total + of_all
            if self.z_loss != 0:
                total = total + 2 * self.z_loss * row.logits.logsumexp(self.dim, keepdim=True)
            mean = torch.zeros_like(row.logits) if self.are_logs else torch.softmax(row.logits, self.dim) * total
            for_logits = mean if share is None else mean - share
            for_logits = for_logits if index is None else for_logits.scatter_add(self.dim, index, -row.chosen)
        if not any(needed[1:]):
            return for_logits, None, None, None, None
        losses = -self._logs(row.logits)
        for_chosen = None if index is None else losses.gather(self.dim, index)
        return for_logits, _times(losses, row.weight), None if q is None else losses * q, None, for_chosen


def _times(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x * weight


class RowOperands(NamedTuple):
    """The values from which all rows are computed, in the dtype of the arithmetic. A class's share is `q` times its
    weight, and for the class at `index` also `chosen`, which are only as many numbers as rows."""

    definition: Classes
    cap_slope: Tensor | None  # the derivative of the softcap; None: no softcap
    logits: Tensor  # in input's shape, after the softcap; 0 for rows that do not count, if other classes are read
    q: Any  # in input's shape; None: 0
    weight: Any  # the same; None: 1
    index: Any  # with size 1 along the classes; None: the target has probabilities
    chosen: Any  # the same; 0 for rows that do not count


def left_out(shape: torch.Size, target: Tensor, options: Options, rows: RowNumbers | VectorNumbers) -> Tensor | None:
    """Which rows of this shape do not count; None: all count."""
    ignored = None
    if isinstance(rows, RowNumbers) and not target.is_floating_point():
        ignored = target.long() == rows.ignore_index  # as uint8, 156 would be -100
    if options.mask is None:
        return ignored
    return (~options.mask if ignored is None else ~options.mask | ignored).expand(shape)


def _over_input(class_weight: Tensor, dim: int, input: Tensor) -> Tensor:
    """Class weights in a shape that broadcasts to input."""
    return class_weight.view((-1,) + (1,) * (input.dim() - dim - 1))


def _indices(target: Tensor, out: Tensor | None, classes: int) -> tuple[Tensor, Tensor | None]:
    """Class indices, with 0 for rows that do not count; and which others are no class and so 0. None: on a CPU
    PyTorch's ops raise for such. Elsewhere they would end the process's use of the GPU."""
    index, wrong = savable(target, torch.int64), None
    if not index.is_cpu:
        wrong = (index < 0) | (index >= classes)
        index = torch.where(wrong, 0, index)
    if out is not None:
        wrong = None if wrong is None else wrong & ~out
        index = torch.where(out, 0, index)
    return index, wrong


def counted_weight(
    target: Tensor, sample_weight: Tensor | None, class_weight: Tensor | None, out: Tensor | None
) -> Tensor | None:
    """What each row adds to a mean's denominator; None: 1. With an index it includes the weight of the row's class."""
    if class_weight is None or target.is_floating_point():
        return sample_weight
    of_class = savable(class_weight, class_weight.dtype)[_indices(target, out, class_weight.shape[0])[0]]
    return of_class if sample_weight is None else sample_weight.double() * of_class


def _smoothed(q: Tensor, smoothing: float, classes: int) -> Tensor:
    return q if smoothing == 0 else q * (1 - smoothing) + smoothing / classes


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
    x = savable(input, compute)
    left = None if out is None else out.unsqueeze(dim)
    if left is not None and not spec.takes_indices_alone:  # otherwise `chosen` is enough, with one number for a row
        x = torch.where(left, 0, x)
    classes, index = input.shape[dim], None
    if not target.is_floating_point():
        index, wrong = _indices(target, out, classes)
        index = index.unsqueeze(dim)
        x = x if wrong is None else x * torch.where(wrong, torch.nan, x.new_ones(())).unsqueeze(dim)
    cap_slope = None
    if rows.softcap != 0:
        bent = torch.tanh(x / rows.softcap)
        x, cap_slope = rows.softcap * bent, 1 - bent * bent
    weight = None if class_weight is None else savable(class_weight, compute)
    over_classes = None if weight is None else _over_input(weight, dim, input).expand(x.shape)
    chosen = None
    if index is None:
        q = _smoothed(savable(target, compute), smoothing, classes)
        q = q if left is None else torch.where(left, 0, q)
    else:
        chosen = x.new_full(index.shape, 1 - smoothing) if weight is None else weight[index] * (1 - smoothing)
        chosen = chosen if left is None else torch.where(left, 0, chosen)  # its slope is finite beside a NaN
        q = None if smoothing == 0 else x.new_full((), smoothing / classes).expand(x.shape)
    definition = Classes(dim, spec.takes_indices_alone, rows.z_loss)
    return RowOperands(definition, cap_slope, x, q, None if q is None else over_classes, index, chosen)


def values(row: RowOperands) -> Tensor:
    """The losses, of the rows' shape."""
    if row.q is None and row.definition.z_loss == 0:
        # Autograd's own steps are the closed form, and keep the softmax. logsumexp's are wrong above 1 / eps.
        return row.definition.value(*row[2:])
    return evaluate(row.definition, *row[2:])


def slopes(row: RowOperands, smoothing: float) -> tuple[Tensor, Tensor | None]:
    """The derivatives of each row's loss for the input and for a target of probabilities (None for indices), in input's
    shape."""
    needed = True, row.index is None, False, False, False
    for_input, for_q, *_ = row.definition.slopes(needed, *row[2:])
    assert for_input is not None
    for_input = for_input if row.cap_slope is None else for_input * row.cap_slope
    return for_input, None if for_q is None else for_q * (1 - smoothing)
