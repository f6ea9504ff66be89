"""Autograd for the general ops: masks, weights, normalizers, any layout. Called as
``f(input, target, weight, mask, normalizer, mode, parameter, scale, batch_dims)``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from . import reference
from ._autograd import Loss, apply_of, is_differentiated, keeps_graph
from ._modes import FOR_INPUT, FOR_TARGET, IGNORE_NAN, dtype_of, reduction_of
from ._options import Options
from ._private import PrivateOps
from ._specs import LossSpec

_OTHERS = (None,) * 7  # the gradients of all arguments but input and target


def _by_reference(spec: LossSpec, ctx, grad_output: Tensor):
    mode, parameter, scale, batch_dims = ctx.arguments
    input, target, weight, mask, normalizer, *_ = ctx.saved_tensors
    options = Options(weight, mask, normalizer, scale, batch_dims, bool(mode & IGNORE_NAN))
    wanted = ctx.needs_input_grad[0], ctx.needs_input_grad[1]
    arguments = input, target, reduction_of(mode), parameter, dtype_of(mode), wanted, options
    return *reference.gradients(spec, grad_output, *arguments), *_OTHERS


def _gradients(ops: PrivateOps, ctx, grad_output: Tensor):
    """The gradients wanted, from a second reading of the operands."""
    mode, *numbers = ctx.arguments
    input, target, weight, mask, normalizer, *_, divisors = ctx.saved_tensors
    shape = torch.broadcast_shapes(input.shape, target.shape)
    wanted = ((input, FOR_INPUT), (target, FOR_TARGET))
    if divisors.shape[0] > 1 and any(mode & flag and operand.shape != shape for operand, flag in wanted):
        # A broadcast operand's gradient sums over segments: their denominators go into what is summed.
        grad_output = grad_output.double() * divisors[:, 1].view(grad_output.shape)
        divisors = divisors.new_ones(1, 2)
    call = input, target, weight, mask, normalizer, mode, *numbers
    grad_input, grad_target = ops.general_gradients(grad_output, divisors, *call)
    return _wanted(mode, grad_input, grad_target)


def _wanted(mode: int, grad_input: Tensor, grad_target: Tensor):
    return grad_input if mode & FOR_INPUT else None, grad_target if mode & FOR_TARGET else None, *_OTHERS


def _one_pass_forward(training: Callable[..., tuple[Tensor, ...]]) -> Callable[..., Tensor | None]:
    """Runs the op `training` and keeps what a backward needs; None where it declines."""

    def forward(ctx, *call):
        value, *gradients, divisors = training(*call)
        if value is not None:
            ctx.save_for_backward(*call[:5], *gradients, divisors)
            ctx.arguments = call[5:]
        return value

    return forward


def one_pass(spec: LossSpec, ops: PrivateOps) -> Loss:
    """A reduced loss and the gradients wanted from one reading of the operands, handed out once; a second backward
    (``retain_graph``) computes them anew."""

    def backward(ctx, grad_output):
        if is_differentiated():
            return _by_reference(spec, ctx, grad_output)
        if ctx.spent:
            return _gradients(ops, ctx, grad_output)
        ctx.spent = True
        *operands, grad_input, grad_target, divisors = ctx.saved_tensors
        try:
            ops.general_rescale_(grad_input, grad_target, grad_output, divisors, *operands, *ctx.arguments)
        except (
            RuntimeError
        ):  # of vmap, which a GPU's backward thread does not know of, and which changes nothing in place
            return _gradients(ops, ctx, grad_output)
        if keeps_graph():  # it keeps the saved tensors, and would notice if the receiver wrote to those very ones
            grad_input, grad_target = grad_input.data, grad_target.data
        return _wanted(ctx.arguments[0], grad_input, grad_target)

    return apply_of(f"{spec.module}GeneralOnePass", _one_pass_forward(ops.general_training), backward)


def traced(spec: LossSpec, ops: PrivateOps) -> Loss:
    """:func:`one_pass` for a compiler's trace, which cannot follow what is handed out."""

    def backward(ctx, grad_output):
        if is_differentiated():
            return _by_reference(spec, ctx, grad_output)
        *operands, grad_input, grad_target, divisors = ctx.saved_tensors
        call = grad_output, divisors, *operands, *ctx.arguments
        return _wanted(ctx.arguments[0], *ops.traced_general_gradients(grad_input, grad_target, *call))

    return apply_of(f"{spec.module}GeneralTraced", _one_pass_forward(ops.traced_general_training), backward)


def two_passes(spec: LossSpec, ops: PrivateOps) -> Loss:
    """The loss from one reading, the gradients from another: for ``reduction="none"``, for fp16 gradients, and for
    operands that are broadcast."""

    def forward(ctx, *call):
        value, divisors = ops.general(*call)
        if value is not None:
            ctx.save_for_backward(*call[:5], divisors)
            ctx.arguments = call[5:]
        return value

    def backward(ctx, grad_output):
        if is_differentiated():
            return _by_reference(spec, ctx, grad_output)
        return _gradients(ops, ctx, grad_output)

    return apply_of(f"{spec.module}GeneralTwoPasses", forward, backward)
