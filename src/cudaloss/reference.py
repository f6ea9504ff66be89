"""Each loss in plain PyTorch: the definition, the fallback of the ops and the tests' oracle.

It runs on every device, layout and floating dtype, under every transform and in every autograd mode, and costs what a
chain of PyTorch kernels costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._options import NONE, Options
from ._specs import LossSpec

__all__ = ["computing_dtype", "gradients", "loss", "result_dtype"]


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


def computing_dtype(*dtypes: torch.dtype) -> torch.dtype:
    """What is computed in: float64 where anything is, else float32."""
    return torch.float64 if torch.float64 in dtypes else torch.float32


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


def _sum(terms: Tensor, batch_dims: int) -> Tensor:
    """The sum over all dimensions but the first `batch_dims`."""
    if batch_dims == 0:
        return terms.sum()
    return terms.flatten(batch_dims).sum(-1) if terms.dim() > batch_dims else terms


def _mean(terms: Tensor, batch_dims: int) -> Tensor:
    if batch_dims == 0:
        return terms.mean()
    return terms.flatten(batch_dims).mean(-1) if terms.dim() > batch_dims else terms


def _reduced(value: Tensor, options: Options, in_play: Tensor | None, reduction: str) -> Tensor:
    """The sum or mean of the elements' losses; `in_play` is what a mean counts, None: every element as 1."""
    if reduction == "none":
        return value
    batch_dims, normalizer = options.batch_dims, options.normalizer
    if reduction == "mean" and normalizer is None and in_play is None:
        return _mean(value, batch_dims)
    total = _sum(value, batch_dims)
    if reduction == "sum":
        return total
    if in_play is None or normalizer is not None:
        assert normalizer is not None  # a mean of all elements alike has been returned
        return total / normalizer.to(value.dtype)
    return _over(total, _sum(in_play.expand(value.shape), batch_dims).to(value.dtype))


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
    compute = computing_dtype(*(x.dtype for x in (input, target, weight) if x is not None), dtype)
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
