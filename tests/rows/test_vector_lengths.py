"""Losses of vectors against the truth: vectors of every length."""

from __future__ import annotations

import pytest
import torch

from exact_vectors import CASES, LOSSES, assert_right, drawn
from oracle import DTYPES

# Where kernels change: powers of two, and beside them; less what a row that begins within 16 bytes of fp32 or of halves
# can lose.
SPLITS = sorted(
    {
        300,
        *(n + d for n in (128, 256, 512, 1024, 2048, 4096, 8192, 16384) for d in (-1, 0, 1)),
        *(n + d for n in (512, 1024, 2048) for d in (-7, -3)),
    }
)
of_cases = pytest.mark.parametrize(("name", "own"), CASES.values(), ids=CASES)


@of_cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_length(device, name, own, dtype):
    for length in range(1, 36 if dtype == torch.float64 else 71):
        assert_right(name, drawn(name, (6, length), dtype, device), **own)


@of_cases
@pytest.mark.parametrize("length", SPLITS)
def test_around_splits(device, name, own, length):
    assert_right(name, drawn(name, (4, length), DTYPES[length % 4], device), **own)
    assert_right(name, drawn(name, (3, length), torch.float32, device), **own)


@of_cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_that_begin_anywhere(device, name, own, dtype):
    """Within 16 bytes: views, whose rows a kernel reads where they are. Most of the clones are whole aligned vectors,
    which another kernel reads."""
    loss = LOSSES[name]
    vectors = loss.vectors
    for length in (5, 16, 33, 128, 512, 1104):
        whole = drawn(name, (5, length + 9), dtype, device)
        for begin in (0, 1, 3, 8):
            views = [x[:, begin : begin + length] if i < vectors else x for i, x in enumerate(whole)]
            clones = [x.clone() for x in views]
            found, expected = (loss.ours(*operands, reduction="none", **own) for operands in (views, clones))
            torch.testing.assert_close(found, expected, rtol=torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps / 8)
