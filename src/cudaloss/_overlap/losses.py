"""The losses: their arguments' checks, and the formulas of the sums that they are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call.call import are_distributed
from .._call.modes import INDICES
from .._call.varying import NO_INDEX
from .._heads.calls import _result_dtype
from .._losses.table import PUBLIC, Argument
from .._ops import checks as _checks
from .sums import ACTIVATIONS, ENTROPY, Formula, How, loss, sharded, sums

_NUMBERS = {
    name: Argument(name, "number", None, "", ">= 0")
    for name in ("smooth_nr", "smooth_dr", "alpha", "beta", "lambda_dice", "lambda_ce", "lambda_bce")
}
_ANY = next(spec for spec in PUBLIC if spec.name == "mse")  # for the check of what all losses take


class Options(NamedTuple):
    """What all losses of overlap take."""

    activation: str | None
    smooth_nr: float
    smooth_dr: float
    batch: bool
    include_background: bool
    weight: Tensor | None
    mask: Tensor | None
    ignore_index: int | None
    dtype: torch.dtype | None


class Operands(NamedTuple):
    input: Tensor
    target: Tensor  # like the input, or of indices with one class
    mask: Tensor | None  # with one class
    has_indices: bool


def _number(name: str, value: Any) -> float:
    return _checks.check_number(_NUMBERS[name], value, "a number")


def _target(input: Tensor, target: Any) -> tuple[Tensor, bool]:
    """The target with the input's dimensions, and whether it has indices."""
    voxels = (input.shape[0], *input.shape[2:])
    one_class = (input.shape[0], 1, *input.shape[2:])
    if target.shape == input.shape and (input.shape[1] > 1 or target.dtype not in INDICES or target.dim() > 2):
        return target, False
    if target.shape == voxels or target.shape == one_class:
        target = target.unsqueeze(1) if target.shape == voxels else target
        if input.shape[1] == 1:
            return target, False
        if target.dtype in INDICES:
            return target, True
        raise RuntimeError(
            f"target must be an integer tensor of class indices, or have input's shape, {tuple(input.shape)}, got "
            f"{tuple(target.shape)} of {target.dtype}"
        )
    raise RuntimeError(
        f"target must be of shape {voxels} or {one_class}, an index for each voxel, or of input's shape, "
        f"{tuple(input.shape)}, got {tuple(target.shape)}"
    )


def _mask(input: Tensor, mask: Any) -> Tensor | None:
    if mask is None:
        return None
    _checks.check_beside_layout("mask", mask)
    if mask.dtype != torch.bool:
        raise RuntimeError(f"mask must be a bool tensor, got {mask.dtype}; True selects")
    voxels = (input.shape[0], *input.shape[2:])
    given = mask.squeeze(1) if mask.dim() == input.dim() and mask.shape[1] == 1 else mask
    try:
        return given.expand(voxels).unsqueeze(1)
    except RuntimeError:
        raise RuntimeError(f"mask must broadcast to the voxels' shape, {voxels}, got {tuple(mask.shape)}") from None


def _operands(input: Any, target: Any, options: Options) -> Operands:
    _checks.check_beside_layout("input", input)
    _checks.check_floating("input", input)
    _checks.check_beside_layout("target", target)
    if target.dtype.is_complex:
        raise RuntimeError(f"target must be a real tensor, got {target.dtype}")
    if input.dim() < 2:
        raise RuntimeError(f"input must be of shape (N, classes, ...), got {tuple(input.shape)}")
    beside = {"target": target, "mask": options.mask, "weight": options.weight}
    for name, value in beside.items():
        if isinstance(value, Tensor) and value.device != input.device:
            raise RuntimeError(f"{name} must be on input's device, {input.device}, got {value.device}")
    if options.activation not in ACTIVATIONS:
        raise ValueError(f"activation must be None, 'sigmoid' or 'softmax', got {options.activation!r}")
    if options.activation == "softmax" and input.shape[1] == 1:
        raise ValueError("activation must not be 'softmax' for one class, whose probability is 1; 'sigmoid' is")
    _checks.check_dtype(options.dtype)
    target, has_indices = _target(input, target)
    if options.ignore_index is not None and not has_indices:
        raise ValueError("ignore_index needs a target of class indices; pass a mask")
    return Operands(input, target, _mask(input, options.mask), has_indices)


def _class_weight(classes: int, first: int, options: Options) -> Tensor | None:
    """Of all classes, in float64; a weight of those from `first` on is given."""
    weight = options.weight
    if weight is None:
        return None
    _checks.check_beside_layout("weight", weight)
    _checks.check_floating("weight", weight)
    given = classes - first
    if weight.shape != (given,):
        raise RuntimeError(f"weight must be of shape ({given},), a number for each class, got {tuple(weight.shape)}")
    return torch.nn.functional.pad(weight.double(), (first, 0)).contiguous()


def _formula(options: Options, classes: int, of_both: float, under: tuple[float, float, float]) -> Formula:
    """`under`: of both, of the input and of the target, in the denominator."""
    smooth_nr, smooth_dr = (_number(name, getattr(options, name)) for name in ("smooth_nr", "smooth_dr"))
    first = 0 if options.include_background or classes == 1 else 1
    return Formula(of_both, *under, smooth_nr, smooth_dr, bool(options.batch), first)


def _dice(options: Options, classes: int, jaccard: bool) -> Formula:
    return _formula(options, classes, 2.0, (-2.0, 2.0, 2.0) if jaccard else (0.0, 1.0, 1.0))


def _how(operands: Operands, options: Options, squares: bool, entropy: bool) -> How:
    ignored = NO_INDEX if options.ignore_index is None else options.ignore_index
    return How(ACTIVATIONS[options.activation], squares, entropy, operands.has_indices, ignored)


def _ratios(
    input: Tensor, operands: Operands, options: Options, squares: bool, formula: Formula, reduction: str
) -> Tensor:
    """The loss of a formula of ratios alone."""
    weight, dtype = _class_weight(input.shape[1], formula.first_class, options), options.dtype or _result_dtype(input)
    how, given = _how(operands, options, squares, False), (operands.input, operands.target, operands.mask)
    if reduction == "none":
        found = formula.ratios(sums(*given, how), weight)
        return (found.squeeze(0) if formula.batch else found).to(dtype)
    return loss(*given, how, weight, formula._replace(of_ratio=_share(input, formula, reduction)), dtype)


def _share(input: Tensor, formula: Formula, reduction: str) -> float:
    """Of a ratio in the reduced loss."""
    count = (1 if formula.batch else input.shape[0]) * (input.shape[1] - formula.first_class)
    return 1.0 if reduction == "sum" else 1.0 / count if count else math.nan


def _of_dtensors_too(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(input: Any, target: Any, *own: Any) -> Tensor:
        options = own[-1]
        if are_distributed(input, target, options.mask, options.weight):
            return sharded().of_dtensors(function, input, target, *own)
        return function(input, target, *own)

    return call


@_of_dtensors_too
def dice_loss(input: Any, target: Any, reduction: Any, squared: Any, jaccard: Any, options: Options) -> Tensor:
    _checks.check_reduction(_ANY, reduction)
    operands = _operands(input, target, options)
    formula = _dice(options, input.shape[1], bool(jaccard))
    return _ratios(input, operands, options, bool(squared), formula, reduction)


@_of_dtensors_too
def tversky_loss(input: Any, target: Any, reduction: Any, alpha: Any, beta: Any, options: Options) -> Tensor:
    _checks.check_reduction(_ANY, reduction)
    operands = _operands(input, target, options)
    alpha, beta = _number("alpha", alpha), _number("beta", beta)
    formula = _formula(options, input.shape[1], 1.0, (1.0 - alpha - beta, alpha, beta))
    return _ratios(input, operands, options, False, formula, reduction)


@_of_dtensors_too
def dice_entropy_loss(
    input: Any,
    target: Any,
    reduction: Any,
    squared: Any,
    jaccard: Any,
    factors: tuple[Any, Any],
    named: str,
    options: Options,
) -> Tensor:
    """Dice of the probabilities, and the cross entropy of the same logits, or the binary one."""
    _checks.check_reduction(_ANY, reduction)
    if reduction == "none":
        raise ValueError("reduction must be 'mean' or 'sum': Dice has a loss for each class, entropy for each voxel")
    of_dice, of_entropy = _number("lambda_dice", factors[0]), _number(named, factors[1])
    operands = _operands(input, target, options)
    weight = _class_weight(input.shape[1], 0, options)
    formula = _dice(options, input.shape[1], bool(jaccard))
    formula = formula._replace(of_ratio=of_dice * _share(input, formula, reduction), of_entropy=of_entropy)
    of_softmax, mask, dtype = options.activation == "softmax", operands.mask, options.dtype or _result_dtype(input)
    how = _how(operands, options, bool(squared), True)
    given = operands.input, operands.target, mask
    if reduction == "sum":
        return loss(*given, how, weight, formula, dtype)
    elements = 1 if of_softmax else input.shape[1]  # that a voxel counts for
    if operands.has_indices:  # each voxel that counts is one of a class
        formula = formula._replace(of_entropy=of_entropy / elements, divides=2 if of_softmax else 1)
        return loss(*given, how, weight, formula, dtype)
    if mask is None:
        voxels = input.numel() // max(input.shape[1], 1)
        formula = formula._replace(of_entropy=of_entropy / (voxels * elements) if voxels else math.nan)
        return loss(*given, how, weight, formula, dtype)
    found = sums(*given, how)
    entropies = found[..., ENTROPY] if weight is None else found[..., ENTROPY] * weight
    dice = formula._replace(of_entropy=0.0).value(found, weight)
    voxels = mask.sum() if not are_distributed(mask) else sharded().whole(mask.sum())
    return (dice + of_entropy * entropies.sum() / (voxels * elements)).to(dtype)
