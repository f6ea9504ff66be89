"""The exact values in float64, and the calls that are compared with them."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from cudaloss._call.call import Call
from cudaloss._call.modes import DTYPES
from cudaloss._losses.table import LossSpec, OfTwo
from cudaloss._reference import definition
from cudaloss.bench import symbolic
from cudaloss.bench.errors import compensated_sum, largest_error
from exact import Exact

HALVES = DTYPES[2:]
# Of input and target: each arithmetic of the engines, which every loss has; and the other pairs, which share these.
ARITHMETICS = [*((dtype, dtype) for dtype in DTYPES), (torch.bfloat16, torch.float32)]
MIXED = [pair for pair in itertools.product(DTYPES, DTYPES) if pair not in ARITHMETICS]

# The third operand's numbers, by where they must lie; 0.3 and 2.3 are not exact in float32. None: anywhere.
SECONDS = {  # the second number's
    None: (0.0, 0.5, -0.25),
    "in [0, 1]": (0.0, 0.0, 0.125),
    "that is 1 or 2": (1.0, 2.0),
    ">= 0": (2.0, 0.5, 1.3),
}
PARAMETERS = {
    None: (1.0, 0.5, 2.3, 0.0, -0.3),
    ">= 0": (1.0, 0.5, 2.3, 0.0),
    "> 0": (1.0, 0.5, 0.3),
    "in (0, 1)": (0.5, 0.3, 0.9),
    "<= 1": (0.25, 0.5, 0.3),
}


def parameters(spec: LossSpec) -> tuple[float, ...]:
    return PARAMETERS[spec.parameter.interval] if spec.parameter else (spec.default,)


def op(spec: LossSpec):
    """The public op of `spec`, taking its parameter as the fourth argument whether it has one or not, and where it has
    one, a number or a tensor."""
    third = spec.parameter
    public = partial(getattr(torch.ops.cudaloss, spec.name), **spec.flag_values)
    if third is None:
        return lambda input, target, reduction="mean", _=0.0, **options: public(input, target, reduction, **options)

    def call(input, target, reduction="mean", parameter=spec.default, **options):
        if third.name in options:
            parameter = options.pop(third.name)
        if third.default is not None:
            key = f"{third.name}_tensor" if isinstance(parameter, Tensor) else third.name
        else:  # a tensor, or nothing
            key = third.name
            if not isinstance(parameter, Tensor):
                wide = torch.tensor(parameter, dtype=torch.float64)
                parameter = None if parameter == 1.0 and not third.of_call else wide.to(input.device)
        return public(input, target, **{key: parameter}, reduction=reduction, **options)

    return call


# Each factor (a pos_weight, label smoothing, a weight or a grad_output other than 1) rounds once more: 3.94 ulp were
# seen for BCE, and 1.91 without factors (docs/numerics.md).
FACTORED = 2.0


def bar(spec: LossSpec, dtype: torch.dtype, usual: float = 1.0, factored: bool = False) -> float:
    """The error in ulp that a result of `dtype` may have, where it is `usual` for losses of a few exact steps."""
    if spec.ulps == 1:  # of roots and margins a single result is not rounded once, but nearly
        return usual if spec.is_rational else max(usual, 1.0)
    if dtype in HALVES:
        return max(usual, 1.0)
    return max(usual, spec.ulps * (FACTORED if factored else 1.0))


# The same of a float32 sum of more than EXACT_COUNT halves (csrc/core/plan.h) on a GPU, whose terms have the digits
# that a half needs: up to 12 ulp for binary_cross_entropy, more far in the tails (docs/numerics.md).
EXACT_COUNT, OF_HALVES = 1024, 16.0


def largest_logit(device: str, dtype: torch.dtype) -> float:
    """A GPU's arithmetic for halves has no subnormal exponentials, of which bfloat16's range would show it."""
    return 87.0 if device == "cuda" and dtype == torch.bfloat16 else math.inf


def torch_op(spec: LossSpec):
    """PyTorch's namesake of a loss of the difference, called like :func:`op`; of another loss the row's formula, in
    PyTorch's kernels: its namesake may lack the target's gradient, forward-mode AD or broadcasting."""
    function = getattr(F, spec.function, None)
    if function is None or isinstance(spec.terms, OfTwo):

        def formula(input: Tensor, target: Tensor, reduction: str = "mean", parameter: float = spec.default) -> Tensor:
            dtype = torch.promote_types(input.dtype, target.dtype)
            input, target = torch.broadcast_tensors(input.to(dtype), target.to(dtype))
            value = symbolic.term(spec, symbolic.LOSS, torch, input, target, parameter).number
            return reduced(value, reduction, None, None, None, 1.0, 0, False)

        return formula

    def call(input: Tensor, target: Tensor, reduction: str = "mean", parameter: float = spec.default) -> Tensor:
        own = {spec.parameter.name: parameter} if spec.parameter else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # unequal shapes
            return function(input, target, reduction=reduction, **own)

    return call


def spelled_out(spec: LossSpec):
    """:func:`torch_op` with the keywords, from ``torch.where`` and products, which every transform supports."""

    def call(input, target, reduction="mean", *, weight=None, mask=None, normalizer=None, scale=1.0, batch_dims=0):
        if mask is not None:
            input, target = (torch.where(mask, x, 0) for x in (input, target))
        value = torch_op(spec)(input, target, "none")
        return reduced(value, reduction, weight, mask, normalizer, scale, batch_dims, spec.mean_over_count)

    return call


def reduced(value, reduction, weight, mask, normalizer, scale, batch_dims, counts_elements):
    """Applies the keywords to single losses; `counts_elements`: a mean divides by their number, not by weights."""
    shape = value.shape
    counts = torch.ones_like(value) if weight is None or counts_elements else weight.expand(shape)
    value = value if weight is None else value * weight
    if mask is not None:
        value, counts = torch.where(mask, value, 0), torch.where(mask, counts, 0)
    if reduction != "none":
        rows = (*shape[:batch_dims], math.prod(shape[batch_dims:]))
        value, counts = value.reshape(rows).sum(-1), counts.reshape(rows).sum(-1)
    if reduction == "mean":
        value = value / (counts if normalizer is None else normalizer)
    return value if scale == 1 else value * scale  # whose tangent would be of float64


def exact_loss(
    spec: LossSpec,
    input: Tensor,
    target: Tensor,
    reduction: str,
    parameter: float,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """The loss in float64, to judge results of `dtype`; a reduction from the exact sum of its float64 terms."""
    if not spec.is_rational:
        return Exact(spec, input, target, reduction, parameter, of_float64=dtype == torch.float64).value
    terms = definition.loss(Call.of(spec, input.double(), target.double(), "none", parameter, torch.float64))
    if reduction == "none":
        return terms
    exactly = compensated_sum(terms) if terms.isfinite().all() else terms.sum().item()
    total = torch.tensor(exactly, dtype=torch.float64)
    return total / terms.numel() if reduction == "mean" else total


def exact_slopes(
    spec: LossSpec, input: Tensor, target: Tensor, reduction: str, parameter: float
) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """The exact gradients of both operands, as a function of grad_output."""
    if spec.is_rational:
        operands = input.detach().double(), target.detach().double()
        call = Call.of(spec, *operands, reduction, parameter, torch.float64)
        return lambda grad_output: definition.gradients(call, grad_output.double(), (True, True))
    found = Exact(spec, input, target, reduction, parameter)
    return lambda grad_output: tuple(
        found.gradient(i, grad_output)[0].to(x.device) for i, x in enumerate((input, target))
    )


def exact_gradients(
    spec: LossSpec, grad_output: Tensor, input: Tensor, target: Tensor, reduction: str, parameter: float
) -> tuple[Tensor, Tensor]:
    return exact_slopes(spec, input, target, reduction, parameter)(grad_output)


def error(found: Tensor, exact: Tensor, dtype: torch.dtype, size: Tensor | None = None) -> float:
    return largest_error(found.cpu(), exact.cpu(), dtype, size)


def leaf(x: Tensor) -> Tensor:
    """A copy of x, laid out alike, whose gradient is asked for."""
    return x.detach().clone().requires_grad_()


TORCH = torch.torch_version.TorchVersion(torch.__version__)  # to compare: TORCH < "2.13"

# PyTorch's slope of max(x, 0) at 0, in its losses with a margin. Ours is PyTorch 2.13's, 1; in 2.15 it is 0.
(TIE_SLOPE,) = torch.autograd.grad((_zero := leaf(torch.zeros(()))).clamp_min(0), _zero)


def with_ties(margin: float, dtype: torch.dtype) -> float:
    """For PyTorch's loss: with the next number an element at the margin has a slope in each version."""
    if TIE_SLOPE == 1:
        return margin
    return torch.nextafter(torch.tensor(margin, dtype=dtype), torch.tensor(math.inf, dtype=dtype)).item()


# Belongs to the running test: its operands are made for this loss. Set by conftest.
suited: list[LossSpec | None] = [None]


def nothing(spec: LossSpec) -> float:
    """An input whose loss is 0 where the target is."""
    zero = torch.zeros(())
    inputs = [x for x in (0.0, -200.0) if torch_op(spec)(zero + x, zero) == 0]
    return inputs[0] if inputs else pytest.skip("no input has a loss of 0 where the target is 0")


def _inside(x: Tensor) -> Tensor:
    return 0.5 + 0.45 * torch.tanh(x)


SUITED = {
    "real": lambda x: x,
    "logits": lambda x: x,
    "in [0, 1]": lambda x: (x > 0).double(),  # hard targets, of which one term remains, and nothing cancels
    "in (0, 1]": _inside,
    "in (0, 1)": _inside,
    "log probabilities": lambda x: -x.abs() - 0.0625,
    "1 or -1": lambda x: torch.where(x > 0, 1.0, -1.0).double(),
    ">= 0": lambda x: (2 * x).abs().floor(),
    "> 0": lambda x: x.abs() + 1.0625,  # beside whose logarithms 80 bits would do
    "logarithms": lambda x: x.clamp(-20, 20),
    "boxes": lambda x: torch.cat((x[..., :2], x[..., :2] + x[..., 2:].abs()), -1),
}


def has_domain(spec: LossSpec) -> bool:
    """Whether the loss is one of certain numbers, or its function asks for more than two operands or has another
    default than the mean, so that a test must know it (``every_loss``)."""
    usual = {"real", "logits"}, {"real", "in [0, 1]", "1 or -1"}
    known = spec.inputs in usual[0] and spec.targets in usual[1]
    return not known or bool(spec.needed) or bool(spec.flags) or spec.reduction != "mean"


def public(spec: LossSpec, **own: object):
    """The function of `spec` with its necessary arguments: a mean, its variant's flags, a third operand of each
    call."""
    return partial(getattr(cudaloss, spec.function), **{"reduction": "mean", **spec.flag_values, **spec.needed, **own})


def of_probabilities(spec: LossSpec | None) -> bool:
    """Whether targets lie in [0, 1]."""
    return spec is not None and spec.targets == "in [0, 1]"


def operands(
    shape: tuple[int, ...], dtypes: tuple[torch.dtype, torch.dtype], device: str, parameter: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Random operands of both branches of every loss, with differences at 0 and exactly at the kink among them.

    float64 has no wider oracle: operands that it is in are multiples of 1/64, on which polynomials of the difference up
    to the fifth degree are exact, so that the roundings that are judged are the kernels' alone.
    """
    target = torch.randn(shape, dtype=torch.float64)
    input = target + 2 * max(parameter, 0.25) * torch.randn(shape, dtype=torch.float64)
    flat_input, flat_target = input.view(-1), target.view(-1)
    if flat_input.numel() >= 8:
        flat_target[:4] = torch.tensor([0.0, 0.0, 1.0, -1.0], dtype=torch.float64) * 4
        flat_input[:4] = flat_target[:4] + torch.tensor([parameter, -parameter, 0.0, parameter], dtype=torch.float64)
    if suited[0] is not None:
        input, target = SUITED[suited[0].inputs](input), SUITED[suited[0].targets](target)
    if torch.float64 in dtypes:
        input, target = (x.mul(64).round().div(64) for x in (input, target))
    return input.to(device, dtypes[0]), target.to(device, dtypes[1])
