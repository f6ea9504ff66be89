"""The private ops: what is compiled, as PyTorch's dispatcher and compilers see it.

Of each loss there are:

``_smooth_l1_loss``             the loss.
``_smooth_l1_training``         the loss and one operand's gradient for a grad_output of 1, in one pass.
``_smooth_l1_training_both``    likewise, with the gradients of both.
``_smooth_l1_rescale_``         makes such a gradient that for another grad_output; nothing to do where it is 1.
``_smooth_l1_rescale_both_``    likewise both.
``_smooth_l1_gradient``         one operand's gradient, from the operands.
``_smooth_l1_gradients``        the gradients of both.
``_smooth_l1_traced_training``, ``_smooth_l1_traced_training_both``, ``_smooth_l1_traced_gradient``
                                ``training`` and ``rescale_`` as a compiler may see them: see :func:`_claimed`.

These take dense operands that lie alike. For all others (any strides, broadcast operands, integer targets, masks,
weights, normalizers, leading dimensions that stay) there are:

``_smooth_l1_general``          the loss, and the denominators that had to be counted for it.
``_smooth_l1_general_training`` the loss, the gradients wanted for a grad_output of 1, and the denominators.
``_smooth_l1_general_rescale_`` makes such gradients those for another grad_output.
``_smooth_l1_general_gradients``
                                the gradients wanted, from the operands and the denominators.
``_smooth_l1_traced_general_training``, ``_smooth_l1_traced_general_gradients``
                                the two before the last as a compiler may see them.

A private op whose schema or meaning changes needs a new name: PyTorch keeps compiled graphs on disk over an upgrade of
this package, and they call the ops by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ._modes import FOR_INPUT, FOR_TARGET, IGNORE_NAN, MAY_DECLINE, dtype_of, reduction_of
from ._specs import LossSpec

LIBRARY = torch.library.Library("cudaloss", "DEF")
TAGS = (torch.Tag.pt2_compliant_tag,)


@dataclass(frozen=True)
class PrivateOps:
    """The private ops of one loss."""

    loss: Callable[..., Any]
    training: Callable[..., Any]
    training_both: Callable[..., Any]
    gradient: Callable[..., Any]
    gradients: Callable[..., Any]
    rescale_: Callable[..., Any]
    rescale_both_: Callable[..., Any]
    traced_training: Callable[..., Any]
    traced_training_both: Callable[..., Any]
    traced_gradient: Callable[..., Any]
    general: Callable[..., Any]
    general_training: Callable[..., Any]
    general_gradients: Callable[..., Any]
    general_rescale_: Callable[..., Any]
    traced_general_training: Callable[..., Any]
    traced_general_gradients: Callable[..., Any]


def _fake_loss(input, target, how, parameter):
    if how & MAY_DECLINE:
        return None
    if reduction_of(how) == "none":
        return torch.empty_like(input, dtype=dtype_of(how))
    return input.new_empty((), dtype=dtype_of(how))


def _fake_training(input, target, how, parameter):
    if how & MAY_DECLINE:
        return None, None
    gradient = torch.empty_like(target if how & FOR_TARGET else input)
    return input.new_empty((), dtype=dtype_of(how)), gradient


def _fake_training_both(input, target, how, parameter):
    if how & MAY_DECLINE:
        return None, None, None
    return input.new_empty((), dtype=dtype_of(how)), torch.empty_like(input), torch.empty_like(target)


def _fake_gradient(grad_output, input, target, how, parameter):
    return torch.empty_like(target if how & FOR_TARGET else input)


def _fake_gradients(grad_output, input, target, how, parameter):
    return torch.empty_like(input), torch.empty_like(target)


def _fake_rescale(*arguments):
    pass


def _fake_traced_gradient(gradient, grad_output, input, target, how, parameter):
    # An alias, so that the compiler does not take `gradient` for a buffer it may reuse: with such buffers PyTorch
    # refuses retain_graph.
    return gradient.view_as(gradient)


def _empty_as(like, dtype):
    """What ``empty_as`` of ``csrc/torch/layout.h`` gives: in the layout of `like` where that is dense, else in its
    order of dimensions, or contiguous where it is expanded."""
    if like.is_contiguous():  # said first: of sizes that a compiler does not know nothing more can be asked
        return like.new_empty_strided(like.shape, like.stride(), dtype=dtype)
    order = list(range(like.dim()))
    if not any(stride == 0 and size > 1 for size, stride in zip(like.shape, like.stride(), strict=True)):
        order.sort(key=lambda dim: -like.stride(dim))
    strides, stride = [0] * like.dim(), 1
    for dim in reversed(order):
        strides[dim] = stride
        stride = stride * max(like.shape[dim], 1)
    dense = all(a == b or size == 1 for size, a, b in zip(like.shape, strides, like.stride(), strict=True))
    return like.new_empty_strided(like.shape, like.stride() if dense else strides, dtype=dtype)


def _fake_general(input, target, weight, mask, normalizer, how, parameter, scale, batch_dims):
    if how & MAY_DECLINE:
        return None, None
    shape = torch.broadcast_shapes(input.shape, target.shape)
    counts = (
        reduction_of(how) == "mean"
        and normalizer is None
        and (weight is not None or mask is not None or (how & IGNORE_NAN and target.is_floating_point()))
    )
    divisors = input.new_empty((math.prod(shape[:batch_dims]) if counts else 0, 2), dtype=torch.float64)
    if reduction_of(how) != "none":
        return input.new_empty(shape[:batch_dims], dtype=dtype_of(how)), divisors
    for like in (input, target):
        if like.shape == shape:
            return _empty_as(like, dtype_of(how)), divisors
    return input.new_empty(shape, dtype=dtype_of(how)), divisors


def _fake_general_training(input, target, *call):
    how = call[3]
    if how & MAY_DECLINE:
        return None, None, None, None
    value, divisors = _fake_general(input, target, *call)
    gradients = (
        _empty_as(operand, operand.dtype) if how & wanted else input.new_empty(0, dtype=torch.float32)
        for operand, wanted in ((input, FOR_INPUT), (target, FOR_TARGET))
    )
    return value, *gradients, divisors


def _fake_general_gradients(grad_output, divisors, input, target, *call):
    how, shape = call[3], torch.broadcast_shapes(input.shape, target.shape)

    def gradient(operand, wanted):
        if not how & wanted:
            return input.new_empty(0, dtype=torch.float32)
        return _empty_as(operand, operand.dtype) if operand.shape == shape else operand.new_empty(operand.shape)

    return gradient(input, FOR_INPUT), gradient(target, FOR_TARGET)


def _fake_traced_general_gradients(grad_input, grad_target, *call):
    return grad_input.view_as(grad_input), grad_target.view_as(grad_target)


_OPERANDS = "Tensor input, Tensor target, int how, float parameter"  # "mode" is a name of PyTorch's own dispatch
_CALL = (
    "Tensor input, Tensor target, Tensor? weight, Tensor? mask, Tensor? normalizer, int how, float parameter, "
    "float scale, int batch_dims"
)
# The schema and the fake kernel of each.
_OPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "loss": (f"({_OPERANDS}) -> Tensor", _fake_loss),
    "training": (f"({_OPERANDS}) -> (Tensor, Tensor)", _fake_training),
    "training_both": (f"({_OPERANDS}) -> (Tensor, Tensor, Tensor)", _fake_training_both),
    "gradient": (f"(Tensor grad_output, {_OPERANDS}) -> Tensor", _fake_gradient),
    "gradients": (f"(Tensor grad_output, {_OPERANDS}) -> (Tensor, Tensor)", _fake_gradients),
    "rescale_": (f"(Tensor(a!) gradient, Tensor grad_output, {_OPERANDS}) -> ()", _fake_rescale),
    "rescale_both_": (
        f"(Tensor(a!) grad_input, Tensor(b!) grad_target, Tensor grad_output, {_OPERANDS}) -> ()",
        _fake_rescale,
    ),
    "traced_training": (f"({_OPERANDS}) -> (Tensor, Tensor)", _fake_training),
    "traced_training_both": (f"({_OPERANDS}) -> (Tensor, Tensor, Tensor)", _fake_training_both),
    "traced_gradient": (f"(Tensor gradient, Tensor grad_output, {_OPERANDS}) -> Tensor", _fake_traced_gradient),
    "general": (f"({_CALL}) -> (Tensor, Tensor)", _fake_general),
    "general_training": (f"({_CALL}) -> (Tensor, Tensor, Tensor, Tensor)", _fake_general_training),
    "general_gradients": (
        f"(Tensor grad_output, Tensor divisors, {_CALL}) -> (Tensor, Tensor)",
        _fake_general_gradients,
    ),
    "general_rescale_": (
        f"(Tensor(a!) grad_input, Tensor(b!) grad_target, Tensor grad_output, Tensor divisors, {_CALL}) -> ()",
        _fake_rescale,
    ),
    "traced_general_training": (f"({_CALL}) -> (Tensor, Tensor, Tensor, Tensor)", _fake_general_training),
    "traced_general_gradients": (
        f"(Tensor grad_input, Tensor grad_target, Tensor grad_output, Tensor divisors, {_CALL}) -> (Tensor, Tensor)",
        _fake_traced_general_gradients,
    ),
}


def _declining(results: int) -> Callable[..., Any]:
    """The kernel of every backend that is not compiled: sparse tensors, other devices."""

    def decline(input, *call):
        how = next(argument for argument in call if type(argument) is int)  # the first int of every schema
        if not how & MAY_DECLINE:
            raise NotImplementedError(f"cudaloss has no compiled kernel for {input.device} tensors of {input.layout}")
        return None if results == 1 else (None,) * results

    return decline


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _traced_training(training: Callable[..., Any]) -> Callable[..., Any]:
    """A training op whose gradients :func:`_claimed` may take over if they come to a backward graph."""

    def traced_training(*call):
        value, *gradients = training(*call)
        for gradient in gradients:
            gradient._cudaloss_unspent = not _in_backward()
        return value, *gradients

    return traced_training


def _claimed(*gradients) -> bool:
    """Whether a backward graph may make ``training``'s gradients its own, which it then has done.

    To a compiler a traced gradient is a function of its arguments. It cannot be told the truth, that they are changed
    in place and handed on: it would copy them first (8 bytes an element of the 20 that there are then, and the pass
    that was saved is spent). So memory is handed on only where no compiler can notice:

    - The gradients come from a graph that ran outside of any backward, and this one runs inside one. They are two
      graphs then, and this op is the one reader of what passed between them, so its memory can hold nothing else.
    - Only once: a second backward (``retain_graph``) computes its gradients anew.
    - Not while a CUDA graph is captured, whose replays would not pass here and could rescale one forward's gradients
      twice.
    """
    unspent = all(getattr(gradient, "_cudaloss_unspent", False) for gradient in gradients) and _in_backward()
    if not unspent or (gradients[0].is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    for gradient in gradients:
        gradient._cudaloss_unspent = False
    return True


def _traced_gradient(rescale_: Callable[..., Any], gradient_of: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient for `grad_output`, in the memory of ``training``'s where that is safe."""

    def traced_gradient(gradient, grad_output, *call):
        if not _claimed(gradient):
            return gradient_of(grad_output, *call)
        rescale_(gradient, grad_output, *call)
        return gradient.data  # another tensor, with a version counter of its own: what becomes of it is not ours

    return traced_gradient


def _traced_general_gradients(rescale_: Callable[..., Any], gradients_of: Callable[..., Any]) -> Callable[..., Any]:
    """The same of the general ops' two gradients."""

    def traced_general_gradients(grad_input, grad_target, grad_output, *call):
        if not _claimed(grad_input, grad_target):
            return gradients_of(grad_output, *call)
        rescale_(grad_input, grad_target, grad_output, *call)
        return grad_input.data, grad_target.data

    return traced_general_gradients


def define(spec: LossSpec) -> PrivateOps:
    """Defines the private ops of `spec`; the compiled kernels come from ``csrc/torch/ops.cpp``."""
    found = {}
    for kind, (schema, fake) in _OPS.items():
        name = f"_{spec.name}_{kind}"
        LIBRARY.define(name + schema, tags=TAGS)
        LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
        torch.library.register_fake(f"cudaloss::{name}", fake, lib=LIBRARY)
        op = getattr(torch.ops.cudaloss, name).default
        found[kind] = getattr(op, "_op", op)  # what OpOverload.__call__ calls, 0.2 us later
    ops = PrivateOps(**found)
    python_kernels = {
        "loss": _declining(1),
        "training": _declining(2),
        "training_both": _declining(3),
        "general": _declining(2),
        "general_training": _declining(4),
        "traced_training": _traced_training(ops.training),
        "traced_training_both": _traced_training(ops.training_both),
        "traced_gradient": _traced_gradient(ops.rescale_, ops.gradient),
        "traced_general_training": _traced_training(ops.general_training),
        "traced_general_gradients": _traced_general_gradients(ops.general_rescale_, ops.general_gradients),
    }
    for kind, kernel in python_kernels.items():
        LIBRARY.impl(f"_{spec.name}_{kind}", kernel, "CompositeExplicitAutograd")
    return ops
