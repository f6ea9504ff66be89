"""batch_dims: the reduction of each index of the leading dimensions, of whatever number and length."""

from __future__ import annotations

import math

import pytest
import torch

import cudaloss
from calls import Call
from cudaloss._losses.options import Options
from oracle import leaf, op, operands


def pair(shape, device, dtypes=(torch.float32,) * 2):
    return tuple(leaf(x) for x in operands(shape, dtypes, device))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch_dims", [1, 2, 3])
def test_is_a_loss_for_each_leading_index(spec, device, reduction, batch_dims):
    input, target = pair((3, 2, 4, 5), device)
    mask = torch.rand(3, 2, 4, 5, device=device) < 0.7
    weight = torch.rand(2, 4, 1, device=device).expand(3, 2, 4, 5)
    found = op(spec)(input, target, reduction, mask=mask, weight=weight, batch_dims=batch_dims)
    lead = input.shape[:batch_dims]
    assert found.shape == lead
    rows = [x.flatten(0, batch_dims - 1) for x in (input, target, mask, weight)]
    singly = [op(spec)(a, b, reduction, mask=m, weight=w) for a, b, m, w in zip(*rows, strict=True)]
    expected = torch.stack(singly).view(lead)
    torch.testing.assert_close(found, expected)
    incoming = torch.randn(lead, device=device)
    torch.testing.assert_close(*(torch.autograd.grad(x, (input, target), incoming) for x in (found, expected)))


@pytest.mark.parametrize("batch_dims", [0, 1, 2, 3])
def test_without_a_reduction_there_is_nothing_to_keep(spec, device, batch_dims):
    input, target = pair((3, 4, 5), device)
    mask = torch.rand(3, 4, 5, device=device) < 0.7
    assert torch.equal(
        op(spec)(input, target, "none", mask=mask, batch_dims=batch_dims), op(spec)(input, target, "none", mask=mask)
    )


def test_the_whole_rank(spec, device):
    input, target = pair((3, 4), device)
    mask = torch.rand(3, 4, device=device) < 0.5
    weight = torch.rand(3, 4, device=device) + 0.1
    losses = op(spec)(input, target, "none")
    torch.testing.assert_close(op(spec)(input, target, "sum", batch_dims=2, weight=weight), losses * weight)
    torch.testing.assert_close(op(spec)(input, target, "mean", batch_dims=2), losses)
    mean = op(spec)(input, target, "mean", batch_dims=2, weight=weight, mask=mask)
    single = losses * weight if spec.mean_over_count else losses
    torch.testing.assert_close(mean, torch.where(mask, single, math.nan), equal_nan=True)
    for gradient in torch.autograd.grad(mean, (input, target), torch.ones_like(mean)):
        assert gradient.isfinite().all() and (gradient[~mask] == 0).all()
    scalar = op(spec)(input[0, 0], target[0, 0], batch_dims=0)
    torch.testing.assert_close(scalar, losses[0, 0])


@pytest.mark.parametrize(
    ("shape", "batch_dims", "lead"),
    [
        ((0, 3), 1, (0,)),
        ((3, 0), 1, (3,)),
        ((3, 0), 2, (3, 0)),
        ((2, 0, 3), 1, (2,)),
        ((2, 0, 3), 2, (2, 0)),
        ((1, 5), 1, (1,)),
        ((5, 1), 1, (5,)),
        ((2, 3, 1), 2, (2, 3)),
        ((1,), 1, (1,)),
        ((0,), 0, ()),
    ],
)
@pytest.mark.parametrize("selecting", [False, True], ids=["", "mask"])
def test_sizes_of_0_and_1(spec, device, shape, batch_dims, lead, selecting):
    options = {"batch_dims": batch_dims}
    if selecting:
        options |= {"mask": torch.ones(shape, dtype=torch.bool, device=device), "weight": torch.ones((), device=device)}
    for reduction, of_nothing in (("mean", math.nan), ("sum", 0.0)):
        input, target = pair(shape, device)
        value = op(spec)(input, target, reduction, **options)
        assert value.shape == lead
        if 0 in shape:
            torch.testing.assert_close(value, torch.full(lead, of_nothing, device=device), equal_nan=True)
        else:
            count = math.prod(shape[batch_dims:])
            expected = op(spec)(input, target, "none").view(*lead, count).sum(-1)
            torch.testing.assert_close(value, expected / count if reduction == "mean" else expected)
        found = torch.autograd.grad(value, (input, target), torch.ones_like(value))
        assert [g.shape for g in found] == [shape, shape]


SHAPES = [(4097, 3), (3, 4097), (1, 100_003), (513, 40), (33, 1025), (5, 2048), (3, 4104), (2, 3, 5, 1000), (70_001, 1)]
SHAPES += [(1500, 2, 2, 2)]


@pytest.mark.parametrize("selecting", [False, True], ids=["", "mask and weight"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_and_lengths_of_segments(spec, device, shape, selecting):
    for dtypes in ((torch.float32,) * 2, (torch.bfloat16, torch.float32)):
        input, target = pair(shape, device, dtypes)
        options = Options(batch_dims=1)
        if selecting:
            mask = torch.rand(shape, device=device) < 0.6
            options = options._replace(mask=mask, weight=torch.rand(shape[1:], device=device) + 0.1)
        for reduction in ("mean", "sum"):
            Call(spec, input, target, reduction, options=options).assert_right()


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
        lambda x: x.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2),
        lambda x: torch.stack([x, x], -1)[..., 0],
    ],
    ids=["channels_last", "outermost last", "permuted", "stepped"],
)
def test_layouts(spec, device, layout):
    input, target = operands((3, 6, 7, 9), (torch.float32,) * 2, device)
    mask = torch.rand(3, 6, 7, 9, device=device) < 0.6
    for a, b, m in ((layout(input), layout(target), layout(mask)), (layout(input), target, mask)):
        for batch_dims in (1, 2, 3):
            leaves = (x.detach().requires_grad_() for x in (a, b))
            Call(spec, *leaves, options=Options(mask=m, batch_dims=batch_dims)).assert_right()


def test_broadcast_operands(spec, device):
    for shapes in (((4, 6, 1), (1, 6, 5)), ((4, 6, 5), (5,)), ((6, 1), (4, 1, 5))):
        for batch_dims in (1, 2, 3):
            leaves = (leaf(torch.randn(shape, device=device)) for shape in shapes)
            weight = torch.rand(4, 1, 1, device=device) + 0.1
            mask = torch.rand(6, 5, device=device) < 0.6
            Call(spec, *leaves, options=Options(weight, mask, batch_dims=batch_dims)).assert_right()


def test_samples_do_not_mix(spec, device):
    input, target = (x.detach() for x in pair((5, 300), device))
    clean = op(spec)(input, target, batch_dims=1)
    input[3, 7] = math.nan
    found = op(spec)(leaf(input), target, batch_dims=1)
    assert found.isnan().tolist() == [False, False, False, True, False]
    assert torch.equal(found[[0, 1, 2, 4]], clean[[0, 1, 2, 4]])
    a = leaf(input)
    op(spec)(a, target, batch_dims=1).sum().backward()
    assert a.grad.isnan().nonzero().tolist() == [[3, 7]]


def test_per_sample_gradients_follow_their_own_grad_output(spec, device):
    input, target = pair((6, 1030), device)
    value = op(spec)(input, target, batch_dims=1)
    incoming = torch.tensor([1.0, 0.5, 0.0, -3.0, 0.3, 65536.0], device=device)
    found = torch.autograd.grad(value, input, incoming)[0]
    for i in range(6):
        alone = leaf(input[i])
        (expected,) = torch.autograd.grad(op(spec)(alone, target[i]), alone, incoming[i])
        torch.testing.assert_close(found[i], expected, rtol=3e-7, atol=0)


@pytest.mark.any_numbers
def test_function_and_module(spec, device):
    input, target = pair((6, 7), device)
    expected = op(spec)(input, target, batch_dims=1)
    assert torch.equal(getattr(cudaloss, spec.function)(input, target, batch_dims=1), expected)
    module = getattr(cudaloss, spec.module)(batch_dims=1)
    assert torch.equal(module(input, target), expected) and "batch_dims=1" in repr(module)


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_reductions_of_single_elements_are_single_losses(spec, device, reduction, monkeypatch):
    """Segments of one element each took 3 to 12 times as long."""
    from cudaloss._call.modes import reduction_of
    from cudaloss._ops import private

    seen = []
    forward = private.forward
    monkeypatch.setattr(private, "forward", lambda *call: seen.append(reduction_of(call[2])) or forward(*call))
    input, target = operands((3, 5), (torch.float32,) * 2, device)
    mask = torch.rand(3, 5, device=device) < 0.5
    for options in ({}, {"scale": 0.5}) if reduction == "mean" else ({}, {"scale": 0.5}, {"mask": mask}):
        leaf = input.clone().requires_grad_()
        value = op(spec)(leaf, target, reduction, batch_dims=2, **options)
        assert seen.pop() == "none"
        torch.testing.assert_close(value, op(spec)(leaf, target, "none", **options), rtol=0, atol=0)
        value.sum().backward()
        assert leaf.grad.isfinite().all()
