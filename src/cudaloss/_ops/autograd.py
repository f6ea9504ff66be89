"""The nodes of autograd's graph: a loss and its gradients in one pass, in two passes, and for a compiler's trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._call.call import Arguments, unpacked
from .._call.modes import EXPECTS, FOR_INPUT, FOR_TARGET, FOR_THIRD, IGNORE_NAN, MAY_DECLINE, is_of_rows
from .._reference import definition
from . import private

# PyTorch's functions, looked up only once.
_is_grad_enabled, _any_functorch = torch.is_grad_enabled, torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_included, _VMAP = torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_key_parse("VmapMode")
_loss_with_grad, _rescale_ = private.loss_with_grad, private.rescale_
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # pyright: ignore[reportAttributeAccessIssue]
_OTHERS = (None,) * 11  # the gradients of all arguments except input and target
_OTHERS_OF_PLAIN = (None,) * 2  # for a plain call: how and parameter
_PLAIN = 4  # the arguments of a plain call
_THIRD = Arguments._fields.index("third")


def transformed() -> bool:
    """Whether functorch or forward-mode AD is active; they need the reference's composite ops."""
    return _any_functorch() or forward_ad._current_level >= 0


# ---- nodes: called as f(input, target, how, parameter[, scale, weight, mask, normalizer, divisor[, third, second
# [, ignore_index, softcap]]]) ----
# The code for the commonest calls is written in one function: on a GPU the backward runs in a thread of its own, where
# each call costs twice as much.


def _keep(ctx: Any, call: tuple[Any, ...], *results: Tensor | None) -> None:
    """Saves what a backward needs: the call, and what the forward has made: gradients, denominators, a record. Hooks
    on saved tensors may return them changed; the ops decline those that they do not take."""
    input, target, how, parameter, *rest = call
    scale, weight, mask, normalizer, divisor, *own = rest or (1.0, None, None, None, None)
    third, second, *of_rows = own or (None, 0.0)
    tensors = input, target, *results, weight, mask, normalizer, third
    # PyTorch refuses to save tensors of inference mode; outside of it nothing can change them, so the node holds them.
    ctx.held = held = {i: x for i, x in enumerate(tensors) if x is not None and x.is_inference()}
    ctx.save_for_backward(*[None if i in held else x for i, x in enumerate(tensors)] if held else tensors)
    ctx.numbers = how | MAY_DECLINE, parameter, scale, divisor, second, *of_rows


def _kept(
    ctx: Any, saved: tuple[Tensor | None, ...] | None = None
) -> tuple[tuple[Tensor | None, ...], tuple[Any, ...]]:
    """The results and the call that :func:`_keep`, or a plain forward, has saved. `saved`: the tensors, if they are
    unpacked already, because checkpoints allow that only once."""
    tensors = ctx.saved_tensors if saved is None else saved
    if len(tensors) == 5:
        input, target, grad_input, grad_target, record = tensors
        return (grad_input, grad_target, None, None, record), (input, target, *ctx.numbers)
    tensors = [ctx.held.get(i, x) for i, x in enumerate(tensors)] if ctx.held else tensors
    input, target, *results, weight, mask, normalizer, third = tensors
    how, parameter, scale, divisor, second, *of_rows = ctx.numbers
    call = input, target, how, parameter, scale, weight, mask, normalizer, divisor
    if third is not None or second != 0 or of_rows:
        call = *call, third, second, *of_rows
    return tuple(results), call


def _one_pass_forward(ctx, input, target, how, parameter, *rest):
    how |= EXPECTS
    if rest:
        value, *results = private.forward_with_grads(input, target, how, parameter, *rest)
        if value is not None:
            _keep(ctx, (input, target, how, parameter, *rest), *results)
            ctx.unspent = True
        return value
    value, grad_input, grad_target, record = _loss_with_grad(input, target, how, parameter)
    if value is None:
        return None
    if target.is_inference() or input.is_inference():
        _keep(ctx, (input, target, how, parameter), grad_input, grad_target, None, None, record)
    else:
        ctx.save_for_backward(input, target, grad_input, grad_target, record)
        ctx.numbers = how | MAY_DECLINE, parameter
    ctx.unspent = True
    return value


def _backward(ctx, grad_output):
    """Returns the forward's gradients once; a second backward (``retain_graph``) computes them again."""
    if _is_grad_enabled() or _any_functorch() or forward_ad._current_level >= 0:
        return _differentiable_backward(ctx, grad_output)
    is_first = ctx.__dict__.pop("unspent", False)  # true in only one of several threads
    saved = ctx.saved_tensors
    grad_input, grad_target, grad_third = saved[2], saved[3], None
    is_plain, others = len(saved) == 5, _OTHERS_OF_PLAIN
    # Known to be 1 without waiting for a GPU, or asking a trace or a vmap, which cannot tell. Saves a training step on
    # the CPU 4 us.
    is_one = (
        is_first
        and grad_output.is_cpu
        and grad_output.dim() == 0
        and not (_dispatch_modes() or _is_included(_VMAP))
        and grad_output.item() == 1.0
    )
    if not (is_one and is_plain):
        (_, _, grad_third, denominators, record), call = _kept(ctx, saved)
        others = _OTHERS
        held = grad_input, grad_target, grad_third
        if not is_one and not (is_first and _rescale_(*held, grad_output, denominators, record, *call)):
            return _of_all(*gradients(grad_output, denominators, *call))
        if grad_third is None and call[2] & FOR_THIRD:
            grad_third = _of_third(grad_output, denominators, *call)
    if _keeps_graph():  # the graph keeps the saved tensors, and would notice if the receiver changed them
        grad_input = None if grad_input is None else grad_input.data
        grad_target = None if grad_target is None else grad_target.data
        grad_third = None if grad_third is None else grad_third.data
    if grad_third is not None:
        return _of_all(grad_input, grad_target, grad_third)
    return grad_input, grad_target, *others


def _of_all(grad_input, grad_target, grad_third):
    """The gradients of all arguments, from those of the operands."""
    if grad_third is None:
        return grad_input, grad_target, *_OTHERS
    return grad_input, grad_target, *_OTHERS[: _THIRD - 2], grad_third, *_OTHERS[_THIRD - 1 :]


def _differentiable_backward(ctx, grad_output):
    return _of_all(*by_reference(grad_output, _kept(ctx)[1]))


def _two_passes_forward(ctx, *call):
    value, denominators = private.forward(*call)
    if value is not None:
        _keep(ctx, call, None, None, None, denominators, None)
    return value


def _is_without_options(scale=1.0, weight=None, mask=None, normalizer=None, divisor=None, third=None, *numbers):
    """Whether the arguments after the parameter are those of a plain call."""
    tensors = weight, mask, normalizer, third
    return scale == 1.0 and divisor is None and all(x is None for x in tensors) and numbers in ((), (0.0, -100, 0.0))


def _compiled_one_pass_forward(ctx, input, target, how, parameter, *rest):
    how |= EXPECTS
    call = input, target, how, parameter, *rest
    if not how & (FOR_THIRD | IGNORE_NAN) and _is_without_options(*rest):
        value, *results = private.compiled_loss_with_grad(*call[:_PLAIN])
        ctx.save_for_backward(input, target, *results)
        ctx.numbers = how | MAY_DECLINE, parameter
        return value
    value, *results = private.compiled_forward_with_grads(*call)
    _keep(ctx, call, *results)
    return value


def _compiled_two_passes_forward(ctx, *call):
    value, denominators = private.compiled_forward(*call)
    _keep(ctx, call, None, None, None, denominators, None)
    return value


def _traced_backward(ctx, grad_output):
    """The same for a trace, which cannot follow the stored gradients."""
    if _is_grad_enabled() or transformed():
        return _differentiable_backward(ctx, grad_output)
    (*held, denominators, record), call = _kept(ctx)
    if all(gradient is None for gradient in held):
        return _of_all(*gradients(grad_output, denominators, *call))
    if len(call) == _PLAIN:
        found = private.compiled_finish_grad(*held[:2], grad_output, record, *_checked(*call))
        return *found, *_OTHERS
    return _of_all(*private.compiled_finish_grads(*held, grad_output, denominators, record, *_checked(*call)))


def _checked(input, target, how, *rest):
    """A call that must not decline: a compiled graph could not go on."""
    return input, target, how & ~MAY_DECLINE, *rest


def gradients(grad_output, denominators, input, target, how, *rest):
    """The gradients wanted, from a second reading of the operands. The reference makes them if the kernels decline,
    because hooks on saved tensors have changed dtypes or devices."""
    if not how & (FOR_INPUT | FOR_TARGET | FOR_THIRD):
        return None, None, None
    if how & FOR_THIRD and how & (FOR_INPUT | FOR_TARGET) and not is_of_rows(how):
        found = gradients(grad_output, denominators, input, target, how & ~FOR_THIRD, *rest)
        return *found[:2], _of_third(grad_output, denominators, input, target, how, *rest)
    given = grad_output, denominators
    if (
        denominators is not None
        and denominators.shape[0] > 1
        and not is_of_rows(how)
        and (how & FOR_THIRD or input.shape != target.shape)
    ):
        # A broadcast operand's gradient is a sum over segments: their denominators become factors of the summed terms.
        divided = grad_output.double() * denominators[:, 1].view(grad_output.shape)
        given = divided, denominators.new_ones(1, 2)
    if private.is_compiled():
        return private.compiled_gradients(*given, *_checked(input, target, how, *rest))
    found = private.gradients(*given, input, target, how | MAY_DECLINE, *rest)
    if all(gradient is None for gradient in found):
        return by_reference(grad_output, (input, target, how, *rest))
    return found


def _of_third(grad_output, denominators, input, target, how, *rest):
    """The gradient of a third operand of elements, whose kernels make it in a pass of its own."""
    return gradients(grad_output, denominators, input, target, how & ~(FOR_INPUT | FOR_TARGET), *rest)[2]


def by_reference(grad_output, call):
    """The results of ``_pointwise_gradients``."""
    wanted = [bool(call[2] & flag) for flag in (FOR_INPUT, FOR_TARGET, FOR_THIRD)]
    return definition.gradients(unpacked(*call), grad_output, wanted)


def _node(name: str, forward: Callable, backward: Callable) -> Callable[..., Tensor | None]:
    """An old-style ``autograd.Function`` (without ``setup_context``), which is cheaper. It never runs under functorch,
    which would need the new style."""
    traceable = staticmethod(_differentiable_backward)  # compiled autograd uses it
    methods = {"forward": staticmethod(forward), "backward": traceable, "__module__": __name__}
    function: Any = type(name, (torch.autograd.Function,), methods)
    function._backward_cls.apply = backward  # autograd calls this directly: 0.4 us less than Function.backward
    # The base class's apply: the extra work of Function.apply (1 us) is only for functorch and setup_context.
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


one_pass = _node("PointwiseOnePass", _one_pass_forward, _backward)
two_passes = _node("PointwiseTwoPasses", _two_passes_forward, _backward)
traced_two_passes = _node("PointwiseTracedTwoPasses", _two_passes_forward, _traced_backward)
compiled_one_pass = _node("PointwiseCompiledOnePass", _compiled_one_pass_forward, _traced_backward)
compiled_two_passes = _node("PointwiseCompiledTwoPasses", _compiled_two_passes_forward, _traced_backward)
