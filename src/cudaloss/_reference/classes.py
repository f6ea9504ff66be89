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

from .._call.call import Call
from .._call.shapes import class_dim, rows_shape
from .._losses.closed_forms import Slopes, evaluate, savable


@dataclass(frozen=True)
class Classes:
    """A row's loss as a function of the fields of :class:`RowOperands` from logits to chosen."""

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
    smoothing: float = 0.0
    wrong: Tensor | None = None  # rows whose index is no class, with size 1 along the classes; None: none

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


def _raises(index: Tensor) -> bool:
    """Whether PyTorch's ops raise for an index that is no class. On a GPU they would end the process's use of it."""
    return index.is_cpu


def _indices(target: Tensor, selected: Tensor | None, classes: int) -> tuple[Tensor, Tensor | None]:
    """Class indices, with 0 for rows that do not count; and which others are no class and so 0; None: PyTorch raises
    for such."""
    index, wrong = savable(target, torch.int64), None
    if not _raises(index):
        wrong = (index < 0) | (index >= classes)
        index = torch.where(wrong, 0, index)
    if selected is not None:
        wrong = None if wrong is None else wrong & selected
        index = torch.where(selected, index, 0)
    return index, wrong


def counted_weight(call: Call, selected: Tensor | None) -> Tensor | None:
    """What each row adds to a mean's denominator; None: 1. With an index it includes the weight of the row's class."""
    of_row, of_class = call.options.weight, call.third
    if of_class is None or call.target.is_floating_point():
        return of_row
    own = savable(of_class, of_class.dtype)[_indices(call.target, selected, of_class.shape[0])[0]]
    return own if of_row is None else of_row.double() * own


def _smoothed(q: Tensor, smoothing: float, classes: int) -> Tensor:
    return q if smoothing == 0 else q * (1 - smoothing) + smoothing / classes


def operands(call: Call, selected: Tensor | None, compute: torch.dtype) -> RowOperands:
    """The arguments of :func:`value` and :func:`slopes`; `compute` is the dtype of the arithmetic."""
    dim, smoothing, target = class_dim(call.input), call.second, call.target
    x = savable(call.input, compute)
    counts = None if selected is None else selected.unsqueeze(dim)
    if counts is not None and not call.spec.takes_indices_alone:  # else `chosen` is enough, with one number for a row
        x = torch.where(counts, x, 0)
    classes, index, wrong = x.shape[dim], None, None
    if not target.is_floating_point():
        index, wrong = (None if i is None else i.unsqueeze(dim) for i in _indices(target, selected, classes))
        assert index is not None
        # A product, whose gradient is NaN too: that of torch.where is 0.
        x = x if wrong is None else x * torch.where(wrong, torch.nan, x.new_ones(()))
    cap_slope = None
    if call.softcap != 0:
        bent = torch.tanh(x / call.softcap)
        x, cap_slope = call.softcap * bent, 1 - bent * bent
    weight = None if call.third is None else savable(call.third, compute)
    chosen = None
    if index is None:
        q = _smoothed(savable(target, compute), smoothing, classes)
        q = q if counts is None else torch.where(counts, q, 0)
    else:
        of_index = x.new_ones(index.shape) if weight is None else weight.gather(0, index.flatten()).view(index.shape)
        chosen = of_index * (1 - smoothing)  # a product: new_full would add a guard on a symbolic number
        chosen = chosen if counts is None else torch.where(counts, chosen, 0)  # its slope is finite beside a NaN
        q = None if smoothing == 0 else (x.new_ones(()) * (smoothing / classes)).expand(x.shape)
    definition = Classes(dim, call.spec.takes_indices_alone, call.parameter)
    over_classes = None if weight is None or q is None else _over_input(weight, dim, x).expand(x.shape)
    return RowOperands(definition, cap_slope, x, q, over_classes, index, chosen, smoothing, wrong)


def value(row: RowOperands) -> Tensor:
    """The losses, of the rows' shape."""
    if row.q is None and row.definition.z_loss == 0:
        # Autograd's own steps are the closed form, and keep the softmax. logsumexp's are wrong above 1 / eps.
        return row.definition.value(*row[2:7])
    return evaluate(row.definition, *row[2:7])


def slopes(row: RowOperands, needed: Sequence[bool]) -> Slopes:
    """The derivatives of each row's loss for the input and for a target of probabilities (None for indices), in input's
    shape; there is none for class weights."""
    wanted = True, row.index is None, False, False, False
    for_input, for_q, *_ = row.definition.slopes(wanted, *row[2:7])
    assert for_input is not None
    for_input = for_input if row.cap_slope is None else for_input * row.cap_slope
    for_input = for_input if row.wrong is None else torch.where(row.wrong, torch.nan, for_input)
    return for_input, None if for_q is None else for_q * (1 - row.smoothing)
