"""Drawn cases: any shapes, layouts, dtypes, reductions and parameters give the reference's value and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudaloss import reference
from oracle import DTYPES, error, exact_gradients, exact_loss, op

DTYPE = st.sampled_from(DTYPES)


@st.composite
def tensors(draw, device):
    """Two operands that broadcast together, each of some dtype and layout."""
    shape = draw(st.lists(st.integers(0, 7), max_size=4))
    return tuple(draw(tensor(shape, device)) for _ in range(2))


@st.composite
def tensor(draw, shape, device):
    shape = [1 if size != 0 and draw(st.integers(0, 5)) == 0 else size for size in shape]
    shape = shape[draw(st.sampled_from([0, 0, 0, 1])) :]
    order = draw(st.permutations(range(len(shape))))
    padding = [draw(st.sampled_from([0, 0, 0, 2])) for _ in shape]
    step = draw(st.sampled_from([1, 1, 1, 2]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    storage = torch.randn([(shape[d] + padding[d]) * step for d in order], generator=generator, dtype=torch.float64)
    storage = storage.to(device, draw(DTYPE)) * draw(st.sampled_from([1e-3, 1.0, 30.0]))
    inverse = [order.index(d) for d in range(len(shape))]
    view = storage.permute(inverse)
    for d, size in enumerate(shape):
        view = view.narrow(d, padding[d] * step // 2, size * step)[(slice(None),) * d + (slice(None, None, step),)]
    return view


def within(found, exact, theirs, dtype):
    """At most 1 ulp, or the error of the plain-PyTorch reference, whose float64 has no wider oracle."""
    allowed = max(2.0 if dtype == torch.float64 else 1.0, error(theirs, exact, dtype))
    return error(found, exact, dtype) <= allowed


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_value_and_gradients(spec, device, data):
    input, target = data.draw(tensors(device))
    reduction = data.draw(st.sampled_from(["mean", "sum", "none"]))
    parameter = data.draw(st.sampled_from([1.0, 0.5, 2.0] if spec.parameter else [1.0]))
    dtype = torch.promote_types(input.dtype, target.dtype)
    input, target = input.requires_grad_(), target.requires_grad_()

    value = op(spec)(input, target, reduction, parameter)
    plain = reference.loss(spec, input, target, reduction, parameter, dtype)
    assert value.dtype == dtype
    exact = exact_loss(spec, input.detach(), target.detach(), reduction, parameter)
    assert value.shape == exact.shape
    assert within(value, exact, plain, dtype)

    grad_output = torch.randn(value.shape, generator=torch.Generator().manual_seed(7)).to(device, dtype)
    found = torch.autograd.grad(value, (input, target), grad_output)
    theirs = torch.autograd.grad(plain, (input, target), grad_output)
    truth = exact_gradients(spec, grad_output, input, target, reduction, parameter)
    for gradient, other, best, operand in zip(found, theirs, truth, (input, target), strict=True):
        assert gradient.shape == operand.shape
        assert gradient.dtype == operand.dtype
        assert within(gradient, best, other, gradient.dtype)


@pytest.mark.cuda
def test_large_and_past_the_int_range(spec):
    # 2^31 + 5 elements; the last ones tell an overflowing index apart.
    count = 2**31 + 5
    input = torch.zeros(count, dtype=torch.float16, device="cuda")
    target = torch.zeros_like(input)
    input[-3:] = torch.tensor([3.0, 4.0, 5.0], device="cuda")
    value = op(spec)(input.requires_grad_(), target, "sum", dtype=torch.float32)
    expected = op(spec)(torch.tensor([3.0, 4.0, 5.0]), torch.zeros(3), "sum")
    assert value.cpu() == expected
    value.backward()
    assert input.grad[:-3].count_nonzero() == 0
    assert input.grad[-3:].count_nonzero() == 3
