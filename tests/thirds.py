"""Losses with a third operand, a number or a tensor, spelled out: what their tensors' results are compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import cudaloss
from cudaloss._install.build import DEVICES
from cudaloss._losses.table import SPECS, Argument, LossSpec
from cudaloss.bench import symbolic
from oracle import has_domain, leaf, reduced

SHAPE = (6, 5, 8)
# Shapes of the third operand for operands of SHAPE, and its layouts.
LAYOUTS = {
    "0-d": lambda make: make(()),
    "one element": lambda make: make((1,)),
    "per class": lambda make: make((8,)),
    "per sample": lambda make: make((6, 1, 1)),
    "per row": lambda make: make((6, 5, 1)),
    "column": lambda make: make((5, 1)),
    "full": lambda make: make(SHAPE),
    "full, misaligned": lambda make: make((241,))[1:].view(SHAPE),
    "every second class": lambda make: make((16,))[::2],
    "every second": lambda make: make((6, 5, 16))[..., ::2],
    "transposed": lambda make: make((8, 5, 6)).permute(2, 1, 0),
    "backwards in one dimension": lambda make: make((6, 8, 5)).mT,
    "expanded": lambda make: make((1, 5, 1)).expand(SHAPE),
}


def incoming(value: Tensor) -> Tensor:
    """A grad_output that every dtype can represent, and that is nowhere 0."""
    drawn = torch.randint(-8, 8, value.shape, generator=torch.Generator().manual_seed(3))
    return ((drawn + 0.5) / 8).to(value)


def results(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], grad_output: float | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """The value, and the gradients of all tensors; `grad_output` is a number, or drawn."""
    leaves = [leaf(x) for x in tensors]
    value = function(*leaves, **options)
    given = incoming(value) if grad_output is None else torch.full_like(value, grad_output)
    return value.detach(), *torch.autograd.grad(value, leaves, given)


def allowed(device: str, kernels: float) -> float:
    """In ulp, if the kernels are held to `kernels`; without kernels PyTorch's own roundings add up."""
    return kernels if device in DEVICES else 4.0


def largest(x: Tensor) -> float:
    """The scale for errors of terms of both signs."""
    return x.abs().nan_to_num().max().item() if x.numel() else 0.0


class Third:
    """A loss and its third operand, `parameter`."""

    def __init__(self, spec: LossSpec, third: Argument) -> None:
        self.spec = spec
        self.name, self.function, self.module = spec.name, spec.function, spec.module
        self.parameter = third.name
        self.keyword = third.name if third.default is None else f"{third.name}_tensor"  # of the op
        self.low, self.high = (0.05, 0.95) if third.interval == "in (0, 1)" else (0.5, 4.0)

    def operands(
        self, shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Without ties, kinks and targets beyond [0, 1]."""
        input = 3 * torch.randn(shape, dtype=torch.float64)
        target = torch.rand(shape, dtype=torch.float64)
        return input.to(device, dtype), target.to(device, dtype)

    def third(self, shape: tuple[int, ...], device: str, dtype: torch.dtype = torch.float32) -> Tensor:
        found = self.low + (self.high - self.low) * torch.rand(shape, dtype=torch.float64)
        return found.to(device, dtype)

    def call(self, input: Tensor, target: Tensor, third: Any, **options: Any) -> Tensor:
        return getattr(cudaloss, self.function)(input, target, **{self.parameter: third}, **options)

    def op(self, input: Tensor, target: Tensor, third: Tensor, **options: Any) -> Tensor:
        """The op, which broadcasts; PyTorch's loss may refuse to."""
        public = getattr(torch.ops.cudaloss, self.name)
        return public(input, target, **{self.keyword: third}, **options)

    def spelled_out(
        self,
        input: Tensor,
        target: Tensor,
        third: Any,
        *,
        reduction: str = "mean",
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | None = None,
        scale: float = 1.0,
        batch_dims: int = 0,
    ) -> Tensor:
        if not isinstance(third, Tensor):
            third = torch.tensor(third, dtype=input.dtype, device=input.device)
        if mask is not None:  # nothing that it leaves out may show, not even in a derivative
            input, target, third = (torch.where(mask, x, 0.5) for x in (input, target, third))
        value = symbolic.term(self.spec, symbolic.LOSS, torch, input, target, third).number
        value = value.expand(torch.broadcast_shapes(input.shape, target.shape))
        return reduced(value, reduction, weight, mask, normalizer, scale, batch_dims, self.spec.mean_over_count)


THIRDS = {spec.name: Third(spec, spec.parameter) for spec in SPECS if spec.parameter and not has_domain(spec)}
BCE = "binary_cross_entropy_with_logits"
