"""Binary cross-entropy with logits, element for element: accurate into the tails, and right at infinities."""

from __future__ import annotations

import functools
import math

import mpmath
import pytest
import torch

import cudaloss
from cudaloss._call.modes import REDUCTIONS
from cudaloss._install.build import DEVICES
from cudaloss.bench.errors import largest_error, ulp
from oracle import DTYPES, FACTORED, HALVES, largest_logit, leaf
from thirds import allowed, results

bce = cudaloss.binary_cross_entropy_with_logits
of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
POINTS = 2000
NAMES = ("value", "d/d input", "d/d target")


def bar(dtype, device, factored):
    """In ulp of the value, or of the larger of two terms that cancel in a gradient; `factored`: with a pos_weight or
    smoothing."""
    return 1.0 if dtype in HALVES else allowed(device, 2.0 * (FACTORED if factored else 1.0))


# ---- the truth, of 40 digits ----


@functools.cache
def points(dtype, farthest):
    """Logits from nothing to the tails, and hard, soft and nearly hard targets."""
    generator = torch.Generator().manual_seed(1)
    uniform = lambda low, high: low + (high - low) * torch.rand(POINTS, generator=generator, dtype=torch.float64)  # noqa: E731
    sign = torch.randint(0, 2, (4, POINTS), generator=generator) * 2 - 1
    x = torch.stack([uniform(0, 3), uniform(3, 20), uniform(20, 100), torch.pow(10, uniform(-8, 0))]) * sign
    near = torch.pow(10, uniform(-6, 0))
    t = torch.stack([(uniform(0, 1) < 0.5).double(), uniform(0, 1), near, 1 - near])
    x, t = x.flatten(), t[torch.randint(0, 4, (4 * POINTS,), generator=generator), torch.arange(4 * POINTS) % POINTS]
    chosen = torch.randperm(4 * POINTS, generator=generator)[:POINTS]
    x, t = x[chosen], t[chosen]
    x[:6], t[:6] = torch.tensor([0.0, -0.0, 0.0, 0.0, 100.0, -100.0]), torch.tensor([0.0, 1.0, 0.3, 1.0, 0.0, 1.0])
    return x.clamp(-farthest, farthest).to(dtype), t.to(dtype)


def farthest(device, dtype):
    """PyTorch's own exp on the CPU keeps few digits of float32's subnormal numbers."""
    return min(100 if device in DEVICES else 85, largest_logit(device, dtype))


def of_40_digits(x, t, p, eps):
    """The value, d/d input and d/d target, each with what its ulp is taken of: itself, or the larger of two terms that
    cancel."""
    x, t, p, eps = (mpmath.mpf(number) for number in (x, t, p, eps))
    on, off = t * (1 - eps) + eps / 2, (1 - t) * (1 - eps) + eps / 2
    e = mpmath.exp(-abs(x))
    rest = mpmath.log1p(e)
    up, down = max(x, 0) + rest, max(-x, 0) + rest
    sigmoid, other = (1 / (1 + e), e / (1 + e)) if x >= 0 else (e / (1 + e), 1 / (1 + e))
    positive, negative = off * up, p * on * down
    of_input = off * sigmoid, p * on * other
    of_target = (1 - eps) * p * down, (1 - eps) * up
    slope = (1 - eps) * ((p - 1) * down - x)  # sp(x) = sp(-x) + x
    value = positive + negative
    return (value, value), (of_input[0] - of_input[1], max(of_input)), (slope, max(of_target))


@functools.cache
def truths(dtype, far, p, eps):
    x, t = points(dtype, far)
    with mpmath.workdps(40):
        rows = [of_40_digits(*pair, p, eps) for pair in zip(x.tolist(), t.tolist(), strict=True)]
        return list(zip(*rows, strict=True))


def worst(found, truth):
    """The largest error in ulp of the larger term, and the index of the point where it is."""
    sizes = torch.tensor([float(size) for _, size in truth], dtype=torch.float64)
    spacing = ulp(sizes, found.dtype).tolist()
    with mpmath.workdps(40):
        errors = [
            float(abs(mpmath.mpf(x) - exact) / gap) if math.isfinite(x) else math.inf
            for x, (exact, _), gap in zip(found.tolist(), truth, spacing, strict=True)
        ]
    return max(zip(errors, range(len(errors)), strict=True))


@of_dtypes
@pytest.mark.parametrize(("p", "eps"), [(1, 0.0), (1, 0.1), (1, 1.0), (2.5, 0.1), (0.01, 0.0), (0.01, 1.0), (100, 0.1)])
def test_values_and_gradients(device, dtype, p, eps):
    x, t = points(dtype, farthest(device, dtype))
    given = {"pos_weight": None if p == 1 else p, "label_smoothing": eps}
    found = results(bce, (x.to(device), t.to(device)), 1.0, reduction="none", **given)
    for ours, truth, name in zip(found, truths(dtype, farthest(device, dtype), p, eps), NAMES, strict=True):
        error, where = worst(ours.cpu(), truth)
        assert error <= bar(dtype, device, p != 1 or eps > 0), f"{name} at x = {x[where]}, t = {t[where]}: {error} ulp"


@pytest.mark.parametrize("eps", [0.0, 0.1])
@pytest.mark.parametrize("p", [1.0, 2.5, 100.0])
def test_many_points_of_float32(device, p, eps):
    """More of them than 40 digits have the time for: float64's are enough."""
    x = torch.cat([torch.randn(1 << 18) * scale for scale in (1e-3, 1, 4, 20)]).clamp(-85, 85)
    t = torch.where(torch.rand_like(x) < 0.2, (x > 0).float(), torch.rand_like(x))
    given = {"pos_weight": None if p == 1 else p, "label_smoothing": eps}
    found = results(bce, (x.to(device), t.to(device)), 1.0, reduction="none", **given)
    x, t = x.double(), t.double()
    on, off = t * (1 - eps) + eps / 2, (1 - t) * (1 - eps) + eps / 2
    rest = torch.log1p((-x.abs()).exp())
    up, down = x.clamp(min=0) + rest, (-x).clamp(min=0) + rest
    value, of_one, of_zero = off * up + p * on * down, off * x.sigmoid(), p * on * (-x).sigmoid()
    truths = (
        (value, value),
        (of_one - of_zero, torch.maximum(of_one, of_zero)),
        ((1 - eps) * ((p - 1) * down - x), (1 - eps) * torch.maximum(p * down, up)),
    )
    for ours, (exact, size), name in zip(found, truths, NAMES, strict=True):
        assert largest_error(ours.cpu(), exact, torch.float32, size) <= bar(torch.float32, device, p != 1 or eps > 0), (
            name
        )


@of_dtypes
@pytest.mark.parametrize("shape", [(), (POINTS // 10,), (10, 1), (10, POINTS // 10)], ids=str)
def test_pos_weight_of_any_shape(device, dtype, shape):
    pos_weight = torch.linspace(0.25, 9, max(1, math.prod(shape)), dtype=torch.float64).view(shape).to(dtype)
    x, t = (operand.view(10, -1) for operand in points(dtype, farthest(device, dtype)))
    found = results(bce, (x.to(device), t.to(device)), 1.0, reduction="none", pos_weight=pos_weight.to(device))
    triples = zip(*(y.expand(x.shape).flatten().tolist() for y in (x, t, pos_weight)), strict=True)
    with mpmath.workdps(40):
        rows = [of_40_digits(*triple, 0.0) for triple in triples]
    for ours, truth, name in zip(found, zip(*rows, strict=True), NAMES, strict=True):
        error, where = worst(ours.flatten().cpu(), truth)
        at = f"x = {x.flatten()[where]}, t = {t.flatten()[where]}"
        assert error <= bar(dtype, device, True), f"{name} at {at}: {error} ulp"


@of_dtypes
def test_the_targets_gradient_without_pos_weight_is_minus_the_logit(device, dtype):
    """Not the difference of two softplus, of which a larger term would excuse an error near 0."""
    x, t = points(dtype, farthest(device, dtype))
    *_, of_target = results(bce, (x.to(device), t.to(device)), 1.0, reduction="none")
    assert torch.equal(of_target.cpu(), -x)


def test_the_tails_are_not_flushed(device):
    # PyTorch's value is 0 from x = -14.75 on, its gradient at t = 1 from 16.75.
    x = torch.arange(-103.0 if device in DEVICES else -85.0, -14.0, 0.25, device=device)
    value, of_input, _ = results(bce, (x, torch.zeros_like(x)), 1.0, reduction="none")
    for found in (value, of_input):
        assert (found > 0).all() and (found.diff() >= 0).all()
    mirrored, slope, _ = results(bce, (-x, torch.ones_like(x)), 1.0, reduction="none")
    assert torch.equal(mirrored, value) and torch.equal(slope, -of_input)


@pytest.mark.parametrize("count", [7, 4096])
def test_subnormal_losses_of_bfloat16(device, count):
    """Single ones, down to its smallest number, 2^-133."""
    x = torch.linspace(-92.0, -86.0, count, device=device, dtype=torch.bfloat16)
    value = bce(x, torch.zeros_like(x), reduction="none")
    assert value.dtype == torch.bfloat16
    error = (value.double() - torch.nn.functional.softplus(x.double(), threshold=1e3)).abs()
    assert error.max() <= (2.0**-133 if device in DEVICES else 2.0**-126)


INF, NAN = math.inf, math.nan
# x, t, pos_weight: value, d/d input, d/d target
LIMITS = [
    (INF, 1.0, 1.0, 0.0, 0.0, -INF),
    (INF, 0.0, 1.0, INF, 1.0, -INF),
    (-INF, 0.0, 1.0, 0.0, 0.0, INF),
    (-INF, 1.0, 1.0, INF, -1.0, INF),
    (INF, 0.25, 1.0, INF, 0.75, -INF),
    (-INF, 0.25, 1.0, INF, -0.25, INF),
    (INF, 1.0, 3.0, 0.0, 0.0, -INF),
    (-INF, 1.0, 3.0, INF, -3.0, INF),
    (-INF, 0.25, 4.0, INF, -1.0, INF),
    (-INF, 1.0, 0.0, 0.0, 0.0, None),
    (NAN, 0.0, 1.0, NAN, NAN, NAN),
    (NAN, 1.0, 1.0, NAN, NAN, NAN),
    (0.0, NAN, 1.0, NAN, NAN, NAN),
    (INF, NAN, 1.0, NAN, NAN, NAN),
    (NAN, NAN, 1.0, NAN, NAN, NAN),
]


@of_dtypes
@pytest.mark.parametrize("count", [1, 5, 1000])
def test_infinities_and_nan(device, dtype, count):
    for x, t, p, *expected in LIMITS:
        operands = [torch.full((count,), number, dtype=dtype, device=device) for number in (x, t)]
        # as a tensor, whose zeros nobody refuses
        given = {} if p == 1 else {"pos_weight": torch.full((count,), p, dtype=dtype, device=device)}
        found = results(bce, operands, 1.0, reduction="none", **given)
        for ours, truth in zip(found, expected, strict=True):
            if truth is not None:
                torch.testing.assert_close(ours, torch.full_like(ours, truth), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_infinities_under_label_smoothing(device, t):
    for x in (INF, -INF):
        operands = [torch.full((70,), number, device=device) for number in (x, t)]
        value, of_input, of_target = results(bce, operands, 1.0, reduction="none", label_smoothing=0.25)
        on = 0.75 * t + 0.125
        assert (value == INF).all() and (of_target == -x).all()
        assert torch.equal(of_input, torch.full_like(of_input, 1 - on if x > 0 else -on))


def test_what_is_selected_out_may_be_infinite(device):
    x, t = torch.randn(300, device=device), torch.rand(300, device=device)
    mask = torch.rand(300, device=device) < 0.5
    clean = results(bce, (x, t), mask=mask)
    for special in (NAN, INF, -INF):
        dirty = [torch.where(mask, y, special) for y in (x, t)]
        for ours, expected in zip(results(bce, dirty, mask=mask), clean, strict=True):
            assert torch.equal(ours, expected)
    holes = torch.where(mask, t, NAN)
    for ours, expected in zip(results(bce, (x, holes), ignore_nan=True), clean, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64], ids=str)
@pytest.mark.parametrize("size", [1, 77, 5000])
def test_targets_of_integers(device, dtype, size):
    x, t = leaf(torch.randn(size, device=device) * 5), torch.randint(0, 2, (size,), device=device)
    for given in ({}, {"pos_weight": 3.0}, {"label_smoothing": 0.1}, {"mask": t > 0}):
        for reduction in REDUCTIONS:
            found = [bce(x, target, reduction=reduction, **given) for target in (t.to(dtype), t.float())]
            # Sums by two kernels, in different orders, each right to 2 ulp; a mean of what a mask leaves may be NaN.
            rtol = 0.0 if reduction == "none" else 4 * torch.finfo(torch.float32).eps
            torch.testing.assert_close(*found, rtol=rtol, atol=0, equal_nan=True)
            assert torch.equal(*(torch.autograd.grad(value.sum(), x)[0] for value in found))


@pytest.mark.parametrize("pos_weight", [None, 3.0, 0.0])
def test_infinities_under_functorch_are_eagers(device, pos_weight):
    x = torch.tensor([INF, -INF, INF, -INF, INF, -INF], device=device)
    t = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.5, 0.5], device=device)
    p = None if pos_weight is None else torch.tensor(pos_weight, device=device)
    call = lambda x, t: bce(x, t, reduction="sum", pos_weight=p)  # noqa: E731
    found = torch.func.grad(call, argnums=(0, 1))(x, t)
    for ours, expected in zip(found, results(call, (x, t), 1.0)[1:], strict=True):
        assert torch.equal(ours, expected)
