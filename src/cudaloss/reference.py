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
    if 1 in (input.dtype.itemsize, target.dtype.itemsize):  # 8-bit floats, which PyTorch does not promote
        promoted = input.dtype if input.dtype == target.dtype else torch.float32
    else:
        promoted = torch.result_type(input, target)
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
    """The gradients of :func:`loss` for input and target, where `needed`; differentiable where grad mode is on."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views of their own: input and target may be one tensor, or depend on each other.
        a, b = (x.view_as(x) if create_graph else x.detach() for x in (input, target))
        for operand in (a, b):
            if not operand.requires_grad:
                operand.requires_grad_()
        value = loss(spec, a, b, reduction, parameter, dtype)
        wanted = [operand for operand, need in zip((a, b), needed, strict=True) if need]
        found = iter(torch.autograd.grad(value, wanted, grad_output, create_graph=create_graph))
    return (next(found) if needed[0] else None, next(found) if needed[1] else None)
