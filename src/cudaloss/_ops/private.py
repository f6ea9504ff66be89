"""The private ops: the compiled code for PyTorch's dispatcher and compilers. They serve all losses. Three are seen by
autograd:

``_pointwise_forward``            the loss, and the denominators that were counted for it.
``_pointwise_gradients``          the gradients wanted, from the operands and the denominators.
``_pointwise_denominators``       only the denominators of a mean, for a part of the data; without a derivative.

``how`` (``_call/modes.py``) says which loss, which reduction and which gradients. Anything that is not wanted, or
missing, is None. ``_public/entry.py`` registers these ops under autograd and transforms. Autograd does not see the
others. Only eager code below autograd can call these (``BELOW_AUTOGRAD``), which takes 0.5 us less than to bypass
autograd:

``_pointwise_forward_with_grads`` the loss, the gradients wanted, the denominators, and a record of the grad_output that
                                  the gradients are for; without a record 1. With ``EXPECTS`` a GPU's forward takes the
                                  last one that a backward of such a call got, because the next is mostly the same.
``_pointwise_loss``, ``_pointwise_loss_with_grad``
                                  the same for a call without options: saves 0.9 of 4.4 us.
``_pointwise_forward_over_``      the loss of a part of a head's rows; the gradient overwrites the logits.
``_pointwise_rescale_``           turns the gradients of ``forward_with_grads`` into those for another grad_output, in
                                  place; does nothing if the grad_output is the record's.
``_pointwise_part``, ``_pointwise_part_backward``
                                  see ``_sharded/vocabulary.py``, which defines them only when it is imported.

And only the graphs of AOTAutograd, which has differentiated them already (``COMPILED``); a Python kernel for autograd
would cost each op 30 us:

``_pointwise_compiled_forward``, ``_pointwise_compiled_gradients``
                                  the first two.
``_pointwise_compiled_forward_with_grads``
                                  as in eager mode.
``_pointwise_compiled_loss_with_grad``, ``_pointwise_compiled_finish_grad``
                                  the same for a call without options.
``_pointwise_compiled_finish_grads``
                                  does what ``rescale_`` does, in a form for compilers: a function of its arguments.

A private op needs a new name if its schema or meaning changes: PyTorch keeps compiled graphs on disk over an upgrade
of this package, and they call the ops by name.
"""

from __future__ import annotations

import math
import operator
import re
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._guards import TracingContext

from .._call.call import Arguments
from .._call.modes import (
    EXPECTS,
    FOR_INPUT,
    FOR_TARGET,
    FOR_THIRD,
    IGNORE_NAN,
    MAY_DECLINE,
    MEAN_OVER_COUNT,
    batch_dims_of,
    dtype_of,
    is_of_rows,
    of_forward,
    reduction_of,
)
from .._call.shapes import joint_shape, rows_shape

PACKAGE = __name__.partition(".")[0]  # a copy of the package under another name has ops of its own: binding.cpp
LIBRARY = torch.library.Library(PACKAGE, "DEF")
OPS = getattr(torch.ops, PACKAGE)
TAGS = (torch.Tag.pt2_compliant_tag,)

# A call pays nothing for arguments that it leaves out at the end. `parameter` is the loss's third operand if that is
# one number, `third` if it is a tensor; `second` is a second number of the loss. For a loss of rows they are z_loss,
# the class weights and label_smoothing. A `softcap` of 0: none.
_CALL = (
    "Tensor input, Tensor target, int how, float parameter, float scale=1.0, Tensor? weight=None, Tensor? mask=None, "
    "Tensor? normalizer=None, float? divisor=None, Tensor? third=None, float second=0.0, int ignore_index=-100, "
    "float softcap=0.0"
)


_PLAIN_CALL = "Tensor input, Tensor target, int how, float parameter"
_PART = "Tensor input, Tensor target, int how, Tensor? mask, int first_class, int all_classes, int ignore_index"
_SCHEMAS = {
    "loss": f"({_PLAIN_CALL}) -> Tensor",
    "loss_with_grad": f"({_PLAIN_CALL}) -> (Tensor, Tensor, Tensor, Tensor)",
    "forward": f"({_CALL}) -> (Tensor, Tensor)",
    "forward_with_grads": f"({_CALL}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    "forward_over_": f"({_CALL.replace('Tensor input', 'Tensor(a!) input', 1)}) -> Tensor",
    "denominators": f"({_CALL}) -> Tensor",
    "gradients": f"(Tensor grad_output, Tensor? denominators, {_CALL}) -> (Tensor, Tensor, Tensor)",
    "rescale_": "(Tensor(a!)? grad_input, Tensor(b!)? grad_target, Tensor(c!)? grad_third, Tensor grad_output, "
    f"Tensor? denominators, Tensor? record, {_CALL}) -> bool",
    "part": f"({_PART}) -> (Tensor, Tensor)",
    "part_backward": f"(Tensor grad_log_sums, Tensor grad_targets, {_PART}) -> Tensor",
    "compiled_finish_grads": "(Tensor? grad_input, Tensor? grad_target, Tensor? grad_third, Tensor grad_output, "
    f"Tensor? denominators, Tensor? record, {_CALL}) -> (Tensor, Tensor, Tensor)",
    "compiled_finish_grad": "(Tensor? grad_input, Tensor? grad_target, Tensor grad_output, Tensor? record, "
    f"{_PLAIN_CALL}) -> (Tensor, Tensor)",
}
_SCHEMAS |= {
    f"compiled_{kind}": _SCHEMAS[kind] for kind in ("forward", "forward_with_grads", "gradients", "loss_with_grad")
}

# Those that autograd does not see: in eager code, whose calls must not be captured, and in compiled graphs.
UNSEEN = ("loss", "loss_with_grad", "forward_with_grads", "forward_over_", "rescale_", "part", "part_backward")
COMPILED = (
    "compiled_forward",
    "compiled_forward_with_grads",
    "compiled_gradients",
    "compiled_finish_grads",
    "compiled_loss_with_grad",
    "compiled_finish_grad",
)

AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks  # pyright: ignore[reportAttributeAccessIssue]
is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded


# functorch calls an op's kernel for this key before its transforms, so that the kernel can use autograd.Function.
TRANSFORMS = "FuncTorchDynamicLayerFrontMode"
PUBLIC_KEYS = ("CompositeImplicitAutograd", TRANSFORMS)


def compiled_name(name: str) -> str:
    return f"_compiled_{name}"


def define_composite(schema: str, kernel: Callable[..., Any]) -> None:
    """Defines an op with one Python kernel for all backends, autograd and transforms."""
    LIBRARY.define(schema, tags=TAGS)
    for key in PUBLIC_KEYS:
        LIBRARY.impl(schema.partition("(")[0], kernel, key)


def define_public(schema: str, kernel: Callable[..., Any]) -> None:
    """Defines a public op; and its twin for compiled calls, in which a number can vary: the dispatcher turns a symbolic
    number into a constant for a ``float``, but not for a ``Scalar``."""
    numbers = re.sub(r"\bfloat\b", "Scalar", schema).replace("int ignore_index", "SymInt ignore_index")
    for text in (schema, compiled_name(numbers)):
        define_composite(text, kernel)


def is_compiled() -> bool:
    """Whether torch.compile captures the ops, with their derivatives. Not a capture of the values alone, whose graph
    would differentiate each step of a formula."""
    return TracingContext.try_get() is not None and not torch.compiler.is_exporting()


def has_hooks() -> bool:
    """Whether hooks get what a node saves now."""
    return _top_hooks(True) is not None


def keeps_what_it_saves() -> bool:
    """Whether a compiled backward will get the tensors that its forward has saved, or copies from hooks outside of the
    graphs. Not if the graphs themselves save copies: offloaded, quantized, or by hooks that are compiled with them. A
    compiler would reuse their memory."""
    functorch, inductor = (sys.modules.get(f"torch.{name}.config") for name in ("_functorch", "_inductor"))
    return not (
        getattr(functorch, "enable_activation_offloading", False)
        or "activation_quantization_aten_pass" in getattr(inductor, "post_grad_fusion_options", ())
        or has_hooks()
    )


def op(kind: str) -> torch._ops.OpOverload:
    return getattr(OPS, f"_pointwise_{kind}").default


def define(kind: str, fake: Callable[..., Any]) -> Callable[..., Any]:
    """The op in the form in which we call it: below autograd, because the caller is the op's autograd."""
    LIBRARY.define(f"_pointwise_{kind}{_SCHEMAS[kind]}", tags=TAGS)
    is_unseen = kind in UNSEEN or kind in COMPILED
    if is_unseen:
        LIBRARY.impl(f"_pointwise_{kind}", torch.library.fallthrough_kernel, "Autograd")
    torch.library.register_fake(f"{PACKAGE}::_pointwise_{kind}", fake, lib=LIBRARY)
    overload = op(kind)
    call = getattr(overload, "_op", overload)  # called directly: saves the 0.2 us of OpOverload.__call__
    if is_unseen:
        return call

    def below_autograd(*arguments):  # does what _AutoDispatchBelowAutograd does, 0.6 us faster
        if is_excluded(AUTOGRAD):
            return call(*arguments)
        set_excluded(AUTOGRAD, True)
        try:
            return call(*arguments)
        finally:
            set_excluded(AUTOGRAD, False)

    return below_autograd


def empty_as(like, dtype):
    """The same as ``empty_as`` of ``csrc/torch/layout.h``: in the layout of `like` if that is dense; contiguous if it
    is expanded; otherwise in its order of dimensions."""
    if like.is_contiguous():  # asked first: with symbolic sizes nothing else can be asked
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


def laid_out(losses, input, target):
    """Single losses in the layout that the kernels write."""
    for like in (input, target):
        if like.shape == losses.shape and not like.is_contiguous():
            wanted = empty_as(like.detach(), losses.dtype)
            return losses if losses.stride() == wanted.stride() else wanted.copy_(losses)
        if like.shape == losses.shape:
            break
    return losses.contiguous()


def _fake_forward(*arguments):
    call = Arguments(*arguments)
    input, target, how = call.input, call.target, call.how
    if how & MAY_DECLINE:
        return None, None
    of_rows = is_of_rows(how)
    shape = rows_shape(input) if of_rows else joint_shape(input, target)
    leading = shape[: batch_dims_of(how)]
    counts = (
        reduction_of(how) == "mean"
        and call.normalizer is None
        and call.divisor is None
        and (
            (call.weight is not None and not how & MEAN_OVER_COUNT)
            or call.mask is not None
            or (how & IGNORE_NAN and target.is_floating_point())
            or (of_rows and not target.is_floating_point())
        )
    )
    denominators = input.new_empty((math.prod(leading), 2), dtype=torch.float64) if counts else None
    if reduction_of(how) != "none":
        return input.new_empty(leading, dtype=dtype_of(how)), denominators
    for like in () if of_rows else (input, target):
        if like.shape == shape:
            return empty_as(like, dtype_of(how)), denominators
    return input.new_empty(shape, dtype=dtype_of(how)), denominators


def _gradients(how, call, like):
    """`like` of each operand whose gradient is wanted, else None."""
    wanted = ((call.input, FOR_INPUT), (call.target, FOR_TARGET), (call.third, FOR_THIRD))
    return tuple(like(operand) if how & flag else None for operand, flag in wanted)


def _fake_forward_with_grads(*arguments):
    value, denominators = _fake_forward(*arguments)
    if value is None:
        return (None,) * 6
    call = Arguments(*arguments)
    return value, *_gradients(of_forward(call.how), call, lambda x: empty_as(x, x.dtype)), denominators, None


def _fake_gradients(grad_output, denominators, *arguments):
    call = Arguments(*arguments)
    shape = None if is_of_rows(call.how) else joint_shape(call.input, call.target)

    def gradient(operand):
        return empty_as(operand, operand.dtype) if shape in (None, operand.shape) else operand.new_empty(operand.shape)

    return _gradients(call.how, call, gradient)


def _fake_denominators(input, target, how, *rest):
    return _fake_forward(input, target, how & ~MAY_DECLINE, *rest)[1]


def _fake_finish(*call):
    # Aliases, so that the compiler does not take them for buffers that it can reuse: with such buffers PyTorch refuses
    # retain_graph.
    return tuple(None if gradient is None else gradient.view_as(gradient) for gradient in call[:3])


def _fake_compiled_forward(*call):
    *results, _ = _fake_forward_with_grads(*call)
    gradient = next(x for x in results[1:4] if x is not None)
    if gradient.device.type != "cuda" or not call[2] & EXPECTS:
        return *results, None
    # In the gradient's memory, which `finish` returns: of a record of its own a compiler would reuse the memory.
    record = gradient.new_empty(0, dtype=torch.float64).set_(gradient.untyped_storage(), 0, (2,), (1,))
    return *results, record


loss = define("loss", lambda *call: _fake_forward(*call)[0])
loss_with_grad = define("loss_with_grad", lambda *call: (*_fake_forward_with_grads(*call)[:3], None))
forward = define("forward", _fake_forward)
forward_with_grads = define("forward_with_grads", _fake_forward_with_grads)
forward_over_ = define("forward_over_", lambda *call: _fake_forward(*call)[0])
denominators = define("denominators", _fake_denominators)
gradients = define("gradients", _fake_gradients)
rescale_ = define("rescale_", lambda *call: True)
compiled_forward = define("compiled_forward", _fake_forward)
compiled_forward_with_grads = define("compiled_forward_with_grads", _fake_compiled_forward)
compiled_gradients = define("compiled_gradients", _fake_gradients)
compiled_finish_grads = define("compiled_finish_grads", _fake_finish)
compiled_loss_with_grad = define(
    "compiled_loss_with_grad", lambda *call: operator.itemgetter(0, 1, 2, 5)(_fake_compiled_forward(*call))
)
compiled_finish_grad = define("compiled_finish_grad", lambda *call: _fake_finish(*call)[:2])


def _declining(answer: Any) -> Callable[..., Any]:
    """A kernel for cases without a compiled one."""

    def decline(*call):
        how = next(argument for argument in call if type(argument) is int)  # the first int of every schema
        if not how & MAY_DECLINE:
            found = next(argument for argument in call if isinstance(argument, torch.Tensor))
            raise NotImplementedError(f"cudaloss has no compiled kernel for {found.device} tensors of {found.layout}")
        return answer

    return decline


# Sparse tensors and other devices; and nested tensors, which that alias does not include.
_NOT_COMPILED = ("CompositeExplicitAutograd", "NestedTensorCPU", "NestedTensorCUDA")
# Everything that captures a call, except a trace before dispatch, whose own dispatcher asks no kernel. A graph must not
# contain ops that autograd does not see.
_CAPTURES = ("Python", "Tracer")


def decline(kind: str, answer: Any) -> None:
    """Sets what the op does if there is no compiled kernel, or if it must not be captured."""
    for key in (*_NOT_COMPILED, *(_CAPTURES if kind in UNSEEN else ())):
        LIBRARY.impl(f"_pointwise_{kind}", _declining(answer), key)


for _kind, _answer in {
    "loss": None,
    "loss_with_grad": (None,) * 4,
    "rescale_": False,
    "forward": (None,) * 2,
    "denominators": None,
    "forward_with_grads": (None,) * 6,
    "forward_over_": None,
}.items():
    decline(_kind, _answer)
