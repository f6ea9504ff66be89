"""Each loss in plain PyTorch: the definition, the fallback of the ops and the tests' oracle.

It runs on every device, layout and floating dtype, under every transform and in every autograd mode, and costs what a
handful of PyTorch's element-wise kernels cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._options import NONE, Options
from ._specs import LossSpec

__all__ = ["denominators", "gradients", "loss", "result_dtype"]


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


# PyTorch's own stubs give the static methods other parameters than its documentation.
# pyright: reportIncompatibleMethodOverride=false
class _Derivative(torch.autograd.Function):
    """A derivative of a loss, whose own is the next one in closed form: two kernels or so, where autograd would follow
    each step of the formula."""

    @staticmethod
    def forward(d: Tensor, spec: LossSpec, parameter: float, order: int) -> Tensor:
        return spec.derivatives[order](d, parameter)

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


def derivative(spec: LossSpec, d: Tensor, parameter: float, order: int) -> Tensor:
    # A Function has no place inside an op's kernel for a functorch transform, and Dynamo does not need it.
    composes = torch._C._are_functorch_transforms_active() or torch.compiler.is_dynamo_compiling()
    if order + 1 < len(spec.derivatives) and not composes:
        return _Derivative.apply(d, spec, parameter, order)
    return spec.derivatives[order](d, parameter)


def _compute_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _left_out(target: Tensor, options: Options) -> Tensor | None:
    """Where elements do not count, of a shape that broadcasts to the loss's; None: nowhere."""
    masked = None if options.mask is None else ~options.mask
    if not (options.ignore_nan and target.is_floating_point()):
        return masked
    return target.isnan() if masked is None else target.isnan() | masked


def _terms(
    input: Tensor, target: Tensor, dtype: torch.dtype, options: Options
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The differences, the weights and what is left out, with 0 in both where it is."""
    weight, left_out = options.weight, _left_out(target, options)
    compute = _compute_dtype([dtype, *(x.dtype for x in (input, target, weight) if x is not None)])
    difference = input.to(compute) - target.to(compute)
    weight = None if weight is None else weight.to(compute)
    if left_out is not None:
        difference = torch.where(left_out, 0, difference)
        weight = None if weight is None else torch.where(left_out, 0, weight)
    return difference, weight, left_out


def _over_rest(reduce: Callable[..., Tensor], terms: Tensor, batch_dims: int) -> Tensor:
    """``Tensor.sum`` or ``Tensor.mean`` over all dimensions but the first `batch_dims`."""
    if batch_dims == 0:
        return reduce(terms)
    return reduce(terms.flatten(batch_dims), -1) if terms.dim() > batch_dims else terms


def _counted(difference: Tensor, weight: Tensor | None, left_out: Tensor | None, options: Options) -> Tensor | None:
    """What a mean divides by where it is neither a normalizer nor the number of all elements."""
    in_play = weight if weight is not None or left_out is None else ~left_out
    if in_play is None or options.normalizer is not None:
        return None
    return _over_rest(Tensor.sum, in_play.expand(difference.shape), options.batch_dims)


def _wide(x: Tensor) -> Tensor:
    """In float64, which Apple's GPUs lack."""
    return x if x.device.type == "mps" else x.double()


def _normalized(x: Tensor, normalizer: Tensor | float) -> Tensor:
    """x / normalizer, rounded once."""
    if isinstance(normalizer, Tensor) and normalizer.dtype != torch.float64:
        return x / normalizer.to(x.dtype)
    return (_wide(x) / normalizer).to(x.dtype)


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
    difference, weight, left_out = _terms(input, target, dtype, options)
    value = derivative(spec, difference, parameter, 0)
    value = value if weight is None else value * weight
    value = value if left_out is None else torch.where(left_out, 0, value)
    batch_dims, scale = options.batch_dims, options.scale
    if reduction == "mean":
        counted = _counted(difference, weight, left_out, options)
        if options.normalizer is not None:
            value = _normalized(_over_rest(Tensor.sum, value, batch_dims), options.normalizer)
        elif counted is None:
            value = _over_rest(Tensor.mean, value, batch_dims)
        else:  # whose gradient is 0, not NaN, where there was nothing to divide by
            total, counted = _over_rest(Tensor.sum, value, batch_dims), counted.to(value.dtype)
            empty = counted == 0
            value = torch.where(empty, total.detach() / counted.detach(), total / torch.where(empty, 1, counted))
    elif reduction == "sum":
        value = _over_rest(Tensor.sum, value, batch_dims)
    return (value if scale == 1 else value * scale).to(dtype)


def _factor(grad_output: Tensor, difference: Tensor, counted: Tensor | None, options: Options) -> Tensor:
    """What the gradients of a mean's terms are multiplied by, one for each leading index."""
    if options.normalizer is not None:
        return _normalized(grad_output, options.normalizer)
    if counted is None:
        count = difference.shape[options.batch_dims :].numel()
        return grad_output / count
    counted = counted.to(grad_output.dtype)
    empty = counted == 0
    return torch.where(empty, 0, grad_output / torch.where(empty, 1, counted))


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of an operand of that shape, which has been broadcast."""
    if x.shape == shape:
        return x
    missing = x.dim() - len(shape)
    wide = [missing + dim for dim, size in enumerate(shape) if size != x.shape[missing + dim]]
    return x.sum((*range(missing), *wide), keepdim=True).view(shape)


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
    """The gradients of :func:`loss` for input and target, where `needed`; differentiable where grad mode is on."""
    difference, weight, left_out = _terms(input, target, dtype, options)
    factor = grad_output.to(difference.dtype)
    if reduction == "mean":
        factor = _factor(factor, difference, _counted(difference, weight, left_out, options), options)
    factor = factor if options.scale == 1 else factor * options.scale
    if reduction != "none":
        factor = factor.view(factor.shape + (1,) * (difference.dim() - factor.dim()))
    gradient = derivative(spec, difference, parameter, 1) * factor
    gradient = gradient if weight is None else gradient * weight
    gradient = gradient if left_out is None else torch.where(left_out, 0, gradient)
    return (
        _sum_to(gradient, input.shape).to(input.dtype) if needed[0] else None,
        _sum_to(-gradient, target.shape).to(target.dtype) if needed[1] else None,
    )


def denominators(input: Tensor, target: Tensor, dtype: torch.dtype, options: Options) -> Tensor | None:
    """What the ops count for a mean: in float64, with the reciprocals; None where there is nothing to count."""
    counted = _counted(*_terms(input, target, dtype, options), options)
    if counted is None:
        return None
    counted = counted.double().reshape(-1)
    empty = counted == 0
    return torch.stack([counted, torch.where(empty, 0, 1 / torch.where(empty, 1, counted))], dim=1)
