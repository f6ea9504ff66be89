"""Cross entropy of logits whose classes are sharded: each process reads its own classes, and no logit moves.

For each row a process computes two numbers from its own classes: the logarithm of the sum of exponentials without the
target's, and the target's logit, or -inf if another process has it. One all-gather collects the two numbers of all
processes. They are the logits of a cross entropy with two classes for each process, which has the same value: the fused
loss takes them, with all its options. Its gradient for a sum is distributed over the sum's classes by their
probabilities; its gradient for the target's logit is the target's gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call.call import Call
from .._call.modes import BELOW_AUTOGRAD, pack
from .._call.shapes import class_dim
from .._call.varying import widest
from .._losses.options import NONE
from .._losses.table import LossSpec
from .._ops import private
from .._ops.dispatch import is_captured, is_served
from .plan import Plan, collectives


class Place(NamedTuple):
    """Which of all classes a process has, in the form for the private ops."""

    first: int
    all_classes: int
    ignore_index: int


part = private.define("part", lambda _, target, *call: 2 * (torch.empty_like(target, dtype=torch.float64),))
part_backward = private.define("part_backward", lambda _, __, input, *call: private.empty_as(input, input.dtype))
for _kind in ("part", "part_backward"):
    private.decline(_kind, None)


def _by_torch(input: Tensor, target: Tensor, mask: Tensor, place: Place) -> Tensor:
    """The result of :class:`_Part` in plain PyTorch; rows that do not count have zeros."""
    dim, x = class_dim(input), input.to(widest(input.device))
    if target.device.type == "cpu":  # on a GPU the row is NaN
        wrong = target[mask & ((target < 0) | (target >= place.all_classes))]
        if wrong.numel():
            wanted = f"class indices at least 0 and below {place.all_classes}, or ignore_index"
            raise RuntimeError(f"target must hold {wanted}, got {wrong[0]}")
    x = torch.where(mask.unsqueeze(dim), x, 0)
    classes = torch.arange(input.shape[dim], device=input.device).view(-1, *(1,) * (input.dim() - dim - 1))
    is_target = classes == (target.long() - place.first).unsqueeze(dim)
    own = torch.where(is_target, x, 0).sum(dim)
    others = torch.where(is_target, -torch.inf, x)
    # Finite also for no classes and for a row of -inf, whose derivatives would be NaN.
    least = torch.full_like(own, -torch.finfo(x.dtype).max).unsqueeze(dim)
    top = torch.cat([others, least], dim).detach().amax(dim)
    total = (others - top.unsqueeze(dim)).exp().sum(dim)
    is_empty = total == 0
    log_sum = torch.where(is_empty, -torch.inf, torch.where(is_empty, 1, total).log() + top)
    return torch.stack([log_sum, torch.where(is_target.any(dim), own, -torch.inf)])


def _is_served(input: Tensor, target: Tensor) -> bool:
    """Whether the compiled kernels serve the part."""
    has_classes = input.shape[class_dim(input)] > 0
    return has_classes and not is_captured() and is_served(input, target, None, torch.float64, NONE, target.dim())


def _how(spec: LossSpec) -> int:
    return pack("none", torch.float64, spec.mode) | BELOW_AUTOGRAD


def _gradient(grads: Tensor, input: Tensor, target: Tensor, mask: Tensor, spec: LossSpec, place: Place) -> Tensor:
    if not torch.is_grad_enabled() and _is_served(input, target):
        return part_backward(*grads, input, target, _how(spec), mask, *place)
    is_wanted = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = input if input.requires_grad else input.detach().requires_grad_()
        found = _by_torch(leaf, target, mask, place)
    return torch.autograd.grad(found, leaf, grads, create_graph=is_wanted)[0]


class _Part(torch.autograd.Function):
    """The two numbers of each row, (2, *rows) in float64."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, target: Tensor, mask: Tensor, spec: LossSpec, place: Place) -> Tensor:
        ctx.save_for_backward(input, target, mask)
        ctx.call = spec, place
        if not _is_served(input, target):
            return _by_torch(input, target, mask, place)
        return torch.stack(part(input, target, _how(spec), mask, *place))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gradient(grads[0], *ctx.saved_tensors, *ctx.call), *(None,) * 4


class _OfAll(torch.autograd.Function):
    """Gathers the numbers of all processes, one after another. Its gradient is the process's own part of the incoming
    one, which is the same on all processes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        assert plan.vocabulary is not None
        count, group = plan.mesh.size(plan.vocabulary), plan.mesh.get_group(plan.vocabulary).group_name
        return collectives.wait_tensor(collectives.all_gather_into_tensor(own.contiguous(), count, group))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _Own.apply(grads[0], ctx.plan), None


class _Own(torch.autograd.Function):
    """A process's own part of a tensor that is the same on all processes."""

    @staticmethod
    def forward(ctx: Any, of_all: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        assert plan.vocabulary is not None
        return of_all.chunk(plan.mesh.size(plan.vocabulary))[plan.mesh.get_local_rank(plan.vocabulary)]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _OfAll.apply(grads[0], ctx.plan), None


def place_of(call: Call, plan: Plan) -> Place:
    assert plan.vocabulary is not None and plan.classes is not None
    classes = call.input.shape[plan.classes]
    first = _shard_size(classes, plan) * plan.mesh.get_local_rank(plan.vocabulary)
    return Place(min(first, classes), classes, call.ignore_index)


def _shard_size(classes: int, plan: Plan) -> int:
    """The size of each shard except the last."""
    assert plan.vocabulary is not None
    return -(-classes // plan.mesh.size(plan.vocabulary))


def of_parts(own: Call, plan: Plan, place: Place) -> Call:
    """The same call with the parts' numbers instead, from this process's shards."""
    assert plan.classes is not None
    target, mask = own.target.long(), own.options.mask  # as uint8, 156 would be -100
    counts = target != place.ignore_index
    counts = counts if mask is None else counts & mask
    of_all: Any = _OfAll.apply(_Part.apply(own.input, target, counts, own.spec, place), plan)
    owner = target.div(_shard_size(place.all_classes, plan), rounding_mode="floor")
    of_two = own._replace(input=of_all.movedim(0, plan.classes), target=2 * owner + 1, ignore_index=-100)
    return of_two.with_options(mask=counts)


def part_gradient(
    grad: Tensor, input: Tensor, target: Tensor, counts: Tensor, plan: Plan, spec: LossSpec, place: Place
) -> Tensor:
    """The gradient of this process's logits, from the gradient of the parts' numbers (see :func:`of_parts`)."""
    assert plan.classes is not None
    own: Any = _Own.apply(grad.movedim(plan.classes, 0), plan)
    return _gradient(own, input, target.long(), counts, spec, place)
