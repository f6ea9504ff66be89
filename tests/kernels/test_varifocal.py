"""The varifocal loss: autograd of its formula in float64, digits in both tails, and what it is where it ends."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from cudaloss._call.modes import REDUCTIONS
from cudaloss._losses.table import SPECS
from cudaloss.bench.rivals import COMPOSED
from exact import Exact
from oracle import error, leaf
from thirds import allowed

inf, nan = torch.inf, torch.nan
SPEC = next(spec for spec in SPECS if spec.name == "varifocal")
GAMMAS = (2.0, 1.5, 1.0, 0.5, 0.0, 3.0)


def plain(x: Tensor, t: Tensor, reduction: str, alpha: Tensor | float = 0.75, gamma: float = 2.0) -> Tensor:
    positive = t * F.binary_cross_entropy_with_logits(x, t, reduction="none")
    found = torch.where(t > 0, positive, alpha * x.sigmoid() ** gamma * F.softplus(x))
    return found if reduction == "none" else getattr(found, reduction)()


def drawn(device, dtype=torch.float64):
    x, score = 4 * torch.randn(400, dtype=torch.float64), torch.rand(400, dtype=torch.float64)
    t = torch.where(torch.rand(400) < 0.6, 0, score)
    t[:4] = torch.tensor([0.0, 1.0, 1e-3, 0.5])
    return x.to(device, dtype), t.to(device, dtype)


def results(function, operands, **own):
    leaves = [leaf(x) for x in operands]
    value = function(*leaves, **own)
    return value.detach(), *torch.autograd.grad(value, leaves, torch.ones_like(value))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_value_and_gradients(device, dtype, gamma):
    """Through the weight too, and of the score; in an alpha that is learnt."""
    x, t = drawn(device, dtype)
    for reduction, alpha in itertools.product(REDUCTIONS, (0.75, 0.0, 2.0)):
        own = {"reduction": reduction, "alpha": alpha, "gamma": gamma}
        found = results(cudaloss.varifocal_loss, (x, t), **own)
        truth = results(plain, (x.double(), t.double()), **own)
        for ours, expected in zip(found, truth, strict=True):
            torch.testing.assert_close(ours, expected.to(dtype))
    for shape in ((), (400,)):
        alpha = torch.rand(shape, device=device, dtype=dtype) + 0.5
        found = results(lambda x, t, a: cudaloss.varifocal_loss(x, t, alpha=a, gamma=gamma), (x, t, alpha))
        truth = results(lambda x, t, a: plain(x, t, "mean", a, gamma), (x.double(), t.double(), alpha.double()))
        for ours, expected in zip(found, truth, strict=True):
            torch.testing.assert_close(ours, expected.to(dtype))


def test_its_composition_is_the_same(device):
    """As mmdetection has it."""
    x, t = drawn(device)
    for reduction in REDUCTIONS:
        found = results(cudaloss.varifocal_loss, (x, t), reduction=reduction)
        expected = results(COMPOSED["varifocal"], (x, t), reduction=reduction)
        for ours, theirs in zip(found[:2], expected[:2], strict=True):
            torch.testing.assert_close(ours, theirs)
    module = cudaloss.VarifocalLoss(alpha=0.5, gamma=1.5)
    assert repr(module) == "VarifocalLoss(reduction='mean', alpha=0.5, gamma=1.5)"
    torch.testing.assert_close(module(x, t), plain(x, t, "mean", 0.5, 1.5))


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("target", [0.0, 1.0, 0.3, 0.999])
def test_digits(device, target, gamma):
    """Within 2 ulp of the larger term, down to the smallest numbers, and 0 below them."""
    for low, high in ((-120, -20), (-20, 0), (0, 20), (20, 120)):
        x = torch.linspace(low, high, 20_001, device=device)
        t = torch.full_like(x, target)
        exact = Exact(SPEC, x, t, "none", 0.3, second=gamma)
        value, *gradients = results(cudaloss.varifocal_loss, (x, t), reduction="none", alpha=0.3, gamma=gamma)
        assert error(value, exact.value, torch.float32, exact.size) <= allowed(device, 2.0)
        for place, found in enumerate(gradients):
            truth, size = exact.gradient(place, torch.ones(len(x)))
            assert error(found, truth, torch.float32, size) <= allowed(device, 2.0)


@pytest.mark.parametrize("gamma", GAMMAS)
def test_ends(device, gamma):
    x = torch.tensor([inf, -inf, inf, -inf, inf, -inf, nan, 0.0], device=device)
    t = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 0.5, 0.0, nan], device=device)
    value, of_x, of_t = results(cudaloss.varifocal_loss, (x, t), reduction="none", alpha=0.75, gamma=gamma)
    assert value.tolist()[:6] == [inf, 0.0, 0.0, inf, inf, inf]
    assert of_x.tolist()[:6] == [0.75, 0.0, 0.0, -1.0, 0.25, -0.25]
    assert of_t.tolist()[:6] == [0.0, 0.0, -inf, inf, 0.0, inf]
    assert all(found[6:].isnan().all() for found in (value, of_x, of_t))


def test_negatives_without_a_weight(device):
    """Also of infinite logits; and a negative number as a target is one of a negative."""
    x = torch.tensor([inf, -inf, 1.0, nan], device=device)
    for alpha in (0.0, torch.zeros(4, device=device)):
        value, of_x = results(
            lambda x, a=alpha: cudaloss.varifocal_loss(x, 0 * x.detach().nan_to_num(), "none", a), [x]
        )
        assert value.tolist()[:3] == of_x.tolist()[:3] == [0.0] * 3 and value[3].isnan() and of_x[3].isnan()
    x = torch.randn(50, device=device)
    for ours, theirs in zip(
        results(lambda x: cudaloss.varifocal_loss(x, torch.full_like(x, -0.5)), [x]),
        results(lambda x: cudaloss.varifocal_loss(x, torch.zeros_like(x)), [x]),
        strict=True,
    ):
        assert torch.equal(ours, theirs)
