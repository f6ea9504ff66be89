"""Launch plans: pure functions of the sizes, within the hardware's limits, at any count."""

from __future__ import annotations

import pytest

C = pytest.importorskip("cudaloss._C")

COUNTS = [0, 1, 1023, 8192, 8193, 1 << 20, (1 << 31) + 5, 1 << 40]
SIZES = [(4, 4), (2, 2), (8, 8), (2, 4), (8, 2)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", COUNTS)
def test_limits(count, sizes):
    plan = C.launch_plan(count, *sizes)
    assert plan["vector"] * min(sizes) == 16
    assert 1 <= plan["reduce_blocks"] <= 1024  # the second stage folds them in one block
    assert plan["elementwise_blocks"] < 2**31 or count > 2**40  # the grid's x dimension


@pytest.mark.parametrize("sizes", SIZES)
def test_small_counts_take_one_block(sizes):
    plan = C.launch_plan(1, *sizes)
    assert C.launch_plan(plan["reduce_tile"], *sizes)["reduce_blocks"] == 1
    assert C.launch_plan(plan["reduce_tile"] + 1, *sizes)["reduce_blocks"] == 2


@pytest.mark.parametrize("arguments", [(1, 0, 4), (1, 4, 3), (-1, 4, 4)])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="the sizes 2, 4 or 8 bytes"):
        C.launch_plan(*arguments)


def test_chunks_cover_the_data():
    assert [C.launch_plan(n, 4, 4)["cpu_chunks"] for n in (0, 1, 32768, 32769)] == [0, 1, 1, 2]
