"""The formulas of the rows of losses of elements, with their derivatives in closed form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ._closed_forms import Slopes, evaluate
from ._specs import LossSpec, OfDifference, OfTwo, Third

Operands = tuple[Tensor, ...]  # only the difference, or input and target of one shape


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


def _of_pair(spec: LossSpec, operands: Operands, third: Third, second: float) -> tuple[_Pair, Operands]:
    assert isinstance(spec.terms, OfTwo)
    if isinstance(third, Tensor):  # expanded, so that autograd sums over broadcast dimensions
        return _Pair(spec.terms, spec.default, second), (*operands, third.expand(operands[0].shape))
    return _Pair(spec.terms, third, second), operands


def value(spec: LossSpec, operands: Operands, third: Third, second: float) -> Tensor:
    """The single losses."""
    if isinstance(spec.terms, OfDifference):
        return derivative(spec, operands[0], third, 0)
    pair, tensors = _of_pair(spec, operands, third, second)
    return evaluate(pair, *tensors)


def slopes(spec: LossSpec, operands: Operands, third: Third, second: float, needed: Sequence[bool]) -> Slopes:
    """The derivatives for input, target and, for a loss of both operands, a third operand that is a tensor, if
    needed."""
    if isinstance(spec.terms, OfDifference):
        slope = derivative(spec, operands[0], third, 1)
        return slope if needed[0] else None, -slope if needed[1] else None
    pair, tensors = _of_pair(spec, operands, third, second)
    return pair.slopes(needed, *tensors)
