"""Losses of DTensors: each process runs the fused pass over its shards, and the mean is the global one.

The plan, one placement for each dimension of the mesh: where the input is sharded, else where the target is, else
replicated. Every operand is brought there, its shard taken, and an ordinary loss of plain tensors follows, whose
divisor is the global count. What is left is a sum over the processes, of a number or of one for each index kept.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from . import _dispatch, reference
from ._checks import joint_shape
from ._options import Options
from ._specs import LossSpec, Third

Placements = tuple[Placement, ...]
_USUAL = (Shard, Replicate, Partial)  # beside which there is FSDP2's own order of a tensor-parallel parameter's rows
_collectives = torch.ops._c10d_functional


class Plan(NamedTuple):
    """Where the elements of a loss of `shape` are; `reduced` are the mesh's dimensions that the reduction sums over."""

    mesh: DeviceMesh
    shape: torch.Size
    placements: Placements
    reduced: tuple[int, ...]

    def of_operand(self, operand: Tensor) -> Placements:
        """Where an operand that broadcasts to the shape must be: replicated where a dimension that it repeats is
        sharded."""
        missing = len(self.shape) - operand.dim()

        def place(placement: Placement) -> Placement:
            if not isinstance(placement, Shard) or placement.dim < missing:
                return Replicate()
            is_repeated = operand.shape[placement.dim - missing] != self.shape[placement.dim]
            return Replicate() if is_repeated else Shard(placement.dim - missing)

        return tuple(map(place, self.placements))

    def of_gradient(self, operand: Tensor) -> Placements:
        """Where the shards leave its gradient: as a part of a sum, where each process had the whole operand."""
        pairs = zip(self.placements, self.of_operand(operand), strict=True)
        return tuple(
            Partial() if isinstance(whole, Shard) and not isinstance(own, Shard) else own for whole, own in pairs
        )

    def of_result(self) -> tuple[Placements, Placements]:
        """Where the loss is, and its shares before they are summed."""

        def but_reduced(instead: Placement) -> Placements:
            return tuple(instead if i in self.reduced else found for i, found in enumerate(self.placements))

        return but_reduced(Replicate()), but_reduced(Partial())


def _plan(input: DTensor, target: DTensor, kept: int) -> Plan:
    shape = joint_shape(input, target)

    def shard(operand: DTensor, mesh_dim: int) -> Shard | None:
        placement = operand.placements[mesh_dim]
        if type(placement) is not Shard:  # a strided one may be of FSDP's own order
            return None
        dim = placement.dim + len(shape) - operand.dim()
        return Shard(dim) if operand.shape[placement.dim] == shape[dim] else None

    placements = tuple(shard(input, i) or shard(target, i) or Replicate() for i in range(input.device_mesh.ndim))
    reduced = tuple(i for i, found in enumerate(placements) if isinstance(found, Shard) and found.dim >= kept)
    return Plan(input.device_mesh, shape, placements, reduced)


def _strides(shape: torch.Size, *operands: Tensor) -> tuple[int, ...]:
    """Of a dense tensor of that shape, in the order of dimensions of the first operand that has it too."""
    order = list(range(len(shape)))
    like = next((operand.stride() for operand in operands if operand.shape == shape), None)
    if like is not None:
        order.sort(key=lambda dim: -like[dim])
    strides, stride = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], stride = stride, stride * max(shape[dim], 1)
    return tuple(strides)


def _as_dtensor(local: Tensor, plan: Plan, placements: Placements, shape: torch.Size, strides: Any) -> DTensor:
    return DTensor.from_local(local, plan.mesh, placements, run_check=False, shape=shape, stride=strides)


def _placed(operand: DTensor, plan: Plan) -> Tensor:
    wanted = plan.of_operand(operand)
    operand = operand if operand.placements == wanted else operand.redistribute(plan.mesh, wanted)
    return operand.to_local()


class _Share(torch.autograd.Function):
    """The share of an operand that requires a gradient, which stays where the shares leave it: no collective."""

    @staticmethod
    def forward(ctx: Any, operand: DTensor, plan: Plan) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.whole = plan, (plan.of_gradient(operand), operand.shape, operand.stride())
        ctx.placements = operand.placements
        local = _placed(operand, plan)
        return local.view_as(local)  # a tensor of autograd's own: the operand keeps its

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        if grads[0] is None:
            return None, None
        found = _as_dtensor(grads[0], ctx.plan, *ctx.whole)
        # FSDP2 adds its own gradients to that of a parameter, where those lie: of a whole that is a slice.
        pairs = zip(ctx.placements, found.placements, strict=True)
        back = tuple(now if type(own) in _USUAL else own for own, now in pairs)
        return found if back == found.placements else found.redistribute(ctx.plan.mesh, back), None


def _share(operand: Tensor, plan: Plan) -> Tensor:
    if not isinstance(operand, DTensor):
        return operand  # a number, everywhere the same
    if operand.requires_grad and torch.is_grad_enabled():
        return _Share.apply(operand, plan)  # pyright: ignore[reportReturnType]
    with torch.no_grad():
        return _placed(operand, plan)


class _Whole(torch.autograd.Function):
    """The loss, from each process's share of it: summed over the mesh's reduced dimensions, then rounded to `dtype`.
    Where there was nothing to divide by (`empty`) it is that sum over 0, and has no gradient. It saves the operands
    too: one that is changed in place before the backward is noticed so, their shards do not tell."""

    @staticmethod
    def forward(
        ctx: Any,
        share: Tensor,
        plan: Plan,
        strides: tuple[int, ...],
        dtype: torch.dtype,
        empty: Tensor | None,
        *operands: Tensor,
    ) -> DTensor:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*operands)
        ctx.plan, ctx.dtype, ctx.empty = plan, share.dtype, empty
        value = _all_reduced(share, plan).to(dtype)
        if empty is not None:
            value = torch.where(empty, value / 0, value)
        shape = plan.shape[: len(strides)]
        return _as_dtensor(value.view_as(value), plan, plan.of_result()[0], shape, strides)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        others = (None,) * (len(ctx.needs_input_grad) - 1)
        _ = ctx.saved_tensors  # raises where one was changed
        (grad_output,), (placements, shares) = grads, ctx.plan.of_result()
        if grad_output is None:
            return None, *others
        if not isinstance(grad_output, DTensor):  # everywhere the same
            grad_output = DTensor.from_local(grad_output, ctx.plan.mesh, (Replicate(),) * len(placements))
        if grad_output.placements != placements:
            grad_output = grad_output.redistribute(ctx.plan.mesh, placements)
        grad = grad_output.to_local(grad_placements=shares).to(ctx.dtype)
        if ctx.empty is not None:
            grad = torch.where(ctx.empty, 0, grad)
        return grad, *others


class _Sum(torch.autograd.Function):
    """A sum over processes that each of them uses, whose gradient so is a sum over them too."""

    @staticmethod
    def forward(ctx: Any, share: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return _all_reduced(share, plan)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Sum.apply(grads[0], ctx.plan), None


def _all_reduced(share: Tensor, plan: Plan) -> Tensor:
    if plan.mesh.get_coordinate() is None:  # a process outside the mesh
        return share
    # The ops that a trace has: torch.distributed's own function wraps the result, which costs the host more.
    for mesh_dim in plan.reduced:
        if plan.mesh.size(mesh_dim) > 1:
            share = _collectives.all_reduce(share, "sum", plan.mesh.get_group(mesh_dim).group_name)
            share = _collectives.wait_tensor(share)
    return share


def _divisor(
    spec: LossSpec, x: Tensor, t: Tensor, plan: Plan, kept: int, options: Options
) -> tuple[Any, Tensor | None]:
    """What the mean over the whole divides by, from the shares: one number for all, or what had to be counted, one for
    each index kept, with 1 where that is 0; and where it is (`empty`)."""
    counted = _dispatch.in_play(x, t, None if spec.mean_over_count else options.weight, options)
    if counted is not None:
        counted = _Sum.apply(counted, plan)
        empty = counted == 0
        return torch.where(empty, 1, counted), empty
    if _dispatch.is_compiled():  # for another whole of which this process has as much the same graph may serve
        own = x.new_full((), math.prod(joint_shape(x, t)[kept:]), dtype=reference.widest(x.device))
        return _all_reduced(own, plan), None
    count = math.prod(plan.shape[kept:])
    return torch.sym_float(count) if count else None, None


def loss(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: Third | None,
    dtype: torch.dtype,
    options: Options,
    second: float,
) -> Tensor:
    """The loss of a call that has been checked, with a DTensor among its tensors."""
    _check_alike(spec, input, target, parameter, options)
    assert isinstance(input, DTensor) and isinstance(target, DTensor)
    rank = max(input.dim(), target.dim())
    kept = rank if reduction == "none" else options.batch_dims
    plan = _plan(input, target, kept)
    x, t = _share(input, plan), _share(target, plan)
    third = _share(parameter, plan) if isinstance(parameter, Tensor) else parameter
    own = options._replace(**{k: _share(v, plan) for k, v in options._asdict().items() if isinstance(v, Tensor)})
    divisor: Any = None
    empty = None
    if reduction == "mean" and own.normalizer is None and plan.reduced:
        divisor, empty = _divisor(spec, x, t, plan, kept, own)
    of_sum = torch.promote_types(dtype, torch.float32) if plan.reduced else dtype  # halves are rounded once
    if empty is not None and kept:  # which a normalizer, one for all, cannot be
        share = (_dispatch.loss(spec, x, t, "sum", third, of_sum, own, second) / divisor).to(of_sum)
    else:
        own = own if divisor is None else own._replace(normalizer=divisor)
        share = _dispatch.loss(spec, x, t, reduction, third, of_sum, own, second)
    strides = _strides(plan.shape[:kept], input, target)
    given = [x for x in (input, target, parameter, *options) if isinstance(x, DTensor)] if share.requires_grad else []
    return _Whole.apply(share, plan, strides, dtype, empty, *given)  # pyright: ignore[reportReturnType]


def _check_alike(spec: LossSpec, input: Tensor, target: Tensor, parameter: Third | None, options: Options) -> None:
    """All DTensors, but for numbers, and of one mesh."""
    named: dict[str, Any] = {"input": input, "target": target, **options._asdict()}
    if spec.parameter:
        named[spec.parameter.name] = parameter
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    like, first = next((name, value) for name, value in tensors.items() if isinstance(value, DTensor))
    for name, value in tensors.items():
        if isinstance(value, DTensor):
            if value.device_mesh != first.device_mesh:
                wanted = f"the mesh of {like}, {first.device_mesh}"
                raise RuntimeError(f"{name} must be on {wanted}, got {value.device_mesh}")
        elif value.numel() != 1 or (value.requires_grad and torch.is_grad_enabled()) or name in ("input", "target"):
            lies_alike = value.shape == first.shape and not any(x.is_partial() for x in first.placements)
            placements = f", {like}.placements" if lies_alike else ""
            raise TypeError(
                f"{name} must be a DTensor, as {like} is, got a plain tensor; where every process has the whole of it: "
                f"{name} = distribute_tensor({name}, {like}.device_mesh{placements})"
            )
