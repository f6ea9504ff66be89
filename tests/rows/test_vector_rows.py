"""Rows of losses of vectors: their labels, vectors that are alike, of zeros, large or not finite, and triplets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cudaloss
from exact_rows import error
from exact_vectors import CASES, LONG, LOSSES, ULPS, assert_right, drawn, long
from oracle import DTYPES

of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
of_losses = pytest.mark.parametrize("name", LOSSES)
of_cases = pytest.mark.parametrize(("name", "own"), CASES.values(), ids=CASES)


# ---- labels, and vectors that are alike, of zeros, large or not finite ----


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64, torch.int32, torch.int16, torch.int8], ids=str)
def test_dtypes_of_labels(device, dtype):
    """Another label than 1 and -1 is neither, whatever is near it; it counts in a mean."""
    x, y, _ = drawn("cosine_embedding", (12, 9), torch.float32, device)
    labels = [1, -1, 0, 2, -2, 1, -1, 3, 100, -100, -1, 1]
    if dtype.is_floating_point:
        labels[2:5] = 0.5, 1 + torch.finfo(dtype).eps, float("nan")
    elif dtype.itemsize > 1:
        labels[2:5] = (256, 257, -257) if dtype.itemsize == 2 else (65537, -65537, 65536)
    if dtype == torch.int64:
        labels[2:5] = 2**32 + 1, -(2**32) - 1, 2**40 + 1
    labels = torch.tensor(labels, dtype=dtype, device=device)
    assert_right("cosine_embedding", [x, y, labels], margin=-0.5)
    leaf = x.clone().requires_grad_()
    value = cudaloss.cosine_embedding_loss(leaf, y, labels, reduction="none")
    value.sum().backward()
    other = (labels != 1) & (labels != -1)
    assert other.sum() >= 6 and not value[other].any() and not leaf.grad[other].any()
    assert leaf.grad[labels == 1].any(1).all()
    torch.testing.assert_close(value, F.cosine_embedding_loss(x, y, labels, reduction="none"))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool], ids=str)
def test_labels_of_one_kind(device, dtype):
    x, y, _ = drawn("cosine_embedding", (6, 9), torch.float32, device)
    labels = torch.tensor([1, 0, 1, 1, 0, 1], device=device).to(dtype)
    assert_right("cosine_embedding", [x, y, labels])
    if dtype == torch.uint8:
        assert_right("cosine_embedding", [x, y, labels * 255])


@of_dtypes
@pytest.mark.parametrize("length", [1, 9, 300, 5000])
def test_zeros_and_equal_vectors(device, dtype, length):
    eps = 2.0**-10  # of whose inverse a half has room
    x, y = drawn("cosine_similarity", (6, length), dtype, device)
    x[0], y[1], y[3] = 0, 0, x[3]
    y[4], x[5] = -x[4], x[5] / 4096  # which is shorter
    x[2] = y[2] = 0
    assert_right("cosine_similarity", [x, y], eps=eps)
    for labels in (1, -1):
        labels = torch.full((4,), labels, device=device)
        assert_right("cosine_embedding", [x[2:], y[2:], labels], margin=-2.0)
    leaf, other = x[:1].clone().requires_grad_(), y[:1].clone().requires_grad_()
    value = cudaloss.cosine_similarity_loss(leaf, other, eps=eps)
    assert value == 1
    found = torch.autograd.grad(value, (leaf, other))
    assert error(found[0], -long(other) / (LONG(eps) * np.sqrt((long(other) ** 2).sum()))) <= ULPS[dtype]
    assert not found[1].any()


def test_zeros_of_embeddings(device):
    x, y, labels = drawn("cosine_embedding", (6, 9), torch.float32, device)
    x[0] = y[1] = 0
    x[2] = y[2] = 0
    x[3] *= 1e-7
    assert_right("cosine_embedding", [x, y, labels], margin=-0.25)


@pytest.mark.parametrize("length", [3, 40, 700, 9000])
def test_nearly_equal_vectors(device, length):
    """1 - cos is of float64 sums: of float32 ones nothing would be left of it."""
    x = torch.randn(8, length, device=device)
    y = x * 1.5 + torch.randn(8, length, device=device) * 2.0 ** -torch.arange(6, 14, device=device).view(8, 1)
    assert_right("cosine_similarity", [x, y])
    assert_right("cosine_embedding", [x, y, torch.ones(8, device=device)])
    assert_right("cosine_embedding", [x, y, -torch.ones(8, device=device)], margin=1 - 2.0**-4)


@of_losses
@pytest.mark.parametrize("length", [3, 300, 5000])
def test_large_numbers(device, name, length):
    """Whose squares float32 lacks."""
    operands = [x * 1e25 if x.is_floating_point() else x for x in drawn(name, (6, length), torch.float32, device)]
    assert_right(name, operands)


@of_cases
@pytest.mark.parametrize("length", [5, 200, 5000])
def test_nan_and_infinity_stay_in_their_row(device, name, own, length):
    for bad in (float("nan"), float("inf")):
        operands = drawn(name, (6, length), torch.float32, device)
        if name == "cosine_embedding":
            operands[2] = torch.tensor([1, -1, 1, -1, -1, 1], device=device)
        operands[0][1, -1] = operands[1][4, 0] = bad
        leaves = [x.requires_grad_(x.is_floating_point()) for x in operands]
        value = LOSSES[name].ours(*leaves, reduction="none", **own)
        theirs = LOSSES[name].theirs(*leaves, reduction="none", **own)
        torch.testing.assert_close(value, theirs, equal_nan=True)
        value.sum().backward()
        for leaf in leaves[: LOSSES[name].vectors]:
            assert leaf.grad[[0, 2, 3, 5]].isfinite().all()
            assert not theirs[1].isnan() or leaf.grad[1].isnan().any()


# ---- triplets ----


@of_dtypes
@pytest.mark.parametrize("swap", [False, True])
def test_inactive_triplets(device, dtype, swap):
    for length in (5, 64, 700, 5000):
        a, p, n = drawn("triplet_margin", (6, length), dtype, device)
        n[::2] = a[::2] + 100
        leaves = [x.requires_grad_() for x in (a, p, n)]
        value = cudaloss.triplet_margin_loss(*leaves, margin=40.0, swap=swap, reduction="none")
        value.sum().backward()
        assert not value[::2].any() and (value[1::2] > 0).all()
        for leaf in leaves:
            assert not leaf.grad[::2].any() and leaf.grad[1::2].any(1).all()


@of_dtypes
@pytest.mark.parametrize("swap", [False, True])
def test_equal_triplets(device, dtype, swap):
    """Distances of only eps, and of 0, whose gradient is 0."""
    for length in (1, 9, 300, 5000):
        a = torch.randn(4, length, device=device).to(dtype)
        far = a + torch.tensor([[0.0], [0.0], [2.0], [2.0]], device=device).to(dtype)
        p, n = a.clone(), far
        p[1::2], n[1::2] = far[1::2], a[1::2]
        for eps in (1e-6, 0.0):
            leaves = [x.detach().clone().requires_grad_() for x in (a, p, n)]
            others = [x.detach().double().requires_grad_() for x in (a, p, n)]
            ours = cudaloss.triplet_margin_loss(*leaves, 3.0 * length, eps=eps, swap=swap, reduction="none")
            theirs = F.triplet_margin_loss(*others, 3.0 * length, eps=eps, swap=swap, reduction="none")
            # One rounding of a half, and of the differences in float32.
            digits = {torch.float64: 1e-9, torch.float32: 1e-6}.get(dtype, torch.finfo(dtype).eps)
            torch.testing.assert_close(ours.double(), theirs, rtol=digits, atol=0)
            ours.sum().backward()
            theirs.sum().backward()
            for leaf, other in zip(leaves, others, strict=True):
                torch.testing.assert_close(leaf.grad.double(), other.grad, rtol=digits, atol=2 * digits)


@of_dtypes
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-6, 0.25])
def test_own_numbers_of_triplets(device, dtype, swap, eps):
    for margin in (0.01, 1.0, 3.3):
        for length in (6, 200):
            operands = drawn("triplet_margin", (16, length), dtype, device)
            assert_right("triplet_margin", operands, margin=margin, eps=eps, swap=swap)


def test_swap_takes_both_distances(device):
    operands = drawn("triplet_margin", (40, 8), torch.float32, device)
    plain, swapped = (cudaloss.triplet_margin_loss(*operands, 9.0, swap=x, reduction="none") for x in (False, True))
    assert (swapped > plain).any() and (swapped == plain).any() and not (swapped < plain).any()


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("p", [1.0, 3.0, 0.5, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_norms(device, dtype, p, swap):
    operands = drawn("triplet_margin", (16, 9), dtype, device)
    weight, mask = torch.rand(16, dtype=dtype, device=device), torch.arange(16, device=device) != 3
    for reduction in ("mean", "sum", "none"):
        found = []
        for function in (cudaloss.triplet_margin_loss, F.triplet_margin_loss):
            wide = torch.float64 if function is F.triplet_margin_loss else dtype  # in which ours adds up
            leaves = [x.to(wide).clone().requires_grad_() for x in operands]
            value = function(*leaves, 1.5, p, swap=swap, reduction=reduction)
            gradients = torch.autograd.grad(value, leaves, torch.ones_like(value) * 2)
            found.append([x.to(dtype) for x in (value, *gradients)])
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs)
    expected = F.triplet_margin_loss(*operands, 1.5, p, swap=swap, reduction="none")[mask] * weight[mask]
    for x in operands:
        x[3] = float("nan")
    leaf = operands[0].requires_grad_()
    value = cudaloss.triplet_margin_loss(leaf, *operands[1:], 1.5, p, swap=swap, weight=weight, mask=mask)
    torch.testing.assert_close(value, expected.sum() / weight[mask].sum())
    value.backward()
    assert leaf.grad.isfinite().all() and not leaf.grad[3].any() and leaf.grad[-1].any()


@of_losses
def test_masked_rows_beside_an_incoming_nan(device, name):
    operands = drawn(name, (4, 9), torch.float32, device)
    leaf = operands[0].requires_grad_()
    value = LOSSES[name].ours(*operands, mask=torch.arange(4, device=device) != 2)
    (gradient,) = torch.autograd.grad(value * float("nan"), leaf)
    assert gradient[[0, 1, 3]].isnan().any() and not gradient[2].any()
