"""Losses of DTensors by nodes of their own for each step; see :mod:`.loss`.

Every operand is moved to the plan's placements. Then the shards go through an ordinary loss of plain tensors, whose
divisor is the global count. Last, a number, or a number for each kept index, is summed over the processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from .._call.call import Call
from .._call.shapes import class_dim
from .._call.varying import widest
from .._losses.options import Options
from .._ops import dispatch
from .._reference import definition
from . import vocabulary
from .plan import USUAL, Placements, Plan, as_dtensor, collectives, moved, plan_of, strides_of

# torch.distributed.all_reduce calls this; its wrappers would cost the host more than the rest of it.
_ON_THIS_STREAM = dist.AllreduceOptions()
_ON_THIS_STREAM.asyncOp = False


class _Border(NamedTuple):
    """Between a DTensor and the shards of it that processes compute on."""

    plan: Plan
    shards: Placements
    gradients: Placements  # of the shards' gradients: parts of a sum if each process has the whole
    whole: tuple[Placements, Sequence[int], tuple[int, ...]]  # where the DTensor is, its shape and strides


class _Shard(torch.autograd.Function):
    """The shard of a DTensor. With :class:`_Joined` as its derivative, and the reverse, derivatives of any order pass
    the border. With PyTorch's ``to_local`` and ``from_local`` instead, terms were lost from the fourth order on, and
    from the third where a process has an empty shard (torch 2.13); with its ``redistribute`` from the second (2.11)."""

    @staticmethod
    def forward(ctx: Any, whole: DTensor, border: _Border) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.border = border
        local = moved(whole, border.plan, border.shards).to_local()
        return local.view_as(local)  # a new tensor for autograd: the operand keeps its own

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        return None if grads[0] is None else _Joined.apply(grads[0], ctx.border), None


class _Joined(torch.autograd.Function):
    """The DTensor of the shards' gradients. They stay where they are: no collective."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, border: _Border) -> DTensor:
        ctx.set_materialize_grads(False)
        ctx.border = border
        given, *whole = border.whole
        found = as_dtensor(shard, border.plan, border.gradients, *whole)
        # FSDP2 adds its own gradients to that of a parameter, at its place; from a whole that is a slice.
        pairs = zip(given, found.placements, strict=True)
        return moved(found, border.plan, tuple(now if type(own) in USUAL else own for own, now in pairs))

    @staticmethod
    def backward(ctx: Any, *grads: DTensor | None) -> Any:
        return None if grads[0] is None else _Shard.apply(grads[0], ctx.border), None


def _share(operand: Tensor, plan: Plan, is_of_classes: bool = False) -> Tensor:
    if not isinstance(operand, DTensor):
        return operand  # a number, the same everywhere
    shards = plan.of_operand(operand, is_of_classes)
    if not (operand.requires_grad and torch.is_grad_enabled()):
        with torch.no_grad():
            return moved(operand, plan, shards).to_local()
    whole = operand.placements, operand.shape, operand.stride()
    border = _Border(plan, shards, plan.of_gradient(operand, is_of_classes), whole)
    return _Shard.apply(operand, border)  # pyright: ignore[reportReturnType]


class Whole(torch.autograd.Function):
    """The loss, from each process's share of it: summed over the mesh's reduced dimensions, then rounded to `dtype`. If
    `some` says that there was nothing to divide by, it is that sum over 0, and has no gradient. It also saves the
    operands, so that an in-place change before the backward is noticed; their shards would not show it."""

    @staticmethod
    def forward(
        ctx: Any,
        share: Tensor,
        plan: Plan,
        strides: tuple[int, ...],
        dtype: torch.dtype,
        some: Tensor | None,
        *operands: Tensor,
    ) -> DTensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands)
        (placements, shares), shape = plan.of_result(), plan.shape[: len(strides)]
        ctx.border, ctx.dtype, ctx.some = _Border(plan, placements, shares, (shares, shape, strides)), share.dtype, some
        value = all_reduced(share, plan).to(dtype)
        value = value if some is None else value / some
        return as_dtensor(value.view_as(value), plan, placements, shape, strides)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        others = (None,) * (len(ctx.needs_input_grad) - 1)
        _ = ctx.saved_tensors  # raises if one was changed
        if grads[0] is None:
            return None, *others
        grad: Any = _Shard.apply(of_whole(grads[0], ctx.border.plan), ctx.border)
        grad = grad.to(ctx.dtype)
        if ctx.some is not None:
            grad = torch.where(ctx.some, grad, 0)
        return grad, *others


def of_whole(grad_output: Tensor, plan: Plan) -> DTensor:
    """A gradient of the loss as a DTensor, wherever it is."""
    if isinstance(grad_output, DTensor):
        return grad_output
    everywhere = (Replicate(),) * plan.mesh.ndim  # and the same
    whole = everywhere, grad_output.shape, grad_output.stride()
    return _Joined.apply(grad_output, _Border(plan, everywhere, everywhere, whole))  # pyright: ignore[reportReturnType]


class Sum(torch.autograd.Function):
    """A sum over processes that each of them uses; so its gradient is also a sum over them."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return all_reduced(share, plan)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return Sum.apply(grads[0], ctx.plan), None


def all_reduced(share: Tensor, plan: Plan) -> Tensor:
    if not dispatch.is_captured():
        return add_up(share.clone(), plan)
    for group in plan.groups():  # the ops that a trace contains
        share = collectives.wait_tensor(collectives.all_reduce(share, "sum", group.group_name))
    return share


def add_up(share: Tensor, plan: Plan) -> Tensor:
    """The same in place, where nothing is captured."""
    for group in plan.groups():
        work = group.allreduce([share], _ON_THIS_STREAM)
        if work is not None:  # work that the stream does not wait for by itself
            work.wait()
    return share


def tensors_of(call: Call) -> list[DTensor]:
    return [x for x in (call.input, call.target, call.third, *call.options) if isinstance(x, DTensor)]


def mapped(call: Call, kind: Any, change: Any) -> Call:
    """The call with all objects of that kind among its operands and options changed."""

    def changed(x: Any) -> Any:
        return change(x) if isinstance(x, kind) else x

    input, target, third = changed(call.input), changed(call.target), changed(call.third)
    return call._replace(input=input, target=target, third=third, options=Options(*map(changed, call.options)))


def shares(call: Call, plan: Plan) -> Call:
    """The call with this process's shards."""
    own = mapped(call._replace(third=None), Tensor, lambda x: _share(x, plan))
    third = None if call.third is None else _share(call.third, plan, call.spec.of_classes)
    return in_sum(own._replace(third=third), plan)


def in_sum(call: Call, plan: Plan) -> Call:
    """With the dtype of a share: halves are rounded once, after the sum."""
    return call._replace(dtype=torch.promote_types(call.dtype, torch.float32)) if plan.reduced else call


def divisor_of(own: Call, plan: Plan, kept: int) -> tuple[Any, Tensor | None]:
    """The denominator of the mean over the whole, from the shares: one number for all; or counted, for each kept index,
    with 1 instead of 0; and where it is not 0 (`some`). None if the shares' own denominators are right."""
    if own.reduction != "mean" or own.options.normalizer is not None or not plan.reduced:
        return None, None
    if own.spec.of_rows:
        found = definition.denominators(own)
        counted = None if found is None else found[:, 0].view(own.shape[:kept])
    else:
        weight = None if own.spec.mean_over_count else own.options.weight
        counted = dispatch.in_play(own.input, own.target, weight, own.options)
    if counted is not None:
        counted = Sum.apply(counted, plan)
        some = counted != 0
        return torch.where(some, counted, 1), some
    if dispatch.is_compiled():  # the same graph can serve another whole with the same part here
        count = own.input.new_full((), math.prod(own.shape[kept:]), dtype=widest(own.input.device))
        return all_reduced(count, plan), None
    count = math.prod(plan.shape[kept:])
    return torch.sym_float(count) if count else None, None


def planned(call: Call, kept: int) -> Plan:
    input, target = call.input, call.target
    assert isinstance(input, DTensor) and isinstance(target, DTensor)
    return plan_of(input, target, kept, call.spec.of_rows, _keeps_vocabulary(call))


def composed(call: Call, plan: Plan, kept: int) -> Tensor:
    """The loss by nodes of its own for each step."""
    own = shares(call, plan)
    if plan.vocabulary is not None:
        own = vocabulary.of_parts(own, plan, vocabulary.place_of(call, plan))
    divisor, some = divisor_of(own, plan, kept)
    if some is not None and kept:  # a normalizer is one for all, so it cannot be used
        share = (dispatch.loss(own._replace(reduction="sum")) / divisor).to(own.dtype)
    else:
        share = dispatch.loss(own if divisor is None else own.with_options(normalizer=divisor))
    strides = strides_of(plan.shape[:kept], call.input, call.target)
    operands = tensors_of(call) if share.requires_grad else []
    return Whole.apply(share, plan, strides, call.dtype, some, *operands)  # pyright: ignore[reportReturnType]


def _keeps_vocabulary(call: Call) -> bool:
    """Whether the classes of a plain cross entropy of indices are sharded along one dimension of the mesh: they then
    stay where they are. Classes are gathered for arguments that need all classes of a row; and if a graph is compiled,
    because the compiler's cache (torch 2.13) gives one process the graph of another, with its first class and its
    group."""
    input = call.input
    if call.spec.name != "cross_entropy" or not isinstance(input, DTensor):
        return False
    if torch.compiler.is_compiling():
        return False
    is_plain = call.third is None and call.second == 0 and not call.softcap and not call.target.is_floating_point()
    return is_plain and input.placements.count(Shard(class_dim(input))) == 1 and input.dtype in dispatch.DTYPES


def check_alike(call: Call) -> None:
    """Checks that all are DTensors, except numbers, and on one mesh."""
    names, own = list(call.spec.operands), call.options._asdict()
    if call.spec.of_classes:
        own = {"sample_weight": own.pop("weight"), **own}
        names.append("weight")
    elif call.spec.parameter:
        names.append(call.spec.parameter.name)
    named = {**dict(zip(names, (call.input, call.target, call.third), strict=False)), **own}
    check_tensors_alike({name: value for name, value in named.items() if isinstance(value, Tensor)}, names[:2])


def check_tensors_alike(tensors: dict[str, Tensor], operands: Sequence[str]) -> None:
    """Checks that the operands are DTensors on one mesh, and so are the others except numbers."""
    like, first = next((name, value) for name, value in tensors.items() if isinstance(value, DTensor))
    for name, value in tensors.items():
        if isinstance(value, DTensor):
            if value.device_mesh != first.device_mesh:
                wanted = f"the mesh of {like}, {first.device_mesh}"
                raise RuntimeError(f"{name} must be on {wanted}, got {value.device_mesh}")
        elif value.numel() != 1 or (value.requires_grad and torch.is_grad_enabled()) or name in operands:
            lies_alike = value.shape == first.shape and not any(x.is_partial() for x in first.placements)
            placements = f", {like}.placements" if lies_alike else ""
            raise TypeError(
                f"{name} must be a DTensor, as {like} is, got a plain tensor; if every process has all of it: "
                f"{name} = distribute_tensor({name}, {like}.device_mesh{placements})"
            )
