"""Drawn cases: any shapes, layouts, dtypes, reductions, parameters and keywords give the exact value and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from drawn import calls
from oracle import nothing, op

drawn = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def assert_right(call):
    assume(not call.exact.ill_posed)
    call.assert_right()


@pytest.mark.every_loss
@settings(drawn, max_examples=150)
@given(data=st.data())
def test_operands_alone(spec, device, data):
    assert_right(data.draw(calls(spec, device, keywords=False, dense=False)))


@pytest.mark.every_loss
@settings(drawn, max_examples=300)
@given(data=st.data())
def test_keywords_with_dense_operands(spec, device, data):
    assert_right(data.draw(calls(spec, device, keywords=True, dense=True)))


@pytest.mark.every_loss
@settings(drawn, max_examples=300)
@given(data=st.data())
def test_keywords_with_any_operands(spec, device, data):
    assert_right(data.draw(calls(spec, device, keywords=True, dense=False)))


@pytest.mark.cuda
def test_large_and_past_the_int_range(spec):
    # 2^31 + 5 elements; the last ones tell an overflowing index apart.
    count = 2**31 + 5
    input = torch.full((count,), nothing(spec), dtype=torch.float16, device="cuda")
    target = torch.zeros_like(input)
    input[-3:] = torch.tensor([3.0, 4.0, 5.0], device="cuda")
    value = op(spec)(input.requires_grad_(), target, "sum", dtype=torch.float32)
    expected = op(spec)(torch.tensor([3.0, 4.0, 5.0]), torch.zeros(3), "sum")
    assert value.cpu() == expected
    value.backward()
    assert input.grad[:-3].count_nonzero() == 0
    assert input.grad[-3:].count_nonzero() == 3
