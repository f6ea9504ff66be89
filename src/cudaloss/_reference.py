"""Each loss in plain PyTorch: the definition, the fallback of the ops and the tests' oracle.

It runs on every device, layout and floating dtype, under every transform and in every autograd mode. It costs as much
as a few of PyTorch's element-wise kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from . import _formulas, _rows_by_torch, _vectors_by_torch
from ._checks import class_dim, joint_shape, rows_shape
from ._closed_forms import savable
from ._formulas import Operands
from ._options import NONE, Options
from ._specs import LossSpec, OfDifference, RowNumbers, Third, VectorNumbers
from ._varying import widest

__all__ = ["denominators", "gradients", "loss", "result_dtype"]


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


def _compute_dtype(dtypes: Sequence[torch.dtype]) -> torch.dtype:
    return torch.float64 if torch.float64 in dtypes else torch.float32


def _where_selected(target: Tensor, options: Options) -> Tensor | None:
    """Which elements count; its shape broadcasts to the loss's. None: all."""
    if not (options.ignore_nan and target.is_floating_point()):
        return options.mask
    return ~target.isnan() if options.mask is None else ~target.isnan() & options.mask


class _Terms(NamedTuple):
    """The values from which a loss is computed, in the dtype of the arithmetic. Elements that are left out are 0 (the
    third operand: 1)."""

    operands: Operands
    third: Third
    weight: Tensor | None
    left_out: Tensor | None


def _compute_dtype_of(input: Tensor, target: Tensor, dtype: torch.dtype, weight: Tensor | None) -> torch.dtype:
    return _compute_dtype([dtype, *(x.dtype for x in (input, target, weight) if x is not None)])


def _terms(
    spec: LossSpec, input: Tensor, target: Tensor, parameter: Third | None, dtype: torch.dtype, options: Options
) -> _Terms:
    assert parameter is not None  # only a loss of rows can lack it
    weight, selected = options.weight, _where_selected(target, options)
    left_out = None if selected is None else ~selected
    compute = _compute_dtype_of(input, target, dtype, weight)
    x, t = savable(input, compute), savable(target, compute)
    if isinstance(spec.terms, OfDifference):
        operands: Operands = (x - t,)
    else:
        operands = (x, t) if x.is_nested or x.shape == t.shape else tuple(torch.broadcast_tensors(x, t))
    weight = None if weight is None else savable(weight, compute)
    third = savable(parameter, compute) if isinstance(parameter, Tensor) else parameter
    if left_out is not None:
        operands = tuple(torch.where(left_out, 0, operand) for operand in operands)
        weight = None if weight is None else torch.where(left_out, 0, weight)
        third = torch.where(left_out, 1, third) if isinstance(third, Tensor) else third
    return _Terms(operands, third, weight, left_out)


def _over_rest(reduce: Callable[..., Tensor], terms: Tensor, batch_dims: int) -> Tensor:
    """``Tensor.sum`` or ``Tensor.mean`` over all dimensions but the first `batch_dims`."""
    if batch_dims == 0:
        return reduce(terms)
    return reduce(terms.flatten(batch_dims), -1) if terms.dim() > batch_dims else terms


class _OfRows(NamedTuple):
    """The values from which a loss of rows is computed, as in :class:`_Terms`; there is a weight for each row."""

    operands: _rows_by_torch.RowOperands | _vectors_by_torch.VectorOperands
    weight: Tensor | None
    left_out: Tensor | None


def _class_weight(parameter: Third | None) -> Tensor | None:
    """The class weights of a loss of rows, which are in the place of a third operand."""
    return parameter if isinstance(parameter, Tensor) else None


def _of_rows(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    parameter: Third | None,
    dtype: torch.dtype,
    options: Options,
    smoothing: float,
    rows: RowNumbers | VectorNumbers,
) -> _OfRows:
    third = parameter if isinstance(parameter, Tensor) else None
    compute = _compute_dtype_of(input, target, dtype, options.weight)
    if isinstance(rows, VectorNumbers):  # float32 sums would lose the difference of a cosine from 1
        compute = widest(input.device)
    left_out = _rows_by_torch.left_out(rows_shape(input), target, options, rows)
    weight = None if options.weight is None else savable(options.weight, compute)
    weight = weight if weight is None or left_out is None else torch.where(left_out, 0, weight)
    if isinstance(rows, VectorNumbers):
        operands = _vectors_by_torch.operands(spec, input, target, third, left_out, rows, compute)
    else:
        operands = _rows_by_torch.operands(spec, input, target, third, left_out, smoothing, rows, compute)
    return _OfRows(operands, weight, left_out)


def _counted(
    spec: LossSpec,
    shape: torch.Size,
    target: Tensor,
    options: Options,
    parameter: Third | None = None,
    rows: RowNumbers | VectorNumbers | None = None,
) -> Tensor | None:
    """The denominator of a mean, if it is neither a normalizer nor the number of all elements."""
    if options.normalizer is not None:
        return None
    if rows is not None:
        out = _rows_by_torch.left_out(shape, target, options, rows)
        weight = _rows_by_torch.counted_weight(target, options.weight, _class_weight(parameter), out)
        return in_play(shape, target, weight, options._replace(mask=None if out is None else ~out))
    return in_play(shape, target, None if spec.mean_over_count else options.weight, options)


def in_play(shape: torch.Size, target: Tensor, weight: Tensor | None, options: Options) -> Tensor | None:
    """:func:`._dispatch.in_play` in plain PyTorch. A dimension along which mask and weight repeat is read once."""
    selected, kept = _where_selected(target, options), options.batch_dims
    counted = weight if selected is None else selected if weight is None else torch.where(selected, weight, 0)
    if counted is None:
        return None
    counted = counted.reshape((1,) * (len(shape) - counted.dim()) + counted.shape)
    repeats = math.prod([shape[dim] for dim in range(kept, len(shape)) if counted.shape[dim] == 1])
    wide = widest(target.device)
    total = _over_rest(partial(Tensor.sum, dtype=wide), counted, kept).to(wide)
    return total.expand(shape[:kept]) * repeats


def _normalized(x: Tensor, normalizer: Tensor | float) -> Tensor:
    """x / normalizer, rounded once."""
    if isinstance(normalizer, Tensor) and normalizer.dtype != torch.float64:
        return x / savable(normalizer, x.dtype)
    normalizer = savable(normalizer, torch.float64) if isinstance(normalizer, Tensor) else normalizer
    return (x.to(widest(x.device)) / normalizer).to(x.dtype)


def _values_of_rows(operands: _rows_by_torch.RowOperands | _vectors_by_torch.VectorOperands) -> Tensor:
    if isinstance(operands, _vectors_by_torch.VectorOperands):
        return _vectors_by_torch.values(operands)
    return _rows_by_torch.values(operands)


def loss(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: Third | None,
    dtype: torch.dtype,
    options: Options = NONE,
    second: float = 0.0,
    rows: RowNumbers | VectorNumbers | None = None,
) -> Tensor:
    """The loss of `spec` in float32 arithmetic (float64 if a dtype is float64), rounded to `dtype` at the end.

    `parameter` is the third operand, a number or a tensor, and `second` the loss's second number. For a loss of classes
    they are the class weights, or None, and label_smoothing. For a loss of vectors `parameter` is the third operand, or
    None, and `second` is not used."""
    if rows is None:
        operands, third, weight, left_out = _terms(spec, input, target, parameter, dtype, options)
        value = _formulas.value(spec, operands, third, second)
    else:
        of_rows, weight, left_out = _of_rows(spec, input, target, parameter, dtype, options, second, rows)
        value = _values_of_rows(of_rows)
    value = value if weight is None else value * weight
    value = value if left_out is None else torch.where(left_out, 0, value)
    batch_dims, scale = options.batch_dims, options.scale
    if reduction == "mean":
        counted = _counted(spec, value.shape, target, options, parameter, rows)
        if options.normalizer is not None:
            value = _normalized(_over_rest(Tensor.sum, value, batch_dims), options.normalizer)
        elif counted is None:
            value = _over_rest(Tensor.mean, value, batch_dims)
        else:  # its gradient is then 0, not NaN, if there is nothing to divide by
            total, counted = _over_rest(Tensor.sum, value, batch_dims), counted.to(value.dtype)
            empty = counted == 0
            value = torch.where(empty, total.detach() / counted.detach(), total / torch.where(empty, 1, counted))
    elif reduction == "sum":
        value = _over_rest(Tensor.sum, value, batch_dims)
    return (value if scale == 1 else value * scale).to(dtype)


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


def _incoming(
    grad_output: Tensor,
    shape: torch.Size,
    reduction: str,
    counted: Tensor | None,
    options: Options,
) -> Tensor:
    """The factor of the slopes of the losses; it broadcasts to their shape."""
    factor = _factor(grad_output, shape, counted, options) if reduction == "mean" else grad_output
    factor = factor if options.scale == 1 else factor * options.scale
    return factor if reduction == "none" else factor.view(factor.shape + (1,) * (len(shape) - factor.dim()))


def _gradient(
    slope: Tensor | None, operand: Third | None, factor: Tensor, weight: Tensor | None, left_out: Tensor | None
) -> Tensor | None:
    """The gradient of an operand; None if there is no slope, or if the operand is a number."""
    if slope is None or not isinstance(operand, Tensor):
        return None
    found = slope * factor
    found = found if weight is None else found * weight
    found = found if left_out is None else torch.where(left_out, 0, found)
    return _sum_to(found, operand.shape).to(operand.dtype)


def gradients(
    spec: LossSpec,
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: Third | None,
    dtype: torch.dtype,
    needed: tuple[bool, ...],
    options: Options = NONE,
    second: float = 0.0,
    rows: RowNumbers | VectorNumbers | None = None,
) -> tuple[Tensor | None, ...]:
    """The gradients of :func:`loss` for input, target and a third operand, if `needed`; differentiable in grad mode.
    There is none for the class weights of a loss of `rows`."""
    if rows is not None:
        call = input, target, reduction, parameter, dtype, needed, options, second, rows
        return _gradients_of_rows(spec, grad_output, *call)
    operands, third, weight, left_out = _terms(spec, input, target, parameter, dtype, options)
    shape, compute = operands[0].shape, operands[0].dtype
    counted = _counted(spec, shape, target, options) if reduction == "mean" else None
    factor = _incoming(grad_output.to(compute), shape, reduction, counted, options)
    slopes = _formulas.slopes(spec, operands, third, second, needed)
    pairs = zip(slopes, (input, target, parameter), strict=False)
    return tuple(_gradient(slope, operand, factor, weight, left_out) for slope, operand in pairs)


def _gradients_of_rows(
    spec: LossSpec,
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: Third | None,
    dtype: torch.dtype,
    needed: tuple[bool, ...],
    options: Options,
    smoothing: float,
    rows: RowNumbers | VectorNumbers,
) -> tuple[Tensor | None, ...]:
    operands, weight, left_out = _of_rows(spec, input, target, parameter, dtype, options, smoothing, rows)
    shape = rows_shape(input)
    counted = _counted(spec, shape, target, options, parameter, rows) if reduction == "mean" else None
    of_vectors = isinstance(operands, _vectors_by_torch.VectorOperands)
    compute, dim = (operands.vectors[0] if of_vectors else operands.logits).dtype, class_dim(input)
    factor = _incoming(grad_output.to(compute), shape, reduction, counted, options)
    factor = factor.expand(shape).unsqueeze(dim)
    weight = None if weight is None else weight.expand(shape).unsqueeze(dim)
    left_out = None if left_out is None else left_out.expand(shape).unsqueeze(dim)
    slopes = _vectors_by_torch.slopes(operands, needed) if of_vectors else _rows_by_torch.slopes(operands, smoothing)
    pairs = zip((*slopes, None)[:3], (input, target, parameter), needed, strict=False)
    return tuple(_gradient(slope if wanted else None, x, factor, weight, left_out) for slope, x, wanted in pairs)


def denominators(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    options: Options,
    parameter: Third | None = None,
    rows: RowNumbers | VectorNumbers | None = None,
) -> Tensor | None:
    """The denominators that the ops count for a mean: in float64, with the reciprocals; None if nothing must be
    counted."""
    shape = joint_shape(input, target) if rows is None else rows_shape(input)
    counted = _counted(spec, shape, target, options, parameter, rows)
    if counted is None:
        return None
    counted = counted.double().reshape(-1)
    empty = counted == 0
    return torch.stack([counted, torch.where(empty, 0, 1 / torch.where(empty, 1, counted))], dim=1)
