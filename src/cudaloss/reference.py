"""Each loss in plain PyTorch: the definition, the fallback of the ops and the tests' oracle.

It runs on every device, layout and floating dtype, under every transform and in every autograd mode, and costs what a
chain of PyTorch kernels costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._specs import LossSpec

__all__ = ["gradients", "loss", "result_dtype"]


def result_dtype(input: Tensor, target: Tensor, dtype: torch.dtype | None, autocast: bool) -> torch.dtype:
    """The dtype of the loss: `dtype`, else the promoted one, in at least float32 under autocast."""
    if dtype is not None:
        return dtype
    if input.dtype == target.dtype:
        promoted = input.dtype
    elif 1 in (input.dtype.itemsize, target.dtype.itemsize):  # 8-bit floats, which PyTorch does not promote
        promoted = torch.float32
    else:
        promoted = torch.promote_types(input.dtype, target.dtype)
    return torch.promote_types(promoted, torch.float32) if autocast else promoted


def loss(spec: LossSpec, input: Tensor, target: Tensor, reduction: str, parameter: float, dtype: torch.dtype) -> Tensor:
    """The loss of `spec` in float32 arithmetic (float64 where a dtype is), rounded to `dtype` at the end."""
    float64 = torch.float64 in (input.dtype, target.dtype, dtype)
    compute = torch.float64 if float64 else torch.float32
    value = spec.value(input.to(compute) - target.to(compute), parameter)
    if reduction == "mean":
        value = value.mean()
    elif reduction == "sum":
        value = value.sum()
    return value.to(dtype)


def gradients(
    spec: LossSpec,
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: float,
    dtype: torch.dtype,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of :func:`loss` for input and target, where `needed`; differentiable where grad mode is on.

    Through ``torch.func``, so that a transform around a backward alone finds composite ops here too.
    """
    operands = (input, target)

    def of_needed(*replaced: Tensor) -> Tensor:
        found = iter(replaced)
        a, b = (next(found) if need else operand for operand, need in zip(operands, needed, strict=True))
        return loss(spec, a, b, reduction, parameter, dtype)

    wanted = [operand for operand, need in zip(operands, needed, strict=True) if need]
    vjp = torch.func.vjp(of_needed, *wanted)[1]
    found = iter(vjp(grad_output))
    return (next(found) if needed[0] else None, next(found) if needed[1] else None)
