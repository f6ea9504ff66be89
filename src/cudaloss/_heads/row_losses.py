"""From the numbers of rows to losses, in the size of the rows. Autograd differentiates it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._call.call import Call
from .._call.modes import BELOW_AUTOGRAD, FOR_INPUT, pack
from .._call.varying import NO_INDEX
from .._losses.options import Options
from .._losses.table import OF_ROWS
from .._ops import dispatch, private
from .blocks import LOG_SUM, MEAN, OWN, SHARES, Block

CROSS_ENTROPY, NLL = (next(spec for spec in OF_ROWS if spec.name == name) for name in ("cross_entropy", "nll"))


class CrossEntropy(NamedTuple):
    """The cross entropy of each row, and how the rows are reduced. Rows are one dimension."""

    class_weight: Tensor | None  # of all classes
    classes: int
    smoothing: float
    z_loss: float
    sample_weight: Tensor | None
    reduction: str
    normalizer: Tensor | float | None
    scale: float
    dtype: torch.dtype

    @property
    def is_of_two(self) -> bool:
        """Whether it is a cross entropy of two classes: the target and all others."""
        return self.smoothing == 0 and (self.class_weight is None or self.z_loss == 0)

    def rows(self, some: slice) -> CrossEntropy:
        weight = self.sample_weight
        return self if weight is None else self._replace(sample_weight=weight[some])


def _of_target(loss: CrossEntropy, target: Tensor) -> Tensor | None:
    """The class weight of each row's target."""
    if loss.class_weight is None:
        return None
    return loss.class_weight.double()[target.clamp(0, loss.classes - 1)]


def _product(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a * b


def divisor(weight: Tensor | None, counts: Tensor | None, rows: int) -> Tensor | float:
    """What a mean divides by: the number of rows that count, or the sum of their weights."""
    if weight is None:
        return float(rows) if counts is None else counts.sum(dtype=torch.float64)
    return (weight if counts is None else torch.where(counts, weight, 0)).sum(dtype=torch.float64)


def denominator(loss: CrossEntropy, target: Tensor, counts: Tensor | None) -> Tensor | float | None:
    """What a mean divides by: as :func:`cudaloss.cross_entropy`'s."""
    if loss.reduction != "mean" or loss.normalizer is not None:
        return loss.normalizer
    return divisor(_product(_of_target(loss, target), loss.sample_weight), counts, target.numel())


class Divided(NamedTuple):
    """How a sum over rows becomes a mean whose gradients are 0 if nothing counts."""

    divisor: Tensor | None
    scale: float
    is_empty: Tensor | None

    @classmethod
    def of(cls, divisor: Tensor | float | None, is_count: bool, scale: float) -> Divided:
        if divisor is None or isinstance(divisor, Tensor):
            if divisor is None or not is_count:
                return cls(divisor, scale, None)
            return cls(torch.where(divisor == 0, 1.0, divisor), scale, divisor == 0)
        return cls(None, scale / divisor, None)

    def result(self, found: Tensor) -> Tensor:
        return found if self.is_empty is None else torch.where(self.is_empty, torch.nan, found)


def value(loss: CrossEntropy, numbers: Tensor, target: Tensor, counts: Tensor | None) -> Tensor:
    own_weight, options = _of_target(loss, target), Options(None, counts, loss.normalizer, loss.scale)
    if loss.is_of_two:
        options = options._replace(weight=_product(own_weight, loss.sample_weight))
        of_two, index = numbers[: OWN + 1].t(), torch.full_like(target, OWN)
        call = Call(CROSS_ENTROPY, of_two, index, loss.reduction, loss.dtype, options, parameter=loss.z_loss)
        return dispatch.loss(call)
    log_sum, own = torch.logaddexp(numbers[LOG_SUM], numbers[OWN]), numbers[OWN]
    kept, of_each = 1.0 - loss.smoothing, loss.smoothing / loss.classes
    found = kept * (log_sum - own)
    found = found if own_weight is None else found * own_weight
    if loss.smoothing != 0:
        total = float(loss.classes) if loss.class_weight is None else loss.class_weight.double().sum()
        found = found + of_each * (total * log_sum - numbers[SHARES])
    if loss.z_loss != 0:
        found = found + loss.z_loss * log_sum.square()
    options = options._replace(weight=loss.sample_weight)
    if loss.reduction != "mean" or loss.normalizer is not None:
        return reduced(found, loss.reduction, loss.dtype, options)
    of = denominator(loss, target, counts)
    divided = Divided.of(of, True, loss.scale)
    options = options._replace(normalizer=of if isinstance(of, float) else divided.divisor)
    return divided.result(reduced(found, loss.reduction, loss.dtype, options))


def reduced(found: Tensor, reduction: str, dtype: torch.dtype, options: Options) -> Tensor:
    """The reduction of the losses of rows."""
    first = torch.zeros_like(found, dtype=torch.int64, requires_grad=False)
    return dispatch.loss(Call(NLL, -found.unsqueeze(1), first, reduction, dtype, options, parameter=0.0))


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def value_over(loss: CrossEntropy, logits: Tensor, block: Block) -> Tensor:
    """The same from the logits of all classes, whose gradient overwrites them. Reduced, and with a given divisor."""
    how = pack(loss.reduction, loss.dtype, CROSS_ENTROPY.mode) | FOR_INPUT | BELOW_AUTOGRAD
    options = loss.scale, loss.sample_weight, block.counts, loss.normalizer, None
    own = loss.class_weight, loss.smoothing, NO_INDEX, block.softcap
    return private.forward_over_(logits, block.target, how, loss.z_loss, *options, *own)


def log_prob(numbers: Tensor) -> Tensor:
    return numbers[OWN] - torch.logaddexp(numbers[LOG_SUM], numbers[OWN])


def entropy(numbers: Tensor) -> Tensor:
    """Of a row: the mean of -log(p) by p, of the other classes and of the target's."""
    of_others, own = numbers[LOG_SUM], numbers[OWN]
    log_sum = torch.logaddexp(of_others, own)
    is_none = own == -torch.inf
    of_own = (own - log_sum).exp() * (log_sum - torch.where(is_none, 0, own))
    return (of_others - log_sum).exp() * (log_sum - numbers[MEAN]) + torch.where(is_none, 0, of_own)
