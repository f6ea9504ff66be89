"""cudaloss.distributed in one process; tests/ops/test_distributed.py has it in two."""

from __future__ import annotations

import doctest
import math

import pytest
import torch

import cudaloss
from cudaloss import distributed


@pytest.mark.parametrize("ignore_nan", [False, True])
@pytest.mark.parametrize("mask", [None, (4, 5), (5,), (4, 1), ()], ids=str)
@pytest.mark.parametrize("weight", [None, (4, 5), (5,), (4, 1), ()], ids=str)
def test_in_play_is_what_a_mean_divides_by(weight, mask, ignore_nan):
    target = torch.randn(3, 4, 5)
    target[torch.rand(target.shape) < 0.3] = math.nan if ignore_nan else 0.0
    options = {
        "weight": None if weight is None else torch.rand(weight) + 0.1,
        "mask": None if mask is None else torch.rand(mask) < 0.7,
        "ignore_nan": ignore_nan,
    }
    found = distributed.in_play(target, **options)
    assert (found.shape, found.dtype) == ((), torch.float64)
    input = torch.randn_like(target)
    by_hand = cudaloss.mse_loss(input, target, reduction="sum", **options) / found
    whole = cudaloss.mse_loss(input, target, **options)
    torch.testing.assert_close(by_hand, whole.to(by_hand), equal_nan=True)


def test_in_play_of_nothing():
    assert distributed.in_play(torch.zeros(0, 3)) == 0
    assert distributed.in_play(torch.zeros(0, 3), weight=torch.ones(3)) == 0
    assert distributed.in_play(torch.zeros(()), mask=torch.tensor(False)) == 0


def test_whole_targets_and_learned_weights_count_without_a_gradient():
    weight = torch.rand(3, requires_grad=True)
    found = distributed.in_play(torch.zeros(2, 3, dtype=torch.int64), weight=weight, ignore_nan=True)
    assert not found.requires_grad
    torch.testing.assert_close(found, 2 * weight.detach().sum(dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": torch.ones(3)}, r"mask must be a bool tensor, got torch.float32"),
        ({"weight": torch.ones(3, dtype=torch.int64)}, r"weight must be a floating-point tensor, got torch.int64"),
        ({"mask": torch.ones(2, dtype=torch.bool)}, r"mask must have a shape that broadcasts to \(4, 3\), got \(2,\)"),
    ],
)
def test_what_does_not_fit_is_an_error(options, message):
    with pytest.raises(RuntimeError, match=message):
        distributed.in_play(torch.zeros(4, 3), **options)


@pytest.mark.parametrize("gradients", ["averaged", "summed"])
def test_a_process_alone_divides_by_its_own_counts(gradients):
    counts = torch.tensor(3), 4.5, torch.tensor(0.5, requires_grad=True)
    found = distributed.normalizer(*counts, gradients=gradients)
    assert (found.item(), found.dtype, found.requires_grad) == (8.0, torch.float64, False)
    assert distributed.total(*counts[::2], gradients=gradients) == 3.5
    assert distributed.normalizer(torch.tensor(0), gradients=gradients) == 1


def test_numbers_and_words_that_are_not_taken():
    with pytest.raises(ValueError, match="counts must be at least one"):
        distributed.normalizer()
    with pytest.raises(ValueError, match="losses must be at least one"):
        distributed.total()
    with pytest.raises(ValueError, match="gradients must be 'averaged' or 'summed', got 'mean'"):
        distributed.normalizer(1, gradients="mean")


def test_examples_run():
    found = doctest.testmod(distributed, extraglobs={"torch": torch, "distributed": distributed})
    assert found.attempted >= 4 and not found.failed
