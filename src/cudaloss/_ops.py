"""``torch.ops.cudaloss``: the public op of every loss, registered from the rows of ``_specs``.

Each has one Python kernel for all backends, for autograd and for vmap. It chooses between the compiled kernels (the
private ops of ``_private``) and the plain-PyTorch reference. torch.compile and torch.export see through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _autograd, _general, _options, _private, reference
from ._autograd import same_dense_order, transformed
from ._build import DEVICES
from ._checks import as_float, check
from ._modes import DTYPES, FOR_INPUT, FOR_TARGET, IGNORE_NAN, INTEGERS, MAX_DIMS, pack
from ._options import NONE, Options
from ._quick import PLAIN_TENSORS, Differentiable, quick_general_of, quick_of, takes_one_pass
from ._specs import SPECS, LossSpec

_DEVICES = DEVICES | {"meta"}  # the private ops' fake kernels serve meta tensors


class Kernel(NamedTuple):
    """A public op in parts, called as ``f(input, target, reduction, parameter, dtype)``; options come last."""

    quick: Callable[..., Tensor | None]  # the commonest calls without options; None for all others
    quick_general: Callable[..., Tensor | None]  # the commonest calls with options; None for all others
    thorough: Callable[..., Tensor]  # every call, with its arguments checked


def _is_readable(tensor: Tensor, device: torch.device) -> bool:
    """Whether the compiled kernels can read the tensor at all, given a dtype that they take."""
    return (
        tensor.layout is torch.strided
        and tensor.device == device
        and device.type in _DEVICES
        and not is_traceable_wrapper_subclass(tensor)  # a DTensor, say, which knows PyTorch's ops, not ours
    )


def _is_plain(input: Tensor, target: Tensor) -> bool:
    """Whether the plain kernels serve these operands, which :func:`_is_served` holds of."""
    return target.dtype in DTYPES and input.shape == target.shape and same_dense_order(input, target)


def _is_served(input: Tensor, target: Tensor, dtype: torch.dtype, options: Options) -> bool:
    """Whether the compiled kernels serve this call; the reference serves all others."""
    weight, mask, normalizer = options.weight, options.mask, options.normalizer
    beside = [tensor for tensor in (weight, mask, normalizer) if tensor is not None]
    return (
        input.dtype in DTYPES
        and (target.dtype in DTYPES or target.dtype in INTEGERS)
        and dtype in DTYPES
        and (weight is None or weight.dtype in DTYPES)
        and (normalizer is None or normalizer.dtype in DTYPES or normalizer.dtype in INTEGERS)
        and all(_is_readable(tensor, input.device) for tensor in (input, target, *beside))
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in beside))
        and not transformed()
    )


def _is_autocast(device: str) -> bool:
    if device in DEVICES or torch.amp.is_autocast_available(device):
        return torch.is_autocast_enabled(device)
    return False  # meta, say, of which PyTorch will not even answer


def _thorough(spec: LossSpec, ops: _private.PrivateOps, differentiable: Differentiable) -> Callable[..., Tensor]:
    plain, general = _plain(ops, differentiable), _general_call(ops, differentiable)

    def thorough(
        input: Any, target: Any, reduction: Any, parameter: Any, dtype: Any, options: Options = NONE
    ) -> Tensor:
        parameter = check(spec, input, target, reduction, parameter, dtype, options)
        if options is not NONE:
            options = options._replace(scale=as_float("scale", options.scale))
        dtype = reference.result_dtype(input, target, dtype, _is_autocast(input.device.type))
        differentiated = torch.is_grad_enabled() and (input.requires_grad or target.requires_grad)
        if _is_served(input, target, dtype, options):
            if options is NONE and _is_plain(input, target):
                return plain(input, target, reduction, parameter, dtype, differentiated)
            if max(input.dim(), target.dim()) <= MAX_DIMS:
                return general(input, target, reduction, parameter, dtype, options, differentiated)
        return reference.loss(spec, input, target, reduction, parameter, dtype, options)

    return thorough


def _plain(ops: _private.PrivateOps, differentiable: Differentiable) -> Callable[..., Tensor]:
    """Dense operands that lie alike, and no options."""

    def plain(
        input: Tensor, target: Tensor, reduction: str, parameter: float, dtype: torch.dtype, differentiated: bool
    ) -> Tensor:
        mode = pack(reduction, dtype)
        if not differentiated:
            return ops.loss(input, target, mode, parameter)
        wanting = [operand.dtype for operand in (input, target) if operand.requires_grad]
        if not input.requires_grad:
            mode |= FOR_TARGET
        if not takes_one_pass(reduction, dtype, (input.dtype, target.dtype), wanting):
            return differentiable.two_passes(input, target, mode, parameter)
        if type(input) not in PLAIN_TENSORS or type(target) not in PLAIN_TENSORS:
            return differentiable.traced(input, target, mode, parameter)  # fake tensors and their like
        one_pass = differentiable.one_pass_both if len(wanting) == 2 else differentiable.one_pass
        return one_pass(input, target, mode, parameter)

    return plain


def _general_call(ops: _private.PrivateOps, differentiable: Differentiable) -> Callable[..., Tensor]:
    """Any operands that the compiled kernels can read, with any options."""

    def general(
        input: Tensor,
        target: Tensor,
        reduction: str,
        parameter: float,
        dtype: torch.dtype,
        options: Options,
        differentiated: bool,
    ) -> Tensor:
        weight, mask, normalizer, scale, batch_dims, ignore_nan = options
        mode = pack(reduction, dtype) | (IGNORE_NAN if ignore_nan else 0)
        numbers = parameter, scale, batch_dims
        if not differentiated:
            return ops.general(input, target, weight, mask, normalizer, mode, *numbers)[0]
        mode |= (FOR_INPUT if input.requires_grad else 0) | (FOR_TARGET if target.requires_grad else 0)
        shape = input.shape if input.shape == target.shape else torch.broadcast_shapes(input.shape, target.shape)
        wanting = [operand for operand in (input, target) if operand.requires_grad]
        if reduction == "none" or any(x.dtype == torch.float16 or x.shape != shape for x in wanting):
            way = differentiable.general_two_passes
        elif type(input) not in PLAIN_TENSORS or type(target) not in PLAIN_TENSORS:
            way = differentiable.general_traced
        else:
            way = differentiable.general_one_pass
        return way(input, target, weight, mask, normalizer, mode, *numbers)

    return general


def _none(*call: Any) -> None:
    """The quick way of a package without compiled kernels."""


def _define(spec: LossSpec) -> Kernel:
    """Defines the public op of `spec`."""
    own = f", float {spec.parameter.name}={spec.parameter.default}" if spec.parameter else ""
    options = ", ".join(f"{row.schema} {row.name}={row.default}" for row in _options.ROWS)
    _private.LIBRARY.define(
        f'{spec.name}(Tensor input, Tensor target, str reduction="mean"{own}, *, {options}) -> Tensor',
        tags=_private.TAGS,
    )
    ops = _private.define(spec)
    differentiable = Differentiable(
        one_pass=_autograd.one_pass(spec, ops),
        one_pass_both=_autograd.one_pass_both(spec, ops),
        two_passes=_autograd.two_passes(spec, ops),
        traced=_autograd.traced(spec, ops),
        general_one_pass=_general.one_pass(spec, ops),
        general_two_passes=_general.two_passes(spec, ops),
        general_traced=_general.traced(spec, ops),
    )
    thorough = _thorough(spec, ops, differentiable)
    quick, quick_general = _none, _none  # a binary that was refused may have registered its kernels all the same
    if DEVICES:
        quick, quick_general = quick_of(ops, differentiable), quick_general_of(ops, differentiable)

    def with_parameter(input, target, reduction="mean", parameter=spec.default, *, dtype=None, **options):
        if not options:  # the dispatcher passes on only what differs from its default
            result = quick(input, target, reduction, parameter, dtype)
            return thorough(input, target, reduction, parameter, dtype) if result is None else result
        chosen = Options(**options)
        result = quick_general(input, target, reduction, parameter, dtype, chosen)
        return thorough(input, target, reduction, parameter, dtype, chosen) if result is None else result

    def without_parameter(input, target, reduction="mean", **options):
        return with_parameter(input, target, reduction, **options)

    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        _private.LIBRARY.impl(spec.name, with_parameter if spec.parameter else without_parameter, key)
    return Kernel(quick, quick_general, thorough)


# The public ops' kernels by name: the functions call them directly, a dispatcher round trip (1 us) sooner.
KERNELS: dict[str, Kernel] = {spec.name: _define(spec) for spec in SPECS}
