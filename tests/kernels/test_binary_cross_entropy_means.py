"""Reductions of binary cross-entropy with logits, whose weighted mean divides by the number of elements as PyTorch's
does; sizes and layouts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._call.modes import REDUCTIONS
from cudaloss.bench import symbolic
from cudaloss.bench.errors import compensated_sum, largest_error
from oracle import DTYPES, FACTORED, HALVES, leaf
from thirds import BCE, THIRDS, allowed, largest, results

bce = cudaloss.binary_cross_entropy_with_logits


def expected_of(
    x, t, reduction, *, weight=None, mask=None, pos_weight=1.0, label_smoothing=0.0, batch_dims=0, scale=1.0
):
    """In float64, with what it is divided by."""
    pos_weight = torch.as_tensor(pos_weight, dtype=torch.float64, device=x.device)
    spec = THIRDS[BCE].spec
    value = symbolic.term(spec, symbolic.LOSS, torch, x.double(), t.double(), pos_weight, label_smoothing).number
    value = value if weight is None else value * weight.double()
    count = torch.ones_like(value) if mask is None else mask.expand(value.shape).double()
    value = value if mask is None else torch.where(mask, value, 0)
    if reduction == "none":
        return value * scale
    value, count = (y.reshape(*y.shape[:batch_dims], -1) for y in (value, count))
    totals = torch.tensor(
        [compensated_sum(row) for row in value.reshape(-1, value.shape[-1]).cpu()], dtype=torch.float64
    )
    return totals.view(value.shape[:-1]).to(x.device) * scale / (count.sum(-1) if reduction == "mean" else 1)


def test_gradients_of_a_mean_keep_what_1_minus_the_target_rounds_away(device):
    # Targets of 24 digits, of which 1 - t cannot hold all: 2.3 ulp were seen without what is rounded away.
    x, t = torch.randn(100_003) * 20, torch.rand(100_003, dtype=torch.float64).float()
    _, found, _ = results(bce, (x.to(device), t.to(device)), 1.0)
    x, t, of_x = x.double(), t.double(), x.double().sigmoid()
    size = torch.maximum((1 - t) * of_x, t * (1 - of_x))
    assert largest_error(found.cpu(), (of_x - t) / len(x), torch.float32, size / len(x)) <= allowed(device, 1.5)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_tiny_pos_weight_keeps_a_halfs_digits(device, dtype):
    # pos_weight - 1 as one float32 has too few of them: gradients were up to 1.7 % off.
    x, t = leaf(torch.randn(100_003, device=device).to(dtype)), torch.ones(100_003, dtype=dtype, device=device)
    (found,) = torch.autograd.grad(bce(x, t, reduction="sum", pos_weight=1e-6, scale=1e6), x)
    assert largest_error(found, -(-x.detach().double()).sigmoid(), dtype) <= allowed(device, 1.0)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 17, 64, 65, 1000, 4097, 8193, 32769, 100_003, (1 << 20) + 7])
def test_sizes(device, size, reduction):
    x, t = torch.randn(size, device=device) * 4, torch.rand(size, device=device)
    weight, mask = torch.rand(size, device=device) + 0.1, torch.rand(size, device=device) < 0.7
    mask[0] = True
    for given in ({}, {"pos_weight": 2.5}, {"weight": weight}, {"mask": mask}, {"mask": mask, "weight": weight}):
        found = results(bce, (x, t), 1.0, reduction=reduction, **given)
        exact = [leaf(y.double()) for y in (x, t)]
        if reduction == "none":
            loss = expected_of(*exact, reduction, **given)
        else:  # whose gradient the compensated sum does not hand on
            loss = expected_of(*exact, "none", **given).sum()
            count = given["mask"].sum() if "mask" in given else size
            loss = loss / count if reduction == "mean" else loss
        expected = expected_of(x, t, reduction, **given), *torch.autograd.grad(loss.sum(), exact)
        factored = FACTORED if reduction == "none" and ("weight" in given or "pos_weight" in given) else 1.0
        bar = factored * (2.0 if reduction == "none" else 1.0)
        assert largest_error(found[0].cpu(), expected[0].cpu(), torch.float32) <= allowed(device, bar)
        for ours, truth in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(ours.double(), truth, rtol=3e-7, atol=3e-7 * largest(truth))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("batch_dims", [0, 1, 2])
@pytest.mark.parametrize("kind", ["plain", "weight", "weight of a row", "mask", "both", "pos_weight"])
def test_means(device, dtype, kind, batch_dims):
    shape = (5, 4, 33)
    x, t = (torch.randn(shape, device=device) * 4).to(dtype), torch.rand(shape, device=device).to(dtype)
    weight, mask = torch.rand(shape, device=device) + 0.1, torch.rand(shape, device=device) < 0.6
    given = {
        "plain": {"label_smoothing": 0.1},
        "weight": {"weight": weight},
        "weight of a row": {"weight": weight[0, 0], "scale": 0.5},
        "mask": {"mask": mask},
        "both": {"weight": weight[:, :1], "mask": mask},
        "pos_weight": {"pos_weight": weight[0], "weight": weight, "mask": mask, "label_smoothing": 0.2},
    }[kind]
    for reduction in ("mean", "sum"):
        exact = expected_of(x, t, reduction, batch_dims=batch_dims, **given)
        value = bce(x, t, reduction=reduction, batch_dims=batch_dims, **given)
        assert value.shape == shape[:batch_dims] and value.dtype == dtype
        assert largest_error(value.cpu(), exact.cpu(), dtype) <= (
            4.0 if dtype == torch.float64 else allowed(device, FACTORED if given.get("label_smoothing") else 1.0)
        )


def test_a_weighted_mean_is_pytorchs(device):
    x, t, weight = torch.randn(7, 9, device=device), torch.rand(7, 9, device=device), torch.rand(9, device=device) * 3
    for pos_weight in (None, torch.rand(9, device=device) * 4):
        for reduction in REDUCTIONS:
            given = {"weight": weight, "pos_weight": pos_weight, "reduction": reduction}
            ours, theirs = (results(call, (x, t), **given) for call in (bce, F.binary_cross_entropy_with_logits))
            torch.testing.assert_close(ours, theirs, rtol=2e-6, atol=2e-6)
    ones = torch.full((9,), 2.0, device=device)
    torch.testing.assert_close(bce(x, t, ones), 2 * bce(x, t))
    every = torch.ones(7, 9, dtype=torch.bool, device=device)
    torch.testing.assert_close(bce(x, t, ones, mask=every), 2 * bce(x, t))
    torch.testing.assert_close(bce(x, t, weight, normalizer=4.0), bce(x, t, weight, reduction="sum") / 4)


def test_a_mean_of_nothing(device):
    x, nothing = torch.randn(3, 8, device=device), torch.zeros(3, 8, dtype=torch.bool, device=device)
    nothing[1, 2] = True
    t = torch.rand(3, 8, device=device)
    value, of_input, of_target = results(bce, (x, t), mask=nothing, batch_dims=1, weight=torch.rand(8, device=device))
    assert value.isnan().tolist() == [True, False, True]
    for gradient in (of_input, of_target):
        assert gradient.isfinite().all() and (gradient != 0).sum() == 1
    assert bce(x[:0], t[:0]).isnan() and bce(x[:0], t[:0], reduction="sum") == 0


LAYOUTS = {
    "dense": lambda x: x,
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:, :1].expand(x.shape),
}


@pytest.mark.parametrize("of_target", LAYOUTS)
@pytest.mark.parametrize("of_input", LAYOUTS)
def test_layouts(device, of_input, of_target):
    x = LAYOUTS[of_input](torch.randn(4, 3, 6, 10, device=device) * 3)
    t = LAYOUTS[of_target](torch.rand(4, 3, 6, 10, device=device))
    for given in ({}, {"label_smoothing": 0.1}, {"weight": torch.rand(10, device=device)}):
        for reduction in REDUCTIONS:
            x_, t_ = x.detach().requires_grad_(), t.detach().requires_grad_()
            value = bce(x_, t_, reduction=reduction, **given)
            value.sum().backward()
            dense = results(bce, (x.contiguous(), t.contiguous()), 1.0, reduction=reduction, **given)
            for ours, expected in zip((value, x_.grad, t_.grad), dense, strict=True):
                torch.testing.assert_close(ours, expected, rtol=3e-7, atol=1e-9)
            assert of_input == "expanded" or x_.grad.stride() == torch.empty_like(x).stride()


def test_the_function_refuses_what_the_op_broadcasts(device):
    x, t = torch.randn(4, 6, device=device), torch.rand(6, device=device)
    for call in (bce, F.binary_cross_entropy_with_logits):
        with pytest.raises(ValueError, match=r"Target size \(torch.Size\(\[6\]\)\) must be the same as input size"):
            call(x, t)
    op = torch.ops.cudaloss.binary_cross_entropy_with_logits
    for reduction in REDUCTIONS:
        ours = results(op, (x, t), reduction=reduction)
        whole = results(bce, (x, t.expand(4, 6)), reduction=reduction)
        expected = (*whole[:2], whole[2].sum(0))
        torch.testing.assert_close(ours, expected, rtol=2e-6, atol=1e-6)
