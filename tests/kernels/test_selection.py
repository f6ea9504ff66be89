"""mask and ignore_nan select out: whatever lies there adds nothing to the value, to a gradient or to the count."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch

from calls import Call
from cudaloss._call.modes import REDUCTIONS
from cudaloss._losses.options import Options
from oracle import error, leaf, nothing, op, operands

SHAPE = (4, 6, 50)


@pytest.fixture
def clean(device):
    """Operands, a mask that leaves something of each sample, and a weight."""
    input, target = operands(SHAPE, (torch.float32,) * 2, device)
    mask = torch.rand(SHAPE, device=device) < 0.6
    mask[:, 0, 0] = True
    return input, target, mask, torch.rand(SHAPE, device=device) + 0.1


def poisoned(x, hidden):
    bad = torch.tensor([math.nan, math.inf, -math.inf], device=x.device)
    return torch.where(hidden, bad[torch.arange(x.numel(), device=x.device).view(x.shape) % 3].to(x.dtype), x)


def value_and_gradients(spec, input, target, reduction, grad_output=None, **options):
    input, target = leaf(input), leaf(target)
    value = op(spec)(input, target, reduction, **options)
    if grad_output is None:
        grad_output = torch.linspace(-1, 2, max(value.numel(), 1), device=value.device)[: value.numel()]
        grad_output = grad_output.view(value.shape).to(value.dtype)
    return value.detach(), *torch.autograd.grad(value, (input, target), grad_output)


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
@pytest.mark.parametrize("batch_dims", [0, 1, 2, 3])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_nothing_leaks_from_behind_the_mask(spec, clean, reduction, batch_dims, weighted):
    input, target, mask, weight = clean
    options = {"mask": mask, "batch_dims": batch_dims}
    pure = {**options, "weight": weight} if weighted else options
    dirty = {**options, "weight": poisoned(weight, ~mask)} if weighted else options
    expected = value_and_gradients(spec, input, target, reduction, **pure)
    found = value_and_gradients(spec, poisoned(input, ~mask), poisoned(target, ~mask), reduction, **dirty)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a.nan_to_num(nan=-7.0), b.nan_to_num(nan=-7.0))
        if batch_dims < 3 or reduction != "mean":  # if each element is a batch of its own, the mean over nothing is NaN
            assert a.isfinite().all()
    for gradient in found[1:]:
        assert (gradient[~mask] == 0).all()
    if reduction == "none":
        assert (found[0][~mask] == 0).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_equals_boolean_indexing(spec, clean, reduction):
    input, target, mask, weight = clean
    hidden = [poisoned(x, ~mask) for x in (input, target, weight)]
    for options, indexed in (({}, {}), ({"weight": hidden[2]}, {"weight": weight[mask]})):
        found = value_and_gradients(spec, *hidden[:2], reduction, mask=mask, **options)
        expected = value_and_gradients(spec, input[mask].double(), target[mask].double(), reduction, **indexed)
        torch.testing.assert_close(found[0].double(), expected[0], rtol=3e-7, atol=0)
        for a, b in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(a[mask].double(), b, rtol=3e-7, atol=0)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nothing_leaks_into_double_backward(spec, clean, reduction):
    input, target, mask, weight = clean
    hidden = [poisoned(x, ~mask) for x in (input, target, weight)]

    def penalty(input, target, **options):
        input, target = leaf(input), leaf(target)
        value = op(spec)(input, target, reduction, **options)
        first = torch.autograd.grad(value, (input, target), create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first) + value, (input, target))

    found = penalty(*hidden[:2], mask=mask, weight=hidden[2])
    expected = penalty(input[mask], target[mask], weight=weight[mask])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a[mask], b)
        assert (a[~mask] == 0).all()


@pytest.mark.parametrize("grad_output", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_special_grad_output_stays_with_what_is_selected(spec, clean, reduction, grad_output):
    input, target, mask, _ = clean
    incoming = torch.full(SHAPE if reduction == "none" else (), grad_output, device=input.device)
    found = value_and_gradients(spec, input, target, reduction, incoming, mask=mask)
    for gradient in found[1:]:
        assert (gradient[~mask] == 0).all()
        assert not gradient[mask & (input != target)].isfinite().any()


@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_nothing_selected(spec, device, weighted):
    rotten = torch.full(SHAPE, math.nan, device=device)
    zeros = torch.zeros(SHAPE, device=device)
    for batch_dims, lead in ((0, ()), (1, SHAPE[:1]), (3, SHAPE)):
        for options in ({"mask": torch.zeros(SHAPE, dtype=torch.bool, device=device)}, {"ignore_nan": True}):
            if weighted:
                options["weight"] = rotten
            for reduction, expected in (("mean", math.nan), ("sum", 0.0), ("none", 0.0)):
                found = value_and_gradients(spec, rotten, rotten, reduction, batch_dims=batch_dims, **options)
                shape = SHAPE if reduction == "none" else lead
                torch.testing.assert_close(found[0], torch.full(shape, expected, device=device), equal_nan=True)
                assert torch.equal(found[1], zeros) and torch.equal(found[2], zeros)
            found = value_and_gradients(
                spec, rotten, rotten, "mean", normalizer=torch.tensor(3.0, device=device), **options
            )
            assert all((x == 0).all() for x in found)


@pytest.mark.parametrize("way", ["mask", "ignore_nan"])
def test_one_sample_with_nothing_selected(spec, clean, way):
    input, target, mask, weight = (x.clone() for x in clean)
    mask[2] = False
    options = {"weight": poisoned(weight, ~mask), "batch_dims": 1}
    if way == "mask":
        input, target, options["mask"] = poisoned(input, ~mask), poisoned(target, ~mask), mask
    else:
        target[~mask], options["ignore_nan"] = math.nan, True
    value, *gradients = value_and_gradients(spec, input, target, "mean", torch.ones(4, device=mask.device), **options)
    assert value.isnan().tolist() == [False, False, True, False]
    for i in (0, 1, 3):
        alone = {"weight": weight[i][mask[i]]}
        expected = value_and_gradients(spec, input[i][mask[i]], target[i][mask[i]], "mean", **alone)
        torch.testing.assert_close(value[i], expected[0])
    for gradient in gradients:
        assert gradient.isfinite().all() and (gradient[~mask] == 0).all()
        assert (gradient[mask] != 0).any()


@pytest.mark.parametrize("size", [(1 << 20) + 7, pytest.param((1 << 25) + 9, marks=pytest.mark.cuda)])
@pytest.mark.parametrize("hidden", [0, 1, 7, 500_001])
def test_counts_are_exact(spec, device, size, hidden):
    """One count more or less would be 4 ulp of float32 in 2^21, a count in float32 wrong above 2^24."""
    if (device == "cuda") != (size > 1 << 21):
        pytest.skip("one size a device")
    input = torch.full((size,), nothing(spec), device=device)
    input[size // 2] = 3.0
    mask = torch.ones(size, dtype=torch.bool, device=device)
    mask[:: max(size // max(hidden, 1), 1)][:hidden] = False
    mask[size // 2] = True
    count = int(mask.sum())
    target = torch.zeros(size, device=device)
    total = op(spec)(input, target, "sum").double()
    for options in ({"mask": mask}, {"mask": mask, "batch_dims": 0, "weight": torch.ones((), device=device)}):
        assert error(op(spec)(input, target, **options), total / count, torch.float32) <= 0.51
    target[~mask] = math.nan
    assert error(op(spec)(input, target, ignore_nan=True), total / count, torch.float32) <= 0.51
    odd = size // 3
    value = op(spec)(input[: 3 * odd].view(3, odd), target[: 3 * odd].view(3, odd), ignore_nan=True, batch_dims=1)
    totals = op(spec)(input[: 3 * odd].view(3, odd), torch.zeros(3, odd, device=device), "sum", batch_dims=1)
    counts = mask[: 3 * odd].view(3, odd).sum(1)
    assert error(value, totals.double().cpu() / counts.cpu(), torch.float32) <= 0.51


MASK_SHAPES = {
    "a row": lambda mask: mask[0, 0],
    "a column": lambda mask: mask[0, :, :1],
    "a sample": lambda mask: mask[:, :1, :1],
    "two dimensions of three": lambda mask: mask[:, :1],
    "0-d True": lambda mask: mask.new_ones(()),
    "expanded": lambda mask: mask[:, :1].expand(mask.shape),
    "transposed": lambda mask: mask.transpose(0, 2).contiguous().transpose(0, 2),
    "every second": lambda mask: torch.stack([mask, ~mask], -1).flatten(2)[..., ::2],
    "off by a byte": lambda mask: torch.cat([mask.new_ones(1), mask.flatten()])[1:].view(mask.shape),
}


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", MASK_SHAPES)
def test_shapes_and_layouts_of_a_mask(spec, clean, shape, reduction):
    input, target, mask, weight = clean
    mask = MASK_SHAPES[shape](mask)
    hidden = ~mask.expand(SHAPE)
    options = Options(mask=mask, weight=poisoned(weight, hidden), batch_dims=1)
    operands = (leaf(poisoned(x, hidden)) for x in (input, target))
    Call(spec, *operands, reduction, options=options).assert_right()


def test_a_0d_false_mask(spec, clean):
    input, target, mask, _ = clean
    value, *gradients = value_and_gradients(spec, input, target, "mean", mask=mask.new_zeros(()))
    assert value.isnan() and all((g == 0).all() for g in gradients)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ignore_nan_is_the_mask_of_what_is_no_nan(spec, clean, reduction):
    input, target, mask, weight = clean
    target = torch.where(mask, target, math.nan)
    more = torch.rand(SHAPE, device=mask.device) < 0.8
    for options, equivalent in (
        ({}, {"mask": mask}),
        ({"mask": more}, {"mask": mask & more}),
        ({"weight": weight, "mask": more[0]}, {"weight": weight, "mask": mask & more[0]}),
    ):
        found = value_and_gradients(spec, input, target, reduction, ignore_nan=True, **options)
        for a, b in zip(found, value_and_gradients(spec, input, target, reduction, **equivalent), strict=True):
            torch.testing.assert_close(a, b, rtol=3e-7, atol=0)


def test_ignore_nan_looks_at_the_target_alone(spec, clean):
    input, target, _, _ = clean
    input[1, 2, 3] = math.nan
    assert op(spec)(input, target, ignore_nan=True).isnan()
    per_sample = op(spec)(input, target, ignore_nan=True, batch_dims=1)
    assert per_sample.isnan().tolist() == [False, True, False, False]
    target[0, 0, :2] = math.inf  # beside inputs of both signs
    assert not op(spec)(input[:1], target[:1], ignore_nan=True).isfinite()
    assert op(spec)(input, target).isnan()


def test_ignore_nan_of_targets_that_hold_none(spec, clean):
    input, target, mask, _ = clean
    for whole in (target.round().to(torch.int32), mask):
        assert torch.equal(op(spec)(input, whole, ignore_nan=True), op(spec)(input, whole))


def test_a_broadcast_target_is_ignored_wherever_it_is_nan(spec, clean):
    input, target, _, _ = clean
    row = target[0, 0].clone()
    row[3] = math.nan
    value, of_input, of_row = value_and_gradients(spec, input, row, "mean", ignore_nan=True)
    keep = [i for i in range(50) if i != 3]
    expected = value_and_gradients(spec, input[..., keep], row[keep], "mean")
    torch.testing.assert_close(value, expected[0])
    torch.testing.assert_close(of_input[..., keep], expected[1])
    torch.testing.assert_close(of_row[keep], expected[2])
    assert of_row[3] == 0 and (of_input[..., 3] == 0).all()


def test_a_mask_changed_before_backward_is_no_silent_error(spec, clean):
    input, target, mask, _ = clean
    expected = value_and_gradients(spec, input, target, "mean", torch.tensor(0.3, device=mask.device), mask=mask)[1]
    a, changed = leaf(input), mask.clone()
    value = op(spec)(a, target, mask=changed)
    changed.logical_not_()
    with contextlib.suppress(RuntimeError):  # a saved tensor was modified, says PyTorch
        value.backward(torch.tensor(0.3, device=mask.device))
    assert a.grad is None or torch.equal(a.grad, expected)


def test_what_is_given_is_left_alone(spec, clean):
    before = [x.clone() for x in clean]
    input, target, mask, weight = clean
    value_and_gradients(spec, input, target, "mean", mask=mask, weight=weight, ignore_nan=True, batch_dims=1)
    for x, old in zip(clean, before, strict=True):
        assert torch.equal(x, old)
