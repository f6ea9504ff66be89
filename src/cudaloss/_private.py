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
                                ``training`` and ``rescale_`` as a compiler may see them: see :func:`_traced_gradient`.

A private op whose schema or meaning changes needs a new name: PyTorch keeps compiled graphs on disk over an upgrade of
this package, and they call the ops by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ._modes import FOR_TARGET, MAY_DECLINE, dtype_of, reduction_of
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


_OPERANDS = "Tensor input, Tensor target, int how, float parameter"  # "mode" is a name of PyTorch's own dispatch
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
}


def _declining(results: int) -> Callable[..., Any]:
    """The kernel of every backend that is not compiled: sparse tensors, other devices."""

    def decline(input, target, how, parameter):
        if not how & MAY_DECLINE:
            raise NotImplementedError(f"cudaloss has no compiled kernel for {input.device} tensors of {input.layout}")
        return None if results == 1 else (None,) * results

    return decline


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _traced_training(training: Callable[..., Any]) -> Callable[..., Any]:
    """``training``, whose gradients :func:`_traced_gradient` may take over if they come to a backward graph."""

    def traced_training(input, target, how, parameter):
        value, *gradients = training(input, target, how, parameter)
        for gradient in gradients:
            gradient._cudaloss_unspent = not _in_backward()
        return value, *gradients

    return traced_training


def _traced_gradient(rescale_: Callable[..., Any], gradient_of: Callable[..., Any]) -> Callable[..., Any]:
    """A gradient for `grad_output`, in the memory of ``training``'s where that is safe.

    To a compiler this is a function of its arguments. It cannot be told the truth, that `gradient` is changed in
    place and handed on: it would copy it first (8 bytes an element of the 20 that there are then, and the pass that
    was saved is spent). So memory is handed on only where no compiler can notice:

    - `gradient` comes from a graph that ran outside of any backward, and this one runs inside one. They are two
      graphs then, and this op is the one reader of what passed between them, so its memory can hold nothing else.
    - Only once: a second backward (``retain_graph``) computes its gradient anew.
    - Not while a CUDA graph is captured, whose replays would not pass here and could rescale one forward's gradient
      twice.
    """

    def traced_gradient(gradient, grad_output, input, target, how, parameter):
        unspent = getattr(gradient, "_cudaloss_unspent", False) and _in_backward()
        if not unspent or (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
            return gradient_of(grad_output, input, target, how, parameter)
        gradient._cudaloss_unspent = False
        rescale_(gradient, grad_output, input, target, how, parameter)
        return gradient.data  # another tensor, with a version counter of its own: what becomes of it is not ours

    return traced_gradient


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
        "traced_training": _traced_training(ops.training),
        "traced_training_both": _traced_training(ops.training_both),
        "traced_gradient": _traced_gradient(ops.rescale_, ops.gradient),
    }
    for kind, kernel in python_kernels.items():
        LIBRARY.impl(f"_{spec.name}_{kind}", kernel, "CompositeExplicitAutograd")
    return ops
