"""A loss's own arguments in the commonest calls, in the form for the private ops: a function for each loss.

It is called as ``usual(input, target, own)``, where `own` has the values of ``spec.given``. It gives the mode's bits,
the private op's number and what comes after the options; or None for a call that is none of the commonest. Every line
is on the hot path of every call that has such arguments: only a few tests, 0.05 us each.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from .._call.modes import DTYPES, FOR_THIRD, INTEGERS, LOSS
from .._losses.table import LossSpec
from .._ops.dispatch import PLAIN_TENSORS, is_usual

Usual = Callable[[Tensor, Tensor, tuple[Any, ...]], "tuple[int, float, tuple[Any, ...]] | None"]
_is_grad_enabled = torch.is_grad_enabled


def _of_elements(spec: LossSpec) -> Usual:
    mode, default, third, second = spec.mode << LOSS, spec.default, spec.parameter, spec.second
    largest = third.largest if third else inf
    may_lack_last = third is not None and third.may_lack_last
    takes_second = second.is_within if second else lambda number: number == 0
    unchecked = 0.0 if takes_second(0.0) else nan  # the kernels read it as no number

    def usual(input, target, own):
        parameter, number = own
        tensor = None
        if type(parameter) is not float:
            tensor, parameter = parameter, default
            if not is_usual(tensor, DTYPES) or (may_lack_last and tensor.shape != input.shape):
                return None
        if type(number) is not float or not 0 < parameter <= largest:
            return None
        if tensor is None and number == unchecked:
            return mode, parameter, ()
        return (mode, parameter, (tensor, number)) if takes_second(number) else None

    if not spec.flags:
        return usual
    modes = {tuple(variant.flag_values.values()): variant.mode << LOSS for variant in spec.variants}

    def usual_with_flags(input, target, own):
        found = usual(input, target, own[:2])
        return None if found is None else (modes[own[2:]], found[1], found[2])

    return usual_with_flags


def _of_classes(spec: LossSpec) -> Usual:
    mode = spec.mode << LOSS

    def usual(input, target, own):
        weight, ignore_index, smoothing, z_loss, softcap = own
        if type(z_loss) is not float or not 0 <= z_loss < inf:
            return None
        if (
            weight is None
            and type(ignore_index) is int
            and ignore_index == -100
            and type(smoothing) is float
            and smoothing == 0
            and softcap is None
        ):
            return mode, z_loss, ()
        if (
            (weight is None or is_usual(weight, DTYPES))
            and type(ignore_index) is int
            and not (ignore_index >= 0 and target.is_floating_point())
            and type(smoothing) is float
            and 0 <= smoothing <= 1
            and (softcap is None or (type(softcap) is float and 0 < softcap < inf))
        ):
            return mode, z_loss, (weight, smoothing, ignore_index, softcap or 0.0)
        return None

    return usual


def _lie_as_the_kernels_take(spec: LossSpec) -> Callable[..., bool]:
    """Whether plain operands of one shape need no view and no promotion."""
    has_labels, is_triplet = len(spec.operands) > 2 and not spec.differentiable_third, spec.differentiable_third

    def lie(input: Tensor, target: Tensor, third: Any, dim: Any) -> bool:
        shape = input.shape
        if target.shape != shape or not shape or not shape[1 if len(shape) > 1 else 0]:
            return False
        if is_triplet:
            of_one = type(third) in PLAIN_TENSORS and third.shape == shape and third.dtype == input.dtype
            return of_one and target.dtype == input.dtype and len(shape) <= 2
        if has_labels:
            is_label = type(third) in PLAIN_TENSORS and (third.dtype in DTYPES or third.dtype in INTEGERS)
            return is_label and len(shape) <= 2 and third.shape == shape[:-1] and third.device == input.device
        return type(dim) is int and dim == 1 and len(shape) > 1

    return lie


def _of_vectors(spec: LossSpec) -> Usual:
    modes, lie = [variant.mode << LOSS for variant in spec.variants], _lie_as_the_kernels_take(spec)
    has_margin, has_beta, is_triplet = spec.has_margin, spec.second_number == "beta", spec.differentiable_third
    place = list(spec.given).index(spec.number)

    def usual(input, target, own):
        third, _, p, eps, swap, dim, _, beta = own
        number = own[place]
        if (
            type(number) is not float
            or type(eps) is not float
            or (is_triplet and (p != 2 or not number > 0 or type(swap) is not bool))
            or not (has_margin or 0 < number < inf)
            or (has_beta and (type(beta) is not float or not 0 < beta < 1))
            or not lie(input, target, third, dim)
        ):
            return None
        if is_triplet:
            wants = FOR_THIRD if third.requires_grad and _is_grad_enabled() else 0
            return modes[swap] | wants, number, (third, eps)
        if third is not None:
            return modes[0], number, (third.detach() if third.requires_grad else third, eps)
        return modes[0], number, (None, beta) if has_beta else ()

    return usual


def usual_of(spec: LossSpec) -> Usual | None:
    """None for a loss without arguments of its own."""
    if spec.of_rows:
        return _of_vectors(spec) if spec.of_vectors else _of_classes(spec)
    return _of_elements(spec) if spec.arguments else None
