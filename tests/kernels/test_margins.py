"""Losses with PyTorch's margins: its values and slopes, at the margins themselves too, and of targets of any number."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._call.modes import REDUCTIONS
from cudaloss._install.build import DEVICES
from cudaloss.bench.errors import largest_error
from oracle import leaf, with_ties

inf, nan = torch.inf, torch.nan
MARGINS = (1.0, 0.3, 0.0, -0.5)


def results(function, operands, wanted, reduction, **own):
    """The value, and the gradients of the first `wanted` operands."""
    leaves = [leaf(x) for x in operands[:wanted]]
    value = function(*leaves, *operands[wanted:], reduction=reduction, **own)
    return value.detach(), *torch.autograd.grad(value, leaves, torch.ones_like(value))


def assert_as_pytorch(name, operands, wanted=1, **own):
    """In the operands' dtype, and in float64. PyTorch rounds a margin to the former: 0.3 to a float32 above it, where
    its loss then has a kink, and ours has none. Halves it rounds in each step."""
    dtype = operands[0].dtype
    for reduction in REDUCTIONS:
        found = results(getattr(cudaloss, name), operands, wanted, reduction, **own)
        same = dtype == torch.float64 or (dtype == torch.float32 and own["margin"] != 0.3)
        for like in (torch.float64, *([dtype] if same else [])):
            given = [x.to(like) if x.is_floating_point() else x for x in operands]
            of_theirs = {**own, "margin": with_ties(own["margin"], like)}
            expected = results(getattr(F, name), given, wanted, reduction, **of_theirs)
            for ours, theirs in zip(found, expected, strict=True):
                torch.testing.assert_close(ours, theirs.to(dtype))


# ---- hinge embedding ----


def distances(device, dtype, margin):
    """With some at the margin, for targets of 1, -1 and others."""
    x = torch.cat([torch.tensor([margin, -margin, 0.0]), 2 * torch.randn(200)]).to(device, dtype)
    return x.repeat(4), torch.tensor([1.0, -1.0, 0.0, 0.5], device=device, dtype=dtype).repeat_interleave(len(x))


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_hinge_embedding_is_pytorchs(device, dtype, margin):
    x, t = distances(device, dtype, margin)
    assert_as_pytorch("hinge_embedding_loss", (x, t), margin=margin)
    assert_as_pytorch("hinge_embedding_loss", (x[: len(x) // 2], t[: len(x) // 2].long()), margin=margin)


@pytest.mark.parametrize("margin", MARGINS)
def test_hinge_embedding_rounds_once(device, margin):
    """Also where input and margin cancel, and where the two parts of another target do."""
    if device not in DEVICES:
        pytest.skip("without kernels each step rounds")
    x, t = distances(device, torch.float32, margin)
    x = torch.cat([x, margin + 2.0**-12 * torch.randn(200, device=device), 1e6 * torch.randn(200, device=device)])
    t = torch.cat([t, -torch.ones(200, device=device), torch.tensor([0.0, 0.5], device=device).repeat(100)])
    found = cudaloss.hinge_embedding_loss(x, t, margin, reduction="none")
    above, other = (x.double() >= margin), (t != 1) & (t != -1)
    exact = torch.where(t == 1, x.double(), torch.where(above, 0.0, margin - x.double()))
    exact = torch.where(other, torch.where(above, x.double(), margin), exact)
    assert largest_error(found, exact, torch.float32) <= 0.51


def test_ends_of_hinge_embedding(device):
    x = torch.tensor([inf, -inf, inf, -inf, -inf, nan, 1.0], device=device).requires_grad_()
    t = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, -1.0, nan], device=device).requires_grad_()
    value = cudaloss.hinge_embedding_loss(x, t, reduction="none")
    of_x, of_t = torch.autograd.grad(value.sum(), (x, t))
    expected = [inf, -inf, 0.0, inf, nan, nan, nan], [1.0, 1.0, 0.0, -1.0, 0.0, nan, nan], [0.0] * 5 + [nan, nan]
    for found, truth in zip((value, of_x, of_t), expected, strict=True):
        torch.testing.assert_close(found.detach().cpu(), torch.tensor(truth), equal_nan=True)


def test_a_learnt_margin_of_hinge_embedding(device):
    """Which PyTorch's does not take: a number or a tensor, 0 and below it too."""
    x, t = distances(device, torch.float64, 0.25)
    for shape, number in itertools.product(((), (len(x),)), (0.25, 0.0, -0.5)):
        margin = torch.full(shape, number, dtype=torch.float64, device=device).requires_grad_()
        value = cudaloss.hinge_embedding_loss(x, t, margin, reduction="sum")
        torch.testing.assert_close(value.detach(), F.hinge_embedding_loss(x, t, number, reduction="sum"))
        (found,) = torch.autograd.grad(value, margin)
        counts = (t != 1) & (x <= number)
        torch.testing.assert_close(found, counts.to(found) if shape else counts.sum().to(found))


# ---- margin ranking ----


def scores(device, dtype, margin):
    """Two of each element, some as far apart as the margin; and targets of 1, -1 and others."""
    y = (4 * torch.randn(203)).round()
    x = y + torch.cat([torch.tensor([margin, -margin, 0.0]), 2 * torch.randn(200)])
    t = torch.tensor([1.0, -1.0, 0.5]).repeat_interleave(len(x))
    return x.repeat(3).to(device, dtype), y.repeat(3).to(device, dtype), t.to(device, dtype)


@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_margin_ranking_is_pytorchs(device, dtype, margin):
    """With the gradients of both inputs and of the target."""
    x, y, t = scores(device, dtype, margin)
    # In the same dtype PyTorch rounds the difference first, and a multiple of 1/2 is none.
    assert_as_pytorch("margin_ranking_loss", (x, y, t), 3, margin=margin)
    assert_as_pytorch("margin_ranking_loss", (x[:406], y[:406], t[:406].long()), 2, margin=margin)
    column = [z[:60].view(12, 5) for z in (x, y, t)]
    assert_as_pytorch("margin_ranking_loss", (column[0], column[1], column[2][:, :1]), 3, margin=margin)


@pytest.mark.parametrize("margin", MARGINS)
def test_margin_ranking_rounds_once(device, margin):
    """Also where the difference and the margin cancel."""
    if device not in DEVICES:
        pytest.skip("without kernels each step rounds")
    y = torch.randn(20_000, device=device)
    x = y + margin + 2.0 ** -torch.randint(1, 12, y.shape, device=device) * torch.randn_like(y)
    t = torch.randint(2, y.shape, device=device).float() * 2 - 1
    found = cudaloss.margin_ranking_loss(x, y, t, margin, reduction="none")
    exact = (margin - t.double() * (x.double() - y.double())).clamp(min=0)
    assert largest_error(found, exact, torch.float32) <= 0.51


def test_ends_of_margin_ranking(device):
    x = torch.tensor([inf, inf, -inf, inf, nan, 0.0, 0.0], device=device)
    y = torch.tensor([0.0, 0.0, 0.0, inf, 0.0, nan, 0.0], device=device)
    t = torch.tensor([1.0, -1.0, 1.0, 1.0, 1.0, 1.0, nan], device=device)
    found = results(cudaloss.margin_ranking_loss, (x, y, t), 3, "none")
    of_x = [0.0, 1.0, -1.0, nan, nan, nan, nan]
    expected = [0.0, inf, inf, *[nan] * 4], of_x, [-g for g in of_x], [0.0, -inf, inf, *[nan] * 4]
    for ours, truth in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.cpu(), torch.tensor(truth), equal_nan=True)


def test_names_of_the_operands_of_margin_ranking():
    """In calls, in errors and in the warning."""
    x, y, t = torch.randn(3, 4, 5).unbind()
    function, module = cudaloss.margin_ranking_loss, cudaloss.MarginRankingLoss(margin=0.5)
    expected = F.margin_ranking_loss(x, y, t, margin=0.5)
    named = {"input1": x, "input2": y, "target": t}
    for found in (
        function(**named, margin=0.5),
        module(**named),
        torch.ops.cudaloss.margin_ranking(**named, margin=0.5),
    ):
        torch.testing.assert_close(found, expected)
    with pytest.raises(TypeError, match=r"input1 must be a torch\.Tensor, got list"):
        function([1.0], y, t)
    with pytest.raises(RuntimeError, match=r"input2 must be a real tensor, got torch\.complex64"):
        function(x, y.to(torch.complex64), t)
    with pytest.raises(RuntimeError, match=r"input1 and input2 must have shapes that broadcast .* \(4, 5\) and \(3,\)"):
        function(x, y[0, :3], t)
    with pytest.raises(RuntimeError, match=r"target must have a shape that broadcasts to \(4, 5\), got \(4,\)"):
        function(x, y, t[:, 0])
    with pytest.warns(UserWarning, match=r"Using a input2 size .* different to the input1 size"):
        function(x, y[0], t)
