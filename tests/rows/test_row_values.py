"""Losses of rows against the truth: every number of classes, dtypes, layouts, and all that a call may say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import cudaloss
import exact_rows
from exact_rows import as_input, assert_same_bits, error
from oracle import DTYPES
from wide import numbers

of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Of a single rounding, of a few, and of a half's one.
ULPS = {torch.float32: 2.0, torch.float64: 2.0, torch.float16: 1.0, torch.bfloat16: 1.0}
# Where kernels change: powers of two, one beside them, vocabularies.
SPLITS = sorted(
    {n + d for n in (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536) for d in (-1, 0, 1)} | {50257, 131072, 262144}
)


def drawn(shape, dtype=torch.float32, device="cpu", scale=4.0, confident=True):
    """Logits, of which the last row is sure of its class, and its indices."""
    input = torch.randn(shape, dtype=torch.float64) * scale
    rows = (shape[:1] + shape[2:]) if len(shape) > 1 else ()
    target = torch.randint(shape[1] if len(shape) > 1 else shape[0], rows)
    if confident and len(shape) > 1:
        at = target.unsqueeze(1)
        raised = input.max() + torch.linspace(0, 18, rows[0], dtype=torch.float64).view(-1, *[1] * (len(shape) - 1))
        input = torch.where(torch.rand(rows).unsqueeze(1) < 0.5, input.scatter(1, at, raised.expand(at.shape)), input)
    return input.to(dtype).to(device), target.to(device)


def by_pytorch(input, target, z_loss=0.0, softcap=None, **own):
    """Single losses, in PyTorch's ops."""
    x = input if softcap is None else softcap * torch.tanh(input / softcap)
    lse = torch.logsumexp(x, 1 if x.dim() > 1 else 0)
    if not target.is_floating_point():
        lse = lse * (target != own.get("ignore_index", -100))
    weight = own.pop("weight", None)
    weight = weight if weight is None else weight.to(input.dtype)
    return F.cross_entropy(x, target, weight, reduction="none", **own) + z_loss * lse**2


def assert_right(input, target, incoming=None, bound=None, **own):
    """Single losses, the mean, and the input's gradients of both. Of fp64 a bound is what PyTorch misses, where that is
    more."""
    truth = exact_rows.cross_entropy(input, target, **own)
    bound = bound or ULPS[input.dtype]
    leaf = input.detach().requires_grad_()
    losses = cudaloss.cross_entropy(leaf, target, reduction="none", **own)
    assert losses.dtype == input.dtype
    incoming = torch.rand_like(losses) + 0.5 if incoming is None else incoming
    factor = numbers(input, incoming)(incoming.reshape(-1, 1))
    total = truth.counts.sum() if not target.is_floating_point() else len(truth.losses)
    mean = cudaloss.cross_entropy(leaf, target, **own)
    exact = [(truth.losses, None), [as_input(x * factor, input) for x in (truth.for_input, truth.sizes)]]
    exact += [(truth.losses.sum() / total, None), [as_input(x / total, input) for x in (truth.for_input, truth.sizes)]]

    def errors(losses, mean):
        gradients = [torch.autograd.grad(losses, leaf, incoming, True)[0], torch.autograd.grad(mean, leaf)[0]]
        return [error(x, *y) for x, y in zip((losses, gradients[0], mean, gradients[1]), exact, strict=True)]

    found, bounds = errors(losses, mean), [bound] * 4
    if max(found) > bound and input.dtype == torch.float64:
        theirs = by_pytorch(leaf, target, **own)
        bounds = [max(bound, x) for x in errors(theirs, theirs.sum() / float(total))]
    assert [x <= y for x, y in zip(found, bounds, strict=True)] == [True] * 4, (found, bounds)


# ---- every number of classes ----


@pytest.mark.parametrize("first", range(1, 301, 25))
def test_every_number_of_classes(device, first):
    for classes in range(first, first + 25):
        dtype = DTYPES[classes % 4] if classes % 3 == 0 else torch.float32
        input, target = drawn((7, classes), dtype, device)
        if classes > 2:
            target[0] = target[-1] = -100
        assert_right(input, target)


@pytest.mark.parametrize("first", range(1, 301, 25))
def test_every_number_of_strided_classes(device, first):
    for classes in range(first, first + 25):
        assert_right(*drawn((2, classes, 5), (torch.float32, torch.bfloat16)[classes % 2], device))


@pytest.mark.parametrize("classes", SPLITS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_around_splits(device, classes, dtype):
    input, target = drawn((4, classes), dtype, device)
    target[0] = -100
    assert_right(input, target)


# Of whole vectors and others; of a part of a warp, a warp, a block, and more than a block keeps.
@pytest.mark.parametrize("classes", [1, 4, 8, 24, 40, 72, 1000, 1001, 1024, 2056, 4096, 8200, 16384, 32768, 65536])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shares_of_classes(device, classes, dtype):
    """Probabilities, and class weights with label smoothing: each class has its own share of a row's loss."""
    input, target = drawn((5, classes), dtype, device)
    q = torch.softmax(torch.randn(5, classes, dtype=torch.float64) * 3, 1).to(dtype).to(device)
    q[0] = F.one_hot(target[0], classes).to(dtype)
    weight = torch.rand(classes, dtype=torch.float64).add(0.5).to(torch.promote_types(dtype, torch.float32)).to(device)
    assert_right(input, q)
    assert_right(input, q, weight=weight, label_smoothing=0.1, z_loss=1e-3)
    target[1] = -100
    assert_right(input, target, weight=weight, label_smoothing=0.1)


# What a thread has, and more.
@pytest.mark.parametrize("classes", [1, 2, 3, 10, 16, 19, 32, 33, 64, 150, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_shares_of_few_classes(device, classes, dtype):
    """The classes side by side, the rows side by side, neither, and a target that lies otherwise."""
    input, target = drawn((2, classes, 3, 5), dtype, device)
    q = torch.softmax(torch.randn(2, classes, 3, 5, dtype=torch.float64) * 3, 1).to(dtype).to(device)
    weight = torch.rand(classes, dtype=torch.float64).add(0.5).to(dtype).to(device)  # of the input's dtype, as F's
    target[0, 0, 0] = -100
    last = (x.to(memory_format=torch.channels_last) for x in (input, q))
    padded = (F.pad(x, (1, 2))[..., 1:-2] for x in (input, q))
    for x, t in ((input, q), last, padded, (input, q.to(memory_format=torch.channels_last))):
        assert_right(x, t)
        assert_right(x, t, weight=weight, label_smoothing=0.1, z_loss=1e-3)
        assert_right(x, target, weight=weight, label_smoothing=0.1)


# On both sides of what fits in an H200's shared memory.
@pytest.mark.parametrize("classes", [5, 40, 222, 223, 296, 297])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shares_of_many_strided_rows(device, classes, dtype):
    """Rows side by side are as those whose classes are, which other kernels have: edges and options too."""
    input = torch.randn(2, classes, 50, 60, device=device, dtype=dtype)
    q = torch.softmax(torch.randn(2, classes, 50, 60, device=device), 1).to(dtype)
    input[0, 3, 0, :4] = torch.tensor([torch.nan, torch.inf, -torch.inf, 50.0]).to(dtype)
    input[0, :, 1, 0] = -torch.inf
    input[0, :, 1, 1] = 0.5
    index = torch.randint(classes, (2, 50, 60), device=device)
    index[1, 2, :2] = torch.tensor([-100, 0])
    weight = torch.rand(classes, device=device, dtype=dtype) + 0.5
    options = {
        "mask": torch.rand(2, 50, 60, device=device) < 0.8,
        "sample_weight": torch.rand(2, 50, 60, device=device),
        "batch_dims": 1,
        "reduction": "sum",
    }
    last = [x.movedim(1, -1).contiguous().movedim(-1, 1) for x in (input, q)]
    for own in ({"reduction": "none"}, options, {"label_smoothing": 0.1, "weight": weight, **options}):
        found = []
        for x, t in ((input, q), last):
            leaf = x.detach().requires_grad_()
            values = [cudaloss.cross_entropy(leaf, t, **own)]
            if "weight" in own:
                values.append(cudaloss.cross_entropy(leaf, index, **own))
            found.append([*(v.detach() for v in values), *(torch.autograd.grad(v.sum(), leaf)[0] for v in values)])
        for ours, theirs in zip(*found, strict=True):
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(ours, theirs, rtol=2 * eps, atol=eps / 8, equal_nan=True)


# Few classes, a warp's, beside vectors, a block's, and more than a block's.
@pytest.mark.parametrize("classes", [7, 1000, 1001, 8200, 40000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shares_beside_equal_logits(device, classes, dtype):
    """Probabilities and weights, where many classes have the largest logit; and slices."""
    input = torch.randint(-3, 4, (6, classes + 3)).to(dtype).to(device)
    input[5] = torch.randn(classes + 3).to(dtype)
    q = torch.softmax(torch.randn(6, classes + 3), 1).to(dtype).to(device)
    weight = torch.rand(classes, device=device) + 0.5
    target = torch.randint(classes, (6,), device=device)
    for rows in (slice(0, classes), slice(3, classes + 3)):
        x, t = input[:, rows], q[:, rows]
        assert_right(x, t)
        assert_right(x, t, label_smoothing=0.1)
        assert_right(x, t, weight=weight)
        assert_right(x, target, weight=weight, label_smoothing=0.1)


# Below and above 512 classes, rows that are not whole vectors, and of several tiles.
@pytest.mark.parametrize("classes", [10, 1000, 1001, 8200, 20000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_probabilities_of_float32_beside_halves(device, classes, dtype):
    """As under autocast: no probability is rounded to a half, which would show 2^-9 or 2^-12 in the loss."""
    input, _ = drawn((5, classes), dtype, device)
    padded = torch.softmax(torch.randn(5, classes + 8, device=device) * 3, 1)
    weight = torch.rand(classes, device=device) + 0.5
    # Whole vectors, rows further apart, and from an address that vectors do not have.
    for q in (padded[:, :classes].contiguous(), padded[:, :classes], padded[:, 1 : classes + 1]):
        for own in ({}, {"label_smoothing": 0.1}, {"label_smoothing": 0.1, "weight": weight}):
            truth = exact_rows.cross_entropy(input, q, **own)
            leaf = input.detach().requires_grad_()
            losses = cudaloss.cross_entropy(leaf, q, reduction="none", **own)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
            assert losses.dtype == torch.float32 and gradient.dtype == dtype
            exact = torch.tensor([float(y) for y in truth.losses.flatten()], dtype=torch.float64, device=device)
            assert ((losses.double() - exact).abs() <= 2.0**-18 * exact).all()
            assert error(gradient, as_input(truth.for_input, input), as_input(truth.sizes, input)) <= ULPS[dtype]


@pytest.mark.parametrize("classes", [2, 10, 16, 64, 1000, 4096, 20000])
def test_shares_of_many_rows(device, classes):
    """Each row of many has the bits that it has among few: blocks and warps keep nothing of the row before. A thread
    with a row begins with another class than its neighbours, so its sums can be rounded differently."""
    rows = max(131_072 // classes * 40, 800) + 3
    input = torch.randn(rows, classes, device=device) * 4
    q = torch.softmax(torch.randn(rows, classes, device=device) * 3, 1)
    mask = torch.arange(rows, device=device) % 5 != 0
    operands = (input, q, mask)

    def gradient(x, q, mask, factor=0.37):
        leaf = x.clone().requires_grad_()
        value = cudaloss.cross_entropy(leaf, q, mask=mask, label_smoothing=0.1, reduction="sum")
        return torch.autograd.grad(value, leaf, torch.full_like(value, factor))[0]

    gradient(*(x[:9] for x in operands), factor=1.0)
    # Not the factor of the last backward, which the forward expects: a GPU makes the gradients again, in 264 blocks.
    whole = gradient(*operands)
    parts = [gradient(*part) for part in zip(*(x.split(rows // 7) for x in operands), strict=True)]
    if classes > 32 or device == "cpu":
        assert torch.equal(whole, torch.cat(parts))
    torch.testing.assert_close(whole, torch.cat(parts), rtol=2**-22, atol=2**-26)


@pytest.mark.parametrize("classes", [10, 1001, 40000])
def test_equal_shares_beside_equal_logits(device, classes):
    """The shares' sum is then one of equal numbers, whose roundings do not average out."""
    input = torch.zeros(3, classes, device=device)
    q = torch.full_like(input, 1 / classes)
    assert_right(input, q)
    assert_right(input, q, weight=torch.full((classes,), 1.1, device=device))
    assert_right(input, torch.zeros(3, dtype=torch.long, device=device), weight=q[0] + 1, label_smoothing=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_shares_of_masked_logits(device, dtype):
    """The smallest finite logits, of which two have no finite sum."""
    input = torch.randn(4, 1001, dtype=torch.float64).to(dtype).to(device)
    input[:, 5:9] = torch.finfo(dtype).min
    q = torch.softmax(torch.randn(4, 1001, dtype=torch.float64), 1).to(dtype).to(device)
    q[:, 5:9] = 0
    assert_right(input, q)
    assert_right(input, q, label_smoothing=0.1)


# A thread's rows, a warp's, a block's, and those of several tiles.
@pytest.mark.parametrize("classes", [10, 64, 1001, 4096, 20000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_classes_that_cannot_be(device, dtype, classes):
    """Of a logit of -inf: with label smoothing the loss is infinite also where the probability is 0. Beside it the
    probability times the logarithm is 0 times infinity, as in PyTorch. The gradient is a number."""
    input = torch.randn(4, classes).to(dtype).to(device)
    q = torch.softmax(torch.randn(4, classes), 1).to(dtype).to(device)
    input[:2, 7], q[0, 7], q[1, 7] = -torch.inf, 0.0, 0.25
    for smoothing in (0.0, 0.125):
        leaf = input.detach().requires_grad_()
        ours = cudaloss.cross_entropy(leaf, q, label_smoothing=smoothing, reduction="none")
        (gradient,) = torch.autograd.grad(ours.sum(), leaf)
        share = q.double() * (1 - smoothing) + smoothing / classes
        exact = input.double().softmax(1) * share.sum(1, keepdim=True) - share
        assert ours[0].isposinf() if smoothing else ours[0].isnan()
        assert ours[1].isposinf() and ours[2:].isfinite().all()
        torch.testing.assert_close(gradient.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("classes", [8, 64])
def test_shares_at_the_edges(device, classes):
    input, _ = drawn((6, classes), torch.float32, device)
    q = torch.softmax(torch.randn(6, classes, device=device), 1)
    input[0, 3], input[1, 3], input[2] = -torch.inf, torch.inf, -torch.inf
    q[0, 3], q[3, 5], input[4, 7] = 0.0, torch.nan, torch.nan
    mask = torch.tensor([True] * 5 + [False], device=device)
    leaf = input.requires_grad_()
    ours = cudaloss.cross_entropy(leaf, q, mask=mask, reduction="none")
    ours.sum().backward()
    theirs = F.cross_entropy(input.detach().double(), q.double(), reduction="none")
    assert torch.equal(ours[:5].isnan(), theirs[:5].isnan()) and ours[5] == 0
    assert not leaf.grad[5].any()


@pytest.mark.parametrize("rows", [1, 2, 31, 32, 33, 255, 257, 1025, 4097])
@pytest.mark.parametrize("classes", [3, 10, 32, 128])
def test_numbers_of_rows(device, rows, classes):
    assert_right(*drawn((rows, classes), torch.float32, device))


# From 270,336 rows on a GPU's warp takes several tiles, from 540,672 on several rows for each lane.
@pytest.mark.parametrize("rows", [300_001, 1_100_003])
@pytest.mark.parametrize("classes", [2, 5, 12, 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_many_rows_of_few_classes(device, rows, classes, dtype):
    """A row has the same gradient among more rows, and each is in the sum. A GPU's threads begin at different classes
    of rows of whole vectors of four, so there the last place depends on the row's place."""
    input = torch.randn(rows, classes, dtype=dtype, device=device).mul_(4)
    target = torch.randint(classes, (rows,), device=device)
    target[::7], input[5] = -100, torch.nan
    target[5] = -100
    input[11, 0], target[11] = 90.0, 0

    def found(x, y):
        leaf = x.detach().requires_grad_()
        value = cudaloss.cross_entropy(leaf, y, reduction="sum", dtype=torch.float32)
        return value.double(), *torch.autograd.grad(value, leaf)

    value, gradient = found(input, target)
    parts = [found(x, y) for x, y in zip(input.split(100_000), target.split(100_000), strict=True)]
    rtol = 2 * torch.finfo(dtype).eps if classes % 4 == 0 else 0
    torch.testing.assert_close(gradient, torch.cat([part[1] for part in parts]), rtol=rtol, atol=0)
    torch.testing.assert_close(value, sum(part[0] for part in parts), rtol=1e-6, atol=0)


@pytest.mark.parametrize("classes", [2, 9, 20, 64, 1000, 5000])
@of_dtypes
def test_target_far_from_the_others(device, classes, dtype):
    """On both sides of 48, from where a GPU guards its sums, and of factors that are small. From 88 on exp is
    subnormal."""
    input, target = drawn((12, classes), dtype, device, scale=1.0, confident=False)
    apart = torch.tensor([-110, -60, -49, -47, -30, 30, 47, 49, 60, 80, 90, 100], dtype=dtype, device=device)
    input.scatter_(1, target.unsqueeze(1), apart.unsqueeze(1))
    assert_right(input, target)
    assert_right(input, target, incoming=torch.full((12,), 2.0**-20, dtype=dtype, device=device))


@pytest.mark.parametrize("classes", [2, 9, 20, 64, 1000, 5000])
def test_small_factor_of_a_far_target(device, classes):
    """exp(47) times 2^30 is near the end of float32's range, where a factor of exp has few digits left."""
    input, target = drawn((10, classes), torch.float32, device, scale=1.0, confident=False)
    input.scatter_(1, target.unsqueeze(1), 47.0)

    def gradient(scale):
        leaf = input.detach().requires_grad_()
        return torch.autograd.grad(cudaloss.cross_entropy(leaf, target, scale=scale), leaf)[0]

    torch.testing.assert_close(gradient(2.0**-30) * 2.0**30, gradient(1.0), rtol=1e-6, atol=0)


@pytest.mark.parametrize("rows", [1024, 1025])  # up to 1,024 a GPU's pass counts for itself
@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("counted", [1, 3, None])
def test_counts_of_few_rows(device, rows, loss, counted):
    """Of every so many rows one counts; None: none does."""
    input, target = drawn((rows, 20), torch.float32, device)
    target[:] = -100
    if counted:
        target[::counted] = 7
    x, exact = input.detach().requires_grad_(), input.detach().double().requires_grad_()
    value, right = getattr(cudaloss, loss)(x, target), getattr(torch.nn.functional, loss)(exact, target)
    torch.testing.assert_close(value.double(), right, rtol=1e-6, atol=0, equal_nan=True)
    wanted = torch.autograd.grad(3 * right, exact)[0] if counted else torch.zeros_like(exact)
    torch.testing.assert_close(torch.autograd.grad(3 * value, x)[0].double(), wanted, rtol=1e-6, atol=1e-12)


@of_dtypes
@pytest.mark.parametrize(
    "shape", [(9,), (1, 1), (3, 1), (6, 1000), (2, 19, 8, 8), (3, 5, 2, 3, 2), (2, 3, 2, 2, 2, 2, 2)]
)
def test_shapes(device, shape, dtype):
    assert_right(*drawn(shape, dtype, device))


def test_equal_logits_and_large_ones(device):
    target = torch.tensor([0, 4, 8], device=device)
    for logit in (0.0, 5.0, -1e30, 1e30, 3.3e38, -3.3e38):
        assert_right(torch.full((3, 9), logit, device=device), target)
    wide = torch.tensor([-3e38, 3e38, 0.0, -1e38], device=device).repeat(3, 1)
    assert_right(wide, torch.tensor([1, 1, 1], device=device))


@pytest.mark.parametrize("classes", [4, 33, 1000, 5000, 40000])
def test_special_logits_are_pytorchs(device, classes):
    input, target = drawn((8, classes), torch.float32, device)
    target[:] = 1
    input[0, 2] = float("nan")
    input[1, 2] = -torch.inf
    input[2, 1] = -torch.inf
    input[3] = -torch.inf
    input[4] = torch.full((classes,), -torch.inf, device=device).index_fill(0, torch.tensor([1], device=device), 2.0)
    input[5, 3] = torch.inf
    input[6, 1] = torch.inf
    leaf, other = input.clone().requires_grad_(), input.double().requires_grad_()
    ours = cudaloss.cross_entropy(leaf, target, reduction="none")
    theirs = F.cross_entropy(other, target, reduction="none")
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=1e-6, equal_nan=True)
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(leaf.grad.double(), other.grad, rtol=1e-5, atol=1e-7, equal_nan=True)


# ---- targets ----


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
def test_dtypes_of_indices(device, dtype):
    input, target = drawn((40, 100), torch.float32, device)
    leaf = input.clone().requires_grad_()
    expected = cudaloss.cross_entropy(leaf, target)
    found = cudaloss.cross_entropy(leaf, target.to(dtype))
    assert torch.equal(found, expected)
    assert torch.equal(*(torch.autograd.grad(x, leaf)[0] for x in (found, expected)))
    assert torch.equal(cudaloss.cross_entropy(input, target.to(dtype), ignore_index=7),
                       cudaloss.cross_entropy(input, target, ignore_index=7))  # fmt: skip


@pytest.mark.parametrize("classes", [5, 200, 3000])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_rows_that_do_not_count_are_not_read(device, classes, reduction):
    input, target = drawn((9, classes), torch.float32, device)
    mask = torch.ones(9, dtype=torch.bool, device=device)
    target[0], target[8], mask[4] = -100, -100, False
    clean = cudaloss.cross_entropy(input, target, mask=mask, reduction=reduction)
    input[[0, 4, 8]] = float("nan")
    leaf = input.requires_grad_()
    value = cudaloss.cross_entropy(leaf, target, mask=mask, reduction=reduction)
    assert torch.equal(value, clean)
    value.sum().backward()
    assert leaf.grad.isfinite().all() and not leaf.grad[[0, 4, 8]].any() and leaf.grad[1].any()


def test_nothing_counts(device):
    input = torch.randn(4, 6, device=device, requires_grad=True)
    target = torch.full((4,), -100, device=device)
    value = cudaloss.cross_entropy(input, target)
    assert value.isnan()
    value.backward()
    assert not input.grad.any()
    normalizer = torch.tensor(4.0, device=device)
    assert cudaloss.cross_entropy(input, target, normalizer=normalizer) == 0
    assert cudaloss.cross_entropy(input, target, reduction="sum") == 0
    empty = torch.randn(0, 6, device=device, requires_grad=True)
    for own in ({}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"weight": torch.rand(6, device=device)}):
        assert cudaloss.cross_entropy(empty, target[:0], **own).isnan()
        assert cudaloss.cross_entropy(empty.detach().expand(0, 6), target[:0], **own).isnan()
    for classes in (40, 2000):
        assert cudaloss.cross_entropy(torch.randn(0, classes, device=device), target[:0], z_loss=0.1).isnan()
    assert cudaloss.cross_entropy(empty, target[:0], reduction="sum") == 0
    assert cudaloss.cross_entropy(empty, target[:0], reduction="none").shape == (0,)


@pytest.mark.parametrize("classes", [40, 2000])  # of a warp, of a block
def test_rows_whose_gradients_are_right_already(device, classes):
    """A backward leaves them as they are: among a block's rows there are such ones and others."""
    logits = torch.randn(3, 264, classes, device=device)
    leaf = logits.clone().requires_grad_()
    target = torch.randint(classes, (3, 264), device=device)
    incoming = torch.tensor([0.5, 1.0, 0.5], device=device)
    cudaloss.cross_entropy(leaf.transpose(1, 2), target, reduction="sum", batch_dims=1).backward(incoming)
    exact = logits.double().requires_grad_()
    F.cross_entropy(exact.transpose(1, 2), target, reduction="none").sum(1).backward(incoming.double())
    torch.testing.assert_close(leaf.grad.double(), exact.grad, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("bad", [6, -1, -101, 2**40])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_index_out_of_range(device, bad, reduction):
    input = torch.randn(5, 6, device=device, requires_grad=True)
    target = torch.tensor([0, 1, bad, 2, 5], device=device)
    if device == "cpu":
        with pytest.raises(RuntimeError, match=f"target must .* below 6.*got {bad}"):
            cudaloss.cross_entropy(input, target, reduction=reduction)
        return
    value = cudaloss.cross_entropy(input, target, reduction=reduction)
    value.sum().backward()
    assert value.isnan().sum() == 1
    assert input.grad[2].isnan().all() and input.grad[[0, 1, 3, 4]].isfinite().all()


@of_dtypes
@pytest.mark.parametrize("shape", [(9,), (6, 40), (3, 1000), (2, 7, 4, 3), (2, 5000)])
def test_probabilities(device, shape, dtype):
    """Unnormalised ones too, of which the sum is no part of the formula."""
    input, _ = drawn(shape, dtype, device)
    q = torch.rand(shape).to(dtype).to(device)
    weight = torch.rand(shape[1] if len(shape) > 1 else shape[0], device=device) + 0.5
    for own in ({}, {"label_smoothing": 0.125}, {"weight": weight, "label_smoothing": 0.125, "z_loss": 2.0**-10}):
        truth = exact_rows.cross_entropy(input, q, **own)
        x, t = input.clone().requires_grad_(), q.clone().requires_grad_()
        losses = cudaloss.cross_entropy(x, t, reduction="none", **own)
        assert error(losses, truth.losses) <= ULPS[dtype]
        for_input, for_target = torch.autograd.grad(losses.sum(), (x, t))
        exact, bound = (as_input(truth.for_input, x), as_input(truth.sizes, x)), ULPS[dtype]
        if dtype == torch.float64:
            bound = max(bound, error(torch.autograd.grad(by_pytorch(x, t, **own).sum(), x)[0], *exact))
        assert error(for_input, *exact) <= bound
        assert error(for_target, as_input(truth.for_target, x)) <= ULPS[dtype]
        mean = cudaloss.cross_entropy(x, t, **own)
        assert error(mean, truth.losses.sum() / len(truth.losses)) <= ULPS[dtype]
        (for_target,) = torch.autograd.grad(mean, t)
        assert error(for_target, as_input(truth.for_target, x) / len(truth.losses)) <= ULPS[dtype]


# ---- its own arguments ----

OWN = {
    "label_smoothing": {"label_smoothing": 0.125},
    "z_loss": {"z_loss": 2.0**-10},
    "softcap": {"softcap": 30.0},
    "weight": {"weight": True},
    "weight and smoothing": {"weight": True, "label_smoothing": 0.125},
    "all": {"weight": True, "label_smoothing": 0.125, "z_loss": 2.0**-10, "softcap": 8.0, "ignore_index": 1},
}


@of_dtypes
@pytest.mark.parametrize("shape", [(50, 10), (9, 300), (5, 4096), (4, 20000), (2, 19, 6, 4)])
@pytest.mark.parametrize("name", OWN)
def test_own_arguments(device, name, shape, dtype):
    own = dict(OWN[name])
    if "weight" in own:
        own["weight"] = (torch.rand(shape[1]) + 0.5).to(device)
    input, target = drawn(shape, dtype, device, confident="softcap" not in own)
    # A softcap's tanh is rounded before it is differentiated, and what it loses grows with the cap.
    assert_right(input, target, bound=16 * ULPS[dtype] if "softcap" in own and dtype.itemsize > 2 else None, **own)


def capped_logits(shape, dtype, device, cap):
    """Most of them below the cap; in the last rows some up to four times as far."""
    input, target = drawn(shape, dtype, device, cap / 4, confident=False)
    far = torch.rand(shape, device=device) < 0.02
    far[: len(far) // 2] = False
    return torch.where(far, input * 8, input).clamp(-4 * cap, 4 * cap), target


# Some lanes of a warp, a warp, a block, tiles in registers, shared memory and again; whole vectors and others.
@pytest.mark.parametrize("classes", [1, 2, 10, 64, 250, 999, 1024, 2056, 4096, 4099, 8200, 32768, 50257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_softcap(device, classes, dtype):
    bound = 16 * ULPS[dtype] if dtype.itemsize > 2 else None
    shape = (6 if classes < 5000 else 2, classes)
    assert_right(*capped_logits(shape, dtype, device, 30.0), bound=bound, softcap=30.0)
    input, target = capped_logits(shape, dtype, device, 36.0)  # the largest cap of the fast kernels
    target[1] = -100
    weight = torch.rand(classes, device=device) + 0.5
    assert_right(input, target, bound=bound, softcap=36.0, weight=weight, z_loss=2.0**-10)
    assert_right(*drawn(shape, dtype, device, scale=1.0), bound=bound, softcap=30.0)  # some rows are sure
    for cap in (4.0, 0.125):
        assert_right(*capped_logits(shape, dtype, device, cap), bound=bound, softcap=cap, label_smoothing=0.125)


@pytest.mark.parametrize("cap", [4.0, 30.0, 36.0, 43.0])
@pytest.mark.parametrize("classes", [2, 999, 9000])
def test_softcap_of_logits_far_apart(device, cap, classes):
    """Near 3/4 of the cap, with opposite signs: exp turns the rest of either bent logit into the most last places."""
    most = cap * torch.linspace(0.7, 0.76, 64, device=device)
    input = -most[:, None] * torch.linspace(1.0, 0.97, classes, device=device)
    input[:, 0] = most.flip(0)
    for target in (0, 1):
        assert_right(input, torch.full((64,), target, device=device), bound=16 * ULPS[torch.float32], softcap=cap)
    seen = torch.tensor([[21.724143981933594, -22.169261932373047], [31.221641540527344, -31.221641540527344]])
    for row, own in zip(seen.to(device)[:, None], (30.0, 43.0), strict=True):
        assert_right(row, torch.zeros(1, dtype=torch.long, device=device), bound=16 * ULPS[row.dtype], softcap=own)


@pytest.mark.parametrize("classes", [40, 5000, 70000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_softcap_at_the_edges(device, classes, dtype):
    """A capped infinity is a number."""
    input, target = capped_logits((5, classes), dtype, device, 30.0)
    target[:4] = torch.tensor([0, 3, 3, 7])
    input[0, 3], input[1, 3], input[2, 3], input[4, 5] = torch.inf, torch.inf, -torch.inf, torch.nan
    input[3] = -torch.inf
    finite = input.clamp(-1500, 1500).requires_grad_()  # NaN stays
    leaf = input.clone().requires_grad_()
    losses, others = (cudaloss.cross_entropy(x, target, softcap=30.0, reduction="none") for x in (leaf, finite))
    losses[:4].sum().backward()
    others[:4].sum().backward()
    assert losses[4].isnan() and losses[:4].isfinite().all()
    torch.testing.assert_close(losses[:4], others[:4], rtol=1e-6, atol=0)
    torch.testing.assert_close(leaf.grad[:4], finite.grad[:4], rtol=1e-5, atol=1e-30)
    (of_nan,) = torch.autograd.grad(cudaloss.cross_entropy(leaf, target, softcap=30.0, reduction="none")[4], leaf)
    assert of_nan[4].isnan().all() and not of_nan[:4].any()


# ---- a call's options ----


@pytest.mark.parametrize("shape", [(24, 10), (24, 300), (6, 9000), (6, 19, 4)])
@pytest.mark.parametrize("batch_dims", [0, 1])
def test_options(device, shape, batch_dims):
    input, target = drawn(shape, torch.float32, device)
    rows = target.shape
    weight, mask = torch.rand(rows, device=device) + 0.5, torch.rand(rows, device=device) < 0.7
    mask.view(-1)[0], target.view(-1)[-1] = True, -100
    class_weight = torch.rand(shape[1], device=device) + 0.5
    truth = exact_rows.cross_entropy(input, target, class_weight)
    number = numbers(input)
    given = [number(x.reshape(-1)) for x in (weight, mask)]
    kept = (shape[0], -1) if batch_dims else (1, -1)
    each, counts = ((x * given[0] * given[1]) for x in (truth.losses, truth.counts))
    sums, totals = each.reshape(kept).sum(-1), counts.reshape(kept).sum(-1)
    options = {"sample_weight": weight, "mask": mask, "scale": 0.75, "batch_dims": batch_dims, "weight": class_weight}
    for reduction, factors in {
        "sum": np.ones_like(totals),
        "mean": totals,
        "normalizer": np.full_like(totals, 8),
    }.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            expected = sums * 0.75 / factors
            of_rows = np.where(factors == 0, 0, 0.75 / factors)
        leaf = input.clone().requires_grad_()
        beside = {"normalizer": torch.tensor(8.0, device=device)} if reduction == "normalizer" else {}
        named = "mean" if beside else reduction
        value = cudaloss.cross_entropy(leaf, target, reduction=named, **options, **beside)
        assert error(value, expected) <= 2.0
        incoming = torch.rand_like(value) + 0.5
        value.backward(incoming)
        factor = number(incoming.reshape(-1)) * of_rows
        factor = np.broadcast_to(factor[:, None], (len(factor), each.size // len(factor))).reshape(-1)
        exact = truth.for_input * (factor * given[0] * given[1])[:, None]
        assert error(leaf.grad, as_input(exact, input)) <= 4.0  # of four factors, each rounded
    leaf = input.clone().requires_grad_()
    single = cudaloss.cross_entropy(leaf, target, reduction="none", **options | {"batch_dims": 0})
    assert error(single, each * 0.75) <= 2.0


def test_broadcast_options(device):
    input, target = drawn((4, 7, 5), torch.float32, device)
    weight, mask = torch.rand(5, device=device), torch.tensor([[True], [False], [True], [True]], device=device)
    found = cudaloss.cross_entropy(input, target, sample_weight=weight, mask=mask)
    expected = cudaloss.cross_entropy(input, target, sample_weight=weight.expand(4, 5), mask=mask.expand(4, 5))
    assert torch.equal(found, expected)


def test_dtype_and_autocast(device):
    input, target = drawn((20, 50), torch.bfloat16, device)
    wide = cudaloss.cross_entropy(input.float(), target)
    with torch.autocast(device, dtype=torch.bfloat16):
        leaf = input.clone().requires_grad_()
        found = cudaloss.cross_entropy(leaf, target)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wide, rtol=1e-6, atol=0)
    found.backward()
    assert leaf.grad.dtype == torch.bfloat16
    assert cudaloss.cross_entropy(input, target).dtype == torch.bfloat16
    assert cudaloss.cross_entropy(input, target, dtype=torch.float64).dtype == torch.float64


def test_small_gradients_of_fp16(device):
    """A mean over so many rows has gradients that fp16 cannot represent; for a scaled loss it can."""
    input = torch.zeros(1 << 16, 32, dtype=torch.float16, device=device, requires_grad=True)
    target = torch.zeros(1 << 16, dtype=torch.long, device=device)
    (cudaloss.cross_entropy(input, target, dtype=torch.float32) * 65536).backward()
    torch.testing.assert_close(input.grad[:, 1], torch.full((1 << 16,), 1 / 32, dtype=torch.float16, device=device))


# ---- layouts ----

LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "sliced": lambda x: torch.nn.functional.pad(x, (1, 2))[..., 1:-2],
    "misaligned": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "padded rows": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
}


@pytest.mark.parametrize("shape", [(12, 10), (12, 128), (12, 4096), (6, 33000), (12, 20, 6)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(device, layout, shape, dtype):
    input, target = drawn(shape, dtype, device)
    changed = LAYOUTS[layout](input)
    assert torch.equal(changed, input)
    assert_right(changed, target)
    (gradient,) = torch.autograd.grad(cudaloss.cross_entropy(leaf := changed.detach().requires_grad_(), target), leaf)
    assert gradient.shape == input.shape


def test_channels_last(device):
    input, target = drawn((3, 12, 9, 7), torch.float32, device)
    leaf = input.to(memory_format=torch.channels_last).requires_grad_()
    assert_right(leaf, target)
    cudaloss.cross_entropy(leaf, target).backward()
    assert leaf.grad.is_contiguous(memory_format=torch.channels_last)


def test_expanded_logits(device):
    row = torch.randn(1, 30, device=device)
    target = torch.arange(8, device=device)
    assert_right(row.expand(8, 30), target)


def test_logits_are_never_written_to(device):
    input, target = drawn((30, 5000), torch.float32, device)
    before = input.clone()
    cudaloss.cross_entropy(input.requires_grad_(), target).backward()
    assert torch.equal(input, before) and input._version == 0


@pytest.mark.cuda
def test_more_than_2_to_the_31_elements(large):
    rows, classes = (1 << 20) + 3, 2050
    input = torch.empty(rows, classes, device="cuda", dtype=torch.bfloat16).normal_()
    target = torch.randint(classes, (rows,), device="cuda")
    leaf = input.requires_grad_()
    # A counted divisor and a given one differ in how they are multiplied by.
    cudaloss.cross_entropy(leaf, target, normalizer=float(rows), dtype=torch.float32).backward()
    ends = slice(None, 64), slice(-64, None)
    for end in ends:
        part = input.detach()[end].clone().requires_grad_()
        cudaloss.cross_entropy(part, target[end], normalizer=float(rows)).backward()
        # Other rows begin at a multiple of 16 bytes, so that sums are in another order: a half's last place.
        torch.testing.assert_close(part.grad, leaf.grad[end], rtol=2**-7, atol=0)


# ---- the same bits ----


@pytest.mark.parametrize("shape", [(4000, 10), (3000, 128), (300, 4096), (9, 70000), (3, 262144), (8, 19, 32, 32)])
def test_same_bits(device, shape):
    input, target = drawn(shape, torch.float32, device)
    assert_same_bits(cudaloss.cross_entropy, input, target)
