"""Integer and bool targets; operands that are broadcast, or one for another; with keywords and without."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from calls import Call, selecting, with_and_without
from cudaloss._call.modes import INTEGERS, REDUCTIONS
from cudaloss._losses.options import NONE, Options
from cudaloss._losses.table import OfDifference, OfTwo
from drawn import LARGEST_OF_PRODUCTS
from exact import Exact
from oracle import DTYPES, leaf, op


def whole_numbers(shape, dtype, device):
    if dtype == torch.bool:
        return torch.rand(shape, device=device) < 0.5
    info = torch.iinfo(dtype)
    found = torch.randint(max(info.min, -3000), min(info.max, 3000) + 1, shape, device=device).to(dtype)
    found.view(-1)[:4] = torch.tensor([max(info.min, -(2**24)), min(info.max, 2**24), 0, 1], device=device)
    return found


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_whole_targets_are_their_floats(spec, device, dtype):
    for size, reduction in itertools.product((7, 4099), REDUCTIONS):
        most = LARGEST_OF_PRODUCTS if spec.targets == "1 or -1" else math.inf
        wide = whole_numbers((size,), dtype, device).double().clamp(-most, most)
        target = wide.to(dtype)
        for input_dtype in DTYPES:
            input = leaf((wide + 2 * torch.randn(size, device=device)).clamp(-most, most).to(input_dtype))
            for options in (NONE, selecting((size,), device)):
                call = Call(spec, input, target, reduction, options=options)
                call.assert_right()
                given = {name: value for name, value in options._asdict().items() if value is not None}
                found = op(spec)(input, target, reduction, **given)
                assert found.dtype == input_dtype
                as_float = target.double() if input_dtype == torch.float64 else target.float()
                expected = op(spec)(input, as_float, reduction, **given, dtype=input_dtype)
                torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn], ids=str)
def test_dtypes_that_no_kernel_reads(spec, device, dtype):
    target = torch.randint(0, 9, (50,), device=device).float()
    input, weight = torch.randn(50, device=device), torch.rand(50, device=device).to(torch.float8_e4m3fn)
    for given, plain in (({}, {}), ({"weight": weight, "scale": 0.5}, {"weight": weight.float(), "scale": 0.5})):
        a, b = leaf(input), leaf(input)
        value, expected = op(spec)(a, target.to(dtype), **given), op(spec)(b, target, **plain)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(*(torch.autograd.grad(v, x)[0] for v, x in ((value, a), (expected, b))))


def test_integers_beyond_float32(spec, device):
    """Their distance to a float64 input is small, and lost where they pass through float32."""
    if isinstance(spec.terms, OfTwo):
        pytest.skip("not a loss of the difference")
    target = torch.tensor([2**24 + 1, 2**31 - 1, -(2**31), 2**24 + 3], device=device)
    for dtype in (torch.int32, torch.int64):
        input = leaf(target.double() + 0.5)
        value = op(spec)(input, target.to(dtype), "none")
        expected = op(spec)(torch.full((4,), 0.5, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), "none")
        torch.testing.assert_close(value.cpu(), expected)
    big = torch.tensor([2**50 - 1, -(2**40) - 1], device=device)
    value = op(spec)(leaf(big.double() - 0.25), big, "sum")
    assert value == 2 * op(spec)(torch.tensor(0.25, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64))


def test_images_of_bytes(spec, device):
    target = torch.randint(0, 256, (2, 3, 32, 40), dtype=torch.uint8, device=device)
    for layout in (torch.contiguous_format, torch.channels_last):
        for other in (torch.contiguous_format, torch.channels_last):
            image = target.to(memory_format=other)
            guess = (target + 8 * torch.randn(target.shape, device=device)).to(torch.bfloat16)
            for batch_dims in (0, 1):
                input = leaf(guess.to(memory_format=layout))
                Call(spec, input, image, options=Options(scale=1 / 255, batch_dims=batch_dims)).assert_right()
                masked = Options(None, target[:, :1] > 3, batch_dims=batch_dims)
                Call(spec, input, image, options=masked).assert_right()


def test_a_bool_target_of_probabilities(spec, device):
    labels = torch.rand(64, 100, device=device) < 0.1
    guess = leaf(torch.rand(64, 100, device=device))
    weight = torch.where(labels, 9.0, 1.0)
    Call(spec, guess, labels, options=Options(weight)).assert_right()
    value = op(spec)(guess, labels, weight=weight)
    (found,) = torch.autograd.grad(value, guess)
    assert ((found < 0) == labels).all()


def test_whole_targets_under_autocast_and_a_dtype(spec, device):
    target = whole_numbers((100,), torch.int16, device)
    input = leaf(torch.randn(100, device=device, dtype=torch.bfloat16))
    with torch.autocast(device, dtype=torch.bfloat16):
        assert op(spec)(input, target).dtype == torch.float32
    for dtype in DTYPES:
        Call(spec, input, target, dtype=dtype).assert_right()


BROADCAST = [
    ((4, 1), (1, 5)),
    ((3, 4), (4,)),
    ((), (6,)),
    ((6,), ()),
    ((2, 1, 3), (5, 1)),
    ((0, 3), (1, 3)),
    ((1, 1), (1,)),
    ((2, 3, 1, 1), (2, 3, 17, 19)),
    ((1, 4099), (3, 1)),
    ((2, 8, 1, 700), (8, 3, 1)),
    # Many elements: whole vectors, along rows and columns, of either operand; a slice's worth of ragged ones.
    ((40, 64), (64,)),
    ((40, 64), (40, 1)),
    ((64,), (40, 64)),
    ((40, 1), (40, 64)),
    ((40, 63), (63,)),
    ((700, 4), (4,)),
    ((3, 40, 32), (3, 1, 32)),
    ((3, 40, 32), (3, 1, 1)),
    ((4, 8, 12, 8), (8, 1, 1)),
    ((3, 5, 8, 4, 6), (5, 1, 4, 1)),
    ((1503,), ()),
]


@pytest.mark.parametrize("shapes", BROADCAST, ids=str)
def test_broadcast_operands_get_summed_gradients(spec, device, shapes):
    whole = torch.broadcast_shapes(*shapes)
    for dtypes in ((torch.float32,) * 2, (torch.bfloat16, torch.float32), (torch.float32, torch.float16)):
        for options, reduction in itertools.product(with_and_without(whole, device), REDUCTIONS):
            leaves = (leaf(torch.randn(s, device=device).to(d)) for s, d in zip(shapes, dtypes, strict=True))
            Call(spec, *leaves, reduction, options=options).assert_right()


def test_one_tensor_as_both_operands_and_as_the_weight(spec, device):
    x = leaf(torch.rand(40, device=device) + 0.1)
    op(spec)(x, x, mask=torch.ones(40, dtype=torch.bool, device=device)).backward()
    if isinstance(spec.terms, OfDifference):  # a loss of the difference
        assert torch.equal(x.grad, torch.zeros_like(x))
    target, w = torch.zeros(40, device=device), leaf(x)
    op(spec)(w, target, "sum", weight=w).backward()
    apart = leaf(x), leaf(x)
    op(spec)(apart[0], target, "sum", weight=apart[1]).backward()
    torch.testing.assert_close(w.grad, apart[0].grad + apart[1].grad)


def test_a_gradient_for_an_expanded_leaf_is_of_its_shape(spec, device):
    leaf_of_row = torch.randn(5, device=device).expand(4, 5).requires_grad_()
    target = torch.randn(4, 5, device=device)
    (found,) = torch.autograd.grad(op(spec)(leaf_of_row, target, "sum"), leaf_of_row)
    assert found.shape == (4, 5)
    truth = Exact(spec, leaf_of_row, target, "sum", spec.default).gradient(0, torch.ones(()))[0]
    cancels = isinstance(spec.terms, OfTwo)  # for targets beyond 0 and 1
    torch.testing.assert_close(found.cpu().double(), truth, rtol=3e-7, atol=1e-6 if cancels else 0)
