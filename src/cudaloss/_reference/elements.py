"""The formulas of the rows of losses of elements, with their derivatives in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._call.call import Call
from .._losses.closed_forms import Slopes, evaluate, savable
from .._losses.options import Options
from .._losses.table import LossSpec, OfDifference, OfTwo, Third


@dataclass(frozen=True)
class _Derivative:
    """A derivative of a loss of the difference, a function of that and of a third operand if that is a tensor. Its own
    derivative is the next one."""

    spec: LossSpec
    number: float  # in the place of a third operand
    order: int
    dim: None = None

    def parameter(self, third: tuple[Tensor, ...]) -> Third:
        return third[0] if third else self.number

    def value(self, d: Tensor, *third: Tensor) -> Tensor:
        return _terms(self.spec).derivatives[self.order](d, self.parameter(third))

    def slopes(self, needed: Sequence[bool], d: Tensor, *third: Tensor) -> Slopes:
        following = derivative(self.spec, d, self.parameter(third), self.order + 1) if needed[0] else None
        if not third:
            return (following,)
        return following, _terms(self.spec).for_third[self.order](d, *third) if needed[1] else None


@dataclass(frozen=True)
class _Pair:
    """A loss of both operands, and of a third one if that is a tensor."""

    terms: OfTwo
    number: float  # in the place of a third operand
    second: float
    dim: None = None

    def value(self, x: Tensor, t: Tensor, *third: Tensor) -> Tensor:
        return self.terms.value(x, t, third[0] if third else self.number, self.second)

    def slopes(self, needed: Sequence[bool], x: Tensor, t: Tensor, *third: Tensor) -> Slopes:
        call = x, t, third[0] if third else self.number, self.second
        pairs = zip(self.terms[1:], needed, strict=False)
        return tuple(formula(*call) if wanted and formula else None for formula, wanted in pairs)


def _terms(spec: LossSpec) -> OfDifference:
    assert isinstance(spec.terms, OfDifference)
    return spec.terms


def derivative(spec: LossSpec, d: Tensor, parameter: Third, order: int) -> Tensor:
    terms = _terms(spec)
    if order + 1 == len(terms.derivatives):
        return terms.derivatives[order](d, parameter)
    if isinstance(parameter, Tensor):  # expanded, so that autograd sums over broadcast dimensions
        return evaluate(_Derivative(spec, spec.default, order), d, parameter.expand(d.shape))
    return evaluate(_Derivative(spec, parameter, order), d)


class Elements(NamedTuple):
    """The values from which single losses are computed, in the dtype of the arithmetic. Elements that are left out are
    0 (the third operand: 1)."""

    spec: LossSpec
    tensors: tuple[Tensor, ...]  # only the difference, or input and target of one shape
    third: Third
    second: float

    def layout(self) -> tuple[torch.Size, torch.dtype, None]:
        """The losses' shape, the dtype of the arithmetic, and the operands' dimension that losses lack."""
        return self.tensors[0].shape, self.tensors[0].dtype, None

    def pair(self) -> tuple[_Pair, tuple[Tensor, ...]]:
        spec, tensors, third, second = self
        assert isinstance(spec.terms, OfTwo)
        if isinstance(third, Tensor):  # expanded, so that autograd sums over broadcast dimensions
            return _Pair(spec.terms, spec.default, second), (*tensors, third.expand(tensors[0].shape))
        return _Pair(spec.terms, third, second), tensors


def where_selected(target: Tensor, options: Options) -> Tensor | None:
    if not (options.ignore_nan and target.is_floating_point()):
        return options.mask
    return ~target.isnan() if options.mask is None else ~target.isnan() & options.mask


def selected(call: Call) -> Tensor | None:
    """Which elements count; its shape broadcasts to the loss's. None: all."""
    return where_selected(call.target, call.options)


def counted_weight(call: Call, selected: Tensor | None) -> Tensor | None:
    """What each element adds to a mean's denominator; None: 1."""
    return None if call.spec.mean_over_count else call.options.weight


def operands(call: Call, selected: Tensor | None, compute: torch.dtype) -> Elements:
    x, t, third = savable(call.input, compute), savable(call.target, compute), call.operand
    if isinstance(call.spec.terms, OfDifference):
        tensors: tuple[Tensor, ...] = (x - t,)
    else:
        tensors = (x, t) if x.is_nested or x.shape == t.shape else tuple(torch.broadcast_tensors(x, t))
    third = savable(third, compute) if isinstance(third, Tensor) else third
    if selected is not None:
        tensors = tuple(torch.where(selected, operand, 0) for operand in tensors)
        third = torch.where(selected, third, 1) if isinstance(third, Tensor) else third
    return Elements(call.spec, tensors, third, call.second)


def value(of: Elements) -> Tensor:
    """The single losses."""
    if isinstance(of.spec.terms, OfDifference):
        return derivative(of.spec, of.tensors[0], of.third, 0)
    pair, tensors = of.pair()
    return evaluate(pair, *tensors)


def slopes(of: Elements, needed: Sequence[bool]) -> Slopes:
    """The derivatives for input, target and, for a loss of both operands, a third operand that is a tensor, if
    needed."""
    if isinstance(of.spec.terms, OfDifference):
        slope = derivative(of.spec, of.tensors[0], of.third, 1)
        return slope if needed[0] else None, -slope if needed[1] else None
    pair, tensors = of.pair()
    return pair.slopes(needed, *tensors)
