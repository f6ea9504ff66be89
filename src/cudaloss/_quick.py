"""The commonest calls, which go to the compiled kernels without a look at more than types and flags.

Every line here is on the hot path of every call: no more than a few flags, 0.05 us each. What is not said here the
private ops find out themselves; they decline with None, and :mod:`._ops` looks at the call thoroughly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._autograd import Loss
from ._modes import DTYPES, FOR_INPUT, FOR_TARGET, IGNORE_NAN, INTEGERS, MAX_DIMS, MAY_DECLINE, REDUCTIONS, pack
from ._options import Options
from ._private import PrivateOps

PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])


class Differentiable(NamedTuple):
    """The ways in which the compiled kernels serve autograd: of plain calls as ``f(input, target, mode, parameter)``,
    of general ones as ``f(input, target, weight, mask, normalizer, mode, parameter, scale, batch_dims)``."""

    one_pass: Loss
    one_pass_both: Loss
    two_passes: Loss
    traced: Loss
    general_one_pass: Loss
    general_two_passes: Loss
    general_traced: Loss


def takes_one_pass(
    reduction: str, dtype: torch.dtype, operands: Iterable[torch.dtype], differentiated: Iterable[torch.dtype]
) -> bool:
    """Whether the loss, of `dtype`, and its gradients come from one pass: not where a gradient of fp16, already divided
    by the count, could underflow before a gradient scaler's factor comes."""
    return (
        reduction != "none"
        and torch.float16 not in differentiated
        and (dtype != torch.float64 or torch.float64 in operands)
    )


def quick_of(ops: PrivateOps, differentiable: Differentiable) -> Callable[..., Tensor | None]:
    """The commonest calls: plain tensors of one dtype, dense and alike, which the private ops look at themselves."""
    one_pass, one_pass_both, two_passes = differentiable[:3]
    kinds = {(reduction, dtype): pack(reduction, dtype) | MAY_DECLINE for reduction in REDUCTIONS for dtype in DTYPES}
    trainings = {
        (reduction, dtype): (mode, one_pass, one_pass_both)
        if takes_one_pass(reduction, dtype, [dtype], [dtype])
        else (mode, two_passes, two_passes)
        for (reduction, dtype), mode in kinds.items()
    }
    loss = ops.loss
    # PyTorch's own, bound here once.
    is_grad_enabled, modes_active = torch.is_grad_enabled, torch._C._len_torch_dispatch_stack
    any_autocast, any_functorch = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active

    def quick(input: Any, target: Any, reduction: Any, parameter: Any, dtype: Any) -> Tensor | None:
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or type(parameter) is not float
            or not parameter > 0
            or type(reduction) is not str
            or dtype is not None
            or any_autocast()
            or any_functorch()
            or forward_ad._current_level >= 0
            or modes_active()
        ):
            return None
        kind = (reduction, input.dtype)
        if is_grad_enabled() and (input.requires_grad or target.requires_grad):
            if kind not in trainings:
                return None
            mode, single, both = trainings[kind]
            if not target.requires_grad:
                return single(input, target, mode, parameter)
            if not input.requires_grad:
                return single(input, target, mode | FOR_TARGET, parameter)
            return both(input, target, mode, parameter)
        mode = kinds.get(kind)
        return None if mode is None else loss(input, target, mode, parameter)

    return quick


def quick_general_of(ops: PrivateOps, differentiable: Differentiable) -> Callable[..., Tensor | None]:
    """The commonest calls with options: plain tensors of one shape, which the private ops look at themselves."""
    kinds = {
        (reduction, dtype, target): pack(reduction, dtype) | MAY_DECLINE
        for reduction in REDUCTIONS
        for dtype in DTYPES
        for target in (dtype, *INTEGERS)
    }
    one_pass, two_passes = differentiable.general_one_pass, differentiable.general_two_passes
    is_grad_enabled, any_autocast = torch.is_grad_enabled, torch._C._is_any_autocast_enabled
    any_functorch, modes_active = torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack

    def quick_general(
        input: Any, target: Any, reduction: Any, parameter: Any, dtype: Any, options: Options
    ) -> Tensor | None:
        weight, mask, normalizer, scale, batch_dims, ignore_nan = options
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or type(parameter) is not float
            or not parameter > 0
            or type(reduction) is not str
            or dtype is not None
            or type(scale) is not float
            or type(batch_dims) is not int
            or not 0 <= batch_dims <= MAX_DIMS
            or type(ignore_nan) is not bool
            or input.is_nested
            or target.is_nested
            or input.shape != target.shape
            or any_autocast()
            or any_functorch()
            or forward_ad._current_level >= 0
            or modes_active()
        ):
            return None
        mode = kinds.get((reduction, input.dtype, target.dtype))
        with_grad = is_grad_enabled()
        for beside in (weight, mask, normalizer):
            if beside is not None and (type(beside) not in PLAIN_TENSORS or (with_grad and beside.requires_grad)):
                return None
        if mode is None or (normalizer is not None and (reduction != "mean" or normalizer.dtype is torch.bool)):
            return None
        if ignore_nan:
            mode |= IGNORE_NAN
        if with_grad and input.requires_grad:
            mode |= FOR_INPUT
        if with_grad and target.requires_grad:
            mode |= FOR_TARGET
        call = input, target, weight, mask, normalizer
        if not mode & (FOR_INPUT | FOR_TARGET):
            return ops.general(*call, mode, parameter, scale, batch_dims)[0]
        way = two_passes if reduction == "none" or input.dtype is torch.float16 else one_pass
        return way(*call, mode, parameter, scale, batch_dims)

    return quick_general
