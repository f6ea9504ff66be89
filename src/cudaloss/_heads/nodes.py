"""The nodes of autograd's graph for the numbers of rows, and for a head's step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._ops import private
from . import plans, row_losses
from .blocks import Block, by_torch, scaled_gradient_, token_gradients, token_values
from .places import OfPlaces, Places
from .plans import Head, Wanted

_NO_BLOCK = (None,) * len(Block._fields)
_keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph  # pyright: ignore[reportAttributeAccessIssue]


def _by_torch(grads: Any, operands: tuple[Tensor | None, ...], make: Callable[..., Any]) -> tuple[Any, ...]:
    """The gradients of the operands that require one, differentiable again."""
    with torch.enable_grad():
        wanting = [x for x in operands if x is not None and x.requires_grad]
        found = iter(torch.autograd.grad(make(*operands), wanting, grads, create_graph=True))
    return tuple(next(found) if x is not None and x.requires_grad else None for x in operands)


def sharded() -> Any:
    """The module, which imports what few programs need."""
    from . import sharded

    return sharded


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.nn.functional.linear(input, weight, bias)


def all_by_torch(logits: Tensor, block: Block, indices: Tensor | None) -> Any:
    """What the nodes return, in plain PyTorch."""
    found = by_torch(logits, block)
    if indices is None:
        return found
    places = Places(indices, block)
    places.add(logits, block)
    return found, places.z()


class HeadNumbers(torch.autograd.Function):
    """The numbers of a head's rows; and the z of the classes at `indices`, (rows, k), if there are any. `keeps`: keeps
    the logits for the backward, which writes their gradient over them; a second backward makes them again. `part`: this
    process's classes (:mod:`.sharded`); None: it has all."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        keeps: bool,
        part: Any,
        indices: Tensor | None,
        *block: Any,
    ) -> Any:
        if keeps:
            ctx.logits = plans.logits_of(plans.aligned(Head(input, weight, bias)))
            found, z = plans.of_logits(ctx.logits[:, : weight.shape[0]], Block(*block), indices)
        else:
            found, z = plans.numbers_op(input, weight, bias, *block, indices)
        if part is not None:
            found, z = sharded().joined(found, part), None if z is None else sharded().added(z, part)
        ctx.save_for_backward(input, weight, bias, *block[:3], found, indices, z)
        ctx.rest, ctx.part = block[3:], part
        return found if z is None else (found, z)

    @staticmethod
    def backward(ctx: Any, *all_grads: Tensor) -> Any:
        grads, *of_z = all_grads
        input, weight, bias, target, counts, class_weight, found, indices, z = ctx.saved_tensors
        block = Block(target, counts, class_weight, *ctx.rest)
        logits = ctx.__dict__.pop("logits", None)
        if torch.is_grad_enabled():
            if ctx.part is not None:
                raise RuntimeError("a head whose classes are sharded has no second derivative: use the whole weight")
            made = _by_torch(all_grads, (input, weight, bias), lambda *x: all_by_torch(_linear(*x), block, indices))
            return *made, None, None, None, *_NO_BLOCK
        head, wanted = Head(input, weight, bias), Wanted(*ctx.needs_input_grad[:3])
        grads, wide = grads.contiguous(), ctx.part is not None  # then input's is a part of a sum
        of_places = OfPlaces(indices, z, *(of_z or [None]))
        if logits is None:
            of_operands = plans.gradients_op(grads, found, *of_places, *head, *block, *wanted, wide)
        else:
            of_operands = plans.gradients(grads, found, of_places, head, block, wanted, wide, logits)
        if ctx.part is not None and wanted.input:
            of_input, *rest = of_operands
            of_operands = sharded().added(of_input, ctx.part).to(input.dtype), *rest
        return *of_operands, None, None, None, *_NO_BLOCK


class LogitsNumbers(torch.autograd.Function):
    """The same of the rows of given logits, (outer, inner, classes)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, indices: Tensor | None, *block: Any) -> Any:
        found, z = plans.logits_numbers_op(logits, *block, indices)
        ctx.save_for_backward(logits, *block[:3], found, indices, z)
        ctx.rest = block[3:]
        return found if z is None else (found, z)

    @staticmethod
    def backward(ctx: Any, *all_grads: Tensor) -> Any:
        grads, *of_z = all_grads
        logits, target, counts, class_weight, found, indices, z = ctx.saved_tensors
        block = Block(target, counts, class_weight, *ctx.rest)
        if torch.is_grad_enabled():
            made = _by_torch(all_grads, (logits,), lambda x: all_by_torch(x.flatten(0, 1), block, indices))
            return *made, None, *_NO_BLOCK
        of_places = OfPlaces(indices, z, *(of_z or [None]))
        return plans.logits_gradient_op(grads.contiguous(), found, *of_places, logits, *block), None, *_NO_BLOCK


class TokenValues(torch.autograd.Function):
    """The log-probability and, if asked for, the entropy of each row, from the numbers."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, entropy: bool, wide: bool) -> Any:
        ctx.save_for_backward(numbers)
        ctx.set_materialize_grads(False)
        found = token_values(numbers, entropy, wide)
        return found if entropy else found[0]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (numbers,) = ctx.saved_tensors
        if all(grad is None for grad in grads):
            return None, None, None
        if torch.is_grad_enabled():
            with torch.enable_grad():
                made = row_losses.log_prob(numbers), row_losses.entropy(numbers)
                used = [(x, grad) for x, grad in zip(made, grads, strict=False) if grad is not None]
                values, given = zip(*used, strict=True)
                given = [grad.to(numbers.dtype) for grad in given]
                return *torch.autograd.grad(values, numbers, given, create_graph=True), None, None
        given = [None if grad is None else grad.contiguous() for grad in (*grads, None)]
        return token_gradients(numbers, *given[:2]), None, None


def _scaled(gradient: Tensor | None, factor: Tensor, dtype: torch.dtype, in_place: bool) -> Tensor | None:
    """The gradient times grad_output, rounded once."""
    if gradient is None:
        return None
    if private.is_compiled():
        return (gradient * factor).to(dtype)
    out = gradient if gradient.dtype == dtype and in_place else torch.empty_like(gradient, dtype=dtype)
    scaled_gradient_(gradient, factor.double(), out)
    return out


class HeadStep(torch.autograd.Function):
    """A reduced loss whose forward makes the gradients, by the op `step`. `thorough` is the same loss from the head, by
    nodes that can be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        thorough: Any,
        dtype: torch.dtype,
        step: Any,
        *call: Any,
    ) -> Tensor:
        value, *grads = step(input, weight, bias, *call, *Wanted(*ctx.needs_input_grad[:3]))
        ctx.save_for_backward(input, weight, bias, *grads)
        ctx.thorough = thorough
        return value.to(dtype)

    @staticmethod
    def backward(ctx: Any, *all_grads: Tensor) -> Any:
        (grad_output,) = all_grads
        input, weight, bias, *grads = ctx.saved_tensors
        rest = (None,) * (len(ctx.needs_input_grad) - 3)
        if torch.is_grad_enabled():
            return *_by_torch(grad_output, (input, weight, bias), ctx.thorough), *rest
        in_place = not private.is_compiled() and not _keeps_graph()
        pairs = zip(grads, (input, weight, bias), strict=True)
        return *(None if of is None else _scaled(of, grad_output, x.dtype, in_place) for of, x in pairs), *rest
