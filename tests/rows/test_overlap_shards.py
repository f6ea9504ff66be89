"""Losses of overlap of DTensors are those of the whole tensors, whatever is sharded how; only sums move. Four
processes, gloo, started once; each leaves what it found."""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import cudaloss
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

CASES = 8  # of each loss and mesh
FUNCTIONS = {
    function.__name__: function
    for function in (cudaloss.dice_loss, cudaloss.tversky_loss, cudaloss.dice_ce_loss, cudaloss.dice_bce_loss)
}


def place(draw: random.Random, mesh, whole: Tensor) -> DTensor:
    choice = [Replicate(), *map(Shard, range(whole.dim()))]
    return distribute_tensor(whole, mesh, [draw.choice(choice) for _ in range(mesh.ndim)])


def draw_call(draw: random.Random, name: str, shape: tuple[int, ...]) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Operands in float64 and keywords of a call, on one process."""
    samples, classes, *space = shape
    options: dict[str, Any] = {"batch": draw.random() < 0.3, "include_background": draw.random() < 0.7}
    mixed = name in ("dice_ce_loss", "dice_bce_loss")
    options["reduction"] = draw.choice(["mean", "sum"] if mixed else ["mean", "sum", "none"])
    if not mixed:
        options["activation"] = draw.choice(["softmax", "sigmoid"])
    input = torch.randn(shape, dtype=torch.float64)
    target = torch.randint(classes, draw.choice([(samples, *space), (samples, 1, *space)]))
    if draw.random() < 0.3:
        target = torch.rand(shape, dtype=torch.float64).softmax(1)
    elif draw.random() < 0.5:
        target[torch.rand(target.shape) < 0.3] = 255
        options["ignore_index"] = 255
    if draw.random() < 0.4:
        options["mask"] = torch.rand(samples, *space) < draw.choice([0.6, 0.0])
    if draw.random() < 0.4:
        left = classes if mixed or options["include_background"] else classes - 1
        options["weight"] = torch.rand(left, dtype=torch.float64) + 0.1
    return input, target, options


def check_random_call(name: str, draw: random.Random, mesh, sizes=(2, 3, 5, 6, 7)) -> Tensor:
    """Value and gradient must be those of one process; returns this process's value."""
    function = FUNCTIONS[name]
    input, target, options = draw_call(draw, name, tuple(draw.choice(sizes) for _ in range(draw.choice([3, 4]))))
    dtype = draw.choice([torch.float32, torch.float32, torch.float64])
    input = input.to(dtype)
    wide = input.double().requires_grad_()
    truth = function(wide, target, **options)
    grad_output = torch.rand_like(truth)
    (wanted,) = torch.autograd.grad(truth, wide, grad_output)
    sharded = place(draw, mesh, input).requires_grad_()
    given = {key: place(draw, mesh, x) if isinstance(x, Tensor) else x for key, x in options.items()}
    value = function(sharded, place(draw, mesh, target), **given)
    assert isinstance(value, DTensor) and all(placement == Replicate() for placement in value.placements)
    incoming = distribute_tensor(grad_output.to(value.dtype), mesh, value.placements)
    (found,) = torch.autograd.grad(value, sharded, incoming)
    assert_close(value.full_tensor(), truth.detach(), BARS[dtype])
    assert_close(found.full_tensor(), wanted, BARS[dtype])
    return value.detach().full_tensor()


def check_what_moves(mesh) -> None:
    """The sums, in one collective; nothing backward."""
    x, t = torch.randn(4, 3, 8), torch.randint(3, (4, 8))
    for of_input, of_target in ((Shard(0), Shard(0)), (Shard(2), Shard(1))):
        sharded, target = (
            distribute_tensor(x, mesh, [of_input]).requires_grad_(),
            distribute_tensor(t, mesh, [of_target]),
        )
        with CommDebugMode() as forward:
            value = cudaloss.dice_ce_loss(sharded, target)
        with CommDebugMode() as backward:
            value.backward()
        assert (forward.get_total_counts(), backward.get_total_counts()) == (1, 0)
        assert sharded.grad is not None and sharded.grad.placements == sharded.placements


def check_derivatives_of_higher_orders(mesh) -> None:
    """Also of a class weight, and where processes have no voxel."""
    x, t = torch.randn(2, 3, 2, dtype=torch.float64), torch.randint(3, (2, 2))
    of_classes = torch.rand(3, dtype=torch.float64)
    for placement in (Shard(0), Shard(2)):
        sharded, target = distribute_tensor(x, mesh, [placement]), distribute_tensor(t, mesh, [Replicate()])
        found = derivatives(lambda x, t=target: cudaloss.dice_ce_loss(x, t), sharded.requires_grad_())
        wanted = derivatives(lambda x, t=t: cudaloss.dice_ce_loss(x, t), x.clone().requires_grad_())
        for ours, theirs in zip(found, wanted, strict=True):
            assert_close(ours.detach().full_tensor(), theirs.detach(), 1e-12)
        weight = distribute_tensor(of_classes, mesh, [Replicate()]).requires_grad_()
        (found,) = torch.autograd.grad(cudaloss.dice_ce_loss(sharded, target, weight=weight), weight)
        leaf = of_classes.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(cudaloss.dice_ce_loss(x, t, weight=leaf), leaf)
        assert_close(found.full_tensor(), wanted, 1e-12)


def check_modules_and_errors(mesh) -> None:
    x, t = torch.randn(4, 3, 8), torch.randint(3, (4, 8))
    sharded, target = distribute_tensor(x, mesh, [Shard(0)]), distribute_tensor(t, mesh, [Shard(0)])
    module = cudaloss.DiceLoss(activation="softmax", squared=True)
    torch.testing.assert_close(module(sharded, target).full_tensor(), module(x, t))
    with pytest.raises(
        TypeError, match=r"target must be a DTensor, as input is, got a plain tensor; .* distribute_tensor"
    ):
        module(sharded, t)
    with pytest.raises(TypeError, match="mask must be a DTensor, as input is"):
        module(sharded, target, mask=t > 0)
    other = init_device_mesh("cpu", (2, PROCESSES // 2))
    with pytest.raises(RuntimeError, match="target must be on the mesh of input"):
        module(sharded, distribute_tensor(t, other, [Replicate(), Replicate()]))
    with pytest.raises(ValueError, match="activation must be None, 'sigmoid' or 'softmax'"):
        cudaloss.dice_loss(sharded, target, activation="tanh")


def check_compiled_calls(mesh) -> None:
    x, t = torch.randn(4, 3, 8), torch.randint(3, (4, 8))
    for placement in (Shard(0), Shard(2)):
        torch._dynamo.reset()
        sharded, plain = distribute_tensor(x, mesh, [placement]).requires_grad_(), x.clone().requires_grad_()
        value = torch.compile(cudaloss.dice_ce_loss, backend="aot_eager", fullgraph=True)(
            sharded, distribute_tensor(t, mesh, [Replicate()])
        )
        wanted = cudaloss.dice_ce_loss(plain, t)
        value.backward()
        wanted.backward()
        torch.testing.assert_close(value.full_tensor(), wanted.detach())
        torch.testing.assert_close(sharded.grad.full_tensor(), plain.grad)


CHECKS = (check_what_moves, check_derivatives_of_higher_orders, check_modules_and_errors, check_compiled_calls)


def find() -> dict[Any, Any]:
    found: dict[Any, Any] = {
        (name, mesh): run_random_calls(name, mesh, CASES, partial(check_random_call, name))
        for name in FUNCTIONS
        for mesh in MESHES
    }
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for check in CHECKS:
        torch.manual_seed(0)
        check(mesh)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each process found, by loss and mesh."""
    return found_by_all(tmp_path_factory, PROCESSES, find)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_calls_are_those_of_the_whole(name, mesh, found):
    assert_of_the_whole([of_process[name, mesh] for of_process in found], CASES)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_random_calls_in_one_process(name, mesh):
    assert_right_in_one_process(name, mesh, 2, partial(check_random_call, name, sizes=EVEN))
