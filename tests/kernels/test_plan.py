"""Launch plans: pure functions of the sizes, within the hardware's limits and the workspace's, at any count."""

from __future__ import annotations

import pytest

C = pytest.importorskip("cudaloss._C")

COUNTS = [0, 1, 1023, 8192, 8193, 1 << 20, (1 << 28) + 1, 1 << 30, (1 << 31) + 5, 1 << 40]
SIZES = [(4, 4), (2, 2), (8, 8), (2, 4), (8, 2)]
KINDS = ("sum", "train")


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("count", COUNTS)
def test_limits(count, sizes):
    plan = C.launch_plan(count, *sizes)
    assert plan["vector"] * min(sizes) == 16
    for kind in KINDS:
        blocks = plan[f"{kind}_blocks"]
        assert blocks >= 1
        assert blocks * 8 < 1e6  # bytes of partials; of fp64 operands, whose partials carry their rest, twice that
    assert plan["map_tiles"] < 2**31 or count > 2**40  # the grid's x dimension
    assert plan["fold_blocks"] <= plan["counted_blocks"]  # whose last block folds theirs


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_block_has_a_tile(kind, sizes):
    for count in COUNTS[1:]:
        plan = C.launch_plan(count, *sizes)
        tiles = -(-count // plan[f"{kind}_tile"])
        blocks = plan[f"{kind}_blocks"]
        tiles_a_block = -(-tiles // blocks)
        assert (blocks - 1) * tiles_a_block < tiles


@pytest.mark.parametrize("sizes", SIZES)
def test_small_counts_take_one_block(sizes):
    tile = C.launch_plan(1, *sizes)["sum_tile"]
    assert [C.launch_plan(n, *sizes)["sum_blocks"] for n in (1, tile, 2 * tile, 2 * tile + 1)] == [1, 1, 1, 3]


def test_counts_are_shared_out_evenly():
    """Up to 2^28 fp32 elements a block that writes has one tile; at 2^30 it has three."""
    assert [C.launch_plan(1 << n, 4, 4)["train_blocks"] for n in (12, 13, 28, 30)] == [1, 2, 1 << 16, 87382]
    assert [C.launch_plan(1 << n, 4, 4)["sum_blocks"] for n in (28, 30)] == [1 << 15, 1 << 16]


@pytest.mark.parametrize("arguments", [(1, 0, 4), (1, 4, 3), (-1, 4, 4)])
def test_bad_arguments(arguments):
    with pytest.raises(ValueError, match="the sizes 2, 4 or 8 bytes"):
        C.launch_plan(*arguments)


def test_chunks_cover_the_data():
    assert [C.launch_plan(n, 4, 4)["cpu_chunks"] for n in (0, 1, 32768, 32769)] == [0, 1, 1, 2]
