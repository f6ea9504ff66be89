"""Losses of rows of DTensors, which plain PyTorch serves: those of the whole tensors, whatever is sharded. Two
processes, gloo."""

from __future__ import annotations

from datetime import timedelta
from itertools import product

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.multiprocessing import spawn  # pyright: ignore[reportPrivateImportUsage]

import cudaloss

PROCESSES = 2
INPUTS, TARGETS = (Shard(0), Shard(1), Replicate()), (Shard(0), Replicate())
CALLS = (
    {},
    {"reduction": "none"},
    {"weight": torch.linspace(0.5, 1.5, 9), "label_smoothing": 0.1, "z_loss": 0.01},
    {"mask": torch.tensor([True, True, True, False, True]), "reduction": "sum"},
)


def differ(mesh, input, target, of_input, of_target, given) -> str | None:
    """What is wrong with a call, if anything."""
    leaf = input.clone().requires_grad_()
    expected = cudaloss.cross_entropy(leaf, target, **given)
    expected.sum().backward()
    shards = distribute_tensor(input, mesh, [of_input]).requires_grad_()
    beside = {k: distribute_tensor(x, mesh, [Replicate()]) for k, x in given.items() if isinstance(x, torch.Tensor)}
    found = cudaloss.cross_entropy(shards, distribute_tensor(target, mesh, [of_target]), **{**given, **beside})
    found.sum().backward()
    try:
        assert isinstance(found, DTensor) and isinstance(shards.grad, DTensor)
        torch.testing.assert_close(found.full_tensor(), expected)
        torch.testing.assert_close(shards.grad.full_tensor(), leaf.grad)
    except AssertionError as error:
        return f"{of_input} {of_target} {target.dtype} {list(given)}: {error}"
    return None


def run(rank: int, folder: str) -> None:
    store = dist.FileStore(f"{folder}/store", PROCESSES)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES, timeout=timedelta(seconds=60))
    mesh = init_device_mesh("cpu", (PROCESSES,))
    torch.manual_seed(0)
    input, index = torch.randn(5, 9), torch.tensor([1, 2, -100, 8, 0])  # uneven shards
    probabilities = torch.randn(5, 9).softmax(1)
    found = [
        differ(mesh, input, target, *call)
        for target in (index, probabilities)
        for call in product(INPUTS, TARGETS, CALLS)
    ]
    torch.save([wrong for wrong in found if wrong], f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def test_of_the_whole(tmp_path):
    spawn(run, (str(tmp_path),), PROCESSES)
    for rank in range(PROCESSES):
        assert torch.load(tmp_path / f"{rank}.pt") == []
