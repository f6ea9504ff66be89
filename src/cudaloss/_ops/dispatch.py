"""Which calls of plain tensors the compiled kernels serve, and in how many passes; the reference has the others."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .._call import varying
from .._call.call import Call
from .._call.modes import BELOW_AUTOGRAD, DTYPES, FOR_INPUT, FOR_TARGET, FOR_THIRD, IGNORE_NAN, INTEGERS, MAX_DIMS, pack
from .._call.shapes import broadcast, class_dim, joint_shape
from .._install.build import DEVICES
from .._losses.options import Options
from .._reference import definition
from . import autograd, private
from .autograd import transformed
from .private import is_compiled

PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
_DEVICES = DEVICES | {"meta"}  # the private ops' fake kernels serve meta tensors
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch
# PyTorch's functions, looked up only once: saves 0.15 us of the 0.37 of is_captured.
_dispatch_modes, _is_tracing = torch._C._len_torch_dispatch_stack, torch._C._is_tracing
_is_included = torch._C._dispatch_tls_is_dispatch_key_included


def is_captured() -> bool:
    """Whether a mode or a trace sees the called ops, and may replay them."""
    return _dispatch_modes() > 0 or _is_tracing() or _is_included(_PRE_DISPATCH)


def is_usual(tensor: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    """Whether it is a plain tensor of one of the dtypes that no gradient is wanted for."""
    if type(tensor) not in PLAIN_TENSORS or tensor.dtype not in dtypes:
        return False
    return not (tensor.requires_grad and torch.is_grad_enabled())


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


def serves(call: Call) -> bool:
    """Whether the compiled kernels serve a checked call, except the third operand's gradient."""
    spec, input = call.spec, call.input
    if call.p != 2 or (spec.of_vectors and input.shape[class_dim(input)] == 0):
        return False
    has_labels = spec.of_vectors and not spec.differentiable_third
    return is_served(input, call.target, call.third, call.dtype, call.options, call.rank, has_labels)


def goes_in_one_pass(call: Call, wanting: list[Tensor]) -> bool:
    """Whether the loss's pass can also make the gradients that are wanted."""
    whole = (
        call.spec.of_rows
        or call.input.shape == call.target.shape
        or all(x.shape == broadcast(call.input.shape, call.target.shape) for x in wanting)
    )
    return bool(wanting) and whole and call.reduction != "none"


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
        return definition.in_play(joint_shape(input, target), target, weight, options)
    how = pack("mean", torch.float64, batch_dims=kept) | (IGNORE_NAN if ignores else 0)
    found = private.denominators(input, target, how, 1.0, 1.0, weight, mask)
    return found[:, 0].view(joint_shape(input, target)[:kept])


def _lie_alike(*tensors: Tensor | None) -> bool:
    """Whether all are contiguous and of one shape, so that dimensions above the limit can be merged."""
    first, *others = (x for x in tensors if x is not None)
    return all(x.shape == first.shape and x.is_contiguous() for x in (first, *others))


def _dispatches(tensor: Tensor) -> bool:
    """Whether its class changes what ops do: the ops' own autograd does not see that."""
    return getattr(type(tensor), "__torch_dispatch__") is not _NO_DISPATCH  # noqa: B009


def _is_exporting_to_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()


def _merged(call: Call) -> Tensor | None:
    """The loss of a call of elements with more dimensions than the kernels take, if they can be merged."""
    third, options = call.third, call.options
    beside = third if third is not None and third.dim() else None
    if not _lie_alike(call.input, call.target, options.weight, options.mask, beside):
        return None
    shape, kept = call.input.shape, options.batch_dims
    merged = shape[:kept].numel(), shape[kept:].numel()
    full = {name: None if x is None else x.view(merged) for name, x in options._asdict().items() if name in _FULL}
    call = call._replace(
        input=call.input.view(merged),
        target=call.target.view(merged),
        third=third if beside is None else beside.view(merged),
    )
    value = loss(call.with_options(batch_dims=1 if kept else 0, **full))
    return value.view(shape if call.reduction == "none" else shape[:kept])


def _of_single_losses(call: Call) -> Call:
    """The same call without the reduction, if that is of single losses."""
    rest = call.options._replace(scale=1.0, batch_dims=0)
    if call.reduction == "sum" or (call.reduction == "mean" and rest.are_default() and not call.spec.of_rows):
        return call._replace(reduction="none").with_options(batch_dims=0)
    return call


def _with_numbers(call: Call) -> Tensor | Call:
    """A captured call without the numbers that vary between its replays, as far as possible; or its loss, if the scale
    varies."""
    scale, call = call.options.scale, varying.fixed(call.with_options(scale=1.0))
    if not varying.is_symbolic(scale):
        return call.with_options(scale=scale)
    value = loss(call._replace(dtype=torch.promote_types(call.dtype, torch.float32)))
    return (value * scale).to(call.dtype)


def loss(call: Call) -> Tensor:
    """The loss of a call of plain tensors whose arguments have been checked, with autograd."""
    varies = is_captured() and varying.vary(call)
    if varies:
        found = _with_numbers(call)
        if isinstance(found, Tensor):
            return found
        call, varies = found, varying.vary(found)
    rank, spec, of_rows = call.rank, call.spec, call.spec.of_rows
    if call.options.batch_dims == rank > 0:
        call = _of_single_losses(call)
    if rank > MAX_DIMS and not of_rows:
        value = _merged(call)
        if value is not None:
            return value
    input, target, third = call.input, call.target, call.third
    is_plain = not (is_captured() or _dispatches(input) or _dispatches(target))
    # A compiler fuses PyTorch's own ops with the next op if that has the data's size; ONNX supports no other ops.
    decomposes = not is_plain and ((call.reduction == "none" and is_compiled()) or _is_exporting_to_onnx())
    for_third = third is not None and third.requires_grad and torch.is_grad_enabled()
    served = serves(call)
    if for_third and not (spec.has_third_gradient and (type(third) in PLAIN_TENSORS if is_plain else spec.of_vectors)):
        served = False
    if decomposes or varies or not served:
        value = definition.loss(call)
        like = input if of_rows else target  # for rows the loss is contiguous
        return private.laid_out(value, input, like) if call.reduction == "none" and served else value
    flags, wanting = 0, []
    if torch.is_grad_enabled():
        flags = (FOR_INPUT if input.requires_grad else 0) | (FOR_TARGET if target.requires_grad else 0)
        flags |= FOR_THIRD if for_third else 0
        wanting = [operand for operand in (input, target) if operand.requires_grad]
        if third is not None and for_third and spec.of_vectors:
            wanting.append(third)
    if not wanting and not for_third:
        forward = private.compiled_forward if not is_plain and is_compiled() else private.forward
        return forward(*call.packed())[0]
    in_one_pass = goes_in_one_pass(call, wanting)
    if is_plain:
        way = autograd.one_pass if in_one_pass else autograd.two_passes
        flags |= BELOW_AUTOGRAD
    elif is_compiled():
        in_one_pass = in_one_pass and private.keeps_what_it_saves()
        way = autograd.compiled_one_pass if in_one_pass else autograd.compiled_two_passes
    else:
        way = autograd.traced_two_passes
    found = way(*call.packed(flags))
    assert found is not None
    return found
