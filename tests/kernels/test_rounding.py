"""Roundings that all terms of a result share, which no averaging removes."""

from __future__ import annotations

import mpmath
import pytest
import torch
import torch.nn.functional as F

import cudaloss
from calls import Call
from cudaloss._losses.options import Options
from cudaloss._losses.table import SPECS
from cudaloss.bench.errors import largest_error
from oracle import EXACT_COUNT, bar, error, op
from thirds import allowed

SEEDS = range(40)


@pytest.mark.any_numbers
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1)])
def test_few_differences_repeated_by_broadcasting(spec, device, shape, weighted):
    # PyTorch's own error is up to 3 ulp here, and so was that of float32 arithmetic.
    for seed in SEEDS:
        torch.manual_seed(seed)
        input, target = (torch.randn(shape, device=device).expand(3, 5000) for _ in range(2))
        weight = torch.rand(3, 5000, device=device) if weighted else None
        call = Call(spec, input, target, options=Options(weight=weight))
        assert call.value_error() <= bar(spec, torch.float32)


@pytest.mark.any_numbers
def test_float64_gradients_of_a_scaled_weighted_mean(spec, device):
    # Of multiples of 1/64, so that only the factor and its product with the slope are rounded.
    for seed in SEEDS:
        torch.manual_seed(seed)
        input, target = (torch.randn(30, 22, dtype=torch.float64).mul(64).round().div(64) for _ in range(2))
        weight = torch.rand(30, 22).mul(64).ceil().div(16)
        input, target = input.to(device).requires_grad_(), target.to(device)
        call = Call(spec, input, target, options=Options(weight=weight.to(device), scale=3.0), incoming="1")
        call.assert_right()


@pytest.mark.parametrize("scale", [1.0, 12.0, 400.0])
def test_a_scale_multiplies_no_rounding_of_a_subnormal_slope(device, scale):
    # float32's normal numbers end at exp(-87.3): the scale would show digits that are lost below them.
    spec = next(spec for spec in SPECS if spec.name == "soft_margin")
    target = torch.tensor([1.0, -1.5, 7.0, -100.0], device=device)
    behind = torch.linspace(80, 114, 1000, device=device)[:, None]
    input = (behind / target).requires_grad_()
    (found,) = torch.autograd.grad(op(spec)(input, target, "sum", scale=scale), input)
    call = Call(spec, input, target, "sum", options=Options(scale=scale))
    exact, size = call.exact.gradient(0, torch.ones(()))
    # Without the reference as an excuse, which rounds the slope first.
    assert error(found, exact, torch.float32, size) <= bar(spec, torch.float32, factored=True)


def test_a_float64_slope_down_to_the_smallest_number(device):
    # mpmath, because a double-double has few digits or none here.
    target = torch.tensor([1.0, -1.5, 7.0, -100.0], dtype=torch.float64, device=device)
    behind = torch.linspace(600, 770, 1000, dtype=torch.float64, device=device)[:, None]
    input = (behind / target).requires_grad_()
    target = target.expand(input.shape)
    (found,) = torch.autograd.grad(cudaloss.soft_margin_loss(input, target, reduction="sum"), input)
    with mpmath.workdps(40):
        places = zip(input.flatten().tolist(), target.flatten().tolist(), strict=True)
        exact = [float(-mpmath.mpf(t) / (1 + mpmath.exp(mpmath.mpf(x) * t))) for x, t in places]
    exact = torch.tensor(exact, dtype=torch.float64).view(input.shape)
    assert (exact == 0).any() and (exact != 0).sum() > 3000
    assert error(found, exact, torch.float64) <= 2.0


def test_a_products_rounding_error_is_not_lost(device):
    # Without it these losses were 1.92 to 1.94 ulp off.
    points = (
        (-0.380204499, 0.876465857),
        (-0.46718064, 0.638319314),
        (-0.714222491, 0.407592863),
        (-0.333613545, 0.91396594),
    )
    input, target = (torch.tensor(numbers, device=device) for numbers in zip(*points, strict=True))
    found = cudaloss.soft_margin_loss(input, target, reduction="none")
    assert largest_error(found, F.softplus(-input.double() * target.double()), torch.float32) <= allowed(device, 1.0)


@pytest.mark.cuda
@pytest.mark.parametrize("target", [0.0, 1.0])
def test_a_float32_mean_of_halves_near_1(target):
    # Every float16 from 1/16 to 1, and its distance from 1. The hardware's log2 may be 2^-22 off: 12 ulp of a logarithm
    # of 1/8. Half of these numbers had up to 7.19 ulp on an H100, and 666 with Taylor's polynomial near 1.
    probabilities = torch.arange(0x2C00, 0x3C00, dtype=torch.int16, device="cuda").view(torch.float16)
    given = torch.full((EXACT_COUNT + 1,), target, dtype=torch.float16, device="cuda")
    found = torch.stack(
        [cudaloss.binary_cross_entropy(x.repeat(len(given)), given, dtype=torch.float32) for x in probabilities]
    )
    exact = F.binary_cross_entropy(
        probabilities.double(), torch.full_like(probabilities, target).double(), reduction="none"
    )
    assert largest_error(found, exact, torch.float32) <= 12.0


def test_float64_gradients_of_a_mean_are_rounded_once_on_the_cpu(spec):
    # With a difference of 0.5 every slope is a power of two: only grad_output over the count is rounded.
    target = torch.zeros(200, dtype=torch.float64)
    for count in range(3, 200):
        for grad_output in (3.0, 7.0, 0.3):
            input = torch.full((count,), 0.5, dtype=torch.float64, requires_grad=True)
            value = op(spec)(input, target[:count])
            (found,) = torch.autograd.grad(value, input, value.new_tensor(grad_output), retain_graph=True)
            (slope,) = torch.autograd.grad(op(spec)(input, target[:count], "sum"), input)
            if not spec.is_rational:  # whose slope is no power of two
                torch.testing.assert_close(found, slope * (grad_output / count), rtol=1e-15, atol=0)
            else:
                assert (found == slope * (grad_output / count)).all()
