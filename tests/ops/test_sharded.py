"""Losses of DTensors are those of the whole tensors, whatever is sharded how, and move no more than they must. Four
processes, gloo, started once; each leaves what it found."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

import cudaloss
import oracle
from conftest import KINDS
from cudaloss._losses.table import SPECS
from oracle import op, operands, parameters
from processes import found_by_all
from sharding import (
    BARS,
    EVEN,
    MESHES,
    PROCESSES,
    assert_close,
    assert_of_the_whole,
    assert_right_in_one_process,
    derivatives,
    run_random_calls,
)

CASES = 6  # of each loss and mesh
# Placements know no losses: one of each kind, and one with a third operand in each call.
LOSSES = [*KINDS, *(spec for spec in SPECS if spec.has_third_gradient)]


def placements(draw: random.Random, mesh, dims: int) -> list:
    return [draw.choice([Replicate(), *map(Shard, range(dims))]) for _ in range(mesh.ndim)]


def place(draw: random.Random, mesh, whole: Tensor) -> Tensor:
    """Sharded in some way or not at all, or a sum over processes that is not made yet."""
    if whole.is_floating_point() and draw.random() < 0.15:
        parts = torch.stack([whole, *(torch.zeros_like(whole) for _ in range(3))])
        return distribute_tensor(parts, mesh, [Shard(0)] * mesh.ndim).sum(0)
    return distribute_tensor(whole, mesh, placements(draw, mesh, whole.dim()))


def repeated(draw: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts to `shape`."""
    sizes = [draw.choice([1, size, size]) for size in shape]
    return tuple(sizes[draw.choice([0, 0, 1]) if sizes else 0 :])


def draw_call(draw: random.Random, spec, shape: tuple[int, ...]) -> dict[str, Any]:
    """Tensors and numbers of a call, on one process."""
    call: dict[str, Any] = {"reduction": draw.choice(["mean", "mean", "mean", "sum", "none"])}
    if draw.random() < 0.4:
        call["mask"] = torch.rand(repeated(draw, shape)) < draw.choice([0.6, 0.6, 0.0])
    if draw.random() < 0.4:
        call["weight"] = torch.rand(repeated(draw, shape), dtype=torch.float64) + 0.1
    if call["reduction"] != "none":
        call["batch_dims"] = draw.choice([0, 0, *range(len(shape) + 1)])
        call["scale"] = draw.choice([1.0, 0.5])
    if call["reduction"] == "mean" and draw.random() < 0.2:
        call["normalizer"] = torch.tensor(3.0, dtype=torch.float64)
    if spec.targets == "real":
        call["ignore_nan"] = draw.random() < 0.3
    call["parameter"] = parameters(spec)[0]
    if draw.random() < 0.3 and spec.parameter:
        third = shape if spec.parameter.may_lack_last else repeated(draw, shape)
        call["parameter"] = parameters(spec)[0] * (0.5 + 0.5 * torch.rand(third, dtype=torch.float64))
    return call


def called(spec, operands: list[Tensor], call: dict[str, Any]) -> Tensor:
    options = {name: value for name, value in call.items() if name not in ("reduction", "parameter")}
    return op(spec)(*operands, call["reduction"], call["parameter"], **options)


def check_random_call(spec, draw: random.Random, mesh, sizes: Sequence[int] = (1, 2, 3, 5, 6, 7)) -> Tensor:
    """Value and gradients of one call must be those of one process; returns this process's value."""
    oracle.suited[0] = spec
    shape = tuple(draw.choice(sizes) for _ in range(draw.choice([1, 2, 2, 3])))
    dtype = draw.choice([torch.float32, torch.float32, torch.float64])
    input, target = operands(shape, (dtype, dtype), "cpu")
    call = draw_call(draw, spec, shape)
    if call.get("ignore_nan"):
        target.view(-1)[:: draw.choice([1, 3])] = torch.nan
    wide = [x.detach().double().requires_grad_() for x in (input, target)]
    truth = called(spec, wide, call)
    grad_output = torch.rand_like(truth)
    wanted = torch.autograd.grad(truth, wide, grad_output)
    sharded = [place(draw, mesh, x).detach().requires_grad_() for x in (input, target)]
    own = {name: place(draw, mesh, x) if isinstance(x, Tensor) else x for name, x in call.items()}
    value = called(spec, sharded, own)
    given = distribute_tensor(grad_output.to(dtype), mesh, value.placements)
    found = torch.autograd.grad(value, sharded, given)
    assert value.dtype == dtype and not any(x.is_partial() for x in value.placements)
    assert_close(value.full_tensor(), truth.detach(), BARS[dtype])
    for gradient, theirs in zip(found, wanted, strict=True):
        assert_close(gradient.full_tensor(), theirs, BARS[dtype])
    return value.detach().full_tensor()


def check_parameter_of_fsdp() -> None:
    """A penalty on a tensor-parallel parameter that FSDP2 keeps in shards of its own order, which adds its gradient."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(0)
    sharded, whole = (torch.nn.Linear(5, 14, bias=False) for _ in range(2))
    whole.load_state_dict(sharded.state_dict())
    parallelize_module(sharded, mesh["tensor"], ColwiseParallel(use_local_output=False))
    fully_shard(sharded, mesh=mesh["data"])
    x, weight = torch.randn(4, 5), sharded.weight
    assert isinstance(weight, DTensor)
    penalty = cudaloss.mse_loss(weight, torch.zeros_like(weight))
    (sharded(x).sum().full_tensor() + penalty.full_tensor()).backward()
    (whole(x).sum() + whole.weight.square().mean()).backward()
    assert isinstance(weight.grad, DTensor)
    assert weight.grad.placements == weight.placements
    torch.testing.assert_close(weight.grad.full_tensor(), whole.weight.grad)


def check_derivatives_of_higher_orders() -> None:
    """Also where some processes have nothing."""
    mesh = init_device_mesh("cpu", (4,))
    for rows, placement in itertools.product((8, 2), (Shard(0), Replicate())):
        torch.manual_seed(0)
        x, t = torch.randn(2, rows, 3, dtype=torch.float64)
        for given in ({}, {"mask": torch.rand(rows, 3) < 0.6}, {"weight": torch.rand(3, dtype=torch.float64)}):
            whole = {"target": t, **given}
            own = {
                name: distribute_tensor(y, mesh, [Shard(0) if y.dim() == 2 else Replicate()])
                for name, y in whole.items()
            }
            leaf = distribute_tensor(x, mesh, [placement]).requires_grad_()
            found = derivatives(partial(cudaloss.log_cosh_loss, **own), leaf)
            wanted = derivatives(partial(cudaloss.log_cosh_loss, **whole), x.clone().requires_grad_())
            for ours, theirs in zip(found, wanted, strict=True):
                assert_close(ours.detach().full_tensor(), theirs.detach(), 1e-12)


def check_a_plain_grad_output() -> None:
    """It is the same in all processes, and the gradient can be differentiated by it."""
    mesh = init_device_mesh("cpu", (4,))
    x, t = torch.randn(2, 8, 3, dtype=torch.float64)
    for options in ({}, {"reduction": "none"}, {"batch_dims": 1}):
        found = []
        for input, target in ((x.clone(), t), [distribute_tensor(y, mesh, [Shard(0)]) for y in (x, t)]):
            leaf = input.requires_grad_()
            value = cudaloss.log_cosh_loss(leaf, target, **options)
            grad_output = torch.linspace(1, 2, value.numel(), dtype=x.dtype).view(value.shape).requires_grad_()
            (slope,) = torch.autograd.grad(value, leaf, grad_output, create_graph=True)
            both = torch.autograd.grad(slope.pow(3).sum(), (leaf, grad_output), create_graph=True)
            third = torch.autograd.grad(both[1].pow(3).sum(), leaf)
            found.append([y.full_tensor() if isinstance(y, DTensor) else y for y in (slope, *both, *third)])
        for wanted, ours in zip(*found, strict=True):
            assert_close(ours.detach(), wanted.detach(), 1e-12)


def find() -> dict[Any, Any]:
    check_parameter_of_fsdp()
    check_derivatives_of_higher_orders()
    check_a_plain_grad_output()
    return {
        (spec.name, mesh): run_random_calls(spec.name, mesh, CASES, partial(check_random_call, spec))
        for spec in LOSSES
        for mesh in MESHES
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each process found, by loss and mesh."""
    return found_by_all(tmp_path_factory, PROCESSES, find)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("loss", [spec.name for spec in LOSSES])
def test_random_calls_are_those_of_the_whole(loss, mesh, found):
    assert_of_the_whole([of_process[loss, mesh] for of_process in found], CASES)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_random_calls_in_one_process(loss, mesh):
    assert_right_in_one_process(loss.name, mesh, 2, partial(check_random_call, loss, sizes=EVEN))
