"""Shared code of the DTensor tests: random calls that must match the whole."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

PROCESSES = 4
MESHES = ((4,), (2, 2))
EVEN = (4, 8)  # sizes without uneven shards, whose sizes PyTorch's LocalTensorMode does not take everywhere
BARS = {torch.float32: 1e-6, torch.float64: 1e-12, torch.bfloat16: 2**-8}  # of the largest element


def assert_close(found: Tensor, truth: Tensor, bar: float) -> None:
    largest = truth.nan_to_num(0, 0, 0).abs().max() if truth.numel() else 0.0
    for own in getattr(found, "_local_tensors", {0: found}).values():  # a LocalTensor has those of all processes
        torch.testing.assert_close(own.double(), truth, rtol=0, atol=float(bar * largest), equal_nan=True)


def derivatives(loss: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """The value, and derivatives that are nonlinear in it, to the fourth order."""
    found = [loss(x)]
    for _ in range(4):
        found += torch.autograd.grad(found[-1].pow(3).sum(), x, create_graph=True)
    return found


def run_random_calls(
    name: str, mesh_shape: tuple[int, ...], cases: int, check: Callable[[random.Random, DeviceMesh], Tensor]
) -> tuple[list[Tensor], list[str]]:
    """The values of that many calls in this process, and what was wrong."""
    draw, mesh = random.Random(f"{name} {mesh_shape}"), init_device_mesh("cpu", mesh_shape)
    torch.manual_seed(0)
    values, faults = [], []
    for case in range(cases):
        try:
            values.append(check(draw, mesh))
        except Exception as error:  # the other processes have it too, or wait for this one in vain
            faults.append(f"case {case}: {type(error).__name__}: {error}")
    return values, faults


def assert_right_in_one_process(
    name: str, mesh_shape: tuple[int, ...], cases: int, check: Callable[[random.Random, DeviceMesh], Tensor]
) -> None:
    """The calls under PyTorch's LocalTensorMode, in which one process stands for all. The kernels do not serve it."""
    local_tensor = pytest.importorskip("torch.distributed._local_tensor")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=PROCESSES)
    try:
        with local_tensor.LocalTensorMode(PROCESSES):
            values, faults = run_random_calls(name, mesh_shape, cases, check)
    finally:
        dist.destroy_process_group()
    assert not faults
    assert len(values) == cases


def assert_of_the_whole(of_processes: list[tuple[list[Tensor], list[str]]], cases: int) -> None:
    """Checks that all calls were right, and that all processes have the same values."""
    (values, faults), *others = of_processes
    assert not faults
    assert len(values) == cases
    for other, _ in others:
        torch.testing.assert_close(other, values, rtol=0, atol=0, equal_nan=True)
