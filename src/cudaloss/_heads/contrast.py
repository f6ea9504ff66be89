"""Losses of pairs: each member of one side is to be found among all of the other. The ways that a call goes, and the
nodes of autograd's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._call.call import are_distributed
from .._call.modes import DTYPES
from .._call.varying import as_tensor
from .._ops import checks as _checks
from .._ops.private import is_compiled
from . import calls, checks, pairs, row_losses
from .blocks import Block
from .nodes import _by_torch
from .pairs import Pairs, SoftmaxNumbers, SoftmaxSlopes
from .plans import Head
from .row_losses import CrossEntropy


class _Ranks:
    """The processes of a group, each of which has some rows and their own columns."""

    def __init__(self, group: Any) -> None:
        if not isinstance(group, torch.distributed.ProcessGroup):
            raise TypeError(f"group must be a torch.distributed.ProcessGroup, got {type(group).__name__}")
        self.name, self.count, self.rank = group.group_name, group.size(), group.rank()
        self.collectives = torch.ops._c10d_functional

    def gathered(self, local: Tensor) -> Tensor:
        """The tensors of all processes, one after another. All must have one shape."""
        found = self.collectives.all_gather_into_tensor(local.contiguous(), self.count, self.name)
        return self.collectives.wait_tensor(found)

    def scattered(self, parts: Tensor) -> Tensor:
        """This process's rows of the sum over all processes."""
        found = self.collectives.reduce_scatter_tensor(parts.contiguous(), "sum", self.count, self.name)
        return self.collectives.wait_tensor(found)


class Gathered(torch.autograd.Function):
    """The rows of all processes. Its gradient is the sum of all processes' for this one's rows."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, ranks: _Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.gathered(local)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        if torch.is_grad_enabled():
            _no_second_derivative(ctx.ranks)
        dtype = grads[0].dtype
        return ctx.ranks.scattered(grads[0].to(row_losses.wide(dtype))).to(dtype), None


def _log_one_plus(z: Tensor) -> Tensor:
    """log(1 + exp(z)), with all digits: F.softplus has a threshold."""
    return -torch.nn.functional.logsigmoid(-z)


def _no_second_derivative(ranks: _Ranks | None) -> None:
    if ranks is not None:
        raise RuntimeError("a loss of the pairs of several processes has no second derivative: gather the features")


def clip_by_torch(rows: Tensor, columns: Tensor, scale: Tensor) -> Tensor:
    logits = ((rows * scale).to(rows.dtype) @ columns.t()).to(row_losses.wide(rows.dtype))
    own = torch.arange(logits.shape[0], device=logits.device)
    return (torch.nn.functional.cross_entropy(logits, own) + torch.nn.functional.cross_entropy(logits.t(), own)) / 2


class Clip(torch.autograd.Function):
    """The mean of the cross entropies of rows and of columns, in float64. `keeps`: keeps the logits for the backward,
    which writes their gradient over them; a second backward makes them again."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, keeps: bool, ranks: _Ranks | None) -> Tensor:
        by, first = scale.double(), 0
        if ranks is not None:
            columns, first = ranks.gathered(columns), ranks.rank * rows.shape[0]
        of = Pairs(rows, columns, first, by)
        ctx.keeps, ctx.logits = keeps, of.logits() if keeps else None
        if keeps or ranks is not None:
            found = pairs.softmax_numbers(of, ctx.logits)
        else:
            found = SoftmaxNumbers(*pairs.softmax_numbers_op(rows, columns, by))
        all_own, of_columns = found.own, found.of_columns
        if ranks is not None:
            all_own = ranks.gathered(found.own)
            of_columns = ranks.gathered(of_columns.unsqueeze(0)).logsumexp(0)
        own, count = found.own, rows.shape[0]
        excess = torch.stack([found.of_rows, of_columns[first : first + count]]) - own
        slopes = torch.logaddexp(found.of_rows, own), torch.logaddexp(of_columns, all_own), -excess.sigmoid().sum(0)
        ctx.save_for_backward(rows, columns, scale, *slopes)
        ctx.ranks, ctx.first = ranks, first
        return _log_one_plus(excess).sum() / (2 * count)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, columns, scale, *slopes = ctx.saved_tensors
        kept, ctx.logits, ranks = ctx.logits, None, ctx.ranks
        if torch.is_grad_enabled():
            _no_second_derivative(ranks)
            return *_by_torch(grads[0], (rows, columns, scale), clip_by_torch), None, None
        by = scale.double()
        factor = grads[0].double() / (2 * rows.shape[0])
        if ctx.keeps or ranks is not None:
            of = Pairs(rows, columns, ctx.first, by)
            kept = of.logits() if ctx.keeps and kept is None else kept
            found = pairs.softmax_gradients(of, SoftmaxSlopes(*slopes), factor, kept, ranks is not None)
        else:
            found = pairs.softmax_gradients_op(rows, columns, *slopes, factor, by)
        of_rows, of_columns, of_scale = found
        if ranks is not None:
            of_columns = pairs.scaled(ranks.scattered(of_columns), factor * by, columns.dtype)
        return of_rows, of_columns, of_scale.to(scale.dtype), None, None


def siglip_by_torch(rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor | None) -> Tensor:
    logits = (rows @ columns.t()).to(row_losses.wide(rows.dtype)) * scale
    logits = logits if bias is None else logits + bias
    is_own = torch.eye(logits.shape[0], dtype=torch.bool, device=logits.device)
    return -torch.nn.functional.logsigmoid(torch.where(is_own, logits, -logits)).sum() / logits.shape[0]


class SigLip(torch.autograd.Function):
    """The sum of the sigmoid's losses of all pairs, divided by the rows, in float64. `makes`: the forward makes the
    gradients; otherwise the backward does."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor | None, makes: bool, ranks: _Ranks | None
    ) -> Tensor:
        ctx.ranks, ctx.first = ranks, 0
        if ranks is not None:
            columns, ctx.first = ranks.gathered(columns), ranks.rank * rows.shape[0]
        sums, *sides = SigLip._made(ctx, rows, columns, scale, bias, makes, makes)
        ctx.save_for_backward(rows, columns, scale, bias, sums, *sides)
        return sums[0] / rows.shape[0]

    @staticmethod
    def _made(
        ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor | None, wanted: bool, fast: bool
    ) -> Any:
        numbers = scale.double(), None if bias is None else bias.double()
        if ctx.ranks is None:
            return pairs.logistic_op(rows, columns, *numbers, wanted, fast)
        return pairs.logistic(Pairs(rows, columns, ctx.first), *numbers, wanted, fast)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rows, columns, scale, bias, sums, *sides = ctx.saved_tensors
        ranks = ctx.ranks
        if torch.is_grad_enabled():
            _no_second_derivative(ranks)
            return *_by_torch(grads[0], (rows, columns, scale, bias), siglip_by_torch), None, None
        if sides[0] is None:
            sums, *sides = SigLip._made(ctx, rows, columns, scale, bias, True, False)
        of_rows, of_columns = sides
        factor = grads[0].double() / rows.shape[0]
        of_columns = of_columns if ranks is None else ranks.scattered(of_columns)
        of_sides = (pairs.scaled_op(x, factor * scale.double(), rows.dtype) for x in (of_rows, of_columns))
        of_bias = None if bias is None else (factor * sums[1]).to(bias.dtype)
        return *of_sides, (factor * sums[2]).to(scale.dtype), of_bias, None, None


# ---- the calls ----


def _number(name: str, value: Any, like: Tensor) -> Tensor:
    """A number of the call as a 0-d tensor beside the features."""
    if not isinstance(value, Tensor):
        if not _checks._is_number(value):
            raise TypeError(f"{name} must be a number or a 0-d tensor, got {type(value).__name__}")
        return as_tensor(value, like)
    if value.numel() != 1 or not value.is_floating_point():
        raise RuntimeError(f"{name} must be one floating number, got shape {tuple(value.shape)} of {value.dtype}")
    if value.device != like.device:
        raise RuntimeError(f"{name} must be on the features' device, {like.device}, got {value.device}")
    return value.reshape(())


def _check_sides(names: tuple[str, str], rows: Any, columns: Any, alike: bool) -> None:
    checks._dense(**dict(zip(names, (rows, columns), strict=True)))
    a, b = names
    if are_distributed(rows, columns):
        raise RuntimeError(f"{a} and {b} must be plain tensors, got a DTensor; pass its local tensor, and `group`")
    if rows.dim() != 2 or columns.dim() != 2 or rows.shape[1] != columns.shape[1]:
        raise RuntimeError(
            f"{a} and {b} must be of shape (pairs, features), got {tuple(rows.shape)} and {tuple(columns.shape)}"
        )
    if rows.device != columns.device:
        raise RuntimeError(f"{b} must be on {a}'s device, {rows.device}, got {columns.device}")
    if rows.dtype != columns.dtype:
        raise RuntimeError(f"{b} must be of {a}'s dtype, {rows.dtype}, got {columns.dtype}")
    if (alike and rows.shape != columns.shape) or rows.shape[0] > columns.shape[0]:
        raise RuntimeError(f"{b} must have a partner for each row of {a}, got {len(columns)} for {len(rows)}")


def _is_served(rows: Tensor, columns: Tensor, *numbers: Tensor | None) -> bool:
    return rows.dtype in DTYPES and rows.numel() > 0 and calls._are_served(rows, columns, *numbers)


def _ranks_of(group: Any) -> _Ranks | None:
    return None if group is None else _Ranks(group)


def _require_served(group: Any) -> None:
    if group is not None:
        raise RuntimeError("a loss of the pairs of several processes takes plain tensors in eager mode")


def clip_loss(rows: Any, columns: Any, scale: Any, memory: Any, group: Any) -> Tensor:
    checks.check_memory(memory)
    _check_sides(("image_features", "text_features"), rows, columns, alike=True)
    scale, dtype = _number("logit_scale", scale, rows), calls._result_dtype(rows)
    rows, columns, _ = calls._under_autocast(rows, columns, None)
    if not _is_served(rows, columns, scale):
        _require_served(group)
        return clip_by_torch(rows, columns, scale).to(dtype)
    keeps = (
        calls._plan("fast" if memory is None else memory) == "fast"
        and calls._wants_gradient(rows, columns, scale)
        and not is_compiled()
    )
    return Clip.apply(rows, columns, scale, keeps, _ranks_of(group)).to(dtype)


def siglip_loss(rows: Any, columns: Any, scale: Any, bias: Any, memory: Any, group: Any) -> Tensor:
    checks.check_memory(memory)
    _check_sides(("image_features", "text_features"), rows, columns, alike=True)
    scale, dtype = _number("logit_scale", scale, rows), calls._result_dtype(rows)
    bias = None if bias is None else _number("logit_bias", bias, rows)
    rows, columns, _ = calls._under_autocast(rows, columns, None)
    if not _is_served(rows, columns, scale, bias):
        _require_served(group)
        return siglip_by_torch(rows, columns, scale, bias).to(dtype)
    makes = memory != "least" and calls._wants_gradient(rows, columns, scale, bias)
    return SigLip.apply(rows, columns, scale, bias, makes, _ranks_of(group)).to(dtype)


def info_nce_loss(query: Any, key: Any, temperature: Any, reduction: Any, memory: Any, group: Any) -> Tensor:
    """The cross entropy of a head whose weight are the keys."""
    checks.check_memory(memory)
    _check_sides(("query", "key"), query, key, alike=False)
    _checks.check_reduction(row_losses.CROSS_ENTROPY, reduction)
    temperature, _ = checks.check_bend(query, temperature, None)
    first, dtype = 0, calls._result_dtype(query)
    query, key, _ = calls._under_autocast(query, key, None)
    if not _is_served(query, key):
        _require_served(group)
        logits = (query @ key.t()).to(row_losses.wide(query.dtype)) / temperature
        own = torch.arange(len(query), device=query.device)
        return torch.nn.functional.cross_entropy(logits, own, reduction=reduction).to(dtype)
    if group is not None:
        ranks = _Ranks(group)
        first, key = ranks.rank * len(key), Gathered.apply(key, ranks)
    own = torch.arange(first, first + len(query), device=query.device)
    block = Block(own, None, None, 0, len(key), temperature=temperature)
    loss = CrossEntropy(None, len(key), 0.0, 0.0, None, reduction, None, 1.0, dtype)
    head, plan = Head(query, key, None), calls._plan("fast" if memory is None else memory)
    found = calls._numbers(head, block, not is_compiled() and calls._keeps_logits(head, plan), None)
    return row_losses.value(loss, found, own, None)
