"""The truth in float64, and errors counted in units of the last place of the result's dtype."""

from __future__ import annotations

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from cudaloss import reference
from cudaloss._specs import LossSpec

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Where each loss has its kink, and parameters that float32 does not hold exactly.
PARAMETERS = {"smooth_l1": (1.0, 0.5, 0.3, 0.0), "huber": (1.0, 0.5, 0.3)}


def parameters(spec: LossSpec) -> tuple[float, ...]:
    if spec.parameter is None:
        return (spec.default,)
    return PARAMETERS.get(spec.name, (spec.default, 0.3))


def op(spec: LossSpec):
    """The public op of `spec`, taking its parameter as the fourth argument whether it has one or not."""
    public = getattr(torch.ops.cudaloss, spec.name)
    if spec.parameter:
        return public
    return lambda input, target, reduction="mean", _=0.0, **options: public(input, target, reduction, **options)


def torch_op(spec: LossSpec):
    """PyTorch's namesake, called like :func:`op`; the reference for a loss that PyTorch lacks."""
    function = getattr(F, spec.function, None)
    if function is None:
        return lambda input, target, reduction="mean", parameter=spec.default: reference.loss(
            spec, input, target, reduction, parameter, torch.promote_types(input.dtype, target.dtype)
        )

    def call(input: Tensor, target: Tensor, reduction: str = "mean", parameter: float = spec.default) -> Tensor:
        own = {spec.parameter.name: parameter} if spec.parameter else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # unequal shapes
            return function(input, target, reduction=reduction, **own)

    return call


def exact_loss(spec: LossSpec, input: Tensor, target: Tensor, reduction: str, parameter: float) -> Tensor:
    """The loss in float64; a reduction as the correctly rounded sum of its float64 terms where that is cheap."""
    terms = reference.loss(spec, input.double(), target.double(), "none", parameter, torch.float64)
    if reduction == "none":
        return terms
    finite = terms.numel() <= 100_000 and bool(terms.isfinite().all())
    total = torch.tensor(math.fsum(terms.flatten().tolist()), dtype=torch.float64) if finite else terms.sum().cpu()
    return total / terms.numel() if reduction == "mean" else total


def exact_gradients(
    spec: LossSpec, grad_output: Tensor, input: Tensor, target: Tensor, reduction: str, parameter: float
) -> tuple[Tensor, Tensor]:
    operands = (grad_output.double(), input.detach().double(), target.detach().double())
    return reference.gradients(spec, *operands, reduction, parameter, torch.float64, (True, True))


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype` at float64 `value`."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(value, info.eps), exponent)


def error(value: Tensor, exact: Tensor, dtype: torch.dtype) -> float:
    """The largest error of `value` in ulp of `dtype`; 0 where both are the same NaN or Inf, Inf where only one is."""
    value, exact = value.detach().double().cpu(), exact.detach().double().cpu()
    assert value.shape == exact.shape
    if value.numel() == 0:
        return 0.0
    rounded = exact.to(dtype).double()  # may overflow to Inf
    same = (value == rounded) | (value.isnan() & rounded.isnan())
    difference = ((value - exact).abs() / ulp(exact, dtype)).nan_to_num(nan=math.inf)
    return torch.where(same, torch.zeros_like(difference).clamp(max=0.5), difference).max().item()


def operands(
    shape: tuple[int, ...], dtypes: tuple[torch.dtype, torch.dtype], device: str, parameter: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Random operands of both branches of every loss, with differences at 0 and exactly at the kink among them."""
    target = torch.randn(shape, dtype=torch.float64)
    input = target + 2 * max(parameter, 0.25) * torch.randn(shape, dtype=torch.float64)
    flat_input, flat_target = input.view(-1), target.view(-1)
    if flat_input.numel() >= 8:
        flat_target[:4] = torch.tensor([0.0, 0.0, 1.0, -1.0], dtype=torch.float64) * 4
        flat_input[:4] = flat_target[:4] + torch.tensor([parameter, -parameter, 0.0, parameter], dtype=torch.float64)
    return input.to(device, dtypes[0]), target.to(device, dtypes[1])
