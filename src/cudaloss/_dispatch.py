"""Which calls the compiled kernels serve, in how many passes; the private ops under autograd and transforms."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _autograd, _private, _reference, _varying
from ._autograd import by_reference, gradients, transformed, unpacked
from ._build import DEVICES
from ._checks import class_dim, joint_shape
from ._modes import (
    BELOW_AUTOGRAD,
    DTYPES,
    FOR_INPUT,
    FOR_TARGET,
    FOR_THIRD,
    IGNORE_NAN,
    INTEGERS,
    MAX_DIMS,
    pack,
)
from ._options import Options
from ._private import is_compiled
from ._specs import LossSpec, RowNumbers, Third, VectorNumbers

PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
_DEVICES = DEVICES | {"meta"}  # the private ops' fake kernels serve meta tensors
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch


def is_captured() -> bool:
    """Whether a mode or a trace sees the called ops, and may replay them."""
    return (
        bool(torch._C._len_torch_dispatch_stack())
        or torch._C._is_tracing()
        or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)
    )


def _is_readable(tensor: Tensor, device: torch.device) -> bool:
    """Whether the compiled kernels can read the tensor, if they take its dtype."""
    return (
        tensor.layout is torch.strided
        and tensor.device == device
        and device.type in _DEVICES
        and not is_traceable_wrapper_subclass(tensor)  # it supports PyTorch's ops, not ours
        and not tensor._is_zerotensor()
    )


def is_served(
    input: Tensor,
    target: Tensor,
    third: Tensor | None,
    dtype: torch.dtype,
    options: Options,
    rank: int,
    has_labels: bool = False,
) -> bool:
    """Whether the compiled kernels serve this call, except the third operand's gradient; the reference serves all
    others. A third operand with labels can be of integers."""
    weight, mask = options.weight, options.mask
    normalizer = options.normalizer if isinstance(options.normalizer, Tensor) else None
    beside = [tensor for tensor in (weight, mask, normalizer, third) if tensor is not None]
    return (
        input.dtype in DTYPES
        and (target.dtype in DTYPES or target.dtype in INTEGERS)
        and dtype in DTYPES
        and (weight is None or weight.dtype in DTYPES)
        and (third is None or third.dtype in DTYPES or (has_labels and third.dtype in INTEGERS))
        and (normalizer is None or normalizer.dtype in DTYPES or normalizer.dtype in INTEGERS)
        and all(_is_readable(tensor, input.device) for tensor in (input, target, *beside))
        and not (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (weight, normalizer)))
        and not transformed()
        and rank <= MAX_DIMS
    )


def serves(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    parameter: Third | None,
    dtype: torch.dtype,
    options: Options,
    rows: RowNumbers | VectorNumbers | None,
) -> bool:
    """Whether the compiled kernels serve a checked call, except the third operand's gradient."""
    if isinstance(rows, VectorNumbers) and (rows.p != 2 or input.shape[class_dim(input)] == 0):
        return False
    third = parameter if isinstance(parameter, Tensor) else None
    rank = max(input.dim(), target.dim()) if rows is None else input.dim() - 1
    has_labels = isinstance(rows, VectorNumbers) and not spec.differentiable_third
    return is_served(input, target, third, dtype, options, rank, has_labels)


def packed(
    spec: LossSpec,
    reduction: str,
    parameter: Third | None,
    dtype: torch.dtype,
    options: Options,
    second: float,
    rows: RowNumbers | VectorNumbers | None,
) -> tuple[int, Any, tuple[Any, ...]]:
    """The private ops' arguments after the operands: the mode, the loss's number, and the rest."""
    third = parameter if isinstance(parameter, Tensor) else None
    weight, mask, normalizer, scale, batch_dims, ignore_nan = options
    how = pack(reduction, dtype, spec.mode, batch_dims) | (IGNORE_NAN if ignore_nan else 0)
    divisor = None if normalizer is None or isinstance(normalizer, Tensor) else normalizer
    call = scale, weight, mask, normalizer if divisor is None else None, divisor
    if isinstance(rows, VectorNumbers):
        number, second = rows.in_call(spec)
        return how, number, (*call, third, second) if third is not None or second != 0 else call
    if rows is not None:
        return how, rows.z_loss, (*call, third, second, rows.ignore_index, rows.softcap)
    number = parameter if third is None else spec.default
    return how, number, call if third is None and second == 0 else (*call, third, second)


def goes_in_one_pass(
    input: Tensor, target: Tensor, wanting: list[Tensor], reduction: str, rows: RowNumbers | VectorNumbers | None
) -> bool:
    """Whether the loss's pass can also make the gradients that are wanted."""
    whole = (
        rows is not None
        or input.shape == target.shape
        or all(x.shape == torch.broadcast_shapes(input.shape, target.shape) for x in wanting)
    )
    return bool(wanting) and whole and reduction != "none"


_FULL = ("weight", "mask")  # the options that can be as large as the data


def in_play(input: Tensor, target: Tensor, weight: Tensor | None, options: Options) -> Tensor | None:
    """The denominators of a mean, in the widest dtype, for each leading index; None if nothing is left out and there is
    no weight. Uses the kernel that counts before a pass; it reads its data once."""
    mask, kept = options.mask, options.batch_dims
    ignores = options.ignore_nan and target.is_floating_point()
    if weight is None and mask is None and not ignores:
        return None
    rank = max(input.dim(), target.dim())
    if not is_served(input, target, None, torch.float64, options._replace(weight=weight, normalizer=None), rank):
        return _reference.in_play(joint_shape(input, target), target, weight, options)
    how = pack("mean", torch.float64, batch_dims=kept) | (IGNORE_NAN if ignores else 0)
    found = _private.denominators(input, target, how, 1.0, 1.0, weight, mask)
    return found[:, 0].view(joint_shape(input, target)[:kept])


def _lie_alike(*tensors: Tensor | None) -> bool:
    """Whether all are contiguous and of one shape, so that dimensions above the limit can be merged."""
    first, *others = (x for x in tensors if x is not None)
    return all(x.shape == first.shape and x.is_contiguous() for x in (first, *others))


def _any_is_distributed(input: Tensor, target: Tensor, third: Third | None, options: Options) -> bool:
    """Whether one is a DTensor. There are none if their module has not been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(x, module.DTensor) for x in (input, target, third, *options[:3]))


def _dispatches(tensor: Tensor) -> bool:
    """Whether its class changes what ops do: the ops' own autograd does not see that."""
    return getattr(type(tensor), "__torch_dispatch__") is not _NO_DISPATCH  # noqa: B009


def _is_exporting_to_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()


def loss(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: Third | None,
    dtype: torch.dtype,
    options: Options,
    second: float = 0.0,
    rows: RowNumbers | VectorNumbers | None = None,
) -> Tensor:
    """The loss of a call whose arguments have been checked, with autograd. The parameter is the class weights, or None,
    for a loss of classes, and the third operand for a loss of vectors."""
    if _any_is_distributed(input, target, parameter, options) and not transformed():
        from . import _sharded

        return _sharded.loss(spec, input, target, reduction, parameter, dtype, options, second, rows)
    varies = is_captured() and _varying.vary(options, parameter, second, rows)
    if varies:
        scale, options = options.scale, options._replace(scale=1.0)
        options, parameter, rows = _varying.fixed(input, target, options, parameter, rows)
        if _varying.is_symbolic(scale):
            wide = torch.promote_types(dtype, torch.float32)
            value = loss(spec, input, target, reduction, parameter, wide, options, second, rows)
            return (value * scale).to(dtype)
        options = options._replace(scale=scale)
        varies = _varying.vary(options, parameter, second, rows)
    third = parameter if isinstance(parameter, Tensor) else None
    rank = max(input.dim(), target.dim()) if rows is None else input.dim() - 1
    if options.batch_dims == rank > 0:  # a reduction of single elements
        rest = options._replace(scale=1.0, batch_dims=0)
        if reduction == "sum" or (reduction == "mean" and rest.are_default() and rows is None):
            reduction, options = "none", options._replace(batch_dims=0)
    if (
        rank > MAX_DIMS
        and rows is None
        and _lie_alike(
            input, target, options.weight, options.mask, third if third is not None and third.dim() else None
        )
    ):
        shape, kept = input.shape, options.batch_dims
        merged = shape[:kept].numel(), shape[kept:].numel()
        beside = {name: None if x is None else x.view(merged) for name, x in options._asdict().items() if name in _FULL}
        options = options._replace(batch_dims=1 if kept else 0, **beside)
        parameter = third.view(merged) if third is not None and third.dim() else parameter
        value = loss(spec, input.view(merged), target.view(merged), reduction, parameter, dtype, options, second)
        return value.view(shape if reduction == "none" else shape[:kept])
    is_plain = not (is_captured() or _dispatches(input) or _dispatches(target))
    # A compiler fuses PyTorch's own ops with the next op if that has the data's size; ONNX supports no other ops.
    decomposes = not is_plain and ((reduction == "none" and is_compiled()) or _is_exporting_to_onnx())
    for_third = third is not None and third.requires_grad and torch.is_grad_enabled()
    served = serves(spec, input, target, parameter, dtype, options, rows)
    of_vectors = isinstance(rows, VectorNumbers)
    if for_third and not (spec.has_third_gradient and (type(third) in PLAIN_TENSORS if is_plain else of_vectors)):
        served = False
    if decomposes or varies or not served:
        value = _reference.loss(spec, input, target, reduction, parameter, dtype, options, second, rows)
        like = target if rows is None else input  # for rows the loss is contiguous
        return _private.laid_out(value, input, like) if reduction == "none" and served else value
    how, number, call = packed(spec, reduction, parameter, dtype, options, second, rows)
    wanting = []
    if torch.is_grad_enabled():
        how |= (FOR_INPUT if input.requires_grad else 0) | (FOR_TARGET if target.requires_grad else 0)
        how |= FOR_THIRD if for_third else 0
        wanting = [operand for operand in (input, target) if operand.requires_grad]
        if third is not None and for_third and of_vectors:
            wanting.append(third)
    if not wanting and not for_third:
        forward = _private.compiled_forward if not is_plain and is_compiled() else _private.forward
        return forward(input, target, how, number, *call)[0]
    in_one_pass = goes_in_one_pass(input, target, wanting, reduction, rows)
    if is_plain:
        way = _autograd.one_pass if in_one_pass else _autograd.two_passes
        how |= BELOW_AUTOGRAD
    elif is_compiled():
        in_one_pass = in_one_pass and _private.keeps_what_it_saves()
        way = _autograd.compiled_one_pass if in_one_pass else _autograd.compiled_two_passes
    else:
        way = _autograd.traced_two_passes
    found = way(input, target, how, number, *call)
    assert found is not None
    return found


# ---- the private ops under autograd and transforms ----


def _denominators(*call):
    spec, input, target, reduction, third, _, options, _, rows = unpacked(*call)
    return _reference.denominators(spec, input, target, options, third, rows) if reduction == "mean" else None


def _composed(*call):
    return _reference.loss(*unpacked(*call)), _denominators(*call)


# Each op in plain PyTorch.
_COMPOSED: dict[str, Callable[..., Any]] = {
    "forward": _composed,
    "denominators": _denominators,
    "gradients": lambda grad_output, denominators, *call: by_reference(grad_output, call),
}


def _register(kind: str, composed: Callable[..., Any]) -> None:
    """Makes the op correct wherever PyTorch can replay it: with derivatives under autograd, and under transforms."""
    overload = _private.op(kind)

    def autograd(keyset, *call):
        if (torch.is_grad_enabled() and torch._C._any_requires_grad(*call)) or transformed():
            if kind == "forward":  # with the kernels if they serve the call
                return loss(*unpacked(*call)), _denominators(*call)
            return composed(*call)
        if kind == "gradients":
            return gradients(*call)
        return overload.redispatch(keyset & torch._C._after_autograd_keyset, *call)

    name = overload._schema.name
    _private.LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    for key in _BATCHED:
        _private.LIBRARY.impl(name, composed, key)


_BATCHED = (_private.TRANSFORMS, "Batched")
for _kind, _function in _COMPOSED.items():
    _register(_kind, _function)
for _key in _BATCHED:  # a batched backward cannot use the stored gradients
    _private.LIBRARY.impl("_pointwise_rescale_", lambda *call: False, _key)
