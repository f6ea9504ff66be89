"""The rows' formulas under autograd: with derivatives in closed form, if possible."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._specs import LossSpec, OfDifference, OfOperands, OfTwo, Third

Operands = tuple[Tensor, ...]  # only the difference, or input and target of one shape


def _composes() -> bool:
    """Whether to use plain ops. A Function cannot run inside an op's kernel for a functorch transform, and Dynamo does
    not need it."""
    return torch._C._are_functorch_transforms_active() or torch.compiler.is_dynamo_compiling()


# PyTorch's own stubs give the static methods other parameters than its documentation does.
# pyright: reportIncompatibleMethodOverride=false
class _Derivative(torch.autograd.Function):
    """A derivative of a loss; its own derivative is the next one in closed form. That is about two kernels; autograd
    would follow each step of the formula."""

    @staticmethod
    def forward(d: Tensor, spec: LossSpec, parameter: float, order: int) -> Tensor:
        return _derivatives(spec)[order](d, parameter)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        d, *ctx.which = inputs
        ctx.save_for_backward(d)
        ctx.save_for_forward(d)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        return grad_output * _Derivative.following(ctx), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        return tangent * _Derivative.following(ctx)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], d: Tensor, *which: Any) -> tuple[Tensor, int | None]:
        return _Derivative.apply(d, *which), in_dims[0]

    @staticmethod
    def following(ctx: Any) -> Tensor:
        (d,) = ctx.saved_tensors
        spec, parameter, order = ctx.which
        return derivative(spec, d, parameter, order + 1)


def _derivatives(spec: LossSpec) -> Any:
    assert isinstance(spec.terms, OfDifference)
    return spec.terms.derivatives


def derivative(spec: LossSpec, d: Tensor, parameter: Third, order: int) -> Tensor:
    # If a tensor is the third operand, autograd may have to differentiate in it too: the formulas then use PyTorch's
    # ops.
    formulas = _derivatives(spec)
    if order + 1 < len(formulas) and not isinstance(parameter, Tensor) and not _composes():
        return _Derivative.apply(d, spec, parameter, order)
    return formulas[order](d, parameter)


class _Pair(torch.autograd.Function):
    """A loss of both operands, with the row's derivatives; autograd differentiates those."""

    @staticmethod
    def forward(x: Tensor, t: Tensor, third: Third, terms: OfTwo, second: float) -> Tensor:
        return terms.value(x, t, third, second)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, t, third, ctx.terms, ctx.second = inputs
        tensors = (x, t, third) if isinstance(third, Tensor) else (x, t)
        ctx.third = None if isinstance(third, Tensor) else third
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        slopes = (
            grad_output * _Pair.slope(ctx, formula) if wanted else None
            for formula, wanted in zip(ctx.terms[1:], ctx.needs_input_grad, strict=False)
        )
        return *slopes, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        found = None
        for formula, tangent in zip(ctx.terms[1:], tangents, strict=False):
            if tangent is not None:
                part = tangent * _Pair.slope(ctx, formula)
                found = part if found is None else found + part
        return found

    @staticmethod
    def slope(ctx: Any, formula: OfOperands) -> Tensor:
        x, t, *rest = ctx.saved_tensors
        return formula(x, t, rest[0] if rest else ctx.third, ctx.second)


def value(spec: LossSpec, operands: Operands, third: Third, second: float) -> Tensor:
    """The single losses."""
    terms = spec.terms
    if isinstance(terms, OfDifference):
        return derivative(spec, operands[0], third, 0)
    x, t = operands
    if _composes():
        return terms.value(x, t, third, second)
    if isinstance(third, Tensor):
        third = third.expand(x.shape)  # so that autograd sums over broadcast dimensions
    return _Pair.apply(x, t, third, terms, second)


def slopes(
    spec: LossSpec, operands: Operands, third: Third, second: float, needed: tuple[bool, ...]
) -> tuple[Tensor | None, ...]:
    """The derivatives for input, target and, for a loss of both operands, a third operand that is a tensor, if
    needed."""
    terms = spec.terms
    if isinstance(terms, OfDifference):
        slope = derivative(spec, operands[0], third, 1)
        return slope if needed[0] else None, -slope if needed[1] else None
    x, t = operands
    each = zip(terms[1:], needed, strict=False)
    return tuple(formula(x, t, third, second) if wanted and formula else None for formula, wanted in each)
