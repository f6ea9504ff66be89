"""``torch.ops.cudaloss``: every op of every loss, registered from the rows of ``_specs``.

Of each loss there are four ops:

``smooth_l1``                 the public one. One Python kernel for all backends, for autograd and for vmap: it chooses
                              between the fused kernels and the plain-PyTorch reference.
``_smooth_l1_forward``        private, compiled, without autograd: the loss.
``_smooth_l1_backward``       likewise: the gradient of one operand.
``_smooth_l1_backward_both``  likewise: the gradients of both, in one pass.

torch.compile and torch.export see through the public op to the private ones, whose fake kernels are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import reference
from ._build import DEVICES
from ._checks import REDUCTIONS, check
from ._specs import SPECS, LossSpec

LIBRARY = torch.library.Library("cudaloss", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag,)

PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
# What the compiled kernels read, in any pair.
DTYPES = frozenset([torch.float32, torch.float64, torch.float16, torch.bfloat16])
_DEVICES = DEVICES | {"meta"}  # the private ops' fake kernels serve meta tensors
_HAS_CPU, _HAS_CUDA = "cpu" in DEVICES, "cuda" in DEVICES


@dataclass(frozen=True)
class PrivateOps:
    """The compiled ops of one loss."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    backward_both: Callable[..., tuple[Tensor, Tensor]]


def _same_dense_order(a: Tensor, b: Tensor) -> bool:
    """Whether a and b, of one shape, are dense and position i in memory is the same element of both."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    return a.stride() == b.stride() == torch.empty_like(a, device="meta").stride()  # which a layout with holes loses


def _transformed() -> bool:
    """Whether functorch or forward-mode AD is at work, which need the reference's composite ops."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def _is_fused(input: Tensor, target: Tensor) -> bool:
    """Whether the compiled kernels serve these operands; the reference serves all others."""
    return (
        input.dtype in DTYPES
        and target.dtype in DTYPES
        and input.layout is torch.strided
        and target.layout is torch.strided
        and input.device == target.device
        and input.device.type in _DEVICES
        and input.shape == target.shape
        and _same_dense_order(input, target)
        and not is_traceable_wrapper_subclass(input)  # a DTensor, say, which knows PyTorch's ops, not ours
        and not is_traceable_wrapper_subclass(target)
        and not _transformed()
    )


def _is_usual(input: Tensor, target: Tensor) -> bool:
    """A cheaper, sufficient condition for :func:`_is_fused`, for the commonest operands: contiguous, of one dtype.

    It is on the hot path of every call, so flags stand for ``device.type``, which alone costs 0.2 us.
    """
    if input.is_cuda:
        one_device = _HAS_CUDA and target.is_cuda and input.get_device() == target.get_device()
    else:
        one_device = _HAS_CPU and input.is_cpu and target.is_cpu
    return (
        one_device
        and type(input) in PLAIN_TENSORS
        and type(target) in PLAIN_TENSORS
        and input.dtype is target.dtype
        and input.dtype in DTYPES
        and input.layout is target.layout is torch.strided
        and input.shape == target.shape
        and input.is_contiguous()
        and target.is_contiguous()
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
    )


def _is_autocast(device: str) -> bool:
    if device in DEVICES or torch.amp.is_autocast_available(device):
        return torch.is_autocast_enabled(device)
    return False  # meta, say, of which PyTorch will not even answer


def _is_one_value(tensor: Tensor) -> bool:
    """Whether all elements are one in memory: an expanded scalar, as the backward of sum() sends it."""
    return all(stride == 0 or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _differentiable(spec: LossSpec, ops: PrivateOps) -> Callable[..., Tensor]:
    """The fused loss with autograd, called as ``f(input, target, reduction, parameter, dtype)``.

    An old-style ``autograd.Function`` (no ``setup_context``), the cheaper kind: it never runs under functorch, which
    would need the other.
    """

    def forward(ctx, input, target, reduction, parameter, dtype):
        ctx.save_for_backward(input, target)
        ctx.arguments = reduction, parameter, dtype
        return ops.forward(input, target, REDUCTIONS[reduction], parameter, dtype)

    def backward(ctx, grad_output):
        input, target = ctx.saved_tensors
        reduction, parameter, dtype = ctx.arguments
        for_input, for_target, *_ = ctx.needs_input_grad
        fused = _same_dense_order(input, target) and (  # which hooks on saved tensors may have changed
            reduction != "none" or _is_one_value(grad_output) or _same_dense_order(input, grad_output)
        )
        if torch.is_grad_enabled() or not fused or _transformed():  # grad mode is on under create_graph
            needed = for_input, for_target
            found = reference.gradients(spec, grad_output, input, target, reduction, parameter, dtype, needed)
            return *found, None, None, None
        operands = grad_output, input, target, REDUCTIONS[reduction], parameter
        if for_input and for_target:
            return *ops.backward_both(*operands), None, None, None
        gradient = ops.backward(*operands, for_target)
        return (None, gradient, None, None, None) if for_target else (gradient, None, None, None, None)

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": __name__}
    function = type(spec.module, (torch.autograd.Function,), methods)
    # The base class's apply: Function.apply's own work (1 us) is for functorch and for setup_context.
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


def _public_kernel(spec: LossSpec, ops: PrivateOps) -> Callable[..., Tensor]:
    """The one kernel of a public op."""
    differentiable, forward = _differentiable(spec, ops), ops.forward

    def kernel(input: Tensor, target: Tensor, reduction="mean", parameter=spec.default, *, dtype=None):
        usual = (
            dtype is None
            and type(parameter) is float
            and parameter > 0
            and type(reduction) is str
            and reduction in REDUCTIONS
            and input is not None  # which the dispatcher lets pass for a Tensor
            and target is not None
            and _is_usual(input, target)
            and not torch.is_autocast_enabled("cuda" if input.is_cuda else "cpu")
        )
        if usual:
            dtype = input.dtype
        else:
            parameter = check(spec, input, target, reduction, parameter, dtype)
            dtype = reference.result_dtype(input, target, dtype, _is_autocast(input.device.type))
            if not (_is_fused(input, target) and dtype in DTYPES):
                return reference.loss(spec, input, target, reduction, parameter, dtype)
        if torch.is_grad_enabled() and (input.requires_grad or target.requires_grad):
            return differentiable(input, target, reduction, parameter, dtype)
        return forward(input, target, REDUCTIONS[reduction], parameter, dtype)

    return kernel


def _define_private(spec: LossSpec) -> PrivateOps:
    """Defines the private ops of `spec`; their kernels come from ``csrc/torch/ops.cpp``, their fake kernels from here.

    A private op whose schema changes needs a new name: PyTorch keeps compiled graphs on disk over an upgrade of this
    package, and they call the ops by name.
    """

    def forward(input, target, reduction, parameter, dtype):
        if reduction == REDUCTIONS["none"]:
            return torch.empty_like(input, dtype=dtype)
        return input.new_empty((), dtype=dtype)

    def backward(grad_output, input, target, reduction, parameter, for_target):
        return torch.empty_like(target if for_target else input)

    def backward_both(grad_output, input, target, reduction, parameter):
        return torch.empty_like(input), torch.empty_like(target)

    operands = "Tensor input, Tensor target, int reduction, float parameter"
    schemas = {
        forward: f"({operands}, ScalarType dtype) -> Tensor",
        backward: f"(Tensor grad_output, {operands}, bool for_target) -> Tensor",
        backward_both: f"(Tensor grad_output, {operands}) -> (Tensor, Tensor)",
    }
    defined = {}
    for fake, schema in schemas.items():
        name = f"_{spec.name}_{fake.__name__}"
        LIBRARY.define(name + schema, tags=_TAGS)
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"cudaloss::{name}", fake, lib=LIBRARY)
        op = getattr(torch.ops.cudaloss, name).default
        defined[fake.__name__] = getattr(op, "_op", op)  # what OpOverload.__call__ calls, 0.2 us later
    return PrivateOps(**defined)


def _define_public(spec: LossSpec) -> Callable[..., Tensor]:
    """Defines the public op of `spec`; returns its kernel."""
    own = f", float {spec.parameter.name}={spec.parameter.default}" if spec.parameter else ""
    LIBRARY.define(
        f'{spec.name}(Tensor input, Tensor target, str reduction="mean"{own}, *, ScalarType? dtype=None) -> Tensor',
        tags=_TAGS,
    )
    kernel = _public_kernel(spec, _define_private(spec))

    def without_parameter(input, target, reduction="mean", *, dtype=None):
        return kernel(input, target, reduction, dtype=dtype)

    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        LIBRARY.impl(spec.name, kernel if spec.parameter else without_parameter, key)
    return kernel


# The public ops' kernels by name: the functions call them directly, a dispatcher round trip (1 us) sooner.
KERNELS: dict[str, Callable[..., Tensor]] = {spec.name: _define_public(spec) for spec in SPECS}
