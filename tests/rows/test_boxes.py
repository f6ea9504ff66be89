"""Losses of pairs of boxes against torchvision's formulas in float64. What all losses of rows share is tested with
those of vectors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import cudaloss
from exact_boxes import EDGES, TRUTHS, drawn
from oracle import DTYPES

of_losses = pytest.mark.parametrize("name", TRUTHS)
of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def ours(name: str):
    return getattr(cudaloss, f"{name}_loss")


def assert_right(name: str, boxes: tuple[Tensor, ...], incoming: Tensor | None = None, **own) -> None:
    """Losses and gradients of both: to one unit in the last place, or to float64's digits of the terms that they are
    differences of: of 1, and of 1 over a side."""
    leaves = [x.detach().requires_grad_() for x in boxes]
    exact = [x.detach().cpu().double().requires_grad_() for x in boxes]
    value, truth = ours(name)(*leaves, **own), TRUTHS[name](*exact, **own)
    incoming = (torch.rand(truth.shape) + 0.5).to(value) if incoming is None else incoming
    assert value.shape == truth.shape and value.dtype == torch.promote_types(boxes[0].dtype, boxes[1].dtype)
    assert_close(value, truth.detach(), torch.ones_like(truth))
    wanted = torch.autograd.grad(truth, exact, incoming.cpu().double())
    side = torch.stack([(x[..., 2:] - x[..., :2]).amin(-1, keepdim=True).detach() for x in exact]).amin(0)
    for leaf, found, right in zip(leaves, torch.autograd.grad(value, leaves, incoming), wanted, strict=True):
        assert found.dtype == leaf.dtype
        assert_close(found, right, (1 / side.clamp(min=2.0**-10)).expand_as(right))


def assert_close(found: Tensor, right: Tensor, terms: Tensor) -> None:
    spacing = torch.finfo(found.dtype).eps if found.dtype != torch.float64 else 0.0
    bound = spacing * right.abs() + 2.0**-46 * terms + torch.finfo(found.dtype).smallest_normal * spacing
    assert ((found.cpu().double() - right).abs() <= bound).all()


@of_losses
@of_dtypes
@pytest.mark.parametrize("shape", [(1,), (7,), (1000,), (3, 50), (2, 3, 5, 7), (200_003,)])
def test_boxes(device, name, dtype, shape):
    assert_right(name, drawn(shape, dtype, device))


@of_losses
def test_two_dtypes(device, name):
    first, second = drawn((100,), device=device)
    assert_right(name, (first.bfloat16(), second))
    assert_right(name, (first, second.half()))
    assert_right(name, (first.double(), second))


@of_losses
def test_layouts(device, name):
    first, second = drawn((60,), device=device)
    across = [x.mT.contiguous().mT for x in (first, second)]
    wide = torch.zeros(60, 9, device=device)
    wide[:, 3:7] = second
    for boxes in (across, (first, across[1]), (first, wide[:, 3:7]), (first[::2], second[1::2]), (first[0], second[0])):
        assert_right(name, tuple(boxes))
    pairs = [x.clone().requires_grad_() for x in (first, second[:20])]
    whole = [x.clone().requires_grad_() for x in (first[:, None].repeat(1, 20, 1), second[:20].repeat(60, 1, 1))]
    value, expected = ours(name)(pairs[0][:, None], pairs[1]), ours(name)(*whole)
    assert torch.equal(value, expected)
    found, single = torch.autograd.grad(value.sum(), pairs), torch.autograd.grad(expected.sum(), whole)
    torch.testing.assert_close(found, (single[0].sum(1), single[1].sum(0)))


@of_losses
def test_edges(device, name):
    """Ends that are equal share the gradient, as in PyTorch's max and min; boxes without area have finite results."""
    first, second = (x.to(device) for x in EDGES)
    known = torch.ones(len(first), dtype=torch.bool, device=device)
    if name == "complete_box_iou":  # torchvision's angles of boxes without a height are NaN, or have NaN gradients
        known = torch.stack([x[:, 3] > x[:, 1] for x in (first, second)]).all(0)
    for dtype in (torch.float32, torch.float64):
        boxes = [x.to(dtype) for x in (first, second)]
        assert_right(name, tuple(x[known] for x in boxes))
        leaves = [x.clone().requires_grad_() for x in boxes]
        value = ours(name)(*leaves)
        value.sum().backward()
        assert value.isfinite().all() and all(x.grad.isfinite().all() for x in leaves)
        assert value[0].abs() < 1e-6


def test_angles_of_boxes_without_a_height(device):
    """pi / 2 of a line; a point has none."""
    line, point, square = torch.tensor([[0.0, 0, 3, 0], [1, 1, 1, 1], [0, 0, 3, 3]], dtype=torch.float64, device=device)
    rest = cudaloss.distance_box_iou_loss(torch.stack((line, point)), square.expand(2, 4))
    found = cudaloss.complete_box_iou_loss(torch.stack((line, point)), square.expand(2, 4)) - rest
    v = torch.tensor([(2 * (1 / 2 - 1 / 4)) ** 2, 0.0], dtype=torch.float64, device=device)
    torch.testing.assert_close(found, v * v / (1 + v + 1e-7))


@of_losses
def test_eps(device, name):
    boxes = [x / 1000 for x in drawn((50,), device=device)]
    for eps in (1e-3, 0.5):
        assert_right(name, tuple(boxes), eps=eps)


@of_losses
def test_options(device, name):
    first, second = drawn((40,), device=device)
    mask = torch.arange(40, device=device) % 3 != 1
    first[1], second[4, 2] = float("nan"), float("inf")  # of both the mask is False
    weight = torch.rand(40, device=device)
    exact = TRUTHS[name](*(x[mask].double() for x in (first, second)))
    of_mask = weight[mask].double()
    for given, right in (
        ({"reduction": "sum", "mask": mask}, exact.sum()),
        ({"reduction": "mean", "mask": mask}, exact.mean()),
        ({"reduction": "mean", "mask": mask, "weight": weight}, (exact * of_mask).sum() / of_mask.sum()),
        ({"reduction": "mean", "mask": mask, "normalizer": 7}, exact.sum() / 7),
    ):
        leaves = [x.clone().requires_grad_() for x in (first, second)]
        value = ours(name)(*leaves, **given)
        torch.testing.assert_close(value.double(), right, rtol=1e-6, atol=0)
        for gradient in torch.autograd.grad(value, leaves):
            assert gradient.isfinite().all() and not gradient[~mask].any() and gradient[mask].any(-1).all()
    single = ours(name)(first, second, mask=mask)
    assert not single[~mask].any()
    torch.testing.assert_close(single[mask].double(), exact, rtol=1e-6, atol=1e-6)
    each = ours(name)(first[mask][:24].view(4, 6, 4), second[mask][:24].view(4, 6, 4), "mean", batch_dims=1)
    torch.testing.assert_close(each.double(), exact[:24].view(4, 6).mean(1))


@of_losses
def test_derivatives_of_any_order(device, name):
    boxes = tuple(x.double().requires_grad_() for x in drawn((6,), device=device))
    plain = [x.detach().clone().requires_grad_() for x in boxes]
    found, right = (
        torch.autograd.grad(f(*x).sum(), x, create_graph=True) for f, x in ((ours(name), boxes), (TRUTHS[name], plain))
    )
    torch.testing.assert_close(found, right)
    seeds = [torch.randn_like(x) for x in boxes]
    torch.testing.assert_close(
        torch.autograd.grad(found, boxes, seeds), torch.autograd.grad(right, plain, seeds), rtol=1e-6, atol=1e-9
    )
    torch.testing.assert_close(
        torch.func.vmap(torch.func.grad(ours(name)))(*(x.detach() for x in boxes)), right[0].detach()
    )


@of_losses
def test_compiles(device, name):
    first, second = drawn((30,), device=device)
    compiled = torch.compile(ours(name), fullgraph=True, backend="aot_eager")
    leaves = [first.clone().requires_grad_() for _ in range(2)]
    values = [f(x, second, "sum") for f, x in zip((ours(name), compiled), leaves, strict=True)]
    for value in values:
        value.backward()
    assert torch.equal(*values) and torch.equal(leaves[0].grad, leaves[1].grad)


@of_losses
def test_errors(name):
    first, second = drawn((5,))
    for boxes in ((first[:, :3], second[:, :3]), (torch.rand(5, 8), torch.rand(5, 8)), (first[0, :1], second[0, :1])):
        with pytest.raises(
            RuntimeError, match=r"boxes must have 4 corners along the last dimension, \(x1, y1, x2, y2\)"
        ):
            ours(name)(*boxes)
    with pytest.raises(RuntimeError, match="boxes2 must be a floating-point tensor"):
        ours(name)(first, second.long())
    with pytest.raises(RuntimeError, match="boxes1, boxes2 must have shapes that broadcast together"):
        ours(name)(first, second[:3])
    with pytest.raises(RuntimeError, match="eps must be a number > 0, got 0"):
        ours(name)(first, second, eps=0.0)
    with pytest.raises(TypeError, match=r"boxes1 must be a torch\.Tensor"):
        ours(name)([1.0], second)
