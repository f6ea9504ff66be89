"""Values against float64: at most 1 ulp of the result's dtype, or PyTorch's own error."""

from __future__ import annotations

import itertools

import pytest
import torch

from calls import Call
from cudaloss._call.modes import REDUCTIONS
from cudaloss._install.build import DEVICES
from cudaloss._losses.table import OfDifference
from exact import Exact
from oracle import (
    ARITHMETICS,
    DTYPES,
    HALVES,
    MIXED,
    SECONDS,
    bar,
    error,
    exact_loss,
    leaf,
    op,
    operands,
    parameters,
    torch_op,
)

# 0 and 1 elements, below and above a vector, a tile, a block's tile, a chunk of the CPU engine
SIZES = (0, 1, 2, 3, 5, 8, 17, 63, 64, 65, 1000, 4096, 4097, 8192, 8193, 32768, 32769, 100_003)


def assert_accurate(spec, input, target, reduction, parameter):
    result_dtype = torch.promote_types(input.dtype, target.dtype)
    value = op(spec)(input, target, reduction, parameter)
    assert value.dtype == result_dtype and value.device == input.device
    exact = exact_loss(spec, input, target, reduction, parameter)
    assert value.shape == exact.shape
    wide = (input.to(result_dtype), target.to(result_dtype))
    theirs = error(torch_op(spec)(*wide, reduction, parameter), exact, result_dtype)
    assert error(value, exact, result_dtype) <= max(bar(spec, result_dtype), theirs)


@pytest.mark.parametrize("size", SIZES)
def test_sizes(spec, device, size):
    for parameter, reduction in itertools.product(parameters(spec), REDUCTIONS):
        for _ in range(5 if size < 100 else 1):
            assert_accurate(spec, *operands((size,), (torch.float32,) * 2, device, parameter), reduction, parameter)


@pytest.mark.any_numbers
@pytest.mark.parametrize("dtypes", ARITHMETICS, ids=str)
def test_dtypes(spec, device, dtypes):
    for size, reduction in itertools.product((7, 513, 10_007), REDUCTIONS):
        # parameters that every dtype holds, so that PyTorch's rounding of them is no excuse
        for parameter in (p for p in parameters(spec) if p in (1.0, 0.5, 0.0)):
            assert_accurate(spec, *operands((size,), dtypes, device, parameter), reduction, parameter)


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_mixed_dtypes(spec, device, dtypes):
    test_dtypes(spec, device, dtypes)


@pytest.mark.any_numbers
@pytest.mark.parametrize("is_beside_float32", [True, False])
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_few_of_a_half_round_once_to_float32(spec, device, half, is_beside_float32):
    """Each difference rounded to float32 first would put the mean more than 0.6 ulp off."""
    if not spec.is_rational:
        pytest.skip("a difference of 1 that is rounded shows less in other losses")
    target_dtype, usual, worst = torch.float32 if is_beside_float32 else half, 0.51 if device in DEVICES else 1.0, 0.0
    for _ in range(20):
        input = torch.ones(8, dtype=half, device=device)
        target = (-torch.randint(4, (8,), device=device) * 2.0**-24).to(target_dtype)  # half an ulp of 1 each
        exact = exact_loss(spec, input, target, "mean", spec.default)
        rounded = exact_loss(spec, input.float() - target.float(), torch.zeros_like(target), "mean", spec.default)
        worst = max(worst, error(rounded.float(), exact, torch.float32))
        assert error(op(spec)(input, target, dtype=torch.float32), exact, torch.float32) <= usual
    assert worst > 0.6  # so that the line before can fail


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_result_dtype(spec, device, dtype):
    for source, reduction in itertools.product((torch.float32, torch.bfloat16), REDUCTIONS):
        input, target = operands((3, 129), (source, source), device)
        value = op(spec)(input, target, reduction, spec.default, dtype=dtype)
        assert value.dtype == dtype
        assert error(value, exact_loss(spec, input, target, reduction, spec.default, dtype), dtype) <= bar(spec, dtype)


@pytest.mark.any_numbers
@pytest.mark.parametrize("half", HALVES, ids=str)
def test_single_float32_losses_of_halves(spec, device, half):
    """As of float32 operands; with a GPU's arithmetic for halves pseudo-Huber would be 2.9 ulp off (bound 1)."""
    input, target = operands((1 << 16,), (half, half), device)
    exact = exact_loss(spec, input, target, "none", spec.default)
    found = op(spec)(input, target, "none", spec.default, dtype=torch.float32)
    assert error(found, exact, torch.float32) <= bar(spec, torch.float32)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_conversions_are_pytorchs(device, dtype):
    l1 = torch.ops.cudaloss.l1  # of x and 0: |x|, in another dtype
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype).to(device)
    widened = l1(every, torch.zeros_like(every), "none", dtype=torch.float32)
    assert torch.equal(widened.nan_to_num(nan=-1), every.float().abs().nan_to_num(nan=-1))
    # any bits, and all numbers halfway between two of the narrower dtype
    ties = (torch.arange(1 << 16) << 16 | (1 << 15)) if dtype == torch.bfloat16 else torch.arange(1 << 19) << 12
    bits = torch.cat([torch.randint(0, 1 << 31, (1 << 20,)), ties & 0x7FFFFFFF, ties + 0x33000000]).to(torch.int32)
    floats = bits.view(torch.float32).to(device)
    narrowed = l1(floats, torch.zeros_like(floats), "none", dtype=dtype)
    assert torch.equal(narrowed.nan_to_num(nan=-1), floats.abs().to(dtype).nan_to_num(nan=-1))


def float32_error(value):
    return abs(torch.tensor(value).item() - value) / value


@pytest.mark.any_numbers
def test_rounding_of_the_parameter_does_not_bias_a_mean(spec, device):
    if spec.parameter is None:
        pytest.skip("this loss has no parameter")
    # Only in one branch, where the error of a float32 parameter, or of its inverse, would be in every term.
    candidates = [k / 97 for k in range(10, 300) if k / 97 <= spec.parameter.largest]
    worst = sorted(candidates, key=float32_error)[-2:]
    worst += sorted(candidates, key=lambda beta: float32_error(0.5 / beta))[-2:]
    for parameter in worst:
        for low, high in ((-0.9 * parameter, 0.9 * parameter), (1.5 * parameter, 9 * parameter)):
            input = torch.empty(1 << 17).uniform_(low, high).to(device)
            target = torch.zeros_like(input)
            value = op(spec)(input, target, "mean", parameter)
            assert error(value, exact_loss(spec, input, target, "mean", parameter), torch.float32) <= bar(
                spec, torch.float32, 0.6
            )


@pytest.mark.parametrize("size", [1000, 8193, 300_007])
def test_float64_sums_are_compensated(spec, device, size):
    # Terms of many magnitudes, each of few bits: the oracle's sum of them is exact.
    input = torch.randint(-9, 10, (size,)).double() * torch.pow(2.0, torch.randint(-20, 20, (size,)).double())
    assert_accurate(spec, input.to(device), torch.zeros(size, dtype=torch.float64, device=device), "mean", spec.default)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_large_mean_does_not_drift(spec, device, dtype):
    size = 1 << (17 if dtype == torch.float64 else 20)  # whose exact sum takes seconds
    input = torch.rand(size, dtype=torch.float32, device=device).to(dtype)
    assert_accurate(spec, input, torch.zeros_like(input), "mean", spec.default)


@pytest.mark.any_numbers
def test_equal_terms(spec, device):
    # Every rounding error the same: nothing averages out.
    input = torch.full((1 << 20,), 0.7, device=device)
    assert_accurate(spec, input, torch.zeros_like(input), "mean", spec.default)


LAYOUTS = {
    "slice": lambda x: x[1:],
    "slice by three": lambda x: x[3:],
    "every second": lambda x: x[::2],
    "transposed": lambda x: x.view(64, -1).t(),
    "channels_last": lambda x: x.view(4, 8, 8, -1).to(memory_format=torch.channels_last),
    "permuted": lambda x: x.view(4, 8, 8, -1).permute(2, 0, 3, 1),
    "expanded": lambda x: x[:64].view(64, 1).expand(64, 32),
    "column": lambda x: x.view(64, -1)[:, 3],
    "0-d": lambda x: x[5],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(spec, device, layout):
    for dtypes, reduction in itertools.product((ARITHMETICS[0], ARITHMETICS[-1]), REDUCTIONS):
        input, target = operands((2048,), dtypes, device)
        for other in (LAYOUTS[layout](target), LAYOUTS[layout](target).clone(memory_format=torch.contiguous_format)):
            assert_accurate(spec, LAYOUTS[layout](input), other, reduction, spec.default)


def test_none_keeps_the_memory_format(spec, device):
    input, target = (x.view(2, 3, 4, 5).to(memory_format=torch.channels_last) for x in torch.randn(2, 120).to(device))
    assert op(spec)(input, target, "none").stride() == input.stride()


@pytest.mark.parametrize(
    "shapes", [((4, 1), (1, 5)), ((3, 4), (4,)), ((), (6,)), ((2, 1, 3), (5, 1)), ((0, 3), (1, 3))]
)
def test_broadcast(spec, device, shapes):
    input, target = (torch.randn(shape, device=device) for shape in shapes)
    target = target.sigmoid() if spec.targets == "in [0, 1]" else target  # cross entropy's terms cancel elsewhere
    for reduction in REDUCTIONS:
        assert_accurate(spec, input, target, reduction, spec.default)


def test_second_numbers(spec, device):
    if spec.second is None:
        pytest.skip("this loss has one number at most")
    input, target = (leaf(x) for x in operands((1000,), (torch.float32,) * 2, device))
    for second, reduction in itertools.product(SECONDS[spec.second.interval], REDUCTIONS):
        Call(spec, input, target, reduction, second=second).assert_right()


@pytest.mark.any_numbers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_magnitudes(spec, device, dtype):
    """For losses with roots and exponentials, from where they underflow to where their squares overflow."""
    if spec.is_rational or spec.targets == "in [0, 1]":
        pytest.skip("a loss without them, or with tests of its own (test_binary_cross_entropy_with_logits.py)")
    size = torch.logspace(-30, 30, 601, dtype=torch.float64)
    input = torch.cat([size, -size]).to(device, dtype).requires_grad_()
    # Not 1: what a product with it loses would show from the exponential 70 times over.
    target = torch.full_like(input, 0.0 if isinstance(spec.terms, OfDifference) else 0.7)
    for parameter in (spec.default, 1e-10, 1e10) if spec.parameter else (spec.default,):
        value = op(spec)(input, target.detach(), "none", parameter)
        (gradient,) = torch.autograd.grad(value, input, torch.ones_like(value))
        exact = Exact(spec, input, target, "none", parameter)
        assert error(value, exact.value, dtype, exact.size) <= bar(spec, dtype)
        assert error(gradient, exact.gradient(0, torch.ones_like(value))[0], dtype) <= bar(spec, dtype)


@pytest.mark.any_numbers
@pytest.mark.parametrize("special", [float("nan"), float("inf"), -float("inf"), 1e30, 1e-30])
def test_special_values(spec, device, special):
    for size in (1, 100, 10_000):
        input, target = torch.zeros(2, size, device=device)
        input[size // 2] = special
        for reduction in REDUCTIONS:
            for parameter in parameters(spec):
                value = op(spec)(input, target, reduction, parameter)
                exact = exact_loss(spec, input, target, reduction, parameter).to(value)
                torch.testing.assert_close(value, exact, equal_nan=True, rtol=1e-6, atol=0)


@pytest.mark.any_numbers
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_overflow_is_inf(spec, device, dtype):
    for size in (1, 5000):
        input = torch.full((size,), 3e30, dtype=dtype, device=device)
        input[::2] = 1e29
        any_scale = spec.parameter and spec.parameter.largest > 1
        numbers = (1.0, 1e20, 1e30) if any_scale else (spec.default,)
        for parameter in numbers:
            for reduction in REDUCTIONS:
                value = op(spec)(input, torch.zeros_like(input), reduction, parameter)
                assert not value.isnan().any()
                assert (value > 0).all()


def test_default_dtype_of_a_number_and_a_vector(spec, device):
    for number, vector in ((torch.float64, torch.float32), (torch.float32, torch.bfloat16)):
        a, b = torch.tensor(0.3, dtype=number, device=device), torch.ones(3, dtype=vector, device=device)
        assert op(spec)(a, b).dtype == op(spec)(b, a).dtype == number


def test_mean_of_nothing_is_nan_and_sum_zero(spec, device):
    empty = torch.empty(0, 3, device=device)
    assert op(spec)(empty, empty, "mean").isnan()
    assert op(spec)(empty, empty, "sum") == 0
    assert op(spec)(empty, empty, "none").shape == (0, 3)


def test_half_sum_beyond_its_range_is_inf(spec, device):
    input = torch.full((100_000,), 3.0, dtype=torch.float16, device=device)
    assert op(spec)(input, torch.zeros_like(input), "sum").isinf()
    assert op(spec)(input, torch.zeros_like(input), "mean").isfinite()
