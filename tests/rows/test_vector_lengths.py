"""Losses of vectors against the truth: vectors of every length."""

from __future__ import annotations

import pytest
import torch

from exact_vectors import CASES, assert_right, drawn
from oracle import DTYPES

# Where kernels change: powers of two, and beside them.
SPLITS = sorted({300, *(n + d for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384) for d in (-1, 0, 1))})
of_cases = pytest.mark.parametrize(("name", "own"), CASES.values(), ids=CASES)


@of_cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length(device, name, own, dtype):
    for length in range(1, 71):
        assert_right(name, drawn(name, (6, length), dtype, device), **own)


@of_cases
@pytest.mark.parametrize("length", SPLITS)
def test_around_splits(device, name, own, length):
    assert_right(name, drawn(name, (4, length), DTYPES[length % 4], device), **own)
    assert_right(name, drawn(name, (3, length), torch.float32, device), **own)
