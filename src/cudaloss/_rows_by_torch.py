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

from ._call import Call
from ._closed_forms import Slopes, evaluate, savable
from ._shapes import class_dim, rows_shape


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
    smoothing: float
    has_indices: bool  # whether the target has class indices; otherwise probabilities

    def layout(self) -> tuple[torch.Size, torch.dtype, int]:
        """The losses' shape, the dtype of the arithmetic, and the operands' dimension that losses lack."""
        return rows_shape(self.logits), self.logits.dtype, self.definition.dim


def selected(call: Call) -> Tensor | None:
    """Which rows count, in their shape; None: all."""
    mask, counts = call.options.mask, None
    if not call.target.is_floating_point():
        counts = call.target.long() != call.ignore_index  # as uint8, 156 would be -100
    if mask is None:
        return counts
    return (mask if counts is None else mask & counts).expand(call.shape)


def _over_input(class_weight: Tensor, dim: int, input: Tensor) -> Tensor:
    """Class weights in a shape that broadcasts to input."""
    return class_weight.view((-1,) + (1,) * (input.dim() - dim - 1))


def _indices(target: Tensor, selected: Tensor | None, classes: int) -> Tensor:
    """Class indices, with 0 for rows that do not count. On a CPU PyTorch's ops raise for a wrong one. Elsewhere it is
    0, because they would end the process's use of the GPU."""
    index = savable(target, torch.int64)
    right = None if index.is_cpu else ~_wrong(index, classes)
    if selected is not None:
        right = selected if right is None else right & selected
    return index if right is None else torch.where(right, index, 0)


def _wrong(index: Tensor, classes: int) -> Tensor:
    return (index < 0) | (index >= classes)


def counted_weight(call: Call, selected: Tensor | None) -> Tensor | None:
    """What each row adds to a mean's denominator; None: 1. With an index it includes the weight of the row's class."""
    of_row, of_class = call.options.weight, call.third
    if of_class is None or call.target.is_floating_point():
        return of_row
    own = savable(of_class, of_class.dtype)[_indices(call.target, selected, of_class.shape[0])]
    return own if of_row is None else of_row.double() * own


def _smoothed(q: Tensor, smoothing: float, classes: int) -> Tensor:
    return q if smoothing == 0 else q * (1 - smoothing) + smoothing / classes


def operands(call: Call, selected: Tensor | None, compute: torch.dtype) -> RowOperands:
    """The arguments of :func:`value` and :func:`slopes`; `compute` is the dtype of the arithmetic."""
    dim, smoothing, target = class_dim(call.input), call.second, call.target
    x = savable(call.input, compute)
    x = x if selected is None else torch.where(selected.unsqueeze(dim), x, 0)
    cap_slope = None
    if call.softcap != 0:
        bent = torch.tanh(x / call.softcap)
        x, cap_slope = call.softcap * bent, 1 - bent * bent
    weight = None if call.third is None else _over_input(savable(call.third, compute), dim, x).expand(x.shape)
    classes, has_indices = x.shape[dim], not target.is_floating_point()
    counts = None
    if has_indices:
        index = _indices(target, selected, classes).unsqueeze(dim)
        of_index = torch.zeros_like(x).scatter(dim, index, 1.0)
        # A wrong index gives NaN: a compiler may drop the check in scatter.
        wrong = _wrong(target.long(), classes)
        wrong = (wrong if selected is None else wrong & selected).unsqueeze(dim)
        q = torch.where(wrong, torch.nan, _smoothed(of_index, smoothing, classes))
        counts = wrong | (of_index != 0) if smoothing == 0 else None
    else:
        q = _smoothed(savable(target, compute), smoothing, classes)
        q = q if selected is None else torch.where(selected.unsqueeze(dim), q, 0)
    definition = Classes(dim, call.spec.takes_indices_alone, call.parameter)
    return RowOperands(definition, x, cap_slope, q, weight, counts, smoothing, has_indices)


def value(row: RowOperands) -> Tensor:
    """The losses, of the rows' shape."""
    return evaluate(row.definition, row.logits, row.q, row.weight, row.counts)


def slopes(row: RowOperands, needed: Sequence[bool]) -> Slopes:
    """The derivatives of each row's loss for the input and for a target of probabilities (None for indices), in input's
    shape; there is none for class weights."""
    wanted = True, not row.has_indices, False
    for_input, for_q, *_ = row.definition.slopes(wanted, row.logits, row.q, row.weight, row.counts)
    assert for_input is not None
    for_input = for_input if row.cap_slope is None else for_input * row.cap_slope
    return for_input, None if for_q is None else for_q * (1 - row.smoothing)
