"""weight, normalizer and scale: what they multiply and divide, and the gradients that they have themselves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

import cudaloss
from calls import Call
from cudaloss._call.modes import REDUCTIONS
from cudaloss._losses.options import Options
from oracle import DTYPES, error, leaf, op, operands, spelled_out

SHAPE = (4, 6, 50)


@pytest.fixture
def pair(device):
    return tuple(leaf(x) for x in operands(SHAPE, (torch.float32,) * 2, device))


WEIGHT_SHAPES = {
    "whole": SHAPE,
    "a row": (50,),
    "a column": (6, 1),
    "a sample": (4, 1, 1),
    "a middle dimension alone": (1, 6, 1),
    "one value": (),
    "ones": (1, 1, 1),
}


@pytest.mark.parametrize("shape", WEIGHT_SHAPES.values(), ids=WEIGHT_SHAPES)
def test_shapes_of_a_weight(spec, pair, shape):
    for batch_dims, reduction in itertools.product((0, 1, 2), REDUCTIONS):
        weight = torch.rand(shape, device=pair[0].device) + 0.1
        Call(spec, *pair, reduction, options=Options(weight, batch_dims=batch_dims)).assert_right()


@pytest.mark.parametrize("weight_dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes_of_a_weight(spec, device, dtype, weight_dtype):
    input, target = operands((3, 1031), (dtype, torch.float32), device)
    weight = (torch.rand(3, 1031, device=device) + 0.1).to(weight_dtype)
    for reduction in REDUCTIONS:
        call = Call(spec, leaf(input), leaf(target), reduction, options=Options(weight))
        call.assert_right()  # of float32, whatever the weight's
        assert op(spec)(input, target, reduction, weight=weight).dtype == torch.float32


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_without_a_middle_dimension(spec, device, dtype):
    """Its rows, dense one behind the other, may be shorter than what the counting kernel reads at once."""
    for last in range(1, 10):
        pair = operands((5, 3, 7, last), (torch.float32,) * 2, device)
        weight = (torch.rand(5, 3, 1, last, device=device) + 0.1).to(dtype)
        Call(spec, *map(leaf, pair), options=Options(weight=weight)).assert_right()


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_weights_beyond_float32(spec, pair, size):
    weight = size * (torch.rand(SHAPE, dtype=torch.float64, device=pair[0].device) + 0.5)
    weight[0] = 0
    for batch_dims in (0, 2):
        Call(spec, *pair, options=Options(weight, batch_dims=batch_dims)).assert_right()
    if not spec.mean_over_count:  # which does not bring it back into float32's range
        assert op(spec)(*pair, weight=weight).isfinite()


@pytest.mark.any_numbers
def test_a_mean_is_over_the_sum_of_the_weights(spec, pair):
    weight = torch.rand(SHAPE, device=pair[0].device)
    losses = op(spec)(*pair, "none").double()
    if spec.mean_over_count:
        expected = (losses * weight.double()).mean()
        assert error(op(spec)(*pair, weight=weight), expected, torch.float32) <= 2.0
        return
    expected = (losses * weight.double()).sum() / weight.double().sum()
    assert error(op(spec)(*pair, weight=weight), expected, torch.float32) <= 2.0
    assert error(op(spec)(*pair, weight=7 * weight), expected, torch.float32) <= 4.0  # 7w is rounded
    # a weight of one value for each of 50 places counts as often as it is used
    row = weight[0, 0]
    expected = (losses * row.double()).sum() / (row.double().sum() * 24)
    assert error(op(spec)(*pair, weight=row), expected, torch.float32) <= 4.0


def test_a_weight_of_one_is_none(spec, pair):
    for reduction in REDUCTIONS:
        found = op(spec)(*pair, reduction, weight=torch.ones((), device=pair[0].device))
        torch.testing.assert_close(found, op(spec)(*pair, reduction), rtol=3e-7, atol=0)


@pytest.mark.parametrize("batch_dims", [0, 1])
def test_weights_of_zero(spec, pair, batch_dims):
    weight = torch.zeros(SHAPE, device=pair[0].device)
    for reduction, expected in (("mean", 0.0 if spec.mean_over_count else math.nan), ("sum", 0.0)):
        value = op(spec)(*pair, reduction, weight=weight, batch_dims=batch_dims)
        torch.testing.assert_close(value, torch.full(SHAPE[:batch_dims], expected).to(value), equal_nan=True)
        for gradient in torch.autograd.grad(value, pair, torch.ones_like(value)):
            assert (gradient == 0).all()


def test_a_weight_of_zero_hides_no_nan(spec, device):
    input = leaf(torch.tensor([math.nan, 1.0, 2.0], device=device))
    weight = torch.tensor([0.0, 1.0, 1.0], device=device)
    for reduction in ("mean", "sum"):
        value = op(spec)(input, torch.zeros(3, device=device), reduction, weight=weight)
        assert value.isnan()
        (gradient,) = torch.autograd.grad(value, input)
        assert gradient.isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_negative_weights(spec, pair, reduction):
    # An error in proportion to the magnitudes that are added up, as they cancel.
    for batch_dims in (0, 1):
        weight = torch.randn(SHAPE, device=pair[0].device)
        weight[:, 0, 0] += 60.0  # keeps the mean's denominator from vanishing
        Call(spec, *pair, reduction, options=Options(weight, batch_dims=batch_dims)).assert_right()


@pytest.mark.parametrize("size", [1, 1023, 8193, 100_003])
def test_sizes(spec, device, size):
    input, target = operands((size,), (torch.float32,) * 2, device)
    weight = torch.rand(size, device=device) + 0.1
    mask = torch.rand(size, device=device) < 0.7
    mask[0] = True
    for options in (Options(weight), Options(weight, mask), Options(weight[0], mask), Options(None, mask)):
        for incoming in ("1", "0.25", "random"):
            Call(spec, leaf(input), leaf(target), options=options, incoming=incoming).assert_right()


@pytest.mark.parametrize("size", [(1 << 20) + 7, pytest.param((1 << 25) + 9, marks=pytest.mark.cuda)])
def test_sums_of_many_weights_do_not_drift(spec, device, size):
    """0.1 of float32, added up one by one, is off by 1 % after 2^20."""
    if (device == "cuda") != (size > 1 << 21):
        pytest.skip("one size a device")
    input = torch.zeros(size, device=device)
    input[size // 2] = 3.0
    total = op(spec)(input, torch.zeros_like(input), "sum").double()
    for weight in (torch.tensor(0.1, device=device), torch.full((size,), 0.1, device=device)):
        value = op(spec)(input, torch.zeros_like(input), weight=weight)
        total_weight = 0.1 if spec.mean_over_count else 1.0
        assert error(value, total_weight * total / size, torch.float32) <= 8.0


# ---- gradients of the weight and of the normalizer ----


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", WEIGHT_SHAPES.values(), ids=WEIGHT_SHAPES)
def test_gradient_of_a_weight(spec, device, shape, reduction):
    wide = [x.to(device) for x in operands(SHAPE, (torch.float64,) * 2, "cpu")]
    mask = torch.rand(SHAPE, device=device) < 0.7
    for given in ({}, {"mask": mask}, {"mask": mask, "batch_dims": 1, "scale": 0.3}):
        weight = torch.rand(shape, dtype=torch.float64, device=device) + 0.1

        def gradients(function, given=given, weight=weight):
            leaves = [leaf(x) for x in (*wide, weight)]
            value = function(leaves[0], leaves[1], reduction, weight=leaves[2], **given)
            incoming = torch.linspace(-1, 2, value.numel(), dtype=value.dtype, device=device).view(value.shape)
            return torch.autograd.grad(value, leaves, incoming)

        found = gradients(op(spec))
        assert found[2].shape == shape
        torch.testing.assert_close(found, gradients(spelled_out(spec)))


def test_gradient_of_a_weight_is_of_its_dtype_and_0_behind_the_mask(spec, pair):
    for dtype in DTYPES:
        weight = leaf(torch.rand(SHAPE, device=pair[0].device).to(dtype) + 0.5)
        mask = torch.rand(SHAPE, device=weight.device) < 0.5
        with torch.no_grad():
            weight[~mask] = math.nan
        for reduction in REDUCTIONS:
            value = op(spec)(*pair, reduction, weight=weight, mask=mask)
            found = torch.autograd.grad(value.sum(), (weight, *pair))
            assert found[0].dtype == dtype
            for gradient in found:
                assert gradient.isfinite().all() and (gradient[~mask] == 0).all()
            assert (found[0][mask] != 0).any()


def test_a_weight_alone_may_require_grad(spec, pair):
    input, target = (x.detach() for x in pair)
    weight = leaf(torch.rand(50, device=input.device))
    op(spec)(input, target, "sum", weight=weight).backward()
    expected = op(spec)(input, target, "none").sum((0, 1))
    torch.testing.assert_close(weight.grad, expected)


def test_gradient_of_a_normalizer(spec, pair):
    mask = torch.rand(SHAPE, device=pair[0].device) < 0.5
    weight = torch.rand(50, device=pair[0].device)
    normalizer = leaf(torch.tensor(7.0, device=pair[0].device))
    total = op(spec)(*pair, "sum", weight=weight, mask=mask, scale=0.5)
    value = op(spec)(*pair, weight=weight, mask=mask, normalizer=normalizer, scale=0.5)
    torch.testing.assert_close(value, total / 7)
    found = torch.autograd.grad(value, (normalizer, *pair), torch.tensor(3.0, device=mask.device))
    torch.testing.assert_close(found[0], -3 * total.detach() / 49)
    torch.testing.assert_close(found[1:], torch.autograd.grad(total, pair, torch.tensor(3 / 7, device=mask.device)))


# ---- normalizer ----


@pytest.mark.parametrize(
    "dtype",
    [*DTYPES, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8],
    ids=str,
)
def test_a_normalizer_divides_the_sum(spec, pair, dtype):
    weight = torch.rand(SHAPE, device=pair[0].device)
    mask = torch.rand(SHAPE, device=pair[0].device) < 0.5
    normalizer = torch.tensor(37, device=pair[0].device, dtype=dtype)
    for batch_dims in (0, 1, 3):
        options = Options(weight, mask, normalizer, 0.5, batch_dims)
        Call(spec, *pair, options=options).assert_right()
        total = op(spec)(*pair, "sum", weight=weight, mask=mask, batch_dims=batch_dims)
        found = op(spec)(*pair, weight=weight, mask=mask, normalizer=normalizer, batch_dims=batch_dims)
        torch.testing.assert_close(found, total / 37)


def test_a_normalizer_beyond_float16(spec, device):
    input, target = operands((1000,), (torch.float16,) * 2, device)
    normalizer = torch.tensor(1_000_000, device=device)
    Call(spec, leaf(input), leaf(target), options=Options(normalizer=normalizer)).assert_right()


def test_a_sum_beyond_float16_comes_back_by_its_normalizer(spec, device):
    input, target = torch.full((100_000,), 3.0, dtype=torch.float16, device=device), torch.zeros(100_000, device=device)
    value = op(spec)(input, target.half(), normalizer=torch.tensor(100_000, device=device))
    torch.testing.assert_close(value, op(spec)(input, target.half()))


@pytest.mark.parametrize("number", [3, 2.5, np.float32(2.5), np.int64(3), -4.0, True + 1], ids=repr)
def test_a_number_normalizer(spec, pair, number):
    function, module = getattr(cudaloss, spec.function), getattr(cudaloss, spec.module)(scale=0.5, batch_dims=1)
    expected = op(spec)(*pair, "sum") / float(number)
    torch.testing.assert_close(function(*pair, normalizer=number), expected)
    mask = torch.rand(SHAPE, device=pair[0].device) < 0.5
    expected = op(spec)(*pair, "sum", mask=mask, batch_dims=1) / float(number) * 0.5
    found = module(*pair, mask=mask, normalizer=number)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), pair) for x in (found, expected)))


def test_a_normalizer_of_zero_divides_as_pytorch_does(spec, pair):
    zero = torch.tensor(0.0, device=pair[0].device)
    assert op(spec)(*pair, normalizer=zero).isinf()
    mask = torch.rand(SHAPE, device=zero.device) < 0.5
    value = op(spec)(*pair, normalizer=zero, mask=mask)
    for gradient in torch.autograd.grad(value, pair):
        assert (gradient[~mask] == 0).all()
    nothing = op(spec)(*pair, normalizer=zero, mask=torch.zeros_like(mask))
    assert nothing.isnan()
    for gradient in torch.autograd.grad(nothing, pair):
        assert (gradient == 0).all()


def test_a_normalizer_is_read_when_the_loss_is(spec, pair):
    normalizer = torch.tensor(2.0, device=pair[0].device)
    before = op(spec)(*pair, normalizer=normalizer).detach()
    normalizer.fill_(8.0)
    torch.testing.assert_close(op(spec)(*pair, normalizer=normalizer), before / 4)


# ---- scale ----


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_scale_multiplies_value_and_gradients(spec, pair, reduction):
    for scale in (0.5, -3.0, 0.3, 0.0, 2, np.float32(0.25)):
        assert_scaled(spec, pair, reduction, scale)


def assert_scaled(spec, pair, reduction, scale):
    Call(spec, *pair, reduction, options=Options(scale=float(scale))).assert_right()
    for call in (getattr(cudaloss, spec.function), op(spec)):
        given, plain = call(*pair, reduction=reduction, scale=scale), call(*pair, reduction=reduction)
        torch.testing.assert_close(given, plain * float(scale))
        incoming = torch.ones_like(given)
        torch.testing.assert_close(
            *(torch.autograd.grad(v, pair, incoming * f) for v, f in ((given, 1), (plain, scale)))
        )


def test_scale_in_half_precision_is_applied_before_rounding(spec, device):
    # a sum that float16 does not hold, times a scale that brings it back
    input = leaf(torch.full((100_000,), 3.0, dtype=torch.float16, device=device))
    value = op(spec)(input, torch.zeros_like(input), "sum", scale=1e-5)
    torch.testing.assert_close(value, op(spec)(input, torch.zeros_like(input)))


@pytest.mark.any_numbers
def test_a_module_keeps_its_scale(spec, pair):
    module = getattr(cudaloss, spec.module)(reduction="sum", scale=0.25, ignore_nan=True)
    assert torch.equal(module(*pair), op(spec)(*pair, "sum", scale=0.25, ignore_nan=True))
    assert repr(module).endswith("scale=0.25, ignore_nan=True)")
