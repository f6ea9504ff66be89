"""The private ops of a cross entropy whose classes processes share: what a process finds of its own classes, and their
gradients. tests/rows/test_row_shards.py has whole calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cudaloss._call.modes import BELOW_AUTOGRAD, pack
from cudaloss._losses.table import OF_ROWS
from cudaloss._sharded.vocabulary import Place, part, part_backward
from exact_rows import error
from oracle import DTYPES
from wide import numbers

HOW = pack("none", torch.float64, next(x for x in OF_ROWS if x.name == "cross_entropy").mode) | BELOW_AUTOGRAD
# Up to 1,024 classes a GPU's general kernel; of 40,000 several tiles, of 200,001 more than shared memory holds.
SHAPES = [(1,), (7,), (1, 1), (9, 10), (33, 300), (5, 1025), (5, 4099), (3, 40_000), (2, 200_001), (2, 1100, 2, 3)]
FIRST, BEHIND = 50, 30  # classes of other processes


def drawn(shape, dtype, device):
    """Logits of a part, targets, of which every other one is among them, and rows that count."""
    dim = min(len(shape) - 1, 1)
    rows = *shape[:dim], *shape[dim + 1 :]
    input = 4 * torch.randn(shape, dtype=torch.float64)
    own, other = torch.randint(0, shape[dim], rows) + FIRST, torch.randint(0, FIRST, rows)
    target = torch.where(torch.rand(rows) < 0.5, own, other)
    counts = torch.rand(rows) < 0.8
    return (
        input.to(dtype).to(device),
        target.to(device),
        counts.to(device),
        Place(FIRST, FIRST + shape[dim] + BEHIND, -100),
    )


def by_numpy(input, target, place, grads):
    """Log-sums, the targets' logits and the logits' gradients, in extended precision."""
    dim = min(input.dim() - 1, 1)
    x, (of_sum, of_target) = (numbers(input)(y) for y in (input, torch.stack([*grads])))
    classes = np.arange(x.shape[dim]).reshape(-1, *(1,) * (x.ndim - dim - 1))
    is_target = classes == np.expand_dims(target.cpu().numpy() - place.first, dim)
    others = np.where(is_target, -np.inf, x)
    top = np.expand_dims(others.max(dim), dim)
    top = np.where(top == -np.inf, 0, top)
    e = np.exp(others - top)
    total = e.sum(dim, keepdims=True)
    gradients = np.expand_dims(of_sum, dim) * e / np.where(total == 0, 1, total)
    log_sums = np.log(total).squeeze(dim) + top.squeeze(dim)
    targets = np.where(is_target.any(dim), np.where(is_target, x, 0).sum(dim), -np.inf)
    return log_sums, targets, np.where(is_target, np.expand_dims(of_target, dim), gradients)


# Of log-sums: an error there is one of all the row's gradients. Exponentials of halves are coarse.
BARS = {torch.float64: 2**-51, torch.float32: 2**-25, torch.float16: 2**-20, torch.bfloat16: 2**-20}


def assert_right(input, target, counts, place, grads=None, ulps=2.0):
    """Gradients within 2 ulp; log-sums so that a cross entropy of them is."""
    grads = torch.rand(2, *target.shape, dtype=torch.float64, device=input.device) + 0.5 if grads is None else grads
    with np.errstate(divide="ignore", invalid="ignore"):
        log_sums, targets, expected = by_numpy(input, target, place, grads)
    kept = counts.cpu().numpy()
    found = [x.cpu().numpy() for x in part(input, target, HOW, counts, *place)]
    bar = BARS[input.dtype]
    of_size = bar if input.dtype == torch.float64 else 2**-52
    np.testing.assert_allclose(found[0][kept], log_sums[kept], rtol=of_size, atol=bar)
    np.testing.assert_array_equal(found[1][kept], targets[kept].astype(float))
    gradient = part_backward(*grads, input, target, HOW, counts, *place)
    assert gradient.dtype == input.dtype and gradient.shape == input.shape
    assert error(gradient, np.where(np.expand_dims(kept, min(input.dim() - 1, 1)), expected, 0)) <= ulps


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients(device, shape, dtype):
    assert_right(*drawn(shape, dtype, device))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [40, 3000])
def test_layouts(device, classes, dtype):
    input, target, counts, place = drawn((6, classes), dtype, device)
    assert_right(input.t().contiguous().t(), target, counts, place)
    wide = torch.randn(6, classes + 5, device=device).to(dtype)
    assert_right(wide[:, 3 : classes + 3], target, counts, place)  # no row begins at 16 bytes
    assert_right(input[:1].expand(6, classes), target, counts, place)
    grads = torch.rand(6, 2, dtype=torch.float64, device=device).t()
    assert_right(input, target.int(), counts, place, grads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("classes", [1, 40, 3000])
def test_rows_of_infinities(device, classes, dtype):
    """Of -inf alone, but for the target's, the log-sum is -inf and the gradients are 0; of NaN and inf they are NaN,
    and those of a row that does not count 0."""
    input, target, _, place = drawn((5, classes), dtype, device)
    input[:3] = -torch.inf
    target[:] = FIRST
    target[1], input[2, 0] = 0, 2.0
    input[3], input[4] = torch.nan, torch.inf
    counts = torch.tensor([True, True, True, False, False], device=device)
    assert_right(input, target, counts, place)
    grads = torch.ones(2, 5, dtype=torch.float64, device=device)
    found = part_backward(*grads, input, target, HOW, counts, *place)
    assert not found[3:].any()
    if classes > 1:
        log_sums, _ = part(input, target, HOW, None, *place)
        assert log_sums[3:].isnan().all()
        found = part_backward(*grads, input, target, HOW, None, *place)
        assert found[3:, 1:].isnan().all()


@pytest.mark.parametrize("classes", [40, 3000])
def test_a_nearly_certain_class(device, classes):
    """The others' sum keeps its digits if the target is far above them."""
    input, target, _, place = drawn((4, classes), torch.float32, device)
    target[:] = FIRST + 3
    input[:, 3] = 90.0
    assert_right(input, target, torch.ones(4, dtype=torch.bool, device=device), place)
    assert_right(input - 3e5, target, torch.ones(4, dtype=torch.bool, device=device), place)
    # Beyond 2^20 a GPU's threads have maxima for references, and each sum is brought to the row's by an exp of its own.
    assert_right(1e7 + input.round(), target, torch.ones(4, dtype=torch.bool, device=device), place, ulps=3.0)


def test_targets_that_are_no_class(device):
    input, _, _, place = drawn((2, 3000), torch.float32, device)
    target, counts = (
        torch.tensor([place.all_classes, -1], device=device),
        torch.ones(2, dtype=torch.bool, device=device),
    )
    if device == "cpu":
        with pytest.raises(RuntimeError, match=r"target must hold class indices at least 0 and below 3080, or ignore_"):
            part(input, target, HOW, counts, *place)
    else:
        assert part(input, target, HOW, counts, *place)[0].isnan().all()
    ignoring = place._replace(ignore_index=place.all_classes)
    log_sums, _ = part(input[:1], target[:1], HOW, None, *ignoring)
    assert log_sums.item() == 0


def test_bad_calls(device):
    input, target, counts, place = drawn((2, 30), torch.float32, device)
    with pytest.raises(RuntimeError, match="first_class must be"):
        part(input, target, HOW, counts, 81, 110, -100)
    with pytest.raises(RuntimeError, match="autograd does not see"):
        part(input, target, HOW & ~BELOW_AUTOGRAD, counts, *place)
    grads = torch.ones(2, 2, dtype=torch.float64, device=device)
    with pytest.raises(RuntimeError, match="rows' shape"):
        part_backward(grads[0], grads[1, :1], input, target, HOW, counts, *place)
