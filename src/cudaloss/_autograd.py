"""The losses with autograd: which calls the compiled kernels serve, in how many passes, and what the private ops are
under autograd and transforms.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from . import _private, reference
from ._build import DEVICES
from ._modes import (
    BELOW_AUTOGRAD,
    DTYPES,
    FOR_INPUT,
    FOR_TARGET,
    IGNORE_NAN,
    INTEGERS,
    MAX_DIMS,
    MAY_DECLINE,
    batch_dims_of,
    dtype_of,
    loss_of,
    pack,
    reduction_of,
)
from ._options import Options
from ._specs import BY_ID, LossSpec

PLAIN_TENSORS = frozenset([torch.Tensor, torch.nn.Parameter])
_DEVICES = DEVICES | {"meta"}  # the private ops' fake kernels serve meta tensors

# PyTorch's own, bound here once.
_is_grad_enabled, _any_functorch = torch.is_grad_enabled, torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_included, _VMAP = torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_key_parse("VmapMode")
_loss_with_grad, _rescale_ = _private.loss_with_grad, _private.rescale_
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # pyright: ignore[reportAttributeAccessIssue]
_OTHERS = (None,) * 7  # the gradients of all arguments but input and target


def _transformed() -> bool:
    """Whether functorch or forward-mode AD is at work, which need the reference's composite ops."""
    return _any_functorch() or forward_ad._current_level >= 0


def _unpacked(input, target, how, parameter, scale=1.0, weight=None, mask=None, normalizer=None, divisor=None):
    """A private op's call as the reference takes it: the loss, its operands and number, the result's dtype, options."""
    normalizer = normalizer if divisor is None else divisor
    mask = None if mask is None else mask.to(torch.bool)  # hooks on saved tensors may have changed it
    options = Options(weight, mask, normalizer, scale, batch_dims_of(how), bool(how & IGNORE_NAN))
    return BY_ID[loss_of(how)], input, target, reduction_of(how), parameter, dtype_of(how), options


# ---- nodes: called as f(input, target, how, parameter[, scale, weight, mask, normalizer, divisor]) ----
# Written out on one level where the commonest calls pass: for a GPU a backward runs in a thread of its own, where each
# call costs twice as much.


def _keep(ctx: Any, call: tuple[Any, ...], *results: Tensor | None) -> None:
    """What a backward needs: the call, and the gradients and denominators that the forward has found. Hooks on saved
    tensors may give them back changed, of which the ops decline what they do not take."""
    input, target, how, parameter, *rest = call
    scale, weight, mask, normalizer, divisor = rest or (1.0, None, None, None, None)
    ctx.save_for_backward(input, target, *results, weight, mask, normalizer)
    ctx.numbers = how | MAY_DECLINE, parameter, scale, divisor


def _kept(ctx: Any, saved: tuple[Tensor | None, ...] | None = None) -> tuple[tuple[Tensor | None, ...], tuple[Any, ...]]:
    """The results and the call that :func:`_keep`, or a plain forward, has kept; of tensors that are unpacked already,
    which checkpoints allow once."""
    input, target, grad_input, grad_target, *rest = ctx.saved_tensors if saved is None else saved
    if not rest:
        return (grad_input, grad_target, None), (input, target, *ctx.numbers)
    denominators, *beside = rest
    how, parameter, scale, divisor = ctx.numbers
    return (grad_input, grad_target, denominators), (input, target, how, parameter, scale, *beside, divisor)


def _one_pass_forward(ctx, input, target, how, parameter, *rest):
    if rest:
        value, *results = _private.forward_with_grad(input, target, how, parameter, *rest)
        if value is not None:
            _keep(ctx, (input, target, how, parameter, *rest), *results)
            ctx.unspent = True
        return value
    value, grad_input, grad_target = _loss_with_grad(input, target, how, parameter)
    if value is not None:
        ctx.save_for_backward(input, target, grad_input, grad_target)
        ctx.numbers = how | MAY_DECLINE, parameter
        ctx.unspent = True
    return value


def _backward(ctx, grad_output):
    """Hands the forward's gradients out once; a second backward (``retain_graph``) computes them anew."""
    if _is_grad_enabled() or _any_functorch() or forward_ad._current_level >= 0:
        return _differentiable_backward(ctx, grad_output)
    is_first = ctx.__dict__.pop("unspent", False)  # for one of several threads
    saved = ctx.saved_tensors
    grad_input, grad_target, denominators = saved[2], saved[3], None
    if len(saved) == 4:
        call = saved[0], saved[1], *ctx.numbers
    else:
        (_, _, denominators), call = _kept(ctx, saved)
    # Known to be 1 without waiting for a GPU, or asking what a trace or a vmap cannot tell: spares a training step on
    # the CPU 4 us.
    is_one = (
        grad_output.is_cpu
        and grad_output.dim() == 0
        and not (_dispatch_modes() or _is_included(_VMAP))
        and grad_output.item() == 1.0
    )
    if not is_first or not (is_one or _rescale_(grad_input, grad_target, grad_output, denominators, *call)):
        return *_gradients(grad_output, denominators, *call), *_OTHERS
    if _keeps_graph():  # it keeps the saved tensors, and would notice if the receiver wrote to those very ones
        grad_input = None if grad_input is None else grad_input.data
        grad_target = None if grad_target is None else grad_target.data
    return grad_input, grad_target, *_OTHERS


def _differentiable_backward(ctx, grad_output):
    return *_by_reference(grad_output, _kept(ctx)[1]), *_OTHERS


def _two_passes_forward(ctx, *call):
    value, denominators = _private.forward(*call)
    if value is not None:
        _keep(ctx, call, None, None, denominators)
    return value


def _traced_forward(ctx, *call):
    value, *results = _private.forward_with_grad(*call)
    _keep(ctx, call, *results)
    return value


def _traced_backward(ctx, grad_output):
    """The same for a compiler's trace, which cannot follow what is handed out."""
    if _is_grad_enabled() or _transformed():
        return _differentiable_backward(ctx, grad_output)
    (grad_input, grad_target, denominators), call = _kept(ctx)
    if grad_input is None and grad_target is None:
        return *_gradients(grad_output, denominators, *call), *_OTHERS
    return *_private.finish(grad_input, grad_target, grad_output, denominators, *call), *_OTHERS


def _gradients(grad_output, denominators, input, target, how, *rest):
    """The gradients wanted, from a second reading of the operands; by the reference where the kernels decline, because
    hooks on saved tensors have changed dtypes or devices."""
    given = grad_output, denominators
    if denominators is not None and denominators.shape[0] > 1 and input.shape != target.shape:
        # A broadcast operand's gradient sums over segments: their denominators go into what is summed.
        grad_output = grad_output.double() * denominators[:, 1].view(grad_output.shape)
        given = grad_output, denominators.new_ones(1, 2)
    found = _private.backward(*given, input, target, how | MAY_DECLINE, *rest)
    if found[0] is None and found[1] is None:
        return _by_reference(given[0], (input, target, how, *rest))
    return found


def _by_reference(grad_output, call):
    spec, input, target, reduction, parameter, dtype, options = _unpacked(*call)
    wanted = bool(call[2] & FOR_INPUT), bool(call[2] & FOR_TARGET)
    return reference.gradients(spec, grad_output, input, target, reduction, parameter, dtype, wanted, options)


def _node(name: str, forward: Callable, backward: Callable) -> Callable[..., Tensor | None]:
    """An old-style ``autograd.Function`` (no ``setup_context``), the cheaper kind: it never runs under functorch, which
    would need the other."""
    traceable = staticmethod(_differentiable_backward)  # what compiled autograd takes
    methods = {"forward": staticmethod(forward), "backward": traceable, "__module__": __name__}
    function: Any = type(name, (torch.autograd.Function,), methods)
    function._backward_cls.apply = backward  # what autograd calls, and 0.4 us sooner than by way of Function.backward
    # The base class's apply: Function.apply's own work (1 us) is for functorch and for setup_context.
    return super(torch.autograd.Function, function).apply  # pyright: ignore[reportAttributeAccessIssue]


one_pass = _node("PointwiseOnePass", _one_pass_forward, _backward)
two_passes = _node("PointwiseTwoPasses", _two_passes_forward, _backward)
_traced_one_pass = _node("PointwiseTracedOnePass", _traced_forward, _traced_backward)
_traced_two_passes = _node("PointwiseTracedTwoPasses", _two_passes_forward, _traced_backward)


# ---- which of them ----


def takes_one_pass(reduction: str, differentiated: Iterable[torch.dtype]) -> bool:
    """Whether the loss and its gradients come from one pass: not where a gradient of fp16, already divided by the
    count, could underflow before a gradient scaler's factor comes."""
    return reduction != "none" and torch.float16 not in differentiated


def _is_readable(tensor: Tensor, device: torch.device) -> bool:
    """Whether the compiled kernels can read the tensor at all, given a dtype that they take."""
    return (
        tensor.layout is torch.strided
        and tensor.device == device
        and device.type in _DEVICES
        and not is_traceable_wrapper_subclass(tensor)  # a DTensor, say, which knows PyTorch's ops, not ours
        and not tensor._is_zerotensor()
    )


def _is_served(input: Tensor, target: Tensor, dtype: torch.dtype, options: Options) -> bool:
    """Whether the compiled kernels serve this call; the reference serves all others."""
    weight, mask = options.weight, options.mask
    normalizer = options.normalizer if isinstance(options.normalizer, Tensor) else None
    beside = [tensor for tensor in (weight, mask, normalizer) if tensor is not None]
    return (
        input.dtype in DTYPES
        and (target.dtype in DTYPES or target.dtype in INTEGERS)
        and dtype in DTYPES
        and (weight is None or weight.dtype in DTYPES)
        and (normalizer is None or normalizer.dtype in DTYPES or normalizer.dtype in INTEGERS)
        and all(_is_readable(tensor, input.device) for tensor in (input, target, *beside))
        and not (_is_grad_enabled() and any(tensor.requires_grad for tensor in beside))
        and not _transformed()
        and (max(input.dim(), target.dim()) <= MAX_DIMS or _is_dense_alike(input, target, options))
    )


def _is_dense_alike(input: Tensor, target: Tensor, options: Options) -> bool:
    """Whether the plain kernels serve these operands, which may have any number of dimensions."""
    known = options.normalizer is None or not isinstance(options.normalizer, Tensor)
    if not (known and options._replace(normalizer=None).are_default()):
        return False
    if target.dtype not in DTYPES or input.shape != target.shape:
        return False
    if input.is_contiguous() and target.is_contiguous():
        return True
    return input.stride() == target.stride() == torch.empty_like(input, device="meta").stride()  # which holes change


def _is_exporting_to_onnx() -> bool:
    onnx = sys.modules.get("torch.onnx")
    return onnx is not None and onnx.is_in_onnx_export()


def loss(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: float,
    dtype: torch.dtype,
    options: Options,
) -> Tensor:
    """The loss of a call whose arguments have been checked, with autograd."""
    is_plain = type(input) in PLAIN_TENSORS and type(target) in PLAIN_TENSORS
    is_plain = is_plain and not _dispatch_modes()
    weight, mask, normalizer, scale, batch_dims, ignore_nan = options
    # A compiler fuses PyTorch's own ops with what comes next, where that is of the size of the data; ONNX knows no other.
    decomposes = not is_plain and (reduction == "none" or _is_exporting_to_onnx())
    is_served = _is_served(input, target, dtype, options)
    if decomposes or not is_served:
        value = reference.loss(spec, input, target, reduction, parameter, dtype, options)
        return _private.laid_out(value, input, target) if reduction == "none" and is_served else value
    how = pack(reduction, dtype, spec.id, batch_dims) | (IGNORE_NAN if ignore_nan else 0)
    divisor = None if normalizer is None or isinstance(normalizer, Tensor) else normalizer
    call = scale, weight, mask, normalizer if divisor is None else None, divisor
    wanting = []
    if _is_grad_enabled():
        how |= (FOR_INPUT if input.requires_grad else 0) | (FOR_TARGET if target.requires_grad else 0)
        wanting = [operand for operand in (input, target) if operand.requires_grad]
    if not wanting:
        return _private.forward(input, target, how, parameter, *call)[0]
    whole = input.shape == target.shape or all(
        x.shape == torch.broadcast_shapes(input.shape, target.shape) for x in wanting
    )
    if whole and takes_one_pass(reduction, [x.dtype for x in wanting]):
        way = one_pass if is_plain else _traced_one_pass
    else:
        way = two_passes if is_plain else _traced_two_passes
    found = way(input, target, how | BELOW_AUTOGRAD if is_plain else how, parameter, *call)
    assert found is not None
    return found


# ---- the private ops under autograd and transforms ----


def _denominators(*call):
    _, input, target, reduction, _, dtype, options = _unpacked(*call)
    return reference.denominators(input, target, dtype, options) if reduction == "mean" else None


def _composed(*call):
    return reference.loss(*_unpacked(*call)), _denominators(*call)


def _composed_with_grad(*call):
    value, denominators = _composed(*call)
    return value, *_by_reference(torch.ones_like(value), call), denominators


# What each op is in plain PyTorch.
_COMPOSED: dict[str, Callable[..., Any]] = {
    "forward": _composed,
    "forward_with_grad": _composed_with_grad,
    "backward": lambda grad_output, denominators, *call: _by_reference(grad_output, call),
    "finish": lambda grad_input, grad_target, grad_output, denominators, *call: _by_reference(grad_output, call),
}


def _finish(grad_input, grad_target, grad_output, denominators, input, target, how, *rest):
    """Gradients for `grad_output`, in the memory of ``forward_with_grad``'s where that is safe."""
    call = input, target, how | MAY_DECLINE | BELOW_AUTOGRAD, *rest
    gradients = grad_input, grad_target
    if _private.claimed(*gradients) and _rescale_(*gradients, grad_output, denominators, *call):
        # Other tensors, with version counters of their own: what becomes of them is not ours.
        return tuple(None if gradient is None else gradient.data for gradient in gradients)
    return _gradients(grad_output, denominators, *call)


def _register(kind: str, composed: Callable[..., Any]) -> None:
    """Makes the op right wherever PyTorch may replay it: with its derivatives under autograd, and under transforms."""
    overload = _private.op(kind)

    def autograd(keyset, *call):
        if (_is_grad_enabled() and torch._C._any_requires_grad(*call)) or _transformed():
            if kind == "forward":  # by the kernels, where they serve
                return loss(*_unpacked(*call)), _denominators(*call)
            return composed(*call)
        if kind == "backward":
            return _gradients(*call)
        found = overload.redispatch(keyset & torch._C._after_autograd_keyset, *call)
        if kind == "forward_with_grad":
            _private.mark(*found[1:3])
        return found

    name = overload._schema.name
    _private.LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    for key in _BATCHED:
        _private.LIBRARY.impl(name, composed, key)


_BATCHED = ("FuncTorchBatched", "Batched")
for _kind, _function in _COMPOSED.items():
    _register(_kind, _function)
for _key in _BATCHED:  # of a backward that is batched, no gradients can be handed out
    _private.LIBRARY.impl("_pointwise_rescale_", lambda *call: False, _key)
_private.LIBRARY.impl("_pointwise_finish", _finish, "CompositeExplicitAutograd")
