"""Gradients against float64, at kinks and special values, in every autograd mode of plain PyTorch."""

from __future__ import annotations

import itertools

import pytest
import torch

from calls import Call
from cudaloss._call.modes import REDUCTIONS
from cudaloss._losses.table import OfTwo
from oracle import ARITHMETICS, MIXED, bar, error, exact_gradients, op, operands, parameters, torch_op


def leaves(*tensors):
    return tuple(x.detach().requires_grad_() for x in tensors)


def gradients(function, input, target, reduction, parameter, grad_output):
    input, target = leaves(input, target)
    return torch.autograd.grad(function(input, target, reduction, parameter), (input, target), grad_output)


def grad_output_for(input, target, reduction):
    shape = torch.broadcast_shapes(input.shape, target.shape) if reduction == "none" else ()
    return torch.randn(shape, device=input.device).to(torch.promote_types(input.dtype, target.dtype))


def assert_accurate(spec, input, target, reduction, parameter, fused=True):
    """Rounded once where the kernels serve the call; where the reference does, 1 ulp or PyTorch's own error is
    allowed."""
    grad_output = grad_output_for(input, target, reduction)
    ours = gradients(op(spec), input, target, reduction, parameter, grad_output)
    if not spec.is_rational:  # judged by the larger of two terms that cancel
        call = Call(spec, *leaves(input, target), reduction, parameter)
        return call.assert_gradients(ours, grad_output)
    exact = exact_gradients(spec, grad_output, input, target, reduction, parameter)
    # float64 has no wider oracle: its own two roundings are in the comparison
    usual = 2.0 if grad_output.dtype == torch.float64 else 0.51 if fused else 1.0
    allowed = [bar(spec, gradient.dtype, usual) for gradient in ours]
    if not fused:
        theirs = gradients(torch_op(spec), input, target, reduction, parameter, grad_output)
        allowed = [max(a, error(g, e, g.dtype)) for a, g, e in zip(allowed, theirs, exact, strict=True)]
    for gradient, truth, operand, bound in zip(ours, exact, (input, target), allowed, strict=True):
        assert gradient.shape == operand.shape and gradient.dtype == operand.dtype
        assert error(gradient, truth, gradient.dtype) <= bound


@pytest.mark.parametrize("size", [0, 1, 3, 64, 1001, 4097, 32769, 100_003])
def test_sizes(spec, device, size):
    for parameter, reduction in itertools.product(parameters(spec), REDUCTIONS):
        tensors = operands((size,), (torch.float32,) * 2, device, parameter)
        assert_accurate(spec, *tensors, reduction, parameter)


@pytest.mark.any_numbers
@pytest.mark.parametrize("dtypes", ARITHMETICS, ids=str)
def test_dtypes(spec, device, dtypes):
    for parameter in (p for p in parameters(spec) if p in (1.0, 0.5, 0.0)):
        for reduction in REDUCTIONS:
            assert_accurate(spec, *operands((1027,), dtypes, device, parameter), reduction, parameter)


@pytest.mark.parametrize("dtypes", MIXED, ids=str)
def test_mixed_dtypes(spec, device, dtypes):
    test_dtypes(spec, device, dtypes)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_misaligned_slices(spec, device, reduction):
    input, target = operands((5003,), (torch.float32, torch.bfloat16), device)
    assert_accurate(spec, input[1:-2], target[3:], reduction, spec.default)


@pytest.mark.parametrize("which", [0, 1])
def test_one_operand_alone(spec, device, which):
    tensors = list(operands((100,), (torch.float32,) * 2, device))
    both = gradients(op(spec), *tensors, "mean", spec.default, None)
    tensors[which] = tensors[which].requires_grad_()
    op(spec)(*tensors).backward()
    assert torch.equal(tensors[which].grad, both[which])
    assert tensors[1 - which].grad is None


def test_one_tensor_as_both_operands(spec, device):
    (x,) = leaves(torch.randn(10, device=device))
    op(spec)(x, x).backward()
    (theirs,) = torch.autograd.grad(torch_op(spec)(x, x), x)
    if isinstance(spec.terms, OfTwo):  # not a loss of the difference
        torch.testing.assert_close(x.grad, theirs)
    else:
        assert torch.equal(x.grad, torch.zeros_like(x))


@pytest.mark.any_numbers
def test_kinks_are_pytorchs(spec, device):
    for parameter in parameters(spec):
        d = torch.tensor([-2.0, -1.0, -0.5, -0.3, 0.0, 0.3, 0.5, 1.0, 2.0], device=device)
        d = torch.cat([d, d * parameter])
        zero = torch.zeros_like(d)
        ours = gradients(op(spec), d, zero, "sum", parameter, None)
        theirs = gradients(torch_op(spec), d, zero, "sum", parameter, None)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)


@pytest.mark.any_numbers
def test_nan_difference_gives_nan_gradient(spec, device):
    # PyTorch's l1_loss alone gives 0 here.
    for parameter in parameters(spec):
        input = torch.tensor([float("nan"), 1.0, 0.0], device=device)
        for reduction in REDUCTIONS:
            grad_output = None if reduction != "none" else torch.ones(3, device=device)
            zeros = torch.zeros(3, device=device)
            found = gradients(op(spec), input, zeros, reduction, parameter, grad_output)
            for gradient in found:
                assert gradient.isnan().tolist() == [True, False, False]


@pytest.mark.any_numbers
def test_infinite_differences(spec, device):
    """PyTorch's gradients; or, for a loss of two operands, the formula's limits, because PyTorch's own may be NaN."""
    for parameter in parameters(spec):
        input = torch.tensor([float("inf"), -float("inf"), 1e30, -1e30, 0.0], device=device)
        zero = torch.zeros_like(input)
        ours = gradients(op(spec), input, zero, "mean", parameter, None)
        if not spec.is_rational:
            expected = exact_gradients(spec, torch.ones(()), input, zero, "mean", parameter)
        else:
            expected = gradients(torch_op(spec), input, zero, "mean", parameter, None)
        for found, truth in zip(ours, expected, strict=True):
            torch.testing.assert_close(found, truth.to(found), rtol=1e-6, atol=0, equal_nan=True)


def test_empty_operands(spec, device):
    (x,) = leaves(torch.empty(0, 3, device=device))
    op(spec)(x, torch.empty(0, 3, device=device)).backward()
    assert x.grad.shape == (0, 3)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3),
        lambda x: x.contiguous(),
    ],
    ids=["channels_last", "transposed", "contiguous"],
)
def test_gradient_takes_the_operands_memory_format(spec, device, layout, reduction):
    input, target = leaves(*(layout(x) for x in torch.randn(2, 4, 3, 5, 6, device=device)))
    value = op(spec)(input, target, reduction)
    value.backward(torch.randn(value.shape, device=device))
    for operand in (input, target):
        assert operand.grad.stride() == operand.stride()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_operands_of_different_layouts(spec, device, reduction):
    input, target = torch.randn(2, 2, 3, 4, 5, device=device)
    assert_accurate(spec, input.to(memory_format=torch.channels_last), target, reduction, spec.default, fused=False)


def smooth_operands(device):
    """float64 leaves whose differences stay clear of every kink, as finite differences need."""
    d = torch.tensor([-1.7, -0.6, -0.2, 0.15, 0.45, 1.3], dtype=torch.float64, device=device)
    target = torch.randn(6, dtype=torch.float64, device=device)
    return leaves(target + d, target)


@pytest.mark.any_numbers
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_gradcheck_and_gradgradcheck(spec, device, reduction):
    for parameter in parameters(spec):
        call = lambda input, target: op(spec)(input, target, reduction, parameter)  # noqa: B023, E731
        assert torch.autograd.gradcheck(call, smooth_operands(device), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, smooth_operands(device))


@pytest.mark.any_numbers
def test_double_backward_is_pytorchs(spec, device):
    def second(function):
        input, target = leaves(*operands((50,), (torch.float32,) * 2, device))
        first = torch.autograd.grad(function(input, target, "mean", spec.default), (input, target), create_graph=True)
        squares = sum((g * g).sum() for g in first)
        if not squares.requires_grad:  # of slopes that are constants
            return None, None
        return torch.autograd.grad(squares, (input, target), allow_unused=True)

    torch.manual_seed(1)
    ours = second(op(spec))
    torch.manual_seed(1)
    theirs = second(torch_op(spec))
    for a, b in zip(ours, theirs, strict=True):
        zero = torch.zeros(50, device=device)
        torch.testing.assert_close(zero if a is None else a, zero if b is None else b)


def test_inputs_are_left_alone(spec, device):
    input, target = leaves(*operands((1000,), (torch.float32,) * 2, device))
    before = input.detach().clone(), target.detach().clone()
    op(spec)(input, target).backward()
    assert torch.equal(input.detach(), before[0]) and torch.equal(target.detach(), before[1])


def test_changing_a_saved_operand_is_an_error(spec, device):
    (input,) = leaves(torch.randn(10, device=device))
    target = torch.randn(10, device=device)
    value = op(spec)(input, target)
    target.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_result_dtype_float64(spec, device, reduction):
    # The incoming gradient is float64: rounded to float32 first, it would add an error of its own.
    input, target = leaves(*operands((1001,), (torch.float32,) * 2, device))
    value = op(spec)(input, target, reduction, dtype=torch.float64)
    grad_output = torch.randn(value.shape, dtype=torch.float64).to(device)
    found = torch.autograd.grad(value, (input, target), grad_output)
    exact = exact_gradients(spec, grad_output, input, target, reduction, spec.default)
    for gradient, truth in zip(found, exact, strict=True):
        assert error(gradient, truth, torch.float32) <= bar(spec, torch.float32, 0.51)


def test_fp16_mean_under_a_grad_scaler(spec, device):
    # Divided by the count before the scale multiplies, these gradients would be 0.
    input = torch.full((1 << 20,), 0.001, dtype=torch.float16, device=device).requires_grad_()
    target = torch.zeros_like(input)
    scale = torch.tensor(65536.0, device=device)
    (op(spec)(input, target, dtype=torch.float32) * scale).backward()
    exact = exact_gradients(spec, scale, input, target, "mean", spec.default)[0]
    assert error(input.grad, exact, torch.float16) <= 1.0
    assert torch.equal(input.grad != 0, exact.half() != 0)
