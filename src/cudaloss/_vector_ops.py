"""The kernels of ``torch.ops.cudaloss``'s losses of vectors, like :mod:`._row_ops` for losses of classes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _dispatch, _private, _reference
from ._build import DEVICES
from ._dispatch import PLAIN_TENSORS
from ._modes import BELOW_AUTOGRAD, DTYPES, FOR_THIRD, INTEGERS, LOSS
from ._ops import _AUTOCAST_WAYS, _WAYS, Kernel, _is_autocast, _none, _usual
from ._options import Options
from ._specs import OF_ROWS, RowSpec
from ._vector_checks import VectorCall, check

_KL_DIV = next(spec for spec in OF_ROWS if spec.name == "kl_div_with_logits")


def _at_ends(spec: RowSpec, call: VectorCall) -> tuple[RowSpec, VectorCall]:
    """If the mixture is one of the distributions alone (beta 0 or 1), both divergences from it, weighted, are 0. By
    convention the loss is then the divergence of the distributions from each other."""
    if spec.second_number != "beta" or (call.numbers.beta != 0 and call.numbers.beta != 1):
        return spec, call
    if call.numbers.beta == 1:
        call = call._replace(input=call.target, target=call.input)
    return _KL_DIV, call


def _thorough(spec: RowSpec) -> Callable[..., Tensor]:
    def thorough(input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, *options: Any) -> Tensor:
        of, call = _at_ends(spec, check(spec, input, target, reduction, own, dtype, Options(*options)))
        found = _reference.result_dtype(call.input, call.target, dtype, _is_autocast(call.input.device.type))
        if spec.differentiable_third and dtype is None:
            assert call.third is not None
            found = torch.promote_types(found, call.third.dtype)
        return _dispatch.loss(
            of.variants[call.swap],
            call.input,
            call.target,
            reduction,
            call.third,
            found,
            call.options,
            rows=call.numbers,
        )

    return thorough


def _lie_as_the_kernels_take(spec: RowSpec) -> Callable[..., bool]:
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


def _fused(spec: RowSpec) -> Callable[..., Tensor | None]:
    """The commonest calls: plain tensors of one shape; the private ops check the rest. Returns None for all others."""
    modes = [variant.mode << LOSS | BELOW_AUTOGRAD for variant in spec.variants]
    loss, forward, lie = _private.loss, _private.forward, _lie_as_the_kernels_take(spec)
    plain_ways, autocast_ways = ({k: v for k, v in w.items() if k[2] in DTYPES} for w in (_WAYS, _AUTOCAST_WAYS))
    has_margin, has_beta, is_triplet = spec.has_margin, spec.second_number == "beta", spec.differentiable_third
    place = list(spec.given).index(spec.number)
    is_grad_enabled, is_captured = torch.is_grad_enabled, _dispatch.is_captured
    is_included, pre_dispatch = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
    any_autocast, any_functorch = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    function_modes = torch._C._len_torch_function_stack

    def fused(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims) -> Tensor | None:
        third, _, p, eps, swap, dim, _, beta = own
        number = own[place]
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or dtype is not None
            or type(reduction) is not str
            or type(number) is not float
            or type(eps) is not float
            or (is_triplet and (p != 2 or not number > 0 or type(swap) is not bool))
            or not (has_margin or 0 < number < math.inf)
            or (has_beta and (type(beta) is not float or not 0 < beta < 1))
            or any_functorch()
            or forward_ad._current_level >= 0
            or function_modes()
            or is_included(pre_dispatch)
            or not lie(input, target, third, dim)
        ):
            return None
        ways = autocast_ways if any_autocast() and _is_autocast(input.device.type) else plain_ways
        found = ways.get((reduction, input.dtype, target.dtype))
        if found is None:
            return None
        how, node = found
        way = None
        if is_grad_enabled():
            wants = input.requires_grad + 2 * target.requires_grad
            wants_third = is_triplet and third.requires_grad
            if wants or wants_third:
                if is_captured():  # two passes would not notice it
                    return None
                how, way = how | wants << 4, node
                how |= FOR_THIRD if wants_third else 0
        how |= modes[swap]
        second = eps if has_margin else beta if has_beta else 0.0
        rest = ()
        if (
            third is not None
            or weight is not None
            or mask is not None
            or normalizer is not None
            or type(scale) is not float
            or scale != 1
            or type(batch_dims) is not int
            or batch_dims != 0
            or has_beta
        ):
            options = _usual(reduction, weight, mask, normalizer, scale, batch_dims, False)
            if options is None or (batch_dims and batch_dims == input.dim() - 1):
                return None  # single losses: _dispatch has a shorter way
            flags, *rest = options
            how |= flags
            if third is not None or has_beta:
                third = third if third is None or is_triplet else third.detach()
                rest += third, second
        if way is not None:
            return way(input, target, how, number, *rest)
        if rest:
            return forward(input, target, how, number, *rest)[0]
        return loss(input, target, how, number)

    return fused


def kernel_of(spec: RowSpec) -> Kernel:
    return Kernel(_fused(spec) if DEVICES else _none, _thorough(spec))
