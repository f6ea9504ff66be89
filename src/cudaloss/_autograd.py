"""The fused losses with autograd, called as ``f(input, target, mode, parameter)``.

Old-style ``autograd.Function`` (no ``setup_context``), the cheaper kind: it never runs under functorch, which would
need the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import reference
from ._modes import FOR_TARGET, dtype_of, reduction_of
from ._private import PrivateOps
from ._specs import LossSpec

Loss = Callable[..., Tensor]

keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # pyright: ignore[reportAttributeAccessIssue]


def same_dense_order(a: Tensor, b: Tensor) -> bool:
    """Whether a and b, of one shape, are dense and position i in memory is the same element of both."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    return a.stride() == b.stride() == torch.empty_like(a, device="meta").stride()  # which a layout with holes loses


def transformed() -> bool:
    """Whether functorch or forward-mode AD is at work, which need the reference's composite ops."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def is_differentiated() -> bool:
    """Whether a backward must be differentiable itself: grad mode is on under ``create_graph``."""
    return torch.is_grad_enabled() or transformed()


def _is_one_value(tensor: Tensor) -> bool:
    """Whether all elements are one in memory: an expanded scalar, as the backward of sum() sends it."""
    return all(stride == 0 or size == 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _needs_reference(input: Tensor, *others: Tensor) -> bool:
    """Whether a backward must be differentiable itself, or hooks on saved tensors have given them layouts that the
    kernels do not take."""
    return is_differentiated() or not all(same_dense_order(input, other) for other in others)


def _by_reference(spec: LossSpec, ctx, grad_output: Tensor, input: Tensor, target: Tensor):
    mode, parameter = ctx.arguments
    for_input, for_target, *_ = ctx.needs_input_grad
    wanted = for_input, for_target
    arguments = input, target, reduction_of(mode), parameter, dtype_of(mode), wanted
    return *reference.gradients(spec, grad_output, *arguments), None, None


def apply_of(name: str, forward: Callable, backward: Callable) -> Loss:
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": __name__}
    function: Any = type(name, (torch.autograd.Function,), methods)
    node = function._backward_cls  # of which every ctx is one
    node.apply = backward  # what its own apply comes down to, 0.4 us later
    node.spent = False  # whether the one-pass gradient has been handed out
    # The base class's apply: Function.apply's own work (1 us) is for functorch and for setup_context.
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


def one_pass(spec: LossSpec, ops: PrivateOps) -> Loss:
    """A scalar loss and the gradient of the one operand that needs it, from one reading of both.

    The gradient is handed out once, in a buffer that is nobody else's; a second backward (``retain_graph``) computes
    it anew. None where the kernels decline.

    Written out on one level: for a GPU a backward runs in a thread of its own, where each call costs twice as much.
    """
    training, rescale_ = ops.training, ops.rescale_
    is_grad_enabled, any_functorch = torch.is_grad_enabled, torch._C._are_functorch_transforms_active

    def forward(ctx, input, target, mode, parameter):
        value, gradient = training(input, target, mode, parameter)
        if value is not None:
            ctx.save_for_backward(input, target, gradient)
            ctx.arguments = mode, parameter
        return value

    def later(ctx, grad_output, input, target, gradient):
        """Any but the first, plain backward."""
        if _needs_reference(input, target, gradient):
            return _by_reference(spec, ctx, grad_output, input, target)
        gradient = ops.gradient(grad_output, input, target, *ctx.arguments)
        return (None, gradient, None, None) if ctx.arguments[0] & FOR_TARGET else (gradient, None, None, None)

    def backward(ctx, grad_output):
        input, target, gradient = ctx.saved_tensors
        if ctx.spent or is_grad_enabled() or any_functorch() or forward_ad._current_level >= 0:
            return later(ctx, grad_output, input, target, gradient)
        ctx.spent = True
        mode, parameter = ctx.arguments
        # Known to be 1 without waiting for a GPU: spares a training step on the CPU 1 us.
        if not (grad_output.is_cpu and grad_output.item() == 1.0):
            try:
                rescale_(gradient, grad_output, input, target, mode, parameter)
            except RuntimeError:  # hooks on saved tensors have changed the operands' layouts
                return later(ctx, grad_output, input, target, gradient)
        # Where the graph stays, it keeps the saved tensor, and would notice if the receiver wrote to that very one.
        if keeps_graph():
            gradient = gradient.data
        return (None, gradient, None, None) if mode & FOR_TARGET else (gradient, None, None, None)

    return apply_of(f"{spec.module}OnePass", forward, backward)


def one_pass_both(spec: LossSpec, ops: PrivateOps) -> Loss:
    """The same with the gradients of both operands."""

    def forward(ctx, input, target, mode, parameter):
        value, grad_input, grad_target = ops.training_both(input, target, mode, parameter)
        if value is not None:
            ctx.save_for_backward(input, target, grad_input, grad_target)
            ctx.arguments = mode, parameter
        return value

    def backward(ctx, grad_output):
        input, target, grad_input, grad_target = ctx.saved_tensors
        if _needs_reference(input, target, grad_input, grad_target):
            return _by_reference(spec, ctx, grad_output, input, target)
        mode, parameter = ctx.arguments
        if ctx.spent:
            return *ops.gradients(grad_output, input, target, mode, parameter), None, None
        ctx.spent = True
        ops.rescale_both_(grad_input, grad_target, grad_output, input, target, mode, parameter)
        if keeps_graph():
            grad_input, grad_target = grad_input.data, grad_target.data
        return grad_input, grad_target, None, None

    return apply_of(f"{spec.module}OnePassBoth", forward, backward)


def traced(spec: LossSpec, ops: PrivateOps) -> Loss:
    """:func:`one_pass` and :func:`one_pass_both` for a compiler's trace, which cannot follow what is handed out."""

    def forward(ctx, input, target, mode, parameter):
        for_input, for_target, *_ = ctx.needs_input_grad
        training = ops.traced_training_both if for_input and for_target else ops.traced_training
        value, *gradients = training(input, target, mode, parameter)
        ctx.save_for_backward(input, target, *gradients)
        ctx.arguments = mode, parameter
        return value

    def backward(ctx, grad_output):
        input, target, *gradients = ctx.saved_tensors
        if _needs_reference(input, target):
            return _by_reference(spec, ctx, grad_output, input, target)
        mode, parameter = ctx.arguments
        for_input, for_target, *_ = ctx.needs_input_grad
        operands = grad_output, input, target
        if for_input and for_target:
            grad_input, grad_target = gradients
            grad_input = ops.traced_gradient(grad_input, *operands, mode, parameter)
            return grad_input, ops.traced_gradient(grad_target, *operands, mode | FOR_TARGET, parameter), None, None
        gradient = ops.traced_gradient(gradients[0], *operands, mode, parameter)
        return (None, gradient, None, None) if for_target else (gradient, None, None, None)

    return apply_of(f"{spec.module}Traced", forward, backward)


def two_passes(spec: LossSpec, ops: PrivateOps) -> Loss:
    """The loss from one reading, the gradients from another: for ``reduction="none"``, and for fp16 gradients, which a
    division by the count could flush to 0 before a gradient scaler's factor comes."""

    def forward(ctx, input, target, mode, parameter):
        value = ops.loss(input, target, mode, parameter)
        if value is not None:
            ctx.save_for_backward(input, target)
            ctx.arguments = mode, parameter
        return value

    def backward(ctx, grad_output):
        input, target = ctx.saved_tensors
        mode, parameter = ctx.arguments
        whole = grad_output.dim() > 0 and not _is_one_value(grad_output)
        if _needs_reference(input, target, *([grad_output] if whole else [])):
            return _by_reference(spec, ctx, grad_output, input, target)
        for_input, for_target, *_ = ctx.needs_input_grad
        if for_input and for_target:
            return *ops.gradients(grad_output, input, target, mode, parameter), None, None
        gradient = ops.gradient(grad_output, input, target, mode, parameter)
        return (None, gradient, None, None) if for_target else (gradient, None, None, None)

    return apply_of(f"{spec.module}TwoPasses", forward, backward)
