"""Losses of DTensors in one node of autograd's graph, to save time on the host: :mod:`.nodes` needs four or five.

It serves reduced losses in eager mode if the shards are in place and go through one fused pass. A step of smooth L1 on
320 elements takes 833 us in one node and 1,120 in several, with a mask 1,134 and 1,767 (two H100 over NCCL,
benchmarks/sharded.py; PyTorch's mse_loss there 1,126).
:mod:`.nodes` serves all other calls, and derivatives of the gradients.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .._call.call import Arguments, Call
from .._call.modes import BELOW_AUTOGRAD, FOR_INPUT, FOR_TARGET, NORMALIZER_IS_COUNT, dtype_of
from .._ops import autograd, dispatch, private
from . import nodes
from .plan import USUAL, Plan, moved
from .vocabulary import Place, of_parts, part_gradient, place_of

_LIMIT = 1024  # the number of remembered calls
# Elements of a process whose sum and count are added up together. The device takes 107 us for 2^18 in this way, 108 in
# the other, the host 1,239 and 1,331; for 2^20 the device 111 and 84 (smooth L1 with a mask, two H100, by a script that
# was not kept). Over gloo it is the slower way: 1,376 to 1,630 us, the other 974 to 1,245 (320 elements, 2 CPU cores,
# benchmarks/sharded.py).
_FEW = 1 << 18


class _Known(NamedTuple):
    """The facts that all calls with operands of the same layout share."""

    plan: Plan
    result: DTensorSpec
    gradients: tuple[DTensorSpec, ...]  # the input's and the target's
    place: Place | None  # of the classes, if they are sharded


_NUMBERS = Call._fields.index("third") + 1  # those of a call begin here
_known: dict[Any, _Known | None] = {}  # None: not served


def _find(call: Call) -> _Known | None:
    nodes.check_alike(call)  # checked before: it holds for all calls with this key
    plan = nodes.planned(call, 0)
    for x in nodes.tensors_of(call):
        wanted = plan.of_operand(x, x is call.third and call.spec.of_classes)
        if x.placements != wanted or not all(type(placement) in USUAL for placement in wanted):
            return None
    result = DTensorSpec(plan.mesh, plan.of_result()[0], TensorMeta(torch.Size(()), (), call.dtype))
    gradients = (
        DTensorSpec(plan.mesh, plan.of_gradient(x), TensorMeta(x.shape, x.stride(), x.dtype))
        for x in (call.input, call.target)
    )
    return _Known(plan, result, tuple(gradients), None if plan.vocabulary is None else place_of(call, plan))


def _look_up(call: Call) -> _Known | None:
    mesh = id(getattr(call.input, "device_mesh", None))  # kept: an equal mesh can have other process groups
    key: tuple[Any, ...] = mesh, call.spec.mode, call.reduction, call.dtype, call[_NUMBERS:]
    for x in (call.input, call.target, call.third, *call.options[:3]):
        if isinstance(x, Tensor) and not isinstance(x, DTensor):
            return None
        key = *key, getattr(x, "_spec", None)
    found: Any = _known.get(key, key)
    if found is key:
        if len(_known) >= _LIMIT:
            _known.clear()
        found = _known[key] = _find(call)
    return found


def _local(x: DTensor) -> Tensor:
    """The shard in place. If a collective may still be writing it, a tensor that waits for it."""
    found = x._local_tensor
    return found if type(found) is Tensor else x.to_local()


class _Kept:
    """Replaces a node of ``_ops/autograd.py``: keeps what its forward leaves to its backward."""

    saved_tensors: tuple[Tensor | None, ...]
    numbers: tuple[Any, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        self.saved_tensors = tensors


_MASK = Arguments._fields.index("mask")
_NOTHING = (None,) * 4  # the gradients of the arguments before the operands


class _Loss(torch.autograd.Function):
    """The operands are saved too, so that an in-place change before the backward is noticed."""

    @staticmethod
    def forward(ctx: Any, call: Call, known: _Known, own: _Kept, value: tuple[DTensor], *operands: DTensor) -> DTensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*own.saved_tensors, *operands)
        ctx.count, own.saved_tensors = len(own.saved_tensors), ()
        ctx.own, ctx.known = own, known
        ctx.call = nodes.mapped(call, DTensor, lambda _: ...)  # they are saved; hooks may replace them
        return value[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        saved, grad_output = ctx.saved_tensors, grads[0]
        nothing = (None,) * (len(saved) - ctx.count - 2)
        if grad_output is None:
            return *_NOTHING, None, None, *nothing
        known = ctx.known
        if torch.is_grad_enabled():
            operands = iter(saved[ctx.count :])
            call = nodes.mapped(ctx.call, type(...), lambda _: next(operands))
            needed = ctx.needs_input_grad[len(_NOTHING) :]
            wanted = [x for x, is_needed in zip((call.input, call.target), needed, strict=False) if is_needed]
            value = nodes.composed(call, known.plan, 0)
            found = iter(torch.autograd.grad(value, wanted, grad_output, create_graph=True))
            return *_NOTHING, *(next(found) if is_needed else None for is_needed in needed[:2]), *nothing
        grad = _local(moved(nodes.of_whole(grad_output, known.plan), known.plan, known.result.placements))
        ctx.own.saved_tensors = saved[: ctx.count]
        found = autograd._backward(ctx.own, grad.to(dtype_of(ctx.own.numbers[0])))[:2]
        if known.place is not None and found[0] is not None:
            x, t = (_local(operand) for operand in saved[ctx.count : ctx.count + 2])
            counts = autograd._kept(ctx.own)[1][_MASK]
            found = part_gradient(found[0], x, t, counts, known.plan, ctx.call.spec, known.place), None
        ctx.own.saved_tensors = ()
        back = (
            None if x is None else DTensor(x, spec, requires_grad=False)
            for x, spec in zip(found, known.gradients, strict=True)
        )
        return *_NOTHING, *back, *nothing


def loss(call: Call) -> Tensor | None:
    """The loss of a checked call; None if it is not served."""
    input, target, options = call.input, call.target, call.options
    if call.reduction == "none" or options.batch_dims or dispatch.is_captured():
        return None
    wants_grad = torch.is_grad_enabled()
    if wants_grad and any(isinstance(x, Tensor) and x.requires_grad for x in (call.third, *options[:3])):
        return None
    known = _look_up(call)
    if known is None:
        return None
    wants = wants_grad and (input.requires_grad or target.requires_grad)
    with torch.no_grad():
        own = nodes.in_sum(nodes.mapped(call, DTensor, _local), known.plan)
        if known.place is not None:
            own = of_parts(own, known.plan, known.place)
        if not dispatch.serves(own):
            return None
        wanting = [
            local for local, whole in ((own.input, input), (own.target, target)) if wants and whole.requires_grad
        ]
        if wants and not dispatch.goes_in_one_pass(own, wanting):
            return None
        kept = _Kept()
        flags = (FOR_INPUT if input.requires_grad else 0) | (FOR_TARGET if target.requires_grad else 0)
        found = _value(own, known.plan, flags if wants else 0, kept)
        value = DTensor(found.to(call.dtype), known.result, requires_grad=False)
    if not wants:
        return value
    return _Loss.apply(call, known, kept, (value,), *nodes.tensors_of(call))  # pyright: ignore[reportReturnType]


def _value(own: Call, plan: Plan, wanted: int, kept: _Kept) -> Tensor:
    """The loss of the whole, from a call with the shards. If gradients are wanted, `kept` gets what
    ``_backward`` of ``_ops/autograd.py`` needs for them."""
    flags, count = wanted | BELOW_AUTOGRAD, None
    if own.reduction == "mean" and own.options.normalizer is None and plan.reduced:
        counts = private.denominators(*own.packed())
        if counts is not None and own.input.numel() <= _FEW:
            return _value_of_few(own, plan, flags, kept, counts)
        if counts is not None:
            count, flags = nodes.add_up(counts, plan)[0, 0], flags | NORMALIZER_IS_COUNT
        else:
            count = float(math.prod(plan.shape))
        own = own.with_options(normalizer=count)
    call = own.packed(flags)
    share: Any = autograd._one_pass_forward(kept, *call) if wanted else private.forward(*call)[0]
    value = nodes.add_up(share, plan)
    return value / (count != 0) if isinstance(count, Tensor) else value


def _value_of_few(own: Call, plan: Plan, flags: int, kept: _Kept, counts: Tensor) -> Tensor:
    """Sums the losses and the counts over the processes together. The gradients, which need the whole count, come from
    a second reading."""
    total = private.forward(*own._replace(reduction="sum", dtype=torch.float64).packed())[0]
    both = nodes.add_up(torch.cat([total.view(1), counts.view(2)]), plan)
    if flags & (FOR_INPUT | FOR_TARGET):
        call = own.with_options(normalizer=both[1]).packed(flags | NORMALIZER_IS_COUNT)
        autograd._keep(kept, call, None, None, None, None, None)
    return both[0] / both[1]
