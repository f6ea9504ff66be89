"""Operands made in inference mode: a frozen teacher's logits, a target network's values."""

from __future__ import annotations

import pytest
import torch

import cudaloss
from cudaloss._losses.table import OF_ROWS
from cudaloss.bench.domains import suited
from oracle import operands, public

SHAPE = (6, 5)


def made_in_inference_mode(x):
    with torch.inference_mode():
        return x.clone()


def assert_alike(call, input, given, create_graph=False):
    """The loss and its gradient, twice from one graph, as with normal tensors."""
    found = []
    for made in (lambda x: x.clone(), made_in_inference_mode):
        leaf = input.clone().requires_grad_()
        value = call(leaf, **{name: made(x) for name, x in given.items()})
        loss = (value * 3).sum()
        gradients = [torch.autograd.grad(loss, leaf, retain_graph=True)[0] for _ in range(2)]
        if create_graph:
            (slope,) = torch.autograd.grad(loss, leaf, create_graph=True)
            if slope.requires_grad:  # nll_loss is linear
                gradients.append(torch.autograd.grad(slope.square().sum(), leaf)[0])
        found.append((value.detach(), *gradients))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


@pytest.mark.every_loss
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_target_and_options(spec, device, reduction):
    input, target = operands(SHAPE, (torch.float32,) * 2, device)
    beside = {"weight": torch.rand(SHAPE[1], device=device) + 0.5, "mask": torch.rand(SHAPE, device=device) > 0.3}
    third = {spec.parameter.name: torch.rand(SHAPE, device=device) + 0.5} if spec.parameter else {}
    if spec.parameter and spec.parameter.interval == "in (0, 1)":
        third = {spec.parameter.name: torch.full(SHAPE, 0.3, device=device)}
    call, other = public(spec, reduction=reduction), {spec.operands[1]: target}
    assert_alike(call, input, other, create_graph=True)
    assert_alike(call, input, {**other, **third}, create_graph=True)
    assert_alike(call, input, {**other, **beside, **third})
    if reduction == "mean":
        assert_alike(call, input, {**other, "normalizer": torch.tensor(7.0, device=device)}, create_graph=True)


def test_input(device):
    input, target = torch.randn(SHAPE, device=device), torch.randn(SHAPE, device=device)
    assert_alike(lambda target, input: cudaloss.mse_loss(input, target), target, {"input": input}, create_graph=True)


@pytest.mark.parametrize("loss", OF_ROWS, ids=lambda spec: spec.name)
def test_rows(loss, device):
    spec = loss
    shape = (*SHAPE[:-1], 4) if spec.reads == "boxes" else SHAPE
    x, t, third = (suited(torch.rand(shape, device=device), spec.inputs) for _ in range(3))
    index = torch.tensor([0, 1, 4, 2, 2, 3], device=device)
    label = torch.tensor([1, -1, 1, 1, -1, -1], device=device)
    call = getattr(cudaloss, spec.function)
    first, *names = spec.operands
    beside = {"target": index} if spec.reads == "index" else {"target": t.softmax(1)} if spec.reads == "classes" else {}
    if not beside:
        labels = third if spec.differentiable_third else label
        beside = dict(zip(names, (t, labels), strict=False))
    mask = {"mask": torch.rand(SHAPE[0], device=device) > 0.3}
    weight = {"weight": torch.rand(SHAPE[1], device=device)} if spec.reads in ("classes", "index") else {}
    for given in (beside, {**beside, **mask, **weight}):
        assert_alike(lambda x, **given: call(**{first: x}, **given), x, given, create_graph=True)
    if spec.name == "cross_entropy":
        assert_alike(call, x, {"target": index, **weight}, create_graph=True)


def test_under_transforms_and_a_differentiable_weight():
    input, target = torch.randn(SHAPE), made_in_inference_mode(torch.randn(SHAPE))
    expected = torch.func.grad(cudaloss.smooth_l1_loss)(input, target.clone())
    torch.testing.assert_close(torch.func.grad(cudaloss.smooth_l1_loss)(input, target), expected)
    weight = torch.rand(SHAPE[1], requires_grad=True)
    cudaloss.smooth_l1_loss(input, target, weight=weight).backward()
    assert weight.grad is not None


def test_changed_in_place_inside_of_inference_mode():
    """PyTorch does not see such a change, in its own losses neither: the gradient was made in the forward pass."""
    input, target = torch.randn(SHAPE, requires_grad=True), made_in_inference_mode(torch.randn(SHAPE))
    expected = torch.autograd.grad(cudaloss.mse_loss(input, target.clone()), input)[0]
    value = cudaloss.mse_loss(input, target)
    with torch.inference_mode():
        target.zero_()
    torch.testing.assert_close(torch.autograd.grad(value, input)[0], expected)
