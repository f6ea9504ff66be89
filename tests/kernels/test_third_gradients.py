"""Gradients of a third operand that each call has (var), which the kernels make: of any layout, dtype and size."""

from __future__ import annotations

import pytest
import torch

from cudaloss._build import DEVICES
from cudaloss._modes import REDUCTIONS
from cudaloss._specs import SPECS
from oracle import DTYPES, leaf
from thirds import LAYOUTS, SHAPE, Third, largest, results

OF_KERNELS = [Third(spec, spec.parameter) for spec in SPECS if spec.has_third_gradient]
assert OF_KERNELS, "a test of no loss shows nothing"
of_kernels = pytest.mark.parametrize("third", OF_KERNELS, ids=lambda third: third.name)


def assert_gradients_as_spelled_out(third, device, shape, p, dtype=torch.float32, **options):
    input, target = third.operands(shape, device, dtype)
    mask = torch.rand(shape, device=device) < 0.6
    for beside in ({}, {"mask": mask}, {"weight": torch.rand(shape, device=device, dtype=dtype) + 0.1}):
        ours = results(third.call, (input, target, p), **options, **beside)
        wide = {k: v.double() if k == "weight" else v for k, v in beside.items()}
        theirs = results(third.spelled_out, (input.double(), target.double(), p.double()), **options, **wide)
        for found, expected, like in zip(ours, theirs, (ours[0], input, target, p), strict=True):
            assert (found.shape, found.dtype) == (expected.shape, like.dtype)
            rel = 1.01 * torch.finfo(found.dtype).eps + (3e-6 if found.dtype != torch.float64 else 1e-14)
            tiny = torch.finfo(found.dtype).smallest_normal
            torch.testing.assert_close(
                found.double(), expected, rtol=rel, atol=max(tiny, rel * largest(expected)), equal_nan=True
            )


@of_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_third_operands_of_any_layout(third, device, layout):
    p = LAYOUTS[layout](lambda shape: third.third(shape, device))
    for reduction in REDUCTIONS:
        for batch_dims in (0, 1, 2) if reduction != "none" else (0,):
            assert_gradients_as_spelled_out(third, device, SHAPE, p, reduction=reduction, batch_dims=batch_dims)


@of_kernels
@pytest.mark.parametrize("of_third", DTYPES, ids=str)
@pytest.mark.parametrize("of_data", DTYPES, ids=str)
def test_gradients_of_third_operands_of_any_dtype(third, device, of_data, of_third):
    for shape in ((), (8,), (6, 1, 1), SHAPE):
        assert_gradients_as_spelled_out(third, device, SHAPE, third.third(shape, device, of_third), of_data)


@of_kernels
@pytest.mark.parametrize("size", [0, 1, 65, 4097, 32_769, 100_003])
def test_gradients_of_third_operands_of_any_size(third, device, size):
    for reduction in REDUCTIONS:
        assert_gradients_as_spelled_out(third, device, (size,), third.third((size,), device), reduction=reduction)
    assert_gradients_as_spelled_out(third, device, (3, size), third.third((size,), device), batch_dims=1)


@of_kernels
def test_the_third_operand_may_want_a_gradient_alone(third, device):
    """One op more than a step without it; again with the graph kept, batched, and differentiated once more."""
    tensors = *third.operands((3, 5), device, torch.float64), third.third((3, 5), device, torch.float64)
    input, target, p = tensors[0], tensors[1], leaf(tensors[2])
    value = third.call(input, target, p)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiled:
        value.backward(retain_graph=True)
    names = [event.name for event in profiled.events() if event.name.startswith("cudaloss::")]
    assert names == (["cudaloss::_pointwise_gradients"] if device in DEVICES else [])
    first, p.grad = p.grad, None
    value.backward()
    assert torch.equal(p.grad, first)
    leaves = [leaf(x) for x in tensors]
    assert torch.autograd.gradcheck(third.call, leaves, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(third.call, leaves)
