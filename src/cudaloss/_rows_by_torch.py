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
from typing import NamedTuple

import torch
from torch import Tensor

from ._checks import class_dim
from ._closed_forms import Slopes, evaluate, savable
from ._options import Options
from ._specs import LossSpec, RowNumbers, VectorNumbers


@dataclass(frozen=True)
class Classes:
    """A row's loss as a function of its logits, after the softcap, and of each class's probability in the target and
    weight, which make its share. `counts` marks the classes that count, if the target is an index; None: all."""

    dim: int  # of the classes
    are_logs: bool  # whether the logits are log-probabilities
    z_loss: float

    def _logs(self, logits: Tensor) -> Tensor:
        return logits if self.are_logs else torch.log_softmax(logits, self.dim)

    def _of_counted(self, terms: Tensor, counts: Tensor | None) -> Tensor:
        """The terms, 0 for classes that do not count, also if their logarithm is infinite."""
        return terms if counts is None else torch.where(counts, terms, 0)

    def value(self, logits: Tensor, q: Tensor, weight: Tensor | None, counts: Tensor | None) -> Tensor:
        logs, share = self._logs(logits), _times(q, weight)
        found = self._of_counted(-share * logs, counts).sum(self.dim)
        return found + self.z_loss * logits.logsumexp(self.dim).square() if self.z_loss != 0 else found

    def slopes(
        self, needed: Sequence[bool], logits: Tensor, q: Tensor, weight: Tensor | None, counts: Tensor | None
    ) -> Slopes:
        logs, share = self._logs(logits), _times(q, weight)
        losses = self._of_counted(-logs, counts)
        for_q, for_weight = _times(losses, weight) if needed[1] else None, losses * q if needed[2] else None
        if self.are_logs or not needed[0]:
            return -share, for_q, for_weight, None
        total = share.sum(self.dim, keepdim=True)
        if self.z_loss != 0:
            total = total + 2 * self.z_loss * logits.logsumexp(self.dim, keepdim=True)
        return logs.exp() * total - share, for_q, for_weight, None


def _times(x: Tensor, weight: Tensor | None) -> Tensor:
    return x if weight is None else x * weight


class RowOperands(NamedTuple):
    """The values from which all rows are computed, in the dtype of the arithmetic; 0 for rows that do not count."""

    definition: Classes
    logits: Tensor  # in input's shape, after the softcap; so are the next ones
    cap_slope: Tensor | None  # the derivative of the softcap; None: no softcap
    q: Tensor  # the smoothed target
    weight: Tensor | None
    counts: Tensor | None
    has_indices: bool  # whether the target has class indices; otherwise probabilities


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


def _indices(target: Tensor, out: Tensor | None, classes: int) -> Tensor:
    """Class indices, with 0 for rows that do not count. On a CPU PyTorch's ops raise for a wrong one. Elsewhere it is
    0, because they would end the process's use of the GPU."""
    index = savable(target, torch.int64)
    wrong = None if index.is_cpu else _wrong(index, classes)
    if out is not None:
        wrong = out if wrong is None else wrong | out
    return index if wrong is None else torch.where(wrong, 0, index)


def _wrong(index: Tensor, classes: int) -> Tensor:
    return (index < 0) | (index >= classes)


def counted_weight(
    target: Tensor, sample_weight: Tensor | None, class_weight: Tensor | None, out: Tensor | None
) -> Tensor | None:
    """What each row adds to a mean's denominator; None: 1. With an index it includes the weight of the row's class."""
    if class_weight is None or target.is_floating_point():
        return sample_weight
    of_class = savable(class_weight, class_weight.dtype)[_indices(target, out, class_weight.shape[0])]
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
    x = x if out is None else torch.where(out.unsqueeze(dim), 0, x)
    cap_slope = None
    if rows.softcap != 0:
        bent = torch.tanh(x / rows.softcap)
        x, cap_slope = rows.softcap * bent, 1 - bent * bent
    weight = None if class_weight is None else _over_input(savable(class_weight, compute), dim, input).expand(x.shape)
    classes, has_indices = input.shape[dim], not target.is_floating_point()
    counts = None
    if has_indices:
        index = _indices(target, out, classes).unsqueeze(dim)
        of_index = torch.zeros_like(x).scatter(dim, index, 1.0)
        # A wrong index gives NaN: a compiler may drop the check in scatter.
        wrong = _wrong(target.long(), classes)
        wrong = (wrong if out is None else wrong & ~out).unsqueeze(dim)
        q = torch.where(wrong, torch.nan, _smoothed(of_index, smoothing, classes))
        counts = wrong | (of_index != 0) if smoothing == 0 else None
    else:
        q = _smoothed(savable(target, compute), smoothing, classes)
        q = q if out is None else torch.where(out.unsqueeze(dim), 0, q)
    definition = Classes(dim, spec.takes_indices_alone, rows.z_loss)
    return RowOperands(definition, x, cap_slope, q, weight, counts, has_indices)


def values(row: RowOperands) -> Tensor:
    """The losses, of the rows' shape."""
    return evaluate(row.definition, row.logits, row.q, row.weight, row.counts)


def slopes(row: RowOperands, smoothing: float) -> tuple[Tensor, Tensor | None]:
    """The derivatives of each row's loss for the input and for a target of probabilities (None for indices), in input's
    shape."""
    needed = True, not row.has_indices, False
    for_input, for_q, *_ = row.definition.slopes(needed, row.logits, row.q, row.weight, row.counts)
    assert for_input is not None
    for_input = for_input if row.cap_slope is None else for_input * row.cap_slope
    return for_input, None if for_q is None else for_q * (1 - smoothing)
