"""Every loss, forward and backward, on every device, against its definition in float64 on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import functional, reference
from .._options import NONE, Options
from .._specs import LossSpec
from ..bench.domains import suited

TOLERANCE = 1e-6  # of the largest element of the exact result: 8 units in the last place of float32
SHAPE = (5, 1003)  # rows that no vector divides


def _calls(spec: LossSpec) -> list[tuple[Tensor, Tensor, Options]]:
    """A plain call, and one with a weight and a mask for each row."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(SHAPE, generator=generator)
    input = target + 2 * torch.randn(SHAPE, generator=generator)
    if spec.inputs != "real":
        input = suited(torch.rand(SHAPE, generator=generator), spec.inputs)
    if spec.targets != "real":
        target = suited(torch.rand(SHAPE, generator=generator), spec.targets)
    weight = torch.rand(SHAPE, generator=generator) + 0.5
    mask = torch.rand(SHAPE, generator=generator) < 0.75
    return [(input, target, NONE), (input, target, Options(weight=weight, mask=mask, batch_dims=1))]


def _found(spec: LossSpec, input: Tensor, target: Tensor, options: Options, device: str) -> list[Tensor]:
    input, target = (x.to(device).detach().requires_grad_() for x in (input, target))
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in options._asdict().items()}
    value = getattr(functional, spec.function)(input, target, reduction="mean", **spec.needed, **given)
    value.sum().backward()
    assert input.grad is not None and target.grad is not None
    return [value.detach(), input.grad, target.grad]


def _exact(spec: LossSpec, input: Tensor, target: Tensor, options: Options) -> list[Tensor]:
    input, target = (x.double().requires_grad_() for x in (input, target))
    value = reference.loss(spec, input, target, "mean", spec.default, torch.float64, options, spec.second_default)
    return [value.detach(), *torch.autograd.grad(value.sum(), (input, target))]


def _error(found: Tensor, exact: Tensor) -> float:
    return float((found.cpu().double() - exact).abs().max() / exact.abs().max())


def usable(device: str) -> str | None:
    """What PyTorch's own kernels say there; None where they work."""
    try:
        (torch.ones(3, device=device) + 1).sum().item()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(spec: LossSpec, device: str) -> dict[str, Any]:
    """Whether the loss and its gradients are right there, by how much they are off, what was raised."""
    result: dict[str, Any] = {"loss": spec.name, "device": device, "error": None, "message": None}
    try:
        errors = [
            _error(found, exact)
            for call in _calls(spec)
            for found, exact in zip(_found(spec, *call, device), _exact(spec, *call), strict=True)
        ]
    except Exception as error:
        return {**result, "passed": False, "message": str(error)}
    if any(error != error for error in errors):
        return {**result, "passed": False, "message": "the result has NaN"}
    largest = max(errors)
    message = None if largest <= TOLERANCE else f"off by {largest:.1e} of the exact result, more than {TOLERANCE:.0e}"
    return {**result, "passed": message is None, "error": largest, "message": message}
