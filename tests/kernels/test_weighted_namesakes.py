"""weight= means what it means to PyTorch's function of the same name: what a mean divides by, and its place."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._call.modes import FOR_INPUT, REDUCTIONS, pack
from cudaloss._losses.table import PUBLIC, SPECS, LossSpec, OfDifference
from cudaloss._ops import private
from oracle import leaf

# The losses of elements whose namesake has a weight: both binary cross entropies, mse, l1 and huber.
WEIGHTED = [spec for spec in SPECS if "weight" in inspect.signature(getattr(F, spec.function, len)).parameters]
of_weighted = pytest.mark.parametrize("loss", WEIGHTED, ids=lambda loss: loss.name)


def drawn(loss: LossSpec, device: str):
    """float64 operands within the loss's domain, a weight whose mean is not 1, and a mask."""
    x, t, w = torch.rand(3, 6, 5, 7, dtype=torch.float64, device=device) * 0.8 + 0.1
    if loss.inputs == "real":
        x, t = 6 * x - 3, 2 * t
    return x, t, 3 * w, torch.rand(x.shape, device=device) < 0.6


def value_and_gradients(loss: LossSpec, call, x, t, w):
    """By input, target and weight; PyTorch's binary cross entropies have a gradient of the input alone."""
    operands = [x, t, w]
    wanted = 3 if isinstance(loss.terms, OfDifference) else 1
    operands[:wanted] = leaves = [leaf(y) for y in operands[:wanted]]
    value = call(*operands)
    incoming = torch.linspace(-1, 2, value.numel(), dtype=value.dtype, device=x.device).view(value.shape) + 0.1
    return value, *torch.autograd.grad(value, leaves, incoming)


def test_which_losses_have_a_weight_as_pytorch_has():
    """If a loss of another kind gets one, or PyTorch's smooth_l1_loss does, a test of it belongs here."""
    of_rows = {spec.function for spec in PUBLIC if spec.of_rows and spec.weight_first}
    for spec in PUBLIC:
        namesake = getattr(F, spec.function, None)
        if namesake and "weight" in inspect.signature(namesake).parameters:
            assert spec in WEIGHTED or spec.function in of_rows
            assert "weight" in spec.of_function
    assert {"mse", "huber", "l1"} <= {spec.name for spec in WEIGHTED}


@of_weighted
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_values_and_gradients_are_the_namesakes(loss, device, reduction):
    x, t, w, mask = drawn(loss, device)
    ours, theirs = getattr(cudaloss, loss.function), getattr(F, loss.function)

    def selected(x, t, w):
        return theirs(x[mask], t[mask], weight=w[mask], reduction=reduction)

    expected = value_and_gradients(loss, lambda x, t, w: theirs(x, t, weight=w, reduction=reduction), x, t, w)
    found = value_and_gradients(loss, lambda x, t, w: ours(x, t, weight=w, reduction=reduction), x, t, w)
    torch.testing.assert_close(found, expected)
    fused = ours(x, t, weight=w, reduction=reduction)  # the kernels: nothing requires a gradient
    torch.testing.assert_close(fused, expected[0])
    if reduction != "none":
        found = value_and_gradients(loss, lambda x, t, w: ours(x, t, weight=w, mask=mask, reduction=reduction), x, t, w)
        torch.testing.assert_close(found, value_and_gradients(loss, selected, x, t, w))
    if not loss.weight_first:  # the module takes it with each call; PyTorch's has none
        module = getattr(cudaloss, loss.module)(reduction=reduction)
        torch.testing.assert_close(module(x, t, weight=w), expected[0])


@of_weighted
def test_every_route_divides_alike(loss, device):
    x, t, w, _ = drawn(loss, device)
    y = leaf(x)
    theirs = getattr(F, loss.function)(y, t, weight=w)
    of_x = torch.autograd.grad(theirs, y)[0]

    def call(x):
        return getattr(cudaloss, loss.function)(x, t, weight=w)

    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    for each in (call, compiled):
        y = leaf(x)
        value = each(y)
        torch.testing.assert_close(value, theirs)
        torch.testing.assert_close(torch.autograd.grad(value, y)[0], of_x)
    torch.testing.assert_close(torch.func.grad(call)(x), of_x)
    torch.testing.assert_close(torch.func.jvp(call, (x,), (w,))[1], (of_x * w).sum())
    traced = torch.fx.experimental.proxy_tensor.make_fx(call)(x)
    torch.testing.assert_close(traced(x), theirs)


@of_weighted
def test_a_weight_has_the_namesakes_place(loss):
    x, t, w, _ = drawn(loss, "cpu")
    names = [*inspect.signature(getattr(F, loss.function)).parameters]
    usual = {"reduction": "mean", "delta": 1.0}
    given = [usual.get(name) for name in names[2 : names.index("weight")]]
    found = getattr(cudaloss, loss.function)(x, t, *given, w)
    torch.testing.assert_close(found, getattr(F, loss.function)(x, t, weight=w))


def test_a_kept_graph_keeps_its_denominator(device):
    """huber's mode was without MEAN_OVER_COUNT: a graph with that mode divides by the weights, also in what the
    reference computes for it."""
    (huber,) = [spec for spec in SPECS if spec.name == "huber"]
    x, t, w, _ = drawn(huber, device)
    x = leaf(x)
    losses = F.huber_loss(x, t, reduction="none")
    for mode, expected in ((huber.mode, (losses * w).mean()), (huber.id, (losses * w).sum() / w.sum())):
        how = pack("mean", torch.float64, mode) | FOR_INPUT
        value = private.op("forward")(x, t, how, 1.0, 1.0, w)[0]
        torch.testing.assert_close(value, expected)
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        expected_slope = torch.autograd.grad(expected, x, create_graph=True)[0]
        torch.testing.assert_close(slope, expected_slope)
        second = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in (slope, expected_slope)]
        torch.testing.assert_close(*second)
