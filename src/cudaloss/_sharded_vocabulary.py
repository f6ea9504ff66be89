"""Cross entropy of logits whose classes are sharded: each process reads its own, and no logit is moved.

A process finds for each row, of its classes alone, the logarithm of the sum of their exponentials, and the loss where
it has the target's class. One all-gather of three numbers a row puts them together:

    loss = own loss + log(1 + exp(log of the others' sum - log of the own sum))

of which no digit is lost where a row is nearly certain. The gradient is the local one, times the part that the
process's classes have in the whole sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import _dispatch, reference
from ._options import NONE
from ._sharded import Call, Sum, Whole, all_reduced, collectives, divisor_of
from ._sharded_plan import Plan, strides_of
from ._specs import LossSpec, RowNumbers


def _over_vocabulary(plan: Plan) -> Plan:
    return plan._replace(reduced=(plan.vocabulary,))


class _OnAll(torch.autograd.Function):
    """What the processes of a vocabulary have alike and use each for its classes: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _FromAll.apply(grads[0], ctx.plan), None


class _FromAll(torch.autograd.Function):
    """The sum of what the processes of a vocabulary found each for its classes, which they have alike."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Plan) -> Tensor:
        ctx.plan = plan
        return all_reduced(x, _over_vocabulary(plan))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _OnAll.apply(grads[0], ctx.plan), None


class _LogSum(torch.autograd.Function):
    """The logarithm of the sum of the exponentials of all classes, known already, of each row; differentiable."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, known: Tensor, plan: Plan) -> Tensor:
        ctx.save_for_backward(input, known)
        ctx.plan = plan
        return known.view_as(known)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, known = ctx.saved_tensors
        total = Sum.apply(grads[0], _over_vocabulary(ctx.plan))
        part = (input - _LogSum.apply(input, known, ctx.plan).unsqueeze(ctx.plan.classes)).exp()
        return (total.unsqueeze(ctx.plan.classes) * part).to(input.dtype), None, None


class _Part(NamedTuple):
    """What a process finds for each row, of its classes alone."""

    log_sum: Tensor  # the logarithm of the sum of their exponentials
    loss: Tensor  # the row's among them, where it has the target's class
    is_own: Tensor  # whether it has that
    own: Tensor  # the target's class, from the first of the process
    losses: Tensor  # of the known class, differentiable for `leaf`; of rows in play whose classes are not all ruled out
    leaf: Tensor  # the logits
    known: Tensor  # a class whose loss is finite: the target's, or that of the largest logit
    at_known: Tensor  # its logit


def _part(input: Tensor, target: Tensor, counts: Tensor, spec: LossSpec, plan: Plan, first: int) -> _Part:
    dim, wide = plan.classes, reference.widest(input.device)
    assert dim is not None
    leaf, own = input.detach().requires_grad_(), target.long() - first
    is_own = (own >= 0) & (own < input.shape[dim]) & counts
    if input.shape[dim] == 0:
        nothing = torch.zeros_like(own, dtype=wide)
        return _Part(nothing - torch.inf, nothing, is_own, own, nothing, leaf, own, nothing)
    largest, at_largest = input.max(dim)
    picked = input.gather(dim, torch.where(is_own, own, 0).unsqueeze(dim)).squeeze(dim)
    is_target = is_own & (picked > -torch.inf)
    known, at_known = torch.where(is_target, own, at_largest), torch.where(is_target, picked, largest).to(wide)
    options, rows = NONE._replace(mask=counts & (largest != -torch.inf)), RowNumbers(ignore_index=-1)
    with torch.enable_grad():
        dtype = torch.promote_types(input.dtype, torch.float32)
        losses = _dispatch.loss(spec, leaf, known, "none", None, dtype, options, 0.0, rows)
    loss = losses.detach().to(wide)
    loss_where_it_is = torch.where(is_own, torch.where(is_target, loss, torch.inf), 0)
    return _Part(loss + at_known, loss_where_it_is, is_own, own, losses, leaf, known, at_known)


class _Rows(torch.autograd.Function):
    """Each row's loss, from this process's classes, of which `first` is the first, and the target's index; `counts` is
    False where the row does not matter."""

    @staticmethod
    def forward(
        ctx: Any, input: Tensor, target: Tensor, counts: Tensor, spec: LossSpec, plan: Plan, first: int, z_loss: float
    ) -> Tensor:
        part = _part(input, target, counts, spec, plan, first)
        assert plan.vocabulary is not None
        count, group = plan.mesh.size(plan.vocabulary), plan.mesh.get_group(plan.vocabulary).group_name
        mine = torch.stack([part.log_sum, part.loss, part.is_own.to(part.loss.dtype)])
        all_parts = collectives.wait_tensor(collectives.all_gather_into_tensor(mine, count, group))
        log_sums, losses, owners = all_parts.view(count, *mine.shape).unbind(1)
        owned, whole = owners == 1, log_sums.logsumexp(0)
        of_owner = torch.where(owned, log_sums, -torch.inf).amax(0)
        of_others = torch.where(owned, -torch.inf, log_sums).logsumexp(0)
        loss = losses.sum(0)
        loss = loss + torch.logaddexp(torch.zeros_like(loss), of_others - of_owner)
        loss = torch.where(owned.any(0), loss, torch.nan)
        # The logarithm of what the known class has of the whole: where it is the target's no digit of it is lost.
        of_known = torch.where(part.is_own & (part.own == part.known), -loss, part.at_known - whole)
        ctx.save_for_backward(input, counts, part.log_sum - whole, whole, part.is_own, part.own, part.known, of_known)
        ctx.call, ctx.local = (plan, z_loss), (part.losses, part.leaf)
        return loss + z_loss * whole.square()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, counts, share, whole, is_own, own, known, of_known = ctx.saved_tensors
        (plan, z_loss), (losses, leaf) = ctx.call, ctx.local
        dim, others = plan.classes, (None,) * 6

        def one_class(index: Tensor, values: Tensor, dtype: torch.dtype) -> tuple[int, Tensor, Tensor]:
            return dim, index.unsqueeze(dim), values.unsqueeze(dim).to(dtype)

        if torch.is_grad_enabled():
            input, whole = torch.where(counts.unsqueeze(dim), input, 0), torch.where(counts, whole, 0)
            incoming, log_sum = _OnAll.apply(grads[0], plan), _LogSum.apply(input, whole, plan)
            of_sum = incoming * (1 + 2 * z_loss * log_sum)
            # The same nodes whether or not there are classes: the engine's order is that of the others' collectives.
            classes = torch.arange(input.shape[dim], device=input.device).view(-1, *(1,) * (input.dim() - dim - 1))
            is_target = classes == torch.where(is_own, own, -1).unsqueeze(dim)
            found = (input - log_sum.unsqueeze(dim)).exp() * of_sum.unsqueeze(dim) - incoming.unsqueeze(dim) * is_target
            return found.to(input.dtype), *others
        if input.shape[dim] == 0:
            return torch.zeros_like(input), *others
        of_square = grads[0] * (2 * z_loss * whole)
        factor = ((grads[0] + of_square) * share.exp()).to(losses.dtype)
        (found,) = torch.autograd.grad(losses, leaf, factor, retain_graph=True)
        # The class that the local loss was of has another gradient: from its probability in the whole, rounded once.
        is_target = is_own & (own == known)
        exact = of_square * of_known.exp() + grads[0] * torch.where(is_target, of_known.expm1(), of_known.exp())
        found.scatter_(*one_class(known, torch.where(counts, exact, 0), found.dtype))
        beside = torch.where(is_own & ~is_target, -grads[0], 0)  # a target whose logit is -inf
        found.scatter_add_(*one_class(torch.where(is_own, own, 0), beside, found.dtype))
        return found, *others


def loss(call: Call, plan: Plan, kept: int) -> Tensor:
    """The loss of a call that has been checked, whose input's classes are sharded along ``plan.vocabulary``."""
    own, rows = call.shares(plan), call.rows
    assert isinstance(rows, RowNumbers) and plan.vocabulary is not None and plan.classes is not None
    options, target = own.options, own.target
    counts = target.long() != rows.ignore_index  # of uint8 156 would be -100
    counts = counts if options.mask is None else counts & options.mask
    classes, count = call.input.shape[plan.classes], plan.mesh.size(plan.vocabulary)
    # As the CPU's kernel does it; on a GPU the row is NaN.
    if target.device.type == "cpu":
        wrong = target[counts & ((target < 0) | (target >= classes))]
        if wrong.numel():
            raise RuntimeError(
                f"target must hold class indices at least 0 and below {classes}, or ignore_index, got {wrong[0]}"
            )
    # Shards are of one size, but for the last.
    first = min(-(-classes // count) * plan.mesh.get_local_rank(plan.vocabulary), classes)
    value = _Rows.apply(own.input, target, counts, call.spec, plan, first, rows.z_loss)
    value = value if options.weight is None else value * options.weight
    value = torch.where(counts, value, 0)
    divisor, empty = options.normalizer, None
    if call.reduction != "none":
        value = value.flatten(kept).sum(-1) if value.dim() > kept else value
        if call.reduction == "mean" and divisor is None:
            divisor, empty = divisor_of(own, plan, kept)
    value = value if divisor is None else value / divisor
    share = (value * options.scale).to(torch.promote_types(call.dtype, torch.float32))
    given = call.tensors() if share.requires_grad else []
    return Whole.apply(share, plan, strides_of(plan.shape[:kept]), call.dtype, empty, *given)  # pyright: ignore
