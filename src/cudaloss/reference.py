"""Each loss in plain PyTorch: the definition, the fallback of the ops and the tests' oracle.

It runs on every device, layout and floating dtype, under every transform and in every autograd mode, and costs what a
chain of PyTorch kernels costs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ._options import NONE, Options
from ._specs import LossSpec

__all__ = ["gradients", "loss", "result_dtype"]


def result_dtype(input: Tensor, target: Tensor, dtype: torch.dtype | None, autocast: bool) -> torch.dtype:
    """The dtype of the loss: `dtype`, else the promoted one, in at least float32 under autocast."""
    if dtype is not None:
        return dtype
    if input.dtype == target.dtype:
        promoted = input.dtype
    elif any(x.is_floating_point() and x.dtype.itemsize == 1 for x in (input, target)):
        promoted = torch.float32  # 8-bit floats, which PyTorch does not promote
    else:
        promoted = torch.promote_types(input.dtype, target.dtype)
    return torch.promote_types(promoted, torch.float32) if autocast else promoted


def _selected(target: Tensor, options: Options) -> Tensor | None:
    """Where elements count, of a shape that broadcasts to the loss's; None: everywhere."""
    if not (options.ignore_nan and target.is_floating_point()):
        return options.mask
    present = ~target.isnan()
    return present if options.mask is None else present & options.mask


def _over(total: Tensor, denominator: Tensor) -> Tensor:
    """total / denominator, whose gradient is 0, not NaN, where there was nothing to divide by."""
    empty = denominator == 0
    return torch.where(empty, total.detach() / denominator.detach(), total / torch.where(empty, 1, denominator))


def _over_rest(reduce: Callable[..., Tensor], terms: Tensor, batch_dims: int) -> Tensor:
    """``Tensor.sum`` or ``Tensor.mean`` over all dimensions but the first `batch_dims`."""
    if batch_dims == 0:
        return reduce(terms)
    return reduce(terms.flatten(batch_dims), -1) if terms.dim() > batch_dims else terms


def _reduced(value: Tensor, options: Options, in_play: Tensor | None, reduction: str) -> Tensor:
    """The sum or mean of the elements' losses; `in_play` is what a mean counts, None: every element as 1."""
    if reduction == "none":
        return value
    batch_dims, normalizer = options.batch_dims, options.normalizer
    if reduction == "sum":
        return _over_rest(Tensor.sum, value, batch_dims)
    if normalizer is not None:
        return _over_rest(Tensor.sum, value, batch_dims) / normalizer.to(value.dtype)
    if in_play is None:
        return _over_rest(Tensor.mean, value, batch_dims)
    counted = _over_rest(Tensor.sum, in_play.expand(value.shape), batch_dims)
    return _over(_over_rest(Tensor.sum, value, batch_dims), counted.to(value.dtype))


def loss(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: float,
    dtype: torch.dtype,
    options: Options = NONE,
) -> Tensor:
    """The loss of `spec` in float32 arithmetic (float64 where a dtype is), rounded to `dtype` at the end."""
    weight = options.weight
    dtypes = [x.dtype for x in (input, target, weight) if x is not None]
    compute = torch.float64 if torch.float64 in (*dtypes, dtype) else torch.float32
    selected = _selected(target, options)
    difference = input.to(compute) - target.to(compute)
    if selected is not None:
        difference = torch.where(selected, difference, 0)
    value = spec.value(difference, parameter)
    if weight is not None:
        weight = weight.to(compute)
        weight = weight if selected is None else torch.where(selected, weight, 0)
        value = value * weight
    if selected is not None:
        value = torch.where(selected, value, 0)
    value = _reduced(value, options, selected if weight is None else weight, reduction)
    return (value if options.scale == 1 else value * options.scale).to(dtype)


def gradients(
    spec: LossSpec,
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: float,
    dtype: torch.dtype,
    needed: tuple[bool, bool],
    options: Options = NONE,
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of :func:`loss` for input and target, where `needed`; differentiable where grad mode is on.

    Through ``torch.func``, so that a transform around a backward alone finds composite ops here too.
    """
    operands = (input, target)

    def of_needed(*replaced: Tensor) -> Tensor:
        found = iter(replaced)
        a, b = (next(found) if need else operand for operand, need in zip(operands, needed, strict=True))
        return loss(spec, a, b, reduction, parameter, dtype, options)

    wanted = [operand for operand, need in zip(operands, needed, strict=True) if need]
    vjp = torch.func.vjp(of_needed, *wanted)[1]
    found = iter(vjp(grad_output))
    return (next(found) if needed[0] else None, next(found) if needed[1] else None)
