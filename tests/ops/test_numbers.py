"""Numbers as arguments: any kind, without a loss of digits; anything else is refused by the argument's name."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

import cudaloss
from cudaloss._losses.options import Options
from cudaloss._losses.table import OfTwo
from oracle import TORCH, op, operands


def function(spec):
    return getattr(cudaloss, spec.function)


@pytest.mark.parametrize("normalizer", [np.float16(60000), np.float16(3), np.float32(3), np.int64(3), Fraction(3, 7)])
def test_a_number_normalizer_loses_no_digits(spec, normalizer):
    input, target = operands((50,), (torch.float64,) * 2, "cpu")
    found = function(spec)(input, target, normalizer=normalizer, scale=1e-3)
    expected = function(spec)(input, target, reduction="sum") * 1e-3 / float(normalizer)
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("scale", [Fraction(1, 2), np.float32(0.5), 2, np.int32(2)])
def test_any_real_scale(spec, scale):
    input, target = operands((50,), (torch.float32,) * 2, "cpu")
    expected = function(spec)(input, target) * float(scale)
    torch.testing.assert_close(function(spec)(input, target, scale=scale), expected)
    weight = torch.ones(50, requires_grad=True)  # which plain PyTorch serves
    torch.testing.assert_close(function(spec)(input, target, weight=weight, scale=scale), expected)


@pytest.mark.parametrize("value", [np.complex64(3 + 4j), np.bool_(True), Decimal(3), "3"])
@pytest.mark.parametrize("name", ["scale", "normalizer"])
def test_no_real_numbers(spec, name, value):
    with pytest.raises(TypeError, match=f"{name} must be a"):
        function(spec)(torch.ones(3), torch.ones(3), **{name: value})


@pytest.mark.parametrize("name", ["scale", "normalizer"])
def test_numbers_beyond_float(spec, name):
    with pytest.raises(ValueError, match=f"{name} must be a number that a float can hold"):
        function(spec)(torch.ones(3), torch.ones(3), **{name: 10**400})


def test_batch_dims_beyond_int64(spec):
    with pytest.raises(ValueError, match="batch_dims must be at least 0 and at most 1"):
        function(spec)(torch.ones(3), torch.ones(3), batch_dims=10**30)


def test_the_gradient_of_weights_that_sum_to_0(spec, device):
    input, target = operands((3, 4), (torch.float32,) * 2, device)
    weight = torch.ones(3, 4, device=device)
    weight[1] = 0
    weight.requires_grad_()
    value = op(spec)(input, target, weight=weight, batch_dims=1)
    assert value.isnan().tolist() == [False, not spec.mean_over_count, False]
    value[~value.isnan()].sum().backward()
    assert spec.mean_over_count or (weight.grad[1] == 0).all()
    assert weight.grad[::2].isfinite().all()


@pytest.mark.filterwarnings("ignore::UserWarning")  # of nested tensors' youth
def test_nested_tensors_with_options(spec):
    nested = torch.nested.nested_tensor([torch.randn(2), torch.randn(3)])
    with pytest.raises(RuntimeError, match="must keep their defaults"):
        function(spec)(nested, nested, scale=2.0)


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("options", [{"scale": 2.0}, {"weight": True}], ids=str)
def test_sizes_that_depend_on_data_compile(spec, reduction, options):
    """Boolean indexing in front of the loss, under one graph."""
    torch._dynamo.reset()
    input, target, weight = torch.randn(3, 40)
    keep = torch.rand(40) < 0.5

    def loss(x, y, w, k):
        chosen = Options(weight=w[k]) if "weight" in options else Options(scale=2.0)
        return function(spec)(x[k], y[k], reduction=reduction, **chosen._asdict()).sum()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
        x = input.clone().requires_grad_()
        found = compiled(x, target, weight, keep)
        found.backward()
    expected = loss(input, target, weight, keep)
    torch.testing.assert_close(found.detach(), expected)
    assert (x.grad[~keep] == 0).all() and x.grad[keep].isfinite().all()


@pytest.mark.every_loss
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_jagged_tensors_have_the_losses_of_their_elements(spec):
    if spec.needed or not isinstance(spec.terms, OfTwo):
        pytest.skip("PyTorch's nested tensors lack an op of the formula, or it has a third operand")
    x, t = (0.1 + 0.8 * torch.rand(6) for _ in range(2))
    offsets = torch.tensor([0, 2, 6])
    jagged = [torch.nested.nested_tensor_from_jagged(values, offsets) for values in (x, t)]
    expected = function(spec)(x, t, reduction="none", **spec.flag_values)
    try:
        found = function(spec)(*jagged, reduction="none", **spec.flag_values)
    except NotImplementedError as missing:
        if TORCH < "2.12" and "leaky_relu" in str(missing):
            pytest.skip("before 2.12 torch has no leaky_relu of nested tensors")
        raise
    torch.testing.assert_close(found.values(), expected)
