"""Drawn cases: any shapes, layouts, dtypes, reductions, parameters and keywords give the exact value and gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from calls import Call
from conftest import KINDS
from cudaloss._losses.options import NONE
from drawn import INTEGERS, Values, calls, parameters_of
from oracle import has_domain, nothing, of_probabilities, op


def judge(spec, device, **kind):
    """Draws calls and judges each; of losses that share another's templates (conftest.py) a third as many."""
    count = settings.default.max_examples

    @settings(
        max_examples=count if spec in KINDS else count // 3,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(data=st.data())
    def judged(data):
        call = data.draw(calls(spec, device, **kind))
        assume(not call.exact.ill_posed)
        call.assert_right()

    judged()


def test_operands_alone(spec, device):
    judge(spec, device, keywords=False, dense=False)


def test_keywords_with_dense_operands(spec, device):
    judge(spec, device, keywords=True, dense=True)


@pytest.mark.every_loss
def test_keywords_with_any_operands(spec, device):
    judge(spec, device, keywords=True, dense=False)


@pytest.mark.every_loss
def test_wide_weights_beside_whole_targets(spec, device):
    """Operands of three dtypes, in fp64 arithmetic."""
    shape, values = (5, 3, 7, 2), Values(torch.Generator().manual_seed(0), 1 / 64, 1.0)
    for dtype, of_weight in itertools.product(INTEGERS, ((5, 3, 1, 2), shape)):
        target = (values.probabilities if of_probabilities(spec) else values.of_dtype)(shape, dtype)
        input = values.of_dtype(shape, torch.float32)
        if has_domain(spec):
            input = values.within(spec.inputs, input, torch.float32)
            target = target if of_probabilities(spec) else values.within(spec.targets, target, dtype)
        x, t = input.to(device, torch.float32).requires_grad_(), target.to(device, dtype)
        third = values.of(parameters_of(spec), (5, 3, 7, 1)).to(device, torch.float32) if spec.parameter else None
        weight = values.weights(of_weight, "positive").to(device)
        Call(spec, x, t, parameter=third, options=NONE._replace(weight=weight)).assert_right()


@pytest.mark.cuda
def test_large_and_past_the_int_range(spec, large):
    # 2^31 + 5 elements; the last ones tell an overflowing index apart.
    count = 2**31 + 5
    input = torch.full((count,), nothing(spec), dtype=torch.float16, device="cuda")
    target = torch.zeros_like(input)
    input[-3:] = torch.tensor([3.0, 4.0, 5.0], device="cuda")
    value = op(spec)(input.requires_grad_(), target, "sum", dtype=torch.float32)
    expected = op(spec)(torch.tensor([3.0, 4.0, 5.0]), torch.zeros(3), "sum")
    assert value.cpu() == expected
    value.backward()
    assert not input.grad[:-3].any()  # count_nonzero would take 16 GiB
    assert input.grad[-3:].count_nonzero() == 3
