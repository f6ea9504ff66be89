"""A third operand (beta, delta, quantile, pos_weight) as a tensor: as the number where it is constant, as the formula
says where it varies, whatever its shape, layout and dtype are, and with a gradient of its own."""

from __future__ import annotations

import math

import pytest
import torch

import cudaloss
from conftest import KINDS
from cudaloss._build import DEVICES
from cudaloss._modes import REDUCTIONS
from oracle import DTYPES, leaf
from thirds import BCE, LAYOUTS, SHAPE, THIRDS, incoming, largest, results


def chosen(of_kinds):
    return [third for third in THIRDS.values() if third.spec in KINDS or not of_kinds]


def pytest_generate_tests(metafunc):
    if "third" in metafunc.fixturenames:
        thirds = chosen(metafunc.config.getoption("kinds"))
        metafunc.parametrize("third", thirds, ids=lambda third: third.name)


def test_kinds_have_one_third_operand_each():
    """Of 1.3 s a test under memcheck there were 821."""
    assert [third.name for third in chosen(of_kinds=True)] == ["smooth_l1", BCE]
    assert chosen(of_kinds=False) == list(THIRDS.values())


def assert_as_spelled_out(third, call, input, target, p, *, rtol=2e-6, **options):
    """Value and both gradients, of the kernels: the third operand requires none."""
    ours = results(lambda x, t, **given: call(x, t, p, **given), (input, target), **options)
    wide = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in options.items()}
    formula = lambda x, t, **given: third.spelled_out(x, t, p.double(), **given)  # noqa: E731
    theirs = results(formula, (input.double(), target.double()), **wide)
    assert ours[0].dtype == torch.promote_types(input.dtype, target.dtype)
    for found, truth, like in zip(ours, theirs, (ours[0], input, target), strict=True):
        assert (found.shape, found.dtype) == (truth.shape, like.dtype)
        rel = max(rtol, 1.01 * torch.finfo(found.dtype).eps)
        summed = max(1, ours[1].numel(), ours[2].numel()) / max(1, found.numel())  # of a broadcast operand
        atol = rel * largest(truth) * (1 if found is ours[0] else summed)
        torch.testing.assert_close(found.double(), truth, rtol=rel, atol=atol, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_constant_tensors_are_numbers(third, device, layout):
    input, target = third.operands(SHAPE, device)
    for number in (0.5, 0.25 if third.name == "quantile" else 2.0):
        constant = LAYOUTS[layout](lambda shape, n=number: torch.full(shape, n, device=device))
        for reduction in REDUCTIONS:
            ours = results(lambda x, t, r=reduction: third.call(x, t, constant, reduction=r), (input, target))  # noqa: B023
            theirs = results(lambda x, t, r=reduction: third.call(x, t, number, reduction=r), (input, target))  # noqa: B023
            for found, expected in zip(ours, theirs, strict=True):
                torch.testing.assert_close(found, expected, rtol=3e-7, atol=3e-7 * largest(expected))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_varying_tensors_are_the_formula(third, device, layout):
    input, target = third.operands(SHAPE, device)
    p = LAYOUTS[layout](lambda shape: third.third(shape, device))
    for reduction in REDUCTIONS:
        for batch_dims in (0, 1, 2) if reduction != "none" else (0,):
            options = {"reduction": reduction, "batch_dims": batch_dims}
            assert_as_spelled_out(third, third.call, input, target, p, **options)


@pytest.mark.parametrize("of_third", DTYPES, ids=str)
@pytest.mark.parametrize("of_data", DTYPES, ids=str)
def test_dtypes(third, device, of_data, of_third):
    """A wide third operand does not promote the result, and a narrow one is read as it is."""
    input, target = third.operands(SHAPE, device, of_data)
    for shape in ((), (8,), (6, 1, 1), SHAPE):
        p = third.third(shape, device, of_third)
        for reduction in REDUCTIONS:
            rtol = 1e-13 if of_data == torch.float64 else 2e-6
            assert_as_spelled_out(third, third.call, input, target, p, rtol=rtol, reduction=reduction)


@pytest.mark.parametrize("size", [0, 1, 7, 64, 65, 4097, 32_769, 100_003])
def test_sizes(third, device, size):
    input, target = third.operands((size,), device)
    for p in (third.third((), device), third.third((size,), device), third.third((2 * size,), device)[::2]):
        for reduction in REDUCTIONS:
            assert_as_spelled_out(third, third.call, input, target, p, reduction=reduction)
    wide = third.operands((3, size), device)
    for shape in ((3, 1), (size,), (1, size)):
        assert_as_spelled_out(third, third.call, *wide, third.third(shape, device), batch_dims=1)


@pytest.mark.parametrize("kind", ["mask", "weight", "mask and weight", "weight per class", "normalizer", "all"])
@pytest.mark.parametrize("layout", ["0-d", "per class", "per sample", "full", "every second"])
def test_masks_and_weights(third, device, layout, kind):
    input, target = third.operands(SHAPE, device)
    p = LAYOUTS[layout](lambda shape: third.third(shape, device))
    options = {}
    if "mask" in kind or kind == "all":
        options["mask"] = torch.rand(SHAPE, device=device) < 0.6
    if "weight" in kind or kind == "all":
        options["weight"] = torch.rand(SHAPE[2:] if "class" in kind else SHAPE, device=device) + 0.1
    for reduction in REDUCTIONS:
        if kind in ("normalizer", "all"):
            normalized = {"normalizer": torch.tensor(7.0, device=device)} if reduction == "mean" else {}
            options = {**options, "normalizer": None, "scale": 0.5, **normalized}
        for batch_dims in (0, 1) if reduction != "none" else (0,):
            given = {**options, "reduction": reduction, "batch_dims": batch_dims}
            assert_as_spelled_out(third, third.call, input, target, p, **given)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((6, 1, 8), (5, 1), (8,)),
        ((6, 5, 8), (8,), (6, 1, 1)),
        ((8,), (6, 5, 8), (6, 5, 8)),
        ((), (5, 8), (5, 1)),
        ((4, 1), (1, 3), (4, 3)),
        ((0, 8), (1, 8), (8,)),
    ],
    ids=str,
)
def test_broadcast_operands(third, device, shapes, reduction):
    input, target = third.operands(shapes[0], device)[0], third.operands(shapes[1], device)[1]
    p = third.third(shapes[2], device)
    assert_as_spelled_out(third, third.op, input, target, p, reduction=reduction)


@pytest.mark.parametrize("lies", ["channels_last", "transposed", "strided", "misaligned", "seven dimensions"])
def test_operands_of_other_layouts(third, device, lies):
    both = third.operands((4, 8, 6, 10), device)
    input, target = {
        "channels_last": lambda: (x.to(memory_format=torch.channels_last) for x in both),
        "transposed": lambda: (both[0], both[1].transpose(2, 3).contiguous().transpose(2, 3)),
        "strided": lambda: (x[..., ::2] for x in both),
        "misaligned": lambda: (
            both[0],
            both[1].flatten()[1:-9].view(-1, 10)[: 4 * 8].view(4, 8, 1, 10).expand_as(both[0]),
        ),
        "seven dimensions": lambda: (x.view(2, 2, 2, 4, 2, 3, 10) for x in both),
    }[lies]()
    last, channel = input.shape[-1], (input.shape[1], *(1,) * (input.dim() - 2))
    for shape in ((), (last,), channel, tuple(input.shape)):
        for reduction in REDUCTIONS:
            p = third.third(shape, device)
            assert_as_spelled_out(third, third.call, input, target, p, reduction=reduction)


@pytest.mark.parametrize("shape", [(), (1,), (8,), (6, 1, 1), (5, 1), SHAPE], ids=str)
def test_gradients_of_the_third_operand(third, device, shape):
    input, target = third.operands(SHAPE, device)
    p, mask = third.third(shape, device), torch.rand(SHAPE, device=device) < 0.6
    for reduction in REDUCTIONS:
        for options in ({}, {"mask": mask, "weight": torch.rand(8, device=device) + 0.1}):
            ours = results(third.call, (input, target, p), reduction=reduction, **options)
            wide = {k: v.double() if v.is_floating_point() else v for k, v in options.items()}
            truth = (input.double(), target.double(), p.double())
            theirs = results(third.spelled_out, truth, reduction=reduction, **wide)
            for found, expected in zip(ours, theirs, strict=True):
                assert found.shape == expected.shape and found.dtype == torch.float32
                atol = 3e-6 * largest(expected)
                torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=atol)


def test_gradients_of_one_operand_alone(third, device):
    tensors = (*third.operands(SHAPE, device), third.third((8,), device))
    every = results(third.call, tensors)[1:]
    for i, expected in enumerate(every):
        given = [leaf(x) if i == j else x for j, x in enumerate(tensors)]
        value = third.call(*given)
        value.backward(incoming(value))
        torch.testing.assert_close(given[i].grad, expected, rtol=2e-6, atol=2e-6 * largest(expected))
        assert all(x.grad is None for j, x in enumerate(given) if i != j)
    narrow = leaf(tensors[2].bfloat16())
    third.call(*tensors[:2], narrow).backward()
    assert narrow.grad.dtype == torch.bfloat16 and narrow.grad.shape == (8,)


def test_no_grad_asks_for_no_gradient_of_the_third(third, device):
    input, target = third.operands(SHAPE, device)
    p = leaf(third.third((8,), device))
    with torch.no_grad():
        value = third.call(input, target, p)
    assert not value.requires_grad
    assert torch.equal(value, third.call(input, target, p.detach()))


def test_nan_in_the_third_operand(third, device):
    """It shows if its element counts, and nowhere else."""
    input, target = third.operands(SHAPE, device)
    p, poisoned = third.third(SHAPE, device), torch.rand(SHAPE, device=device) < 0.3
    holed = torch.where(poisoned, math.nan, p)
    one = torch.ones(SHAPE, device=device)
    x, t = leaf(input), leaf(target)
    value = third.call(x, t, holed, reduction="none")
    gradients = torch.autograd.grad(value, (x, t), one)
    for found in (value, *gradients):
        assert torch.equal(found.isnan(), poisoned)
    assert_as_spelled_out(third, third.call, input, target, p, mask=~poisoned)
    ours = results(lambda x, t: third.call(x, t, holed, mask=~poisoned), (input, target))
    theirs = results(lambda x, t: third.call(x, t, p, mask=~poisoned), (input, target))
    for found, expected in zip(ours, theirs, strict=True):
        assert torch.equal(found, expected)


def test_a_beta_of_zero_among_others_is_l1(device):
    input, target = (
        torch.tensor([-2.0, 0.5, 0.0, 3.0, 0.25, 1e-40, -1e-40], device=device),
        torch.zeros(7, device=device),
    )
    beta = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], device=device)
    value, of_input, of_target = results(
        lambda x, t: cudaloss.smooth_l1_loss(x, t, beta=beta, reduction="sum"), (input, target)
    )
    factor = incoming(value)
    slope = torch.tensor([-1.0, 1.0, 0.0, 1.0, 0.25, 1.0, -1.0], device=device)
    torch.testing.assert_close(value.item(), 2 + 0.5 + 2.5 + 0.03125)
    torch.testing.assert_close(of_input, factor * slope)
    torch.testing.assert_close(of_target, -factor * slope)


def test_the_third_operand_is_read_where_it_lies(third, device):
    """Read without a copy: a view of one row in a matrix of others, and one that changes between calls."""
    input, target = third.operands(SHAPE, device)
    matrix = third.third((3, 8), device)
    first = third.call(input, target, matrix[1])
    assert torch.equal(first, third.call(input, target, matrix[1].clone()))
    matrix[1] = third.third((8,), device)
    assert not torch.equal(first, third.call(input, target, matrix[1]))
    x = leaf(input)
    value = third.call(x, target, matrix[1])
    matrix[1] *= 0.5
    if device in DEVICES:  # PyTorch's formulas need not have saved it
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


@pytest.mark.parametrize("shape", [(7,), (2, 6, 5, 8), (6, 5)], ids=str)
def test_shapes_that_do_not_broadcast(third, device, shape):
    input, target = third.operands(SHAPE, device)
    for call in (third.call, third.op):
        with pytest.raises((RuntimeError, ValueError), match=third.parameter):
            call(input, target, third.third(shape, device))
    third.call(input, target, third.third((8,), device))


def test_pos_weight_beyond_the_operands_shape_is_refused(device):
    """It broadcasts to the common shape; PyTorch's would make the loss larger than its operands."""
    x, t = torch.randn(8, device=device), torch.rand(8, device=device)
    with pytest.raises((RuntimeError, ValueError), match="pos_weight"):
        getattr(cudaloss, BCE)(x, t, pos_weight=torch.ones(3, 8, device=device))


def test_modules_keep_a_tensor_as_a_buffer(third, device):
    input, target = third.operands(SHAPE, device)
    p = third.third((8,), device)
    module = getattr(cudaloss, third.module)(**{third.parameter: p})
    assert list(module.state_dict()) == [third.parameter] and not list(module.parameters())
    assert torch.equal(module(input, target), third.call(input, target, p))
    wide = module.double()
    assert getattr(wide, third.parameter).dtype == torch.float64
    torch.testing.assert_close(wide(input.double(), target.double()).float(), third.call(input, target, p))
    other = getattr(cudaloss, third.module)(**{third.parameter: torch.ones(8, device=device)})
    other.load_state_dict({third.parameter: p})
    assert torch.equal(other(input, target), third.call(input, target, p))
