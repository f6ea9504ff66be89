"""The cross entropy of a few classes of each row, whose probabilities are given: of logits, and of a head.

A row's loss is the sum of p (log(sum of exp(z)) - z) over its classes. The numbers of a row leave out its likeliest
class in the target; so a confident row keeps its digits, as with a class index.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call.modes import DTYPES
from .._call.shapes import rows_shape
from .._call.varying import widest
from .._losses.options import Options
from .._ops import checks as _checks
from .._ops import dispatch
from .._ops.dispatch import is_captured
from .._ops.private import is_compiled
from . import calls, checks, plans, row_losses
from .blocks import LOG_SUM, Block, bent
from .calls import _are_served, _flat, _like_logits, _wants_gradient
from .nodes import LogitsNumbers, sharded
from .places import check_indices
from .plans import Head
from .row_losses import CROSS_ENTROPY, reduced

PADDING = -1


class Reduction(NamedTuple):
    """How the rows, in one dimension, become the result."""

    reduction: str
    dtype: torch.dtype
    options: Options

    def of(self, found: Tensor, shape: torch.Size) -> Tensor:
        result = reduced(found, self.reduction, self.dtype, self.options)
        return result.view(shape) if self.reduction == "none" else result


def checked_reduction(
    input: Tensor,
    classes: int,
    target: Tensor,
    reduction: Any,
    sample_weight: Any,
    mask: Any,
    normalizer: Any,
    scale: Any,
    dtype: Any,
) -> Reduction:
    """The reduction of a call, whose arguments for it are checked."""
    _checks.check_reduction(CROSS_ENTROPY, reduction)
    _checks.check_dtype(dtype)
    options, like = Options(sample_weight, mask, normalizer, scale), _like_logits(input, classes)
    options = _checks.check_options(options, like, rows_shape(like), reduction, "sample_weight")
    dtype = _checks.result_dtype(input, target, dtype)
    weight, mask = (_flat(x, input.shape[:-1]) for x in (options.weight, options.mask))
    mask = None if mask is None else mask.contiguous()  # as the kernels read which rows count
    return Reduction(reduction, dtype, options._replace(weight=weight, mask=mask))


class Sparse(NamedTuple):
    """The targets of rows in one dimension. An index is a class, or no class at all: no padding is left."""

    indices: Tensor  # (rows, k)
    probabilities: Tensor  # in the widest dtype; 0 for padding
    target: Tensor  # (rows,): the likeliest class, which the numbers leave out
    is_likeliest: Tensor  # (rows, k): which entry it is from

    @classmethod
    def of(cls, indices: Tensor, probabilities: Tensor, classes: int) -> Sparse:
        is_padding = indices < 0
        p = torch.where(is_padding, 0, probabilities.to(widest(indices.device)))
        at = torch.where(is_padding, -torch.inf, p.detach()).argmax(1, keepdim=True)
        target, last = indices.gather(1, at).clamp(min=0), indices.amax(1, keepdim=True)
        target = torch.where(last >= classes, last, target)  # no class: the numbers are NaN
        is_likeliest = torch.arange(indices.shape[1], device=indices.device) == at
        return cls(torch.where(is_padding, target, indices), p, target.squeeze(1), is_likeliest)

    def losses(self, numbers: Tensor, z: Tensor) -> Tensor:
        """Of each row. Autograd differentiates it."""
        others, own = numbers[LOG_SUM], torch.where(self.is_likeliest, z, 0).sum(1)
        is_none = own == -torch.inf
        base = torch.where(is_none, 0, own)
        of_base = torch.where(is_none, others, torch.logaddexp(others - base, torch.zeros_like(base)))
        # The difference to itself is left out, not computed: so the gradient of a sure class has no differences.
        is_own = (self.indices == self.target.unsqueeze(1)) & ~is_none.unsqueeze(1)
        has_no_share = (self.probabilities == 0) & (z == -torch.inf)
        below = torch.where(is_own | has_no_share, 0, base.unsqueeze(1) - z)
        return self.probabilities.sum(1) * of_base + (self.probabilities * below).sum(1)


def _by_definition(logits: Tensor, indices: Tensor, p: Tensor, temperature: float, softcap: float) -> Tensor:
    """The loss of each row of (rows, classes)."""
    logs = bent(logits.to(row_losses.wide(logits.dtype)), softcap, temperature).log_softmax(-1)
    is_wrong = indices >= logits.shape[-1]
    found = -logs.gather(-1, torch.where(is_wrong | (indices < 0), 0, indices))
    p = torch.where(indices < 0, 0, p.to(torch.promote_types(p.dtype, logs.dtype)))
    found = torch.where((p == 0) & (found == torch.inf), 0, torch.where(is_wrong, torch.nan, found))
    return (p * found).sum(-1)


def _of_logits(
    logits: Tensor, indices: Tensor, p: Tensor, temperature: float, softcap: float, reduction: Reduction
) -> Tensor:
    """The definition, of all logits."""
    shape, counts = indices.shape[:-1], reduction.options.mask
    logits, indices, p = (x.reshape(-1, x.shape[-1]) for x in (logits, indices, p))
    indices, p = _of_counted(indices.long(), p, counts)
    if counts is not None:
        logits = torch.where(counts.unsqueeze(1), logits, 0)
    if not (is_captured() or dispatch.transformed()) and type(indices) is Tensor:
        check_indices(indices, logits.shape[-1])
    return reduction.of(_by_definition(logits, indices, p, temperature, softcap), shape)


def _of_counted(indices: Tensor, p: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """The target, with padding alone in the rows that do not count."""
    if counts is None:
        return indices, p
    is_counted = counts.unsqueeze(1)
    return torch.where(is_counted, indices, PADDING), torch.where(is_counted, p, 0)


def _sparse_of(indices: Tensor, p: Tensor, classes: int, reduction: Reduction) -> Sparse:
    k = indices.shape[-1]
    indices = indices.reshape(-1, k).long().contiguous()
    indices, p = _of_counted(indices, p.reshape(-1, k), reduction.options.mask)
    return Sparse.of(indices, p, classes)


def sparse_cross_entropy(
    input: Any, indices: Any, probabilities: Any, reduction: Any, temperature: Any, softcap: Any, *rest: Any
) -> Tensor:
    checks._dense(input=input)
    checks.check_classes(input)
    checks.check_sparse(input, indices, probabilities)
    temperature, cap = checks.check_bend(indices, temperature, softcap)
    classes, shape = input.shape[-1], input.shape[:-1]
    reduced = checked_reduction(input, classes, probabilities, reduction, *rest)
    given = (x for x in rest if isinstance(x, Tensor))
    rows = None
    if input.dtype in DTYPES and input.numel() > 0 and input.stride(-1) == 1:
        rows = calls._as_rows(input) if _are_served(input, indices, probabilities, *given) else None
    if rows is None:
        return _of_logits(input, indices, probabilities, temperature, cap, reduced)
    sparse = _sparse_of(indices, probabilities, classes, reduced)
    block = Block(sparse.target, reduced.options.mask, None, 0, classes, cap, temperature)
    if _wants_gradient(input):
        found = LogitsNumbers.apply(rows, sparse.indices, *block)
    else:
        found = plans.logits_numbers_op(rows, *block, sparse.indices)
    return reduced.of(sparse.losses(*found), shape)


def linear_sparse_cross_entropy(
    input: Any,
    linear_weight: Any,
    indices: Any,
    probabilities: Any,
    linear_bias: Any,
    reduction: Any,
    temperature: Any,
    softcap: Any,
    sample_weight: Any,
    mask: Any,
    normalizer: Any,
    scale: Any,
    dtype: Any,
    memory: Any,
) -> Tensor:
    checks.check_memory(memory)
    checks.check_layer(input, linear_weight, linear_bias)
    checks.check_matrix(linear_weight)
    checks.check_sparse(input, indices, probabilities)
    temperature, cap = checks.check_bend(indices, temperature, softcap)
    classes, part = linear_weight.shape[0], None
    beside = indices, probabilities, sample_weight, mask, normalizer
    local = calls._local_of((input, linear_weight, linear_bias), beside)
    if local is not None:
        part, (input, linear_weight, linear_bias), beside = local.part, local.operands, local.beside
    indices, probabilities, sample_weight, mask, normalizer = beside
    input, linear_weight, linear_bias = calls._under_autocast(input, linear_weight, linear_bias)
    how = reduction, sample_weight, mask, normalizer, scale, dtype
    reduced = checked_reduction(input, classes, probabilities, *how)
    given = (x for x in beside if isinstance(x, Tensor))
    operands = input, linear_weight, linear_bias
    if not (calls._is_head(*operands) and _are_served(*operands, *given)):
        logits = torch.nn.functional.linear(*operands)
        return _of_logits(logits, indices, probabilities, temperature, cap, reduced)
    head = Head(input.reshape(-1, input.shape[-1]), linear_weight, linear_bias)
    sparse = _sparse_of(indices, probabilities, classes, reduced)
    first = 0 if part is None else part.first
    block = Block(sparse.target, reduced.options.mask, None, first, classes, cap, temperature)
    keeps = not is_compiled() and calls._keeps_logits(head, calls._plan("fast" if memory is None else memory))
    found = sparse.losses(*calls._numbers(head, block, keeps, part, sparse.indices))
    found = reduced.of(found, indices.shape[:-1])
    return found if local is None else sharded().wrapped(found, local)
