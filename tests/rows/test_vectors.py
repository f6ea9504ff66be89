"""Losses of vectors against the truth: shapes, dtypes, layouts, labels, triplets, and all that a call may say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from exact_rows import assert_same_bits, error
from exact_vectors import CASES, LOSSES, OF_DIM, assert_right, drawn, long
from oracle import DTYPES, HALVES

of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
of_losses = pytest.mark.parametrize("name", LOSSES)
of_cases = pytest.mark.parametrize(("name", "own"), CASES.values(), ids=CASES)


# ---- numbers of rows, shapes, dimensions ----


@of_losses
@pytest.mark.parametrize("rows", [1, 2, 31, 33, 257, 1025])
@pytest.mark.parametrize("length", [3, 32, 130])
def test_numbers_of_rows(device, name, rows, length):
    assert_right(name, drawn(name, (rows, length), torch.float32, device))


@pytest.mark.parametrize("shape", [(9,), (1, 1), (2, 3, 40), (3, 5, 2, 3, 2), (2, 3, 2, 2, 2, 2, 5)])
@of_dtypes
def test_shapes(device, shape, dtype):
    for name, own in CASES.values():
        if name != "cosine_embedding" or len(shape) < 3:
            assert_right(name, drawn(name, shape, dtype, device), **own, **({"dim": -1} if name in OF_DIM else {}))


@pytest.mark.parametrize("name", [*OF_DIM, "triplet_margin"])
def test_more_dimensions_than_the_kernels_take(device, name):
    """Plain PyTorch's, in float32."""
    operands = drawn(name, (2, 3, 2, 2, 2, 2, 2, 5), torch.float32, device)
    found = []
    for function in (LOSSES[name].ours, LOSSES[name].theirs):
        leaves = [x.clone().requires_grad_() for x in operands]
        value = function(*leaves, **({"dim": -1} if name in OF_DIM else {}))
        found.append((value, *torch.autograd.grad(value, leaves)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dim", [0, 1, 2, 3, -1, -2, -3, -4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OF_DIM)
def test_dims(device, name, dim, dtype):
    for length in (3, 40):
        shape = [2, 5, 4, 6]
        shape[dim] = length
        operands = [x.movedim(-1, dim) for x in drawn(name, (*np.delete(shape, dim), length), dtype)]
        assert_right(name, [x.contiguous().to(device) for x in operands], dim=dim)


# ---- layouts, dtypes, broadcasts ----

LAYOUTS = {
    "transposed": lambda x: x.transpose(0, -1).contiguous().transpose(0, -1),
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "padded": lambda x: F.pad(x, (1, 2))[..., 1:-2],
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "expanded": lambda x: x[:1].expand_as(x),
    "expanded numbers": lambda x: x[..., :1].expand_as(x),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
}


@of_cases
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device, name, own, layout):
    for shape in ((6, 10), (5, 128), (3, 4100), (3, 2, 5, 36)):
        if name == "cosine_embedding" and len(shape) > 2:
            continue
        for dtype in (torch.float32, torch.bfloat16):
            operands = drawn(name, shape, dtype, device)
            for which in ((0, 1, 2), (0,), (1,), (2,)):  # alike, and each beside others that are dense
                if which[0] < LOSSES[name].vectors:
                    given = [LAYOUTS[layout](x) if i in which and x.dim() > 1 else x for i, x in enumerate(operands)]
                    assert_right(name, given, **own)


@of_cases
@pytest.mark.parametrize("first", DTYPES, ids=str)
@pytest.mark.parametrize("second", DTYPES, ids=str)
def test_mixed_dtypes(device, name, own, first, second):
    for length in (7, 300):
        x, y, *rest = drawn(name, (6, length), torch.float32, device)
        rest = [x.to(second) for x in rest] if name == "triplet_margin" else rest
        assert_right(name, [x.to(first), y.to(second), *rest], **own)
        if name == "triplet_margin":
            assert_right(name, [y.to(second), rest[0].to(first), x.to(torch.bfloat16)], **own)


@of_dtypes
@pytest.mark.parametrize("name", OF_DIM)
def test_broadcasts(device, name, dtype):
    x, y = drawn(name, (5, 7, 9), dtype, device)
    for operands in ((x[:, :1], y[:1]), (x, y[0]), (x[0, 0], y), (x[..., :1], y), (x[:1, :1], y[:, :1])):
        assert_right(name, operands, dim=-1)
    assert_right(name, (x, y[:, :1]))


@of_dtypes
def test_broadcasts_of_pairs_and_triplets(device, dtype):
    x, y, labels = drawn("cosine_embedding", (7, 9), dtype, device)
    assert_right("cosine_embedding", (x[:1], y, labels))
    assert_right("cosine_embedding", (x, y[:1], labels))
    a, p, n = drawn("triplet_margin", (5, 7, 9), dtype, device)
    for operands in ((a[:, :1], p[:1], n), (a, p[:1], n[:, :1]), (a[:1, :1], p, n), (a, p, n[..., :1])):
        for swap in (False, True):
            assert_right("triplet_margin", operands, swap=swap)


# ---- a call's options ----


@of_cases
@pytest.mark.parametrize("batch_dims", [0, 1])
@pytest.mark.parametrize("length", [5, 300])
def test_options(device, name, own, batch_dims, length):
    shape, ulps = ((24, length) if name == "cosine_embedding" else (6, 4, length)), 2.0
    operands = drawn(name, shape, torch.float32, device)
    own = own | {"dim": -1} if name in OF_DIM else own
    loss, rows = LOSSES[name], shape[:-1]
    weight, mask = torch.rand(rows, device=device) + 0.5, torch.rand(rows, device=device) < 0.7
    mask[0], mask[-1] = False, True
    truth = loss.truth(*operands, **own)
    factors = np.where(long(mask) == 1, long(weight) * 0.75, 0)
    counts = np.where(long(mask) == 1, long(weight), 0)
    kept = rows[:batch_dims]
    sums, sizes, totals = (
        x.reshape(*kept, -1).sum(-1) for x in (truth.losses * factors, truth.sizes * factors, counts)
    )
    for x in operands[: loss.vectors]:
        x[~mask] = float("nan")  # which leaves no trace
    options = {"weight": weight, "mask": mask, "scale": 0.75}
    normalizer = torch.tensor(8.0, device=device)
    divisors = {"sum": np.ones_like(totals), "mean": totals, "normalizer": np.full_like(totals, 8)}
    for reduction, divisor in divisors.items():
        beside = {"normalizer": normalizer} if reduction == "normalizer" else {}
        leaves = [x.detach().clone().requires_grad_() for x in operands[: loss.vectors]]
        value = loss.ours(
            *leaves,
            *operands[loss.vectors :],
            reduction="mean" if beside else reduction,
            batch_dims=batch_dims,
            **own,
            **options,
            **beside,
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            assert error(value, sums / divisor, sizes / divisor) <= ulps
            of_sums = np.where(divisor == 0, 0, 1 / divisor)
        incoming = torch.rand_like(value) + 0.5
        value.backward(incoming)
        of_sums = (long(incoming) * of_sums).reshape(*kept, *[1] * (len(rows) - len(kept)))
        for leaf, *exact in zip(leaves, truth.gradients, truth.gradient_sizes, strict=True):
            assert error(leaf.grad, *(x * (of_sums * factors)[..., None] for x in exact)) <= 2 * ulps
    leaves = [x.detach().clone().requires_grad_() for x in operands[: loss.vectors]]
    single = loss.ours(*leaves, *operands[loss.vectors :], reduction="none", **own, **options)
    assert error(single, truth.losses * factors, truth.sizes * factors) <= ulps
    for found, *exact in zip(
        torch.autograd.grad(single.sum(), leaves), truth.gradients, truth.gradient_sizes, strict=True
    ):
        assert error(found, *(x * factors[..., None] for x in exact)) <= 2 * ulps


@of_losses
def test_options_that_broadcast(device, name):
    loss = LOSSES[name]
    operands = drawn(name, (6, 9) if name == "cosine_embedding" else (6, 4, 9), torch.float32, device)
    own = {"dim": -1} if name in OF_DIM else {}
    rows = operands[0].shape[:-1]
    mask = (torch.arange(6, device=device) != 2).view(6, *[1] * (len(rows) - 1))
    for weight in (x.to(device) for x in (torch.rand(rows[-1:]), torch.rand(1), torch.tensor(2.0))):
        for reduction in ("mean", "sum", "none"):
            found, expected = (
                loss.ours(*operands, reduction=reduction, weight=change(weight), mask=change(mask), **own)
                for change in (lambda x: x, lambda x: x.expand(rows).contiguous())
            )
            assert torch.equal(found, expected)


@of_losses
def test_nothing_selected(device, name):
    loss, operands = LOSSES[name], drawn(name, (6, 9), torch.float32, device)
    leaves = [x.requires_grad_(x.is_floating_point()) for x in operands]
    mask = torch.zeros(6, dtype=torch.bool, device=device)
    value = loss.ours(*leaves, mask=mask)
    assert value.isnan()
    for reduction in ("sum", "none"):
        assert not loss.ours(*leaves, mask=mask, reduction=reduction).any()
    value.backward()
    loss.ours(*leaves, mask=mask, normalizer=torch.tensor(2.0, device=device)).backward()
    assert all(not x.grad.any() for x in leaves[: loss.vectors])
    empty = [x.detach()[:0].requires_grad_(x.is_floating_point()) for x in operands]
    assert loss.ours(*empty).isnan()
    assert loss.ours(*empty, reduction="sum") == 0
    single = loss.ours(*empty, reduction="none")
    assert single.shape == (0,)
    single.sum().backward()
    assert empty[0].grad.shape == (0, 9)


@of_losses
def test_vectors_of_no_numbers(device, name):
    leaves = [x.requires_grad_(x.is_floating_point()) for x in drawn(name, (6, 0), torch.float32, device)]
    for reduction in ("mean", "sum", "none"):
        value = LOSSES[name].ours(*leaves, reduction=reduction)
        torch.testing.assert_close(value, LOSSES[name].theirs(*leaves, reduction=reduction))
        value.sum().backward()
        assert all(x.grad.shape == (6, 0) for x in leaves[: LOSSES[name].vectors])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@of_cases
def test_dtype_and_autocast(device, name, own, dtype):
    loss, operands = LOSSES[name], drawn(name, (20, 50), dtype, device)
    truth = loss.truth(*operands, **own)
    with torch.autocast(device, dtype=torch.bfloat16):
        automatic = loss.ours(*operands, reduction="none", **own)
    for found in (automatic, loss.ours(*operands, reduction="none", dtype=torch.float32, **own)):
        assert found.dtype == torch.float32
        assert error(found, truth.losses, truth.sizes) <= 2.0
    assert loss.ours(*operands, **own).dtype == dtype


@of_cases
def test_small_gradients_of_fp16(device, name, own):
    """A mean over so many rows has gradients that fp16 cannot represent; for a scaled loss it can."""
    loss, rows = LOSSES[name], 1 << 16
    operands = drawn(name, (rows, 4), torch.float16, device)
    leaves = [x.requires_grad_() for x in operands[: loss.vectors]]
    (loss.ours(*leaves, *operands[loss.vectors :], dtype=torch.float32, **own) * rows).backward()
    truth = loss.truth(*operands, **own)
    for leaf, *exact in zip(leaves, truth.gradients, truth.gradient_sizes, strict=True):
        assert error(leaf.grad, *exact) <= 1.0


@of_cases
@pytest.mark.parametrize("shape", [(20000, 10), (3000, 128), (9, 60000), (1, 300000)])
def test_same_bits(device, name, own, shape):
    """Of vectors along either dimension."""
    operands, loss = drawn(name, shape, torch.float32, device), LOSSES[name]
    vectors = torch.stack(operands[: loss.vectors])
    for input in (vectors, vectors.mT.contiguous().mT):
        assert_same_bits(lambda x, rest: loss.ours(*x.unbind(), *rest, **own), input, operands[loss.vectors :])
