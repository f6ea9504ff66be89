"""Each loss in plain PyTorch: the definition, the fallback of the ops and the tests' oracle.

It runs on every device, layout and floating dtype, under every transform and in every autograd mode. It costs as much
as a few of PyTorch's element-wise kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call.call import Call
from .._call.varying import widest
from .._losses.closed_forms import savable
from .._losses.options import Options
from .._losses.table import Third
from . import classes, elements, vectors

__all__ = ["denominators", "gradients", "loss", "result_dtype"]

# The formulas of each kind of loss, by what it reads. Each has the same five functions of a call.
_KINDS: dict[str, Any] = {
    "element": elements,
    "classes": classes,
    "index": classes,
    "vectors": vectors,
    "distributions": vectors,
    "boxes": vectors,
}


def result_dtype(input: Tensor, target: Tensor, dtype: torch.dtype | None, autocast: bool) -> torch.dtype:
    """The dtype of the loss: `dtype` if given, otherwise the promoted one; under autocast at least float32."""
    if dtype is not None:
        return dtype
    if input.dtype == target.dtype:
        promoted = input.dtype
    elif any(x.is_floating_point() and x.dtype.itemsize == 1 for x in (input, target)):
        promoted = torch.float32  # 8-bit floats: PyTorch does not promote them
    else:
        promoted = torch.promote_types(input.dtype, target.dtype)
    return torch.promote_types(promoted, torch.float32) if autocast else promoted


class _Terms(NamedTuple):
    """The values from which a loss is computed, in the dtype of the arithmetic."""

    kind: Any
    operands: Any
    weight: Tensor | None  # 0 where nothing is selected
    selected: Tensor | None  # which of the losses count, in a shape that broadcasts to theirs; None: all


def _compute_dtype(call: Call) -> torch.dtype:
    if call.spec.of_vectors:  # float32 sums would lose the difference of a cosine from 1
        return widest(call.input.device)
    dtypes = [call.dtype, *(x.dtype for x in (call.input, call.target, call.options.weight) if x is not None)]
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _terms(call: Call) -> _Terms:
    kind, compute, weight = _KINDS[call.spec.reads], _compute_dtype(call), call.options.weight
    selected = kind.selected(call)
    selected = None if selected is None else savable(selected, torch.bool)
    weight = None if weight is None else savable(weight, compute)
    weight = weight if weight is None or selected is None else torch.where(selected, weight, 0)
    return _Terms(kind, kind.operands(call, selected, compute), weight, selected)


def _over_rest(reduce: Callable[..., Tensor], terms: Tensor, batch_dims: int) -> Tensor:
    """``Tensor.sum`` or ``Tensor.mean`` over all dimensions but the first `batch_dims`."""
    if batch_dims == 0:
        return reduce(terms)
    return reduce(terms.flatten(batch_dims), -1) if terms.dim() > batch_dims else terms


def _counted(call: Call, shape: torch.Size, selected: Tensor | None) -> Tensor | None:
    """The denominator of a mean, if it is neither a normalizer nor the number of all elements."""
    if call.options.normalizer is not None:
        return None
    weight = _KINDS[call.spec.reads].counted_weight(call, selected)
    return _total(shape, weight, selected, call.options.batch_dims, call.target.device)


def in_play(shape: torch.Size, target: Tensor, weight: Tensor | None, options: Options) -> Tensor | None:
    """``in_play`` of ``_ops/dispatch.py`` in plain PyTorch."""
    selected = elements.where_selected(target, options)
    return _total(shape, weight, selected, options.batch_dims, target.device)


def _total(
    shape: torch.Size, weight: Tensor | None, selected: Tensor | None, kept: int, device: torch.device
) -> Tensor | None:
    """What counts, summed. A dimension along which weight and selection repeat is read once."""
    counted = weight if selected is None else selected if weight is None else torch.where(selected, weight, 0)
    if counted is None:
        return None
    counted = counted.reshape((1,) * (len(shape) - counted.dim()) + counted.shape)
    repeats = math.prod([shape[dim] for dim in range(kept, len(shape)) if counted.shape[dim] == 1])
    total = _over_rest(partial(Tensor.sum, dtype=widest(device)), counted, kept).to(widest(device))
    return total.expand(shape[:kept]) * repeats


def _normalized(x: Tensor, normalizer: Tensor | float) -> Tensor:
    """x / normalizer, rounded once."""
    if isinstance(normalizer, Tensor) and normalizer.dtype != torch.float64:
        return x / savable(normalizer, x.dtype)
    normalizer = savable(normalizer, torch.float64) if isinstance(normalizer, Tensor) else normalizer
    return (x.to(widest(x.device)) / normalizer).to(x.dtype)


def loss(call: Call) -> Tensor:
    """The loss of a call in float32 arithmetic (float64 if a dtype is float64), rounded to the result's dtype at the
    end."""
    kind, operands, weight, selected = _terms(call)
    value = kind.value(operands)
    value = value if weight is None else value * weight
    value = value if selected is None else torch.where(selected, value, 0)
    batch_dims, scale, normalizer = call.options.batch_dims, call.options.scale, call.options.normalizer
    if call.reduction == "mean":
        counted = _counted(call, value.shape, selected)
        if normalizer is not None:
            value = _normalized(_over_rest(Tensor.sum, value, batch_dims), normalizer)
        elif counted is None:
            value = _over_rest(Tensor.mean, value, batch_dims)
        else:  # its gradient is then 0, not NaN, if there is nothing to divide by
            total, counted = _over_rest(Tensor.sum, value, batch_dims), counted.to(value.dtype)
            empty = counted == 0
            value = torch.where(empty, total.detach() / counted.detach(), total / torch.where(empty, 1, counted))
    elif call.reduction == "sum":
        value = _over_rest(Tensor.sum, value, batch_dims)
    return (value if scale == 1 else value * scale).to(call.dtype)


def _factor(grad_output: Tensor, shape: torch.Size, counted: Tensor | None, options: Options) -> Tensor:
    """The factor of the gradients of a mean's terms, one for each leading index."""
    if options.normalizer is not None:
        return _normalized(grad_output, options.normalizer)
    if counted is None:
        count = shape[options.batch_dims :].numel()
        return grad_output / count
    counted = counted.to(grad_output.dtype)
    empty = counted == 0
    return torch.where(empty, 0, grad_output / torch.where(empty, 1, counted))


def _sum_to(x: Tensor, shape: torch.Size) -> Tensor:
    """The gradient of an operand of that shape, which was broadcast."""
    if x.shape == shape:
        return x
    missing = x.dim() - len(shape)
    wide = [missing + dim for dim, size in enumerate(shape) if size != x.shape[missing + dim]]
    return x.sum((*range(missing), *wide), keepdim=True).view(shape)


def _incoming(call: Call, grad_output: Tensor, shape: torch.Size, selected: Tensor | None) -> Tensor:
    """The factor of the slopes of the losses; it broadcasts to their shape."""
    options, factor = call.options, grad_output
    if call.reduction == "mean":
        factor = _factor(grad_output, shape, _counted(call, shape, selected), options)
    factor = factor if options.scale == 1 else factor * options.scale
    return factor if call.reduction == "none" else factor.view(factor.shape + (1,) * (len(shape) - factor.dim()))


def _gradient(
    slope: Tensor | None, operand: Third | None, factor: Tensor, weight: Tensor | None, selected: Tensor | None
) -> Tensor | None:
    """The gradient of an operand; None if there is no slope, or if the operand is a number."""
    if slope is None or not isinstance(operand, Tensor):
        return None
    found = slope * factor
    found = found if weight is None else found * weight
    found = found if selected is None else torch.where(selected, found, 0)
    return _sum_to(found, operand.shape).to(operand.dtype)


def gradients(call: Call, grad_output: Tensor, needed: Sequence[bool]) -> tuple[Tensor | None, ...]:
    """The gradients of :func:`loss` for input, target and a third operand, if `needed`; differentiable in grad mode.
    There is none for class weights."""
    kind, operands, weight, selected = _terms(call)
    shape, dtype, dim = operands.layout()
    factor = _incoming(call, grad_output.to(dtype), shape, selected)
    if dim is not None:  # a loss is of the whole dimension of its operands
        factor, weight, selected = (
            None if x is None else x.expand(shape).unsqueeze(dim) for x in (factor, weight, selected)
        )
    assert factor is not None
    slopes = kind.slopes(operands, needed)
    given = zip((*slopes, None)[:3], (call.input, call.target, call.third), needed, strict=False)
    return tuple(_gradient(slope if wanted else None, x, factor, weight, selected) for slope, x, wanted in given)


def denominators(call: Call) -> Tensor | None:
    """The denominators that the ops count for a mean: in float64, with the reciprocals; None if nothing must be
    counted."""
    counted = _counted(call, call.shape, _KINDS[call.spec.reads].selected(call))
    if counted is None:
        return None
    counted = counted.double().reshape(-1)
    empty = counted == 0
    return torch.stack([counted, torch.where(empty, 0, 1 / torch.where(empty, 1, counted))], dim=1)
