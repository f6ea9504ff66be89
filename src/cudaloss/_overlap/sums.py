"""The sums over the voxels of each sample and class, in float64: by the kernels, with their node of autograd's graph,
or in plain PyTorch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits  # by name: cudaloss.patch leaves it

from .._call.call import are_distributed
from .._call.modes import DTYPES
from .._call.varying import widest
from .._heads.blocks import _define, define
from .._heads.calls import _are_served
from .._heads.nodes import _by_torch
from .._ops.private import is_compiled

NONE, SIGMOID, SOFTMAX = range(3)
ACTIVATIONS = {None: NONE, "sigmoid": SIGMOID, "softmax": SOFTMAX}
# Of p g; of p or p^2; of g or g^2; of the cross entropies.
SUMS = 4
BOTH, OF_INPUT, OF_TARGET, ENTROPY = range(SUMS)
_MOST_CLASSES = 256
_HOW = "int activation, bool squares, bool entropy, bool has_indices, int ignore_index"


class How(NamedTuple):
    """What is summed."""

    activation: int
    squares: bool
    entropy: bool
    has_indices: bool  # the target has class indices, in a dimension of size 1
    ignore_index: int


class Formula(NamedTuple):
    """A loss of the sums: ``of_ratio`` times the sum over samples and classes of ``1 - (of_both i + smooth_nr) /
    (under_both i + under_input p + under_target g + smooth_dr)``, plus ``of_entropy`` times the sum of the entropies,
    each class with its weight."""

    of_both: float
    under_both: float
    under_input: float
    under_target: float
    smooth_nr: float
    smooth_dr: float
    batch: bool
    first_class: int
    of_ratio: float = 1.0
    of_entropy: float = 0.0
    divides: int = 0  # 1: the entropies by the sum of g; 2: with the classes' weights

    def ratios(self, found: Tensor, weight: Tensor | None) -> Tensor:
        """Of each sample and class."""
        found = found[:, self.first_class :]
        both, of_input, of_target, _ = (found.sum(0, keepdim=True) if self.batch else found).unbind(2)
        under = self.under_both * both + self.under_input * of_input + self.under_target * of_target
        ratios = 1 - (self.of_both * both + self.smooth_nr) / (under + self.smooth_dr)
        return ratios if weight is None else ratios * weight[self.first_class :]

    def value(self, found: Tensor, weight: Tensor | None) -> Tensor:
        value = self.of_ratio * self.ratios(found, weight).sum()
        if self.of_entropy == 0:
            return value
        entropies, of_target = found[..., ENTROPY], found[..., OF_TARGET]
        entropies = entropies if weight is None else entropies * weight
        divisor = of_target * weight if self.divides == 2 and weight is not None else of_target
        return value + self.of_entropy * entropies.sum() / (divisor.sum() if self.divides else 1)


def _fake_sums(input: Tensor, *rest: Any) -> Tensor:
    return input.new_empty((*input.shape[:2], SUMS), dtype=torch.float64)


_OPERANDS = f"Tensor input, Tensor target, Tensor? mask, {_HOW}"
_sums = _define(f"_overlap_sums({_OPERANDS}) -> Tensor", _fake_sums)
_loss = _define(
    f"_overlap_loss({_OPERANDS}, Tensor? weight, float of_both, float under_both, float under_input, "
    "float under_target, float smooth_nr, float smooth_dr, bool batch, int first_class, float of_ratio, "
    "float of_entropy, int divides, ScalarType dtype) -> (Tensor, Tensor)",
    lambda input, *rest: (input.new_empty((), dtype=rest[-1]), _fake_sums(input)),
)
_gradient_ = _define(f"_overlap_gradient_({_OPERANDS}, Tensor grads, Tensor? grad_output, Tensor(a!) gradient) -> ()")


def _gradient(input: Tensor, *rest: Any) -> Tensor:
    result = torch.empty_like(input)
    _gradient_(input, *rest, result)
    return result


_gradient_op = define(
    f"_overlap_gradient({_OPERANDS}, Tensor grads, Tensor? grad_output) -> Tensor",
    _gradient,
    lambda input, *rest: torch.empty_like(input),
)
_OF_HOW = (None,) * 5


def _made(*arguments: Any) -> Tensor:
    return _gradient_op(*arguments) if is_compiled() else _gradient(*arguments)


class Sums(torch.autograd.Function):
    """Of an input, a target and a mask with the dimensions (samples, classes, outer, inner)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, target: Tensor, mask: Tensor | None, *how: Any) -> Tensor:
        ctx.save_for_backward(input, target, mask)
        ctx.how = How(*how)
        return _sums(input, target, mask, *how)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, target, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            (of_input,) = _by_torch(grads, (input,), lambda x: by_torch(x, target, mask, ctx.how))
        else:
            of_input = _made(input, target, mask, *ctx.how, grads[0].contiguous(), None)
        return of_input, None, None, *_OF_HOW


class Loss(torch.autograd.Function):
    """A reduced loss of the sums. Its forward makes the derivatives in them."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        target: Tensor,
        mask: Tensor | None,
        how: How,
        weight: Tensor | None,
        formula: Formula,
        dtype: torch.dtype,
    ) -> Tensor:
        value, slopes = _loss(input, target, mask, *how, weight, *formula, dtype)
        ctx.save_for_backward(input, target, mask, weight, slopes)
        ctx.call = how, formula
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        input, target, mask, weight, slopes = ctx.saved_tensors
        (grad_output,), (how, formula) = grads, ctx.call
        if torch.is_grad_enabled():

            def loss(x: Tensor) -> Tensor:
                return formula.value(by_torch(x, target, mask, how), weight).to(grad_output.dtype)

            (of_input,) = _by_torch(grads, (input,), loss)
        else:
            of_input = _made(input, target, mask, *how, slopes, grad_output)
        return of_input, None, None, None, None, None, None


def by_torch(input: Tensor, target: Tensor, mask: Tensor | None, how: How) -> Tensor:
    """The same in plain PyTorch, for any number of dimensions."""
    x, classes = input.to(widest(input.device)), input.shape[1]
    counts, g = mask, target.to(x.dtype)
    if how.has_indices:
        index = target.long()
        of_class = torch.arange(classes, device=x.device).view(-1, *(1,) * (input.dim() - 2))
        kept = index != how.ignore_index
        counts, g = kept if mask is None else kept & mask, (index == of_class).to(x.dtype)
        wrong = kept & ((index < 0) | (index >= classes))
        g = torch.where(wrong, math.nan, g)
    x = x if counts is None else torch.where(counts, x, 0)
    p = x.softmax(1) if how.activation == SOFTMAX else x.sigmoid() if how.activation == SIGMOID else x
    terms = [p * g, p * p if how.squares else p, g * g if how.squares else g]
    if how.entropy and how.activation == SOFTMAX:
        terms.append(-torch.where(g == 0, 0, x.log_softmax(1) * g))
    elif how.entropy:
        terms.append(binary_cross_entropy_with_logits(x, g, reduction="none"))
    else:
        terms.append(torch.zeros_like(p))
    terms = terms if counts is None else [torch.where(counts, term, 0) for term in terms]
    return torch.stack([term.unsqueeze(2).flatten(2).sum(2) for term in terms], 2)  # also without space


def _views(tensors: list[Tensor]) -> list[Tensor] | None:
    """The tensors with two dimensions of voxels. None: their layouts do not allow it without a copy."""
    voxels = tensors[0].shape[2:]
    for split in range(max(1, len(voxels))):
        outer, inner = math.prod(voxels[:split]), math.prod(voxels[split:])
        try:
            return [x.view(*x.shape[:2], outer, inner) for x in tensors]
        except RuntimeError:
            continue
    return None


def _are_read(input: Tensor, target: Tensor, how: How) -> bool:
    """Whether the kernels take operands of this kind and size."""
    entropy_of_shares = how.entropy and how.activation == SOFTMAX and not how.has_indices
    return (
        input.dtype in DTYPES
        and input.numel() > 0
        and input.shape[1] <= _MOST_CLASSES
        and math.prod(input.shape[2:]) < 2**31 - 1
        and not target.requires_grad
        and not entropy_of_shares
    )


def _served(input: Tensor, target: Tensor, mask: Tensor | None, how: How) -> list[Tensor | None] | None:
    """The operands as the kernels take them; None: they do not."""
    given = [input, target] if mask is None else [input, target, mask]
    if not _are_read(input, target, how) or not _are_served(*given):
        return None
    views = _views([x.expand(input.shape[0], x.shape[1], *input.shape[2:]) for x in given])
    return None if views is None else [*views, *([None] if mask is None else [])]


def sharded() -> Any:
    """The module, which imports what few programs need."""
    from . import sharded

    return sharded


def sums(input: Tensor, target: Tensor, mask: Tensor | None, how: How) -> Tensor:
    """(samples, classes, SUMS) of an input of shape (samples, classes, ...)."""
    if are_distributed(input):
        return sharded().joined(sums, input, target, mask, how)
    served = _served(input, target, mask, how)
    return by_torch(input, target, mask, how) if served is None else Sums.apply(*served, *how)


def loss(
    input: Tensor,
    target: Tensor,
    mask: Tensor | None,
    how: How,
    weight: Tensor | None,
    formula: Formula,
    dtype: torch.dtype,
) -> Tensor:
    """Of a weight of float64 for all classes."""
    if are_distributed(input):
        return formula.value(sums(input, target, mask, how), weight).to(dtype)
    served = None if weight is not None and weight.requires_grad else _served(input, target, mask, how)
    if served is None or dtype not in DTYPES:
        return formula.value(by_torch(input, target, mask, how), weight).to(dtype)
    return Loss.apply(*served, how, weight, formula, dtype)
