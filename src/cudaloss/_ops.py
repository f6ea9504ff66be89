"""``torch.ops.cudaloss``: every op of every loss, registered from the rows of ``_specs``.

Of each loss there are three ops:

``smooth_l1``            the public one. One Python kernel for all backends, for autograd and for vmap: it chooses between
                         the fused kernels and the plain-PyTorch reference.
``_smooth_l1_forward``   private, compiled, without autograd: the loss.
``_smooth_l1_backward``  private, compiled, without autograd: the gradients of both operands in one pass.

torch.compile and torch.export see through the public op to the private ones, whose fake kernels are here.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import reference
from ._build import DEVICES
from ._checks import REDUCTIONS, check
from ._specs import SPECS, LossSpec

LIBRARY = torch.library.Library("cudaloss", "DEF")

# What the compiled kernels read, in any pair.
DTYPES = frozenset([torch.float32, torch.float64, torch.float16, torch.bfloat16])
_DEVICES = DEVICES | {"meta"}  # the private ops' fake kernels serve meta tensors


def _same_dense_order(a: Tensor, b: Tensor) -> bool:
    """Whether a and b, of one shape, are dense and position i in memory is the same element of both."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    return a.stride() == b.stride() == torch.empty_like(a, device="meta").stride()  # which a layout with holes loses


def _transformed() -> bool:
    """Whether functorch or forward-mode AD is at work, which need the reference's composite ops."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _fused_device(input: Tensor, target: Tensor) -> str | None:
    """The device type whose compiled kernels serve these operands, or None: the reference serves all others.

    On the hot path: flags instead of ``device.type``, which alone costs 0.2 us.
    """
    if input.is_cpu:
        device = "cpu" if target.is_cpu else None
    elif input.is_cuda:
        device = "cuda" if target.is_cuda and input.get_device() == target.get_device() else None
    else:
        device = "meta" if input.is_meta and target.is_meta else None
    served = (
        device in _DEVICES
        and input.dtype in DTYPES
        and target.dtype in DTYPES
        and input.layout is torch.strided
        and target.layout is torch.strided
        and input.shape == target.shape
        and _same_dense_order(input, target)
        and not _transformed()
    )
    return device if served else None


def _is_autocast(device: str) -> bool:
    if device in DEVICES or torch.amp.is_autocast_available(device):
        return torch.is_autocast_enabled(device)
    return False  # meta, say, of which PyTorch will not even answer


def _is_one_value(tensor: Tensor) -> bool:
    """Whether all elements are one in memory: an expanded scalar, as the backward of sum() sends it."""
    return all(stride == 0 or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _autograd_function(spec: LossSpec, forward_op: Callable, backward_op: Callable) -> type[torch.autograd.Function]:
    """Autograd over the private ops of one loss. Old-style (no ``setup_context``), because that is cheaper by a sixth
    of a small training step; it never runs under functorch, which would need the other."""

    def forward(ctx, input, target, reduction, parameter, dtype):
        ctx.save_for_backward(input, target)
        ctx.arguments = reduction, parameter, dtype
        return forward_op(input, target, REDUCTIONS[reduction], parameter, dtype)

    def backward(ctx, grad_output):
        input, target = ctx.saved_tensors
        reduction, parameter, dtype = ctx.arguments
        for_input, for_target = needed = ctx.needs_input_grad[:2]
        fused = reduction != "none" or _is_one_value(grad_output) or _same_dense_order(input, grad_output)
        if torch.is_grad_enabled() or not fused:  # create_graph, or a gradient of another memory format
            found = reference.gradients(spec, grad_output, input, target, reduction, parameter, dtype, needed)
            return *found, None, None, None
        grad_input, grad_target = backward_op(
            grad_output, input, target, REDUCTIONS[reduction], parameter, for_input, for_target
        )
        return grad_input if for_input else None, grad_target if for_target else None, None, None, None

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": __name__}
    return type(spec.module, (torch.autograd.Function,), methods)


def _public_kernel(spec: LossSpec, forward_op: Callable, function: type[torch.autograd.Function]) -> Callable:
    """The one kernel of a public op."""

    def kernel(input, target, reduction="mean", parameter=spec.default, *, dtype=None):
        try:
            device = _fused_device(input, target)
        except AttributeError:  # the dispatcher lets None pass for a Tensor
            device = None
        usual = (
            dtype is None
            and type(parameter) is float
            and parameter > 0
            and type(reduction) is str
            and reduction in REDUCTIONS
        )
        if device is None or not usual:
            check(spec, input, target, reduction, parameter, dtype)
        autocast = _is_autocast(device or input.device.type)
        if usual and not autocast and input.dtype is target.dtype:
            result = input.dtype
        else:
            result = reference.result_dtype(input, target, dtype, autocast)
        if device is None or result not in DTYPES:
            return reference.loss(spec, input, target, reduction, parameter, result)
        if torch.is_grad_enabled() and (input.requires_grad or target.requires_grad):
            return function.apply(input, target, reduction, parameter, result)
        return forward_op(input, target, REDUCTIONS[reduction], parameter, result)

    return kernel


def _register(spec: LossSpec) -> Callable[..., Tensor]:
    """Defines the three ops of `spec`; returns the public one's kernel."""
    parameter = f", float {spec.parameter.name}={spec.parameter.default}" if spec.parameter else ""
    private_parameter = "int reduction, float parameter"
    forward_name, backward_name = f"_{spec.name}_forward", f"_{spec.name}_backward"
    tags = (torch.Tag.pt2_compliant_tag,)
    LIBRARY.define(
        f'{spec.name}(Tensor input, Tensor target, str reduction="mean"{parameter}, *, ScalarType? dtype=None) -> Tensor',
        tags=tags,
    )
    LIBRARY.define(
        f"{forward_name}(Tensor input, Tensor target, {private_parameter}, ScalarType dtype) -> Tensor", tags=tags
    )
    LIBRARY.define(
        f"{backward_name}(Tensor grad_output, Tensor input, Tensor target, {private_parameter}, "
        "bool for_input, bool for_target) -> (Tensor, Tensor)",
        tags=tags,
    )

    def fake_forward(input, target, reduction, parameter, dtype):
        return torch.empty_like(input, dtype=dtype) if reduction == REDUCTIONS["none"] else input.new_empty((), dtype=dtype)

    def fake_backward(grad_output, input, target, reduction, parameter, for_input, for_target):
        return tuple(
            torch.empty_like(operand) if needed else operand.new_empty(0)
            for operand, needed in ((input, for_input), (target, for_target))
        )

    for name, fake in ((forward_name, fake_forward), (backward_name, fake_backward)):
        torch.library.register_fake(f"cudaloss::{name}", fake, lib=LIBRARY)
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")

    namespace = torch.ops.cudaloss
    forward_op = getattr(namespace, forward_name).default
    function = _autograd_function(spec, forward_op, getattr(namespace, backward_name).default)
    kernel = _public_kernel(spec, forward_op, function)

    if spec.parameter:
        public = kernel
    else:  # the schema has no parameter, so `dtype` is the fourth argument

        def public(input, target, reduction="mean", *, dtype=None):
            return kernel(input, target, reduction, dtype=dtype)

    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        LIBRARY.impl(spec.name, public, key)
    return kernel


# The public ops' kernels by name: the functions call them directly, a dispatcher round trip (1.5 us) sooner.
KERNELS: dict[str, Callable[..., Tensor]] = {spec.name: _register(spec) for spec in SPECS}
