"""Losses of DTensors in one node: the same as in several, whatever is asked of the node. Four processes, gloo."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import cudaloss
from cudaloss._sharded import eager
from processes import found_by_all
from sharding import PROCESSES

SHAPE = (10, 6)
ROWS = [Shard(0)]


def operands(mesh: DeviceMesh, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    x, t, w = torch.randn(3, *SHAPE)
    found: Any = {"input": x.to(dtype), "target": t, "weight": w.abs() + 0.1, "mask": w > 0}
    return {name: distribute_tensor(whole, mesh, ROWS) for name, whole in found.items()}


def in_several(call: Callable[[], Tensor]) -> Any:
    """Of which a mode sees each."""
    with CommDebugMode() as mode:
        value = call()
    assert mode.get_total_counts() > 0
    return value


def is_in_one(value: Any) -> bool:
    return type(value.grad_fn).__name__ == "_LossBackward"


def check_the_same_as_in_several(mesh: DeviceMesh) -> None:
    same_as_in_several(mesh)


def check_many_are_the_same_as_in_several(mesh: DeviceMesh) -> None:
    with mock.patch.object(eager, "_FEW", 0):
        same_as_in_several(mesh)


def same_as_in_several(mesh: DeviceMesh) -> None:
    # The sum of few elements is divided after it has been summed over the processes, in float64, not before.
    ulps = 1 if eager._FEW else 0
    for dtype in (torch.float32, torch.bfloat16):
        x, t, w, mask = operands(mesh, dtype).values()
        nothing, one = torch.zeros_like(mask), torch.full((), 3.0)
        number = distribute_tensor(one, mesh, [Replicate()])
        cancelling = distribute_tensor(torch.tensor([1.0, -1.0]).repeat(SHAPE[0], SHAPE[1] // 2), mesh, ROWS)
        for given in (
            {},
            {"reduction": "sum", "scale": 0.5},
            {"mask": mask},
            {"weight": w},
            {"weight": cancelling},
            {"mask": nothing},
            {"weight": w, "mask": mask, "normalizer": number},
            {"ignore_nan": True},
        ):
            leaves = [[y.detach().requires_grad_() for y in (x, t)] for _ in range(2)]
            ours: Any = cudaloss.smooth_l1_loss(*leaves[0], **given)
            theirs = in_several(lambda leaves=leaves, given=given: cudaloss.smooth_l1_loss(*leaves[1], **given))
            assert is_in_one(ours) and not is_in_one(theirs)
            assert ours.placements == theirs.placements and ours.dtype == theirs.dtype
            bar = ulps * torch.finfo(ours.dtype).eps
            torch.testing.assert_close(ours.to_local(), theirs.to_local(), rtol=bar, atol=0, equal_nan=True)
            for value in (ours, theirs):
                (2 * value).backward()
            for own, other in zip(*leaves, strict=True):
                assert own.grad.placements == other.grad.placements
                torch.testing.assert_close(own.grad.to_local(), other.grad.to_local(), rtol=0, atol=0)


def check_a_vocabulary(mesh: DeviceMesh) -> None:
    x, t = torch.randn(5, 18), torch.tensor([17, 0, -100, 4, 9])
    target = distribute_tensor(t, mesh, [Replicate()])
    for given in ({}, {"z_loss": 0.1, "reduction": "sum"}, {"ignore_index": 9}, {"ignore_index": 4}):
        kept = target if "ignore_index" not in given else distribute_tensor(t.abs() % 18, mesh, [Replicate()])
        leaves = [distribute_tensor(x, mesh, [Shard(1)]).requires_grad_() for _ in range(2)]
        ours = cudaloss.cross_entropy(leaves[0], kept, **given)
        theirs = in_several(lambda leaf=leaves[1], kept=kept, given=given: cudaloss.cross_entropy(leaf, kept, **given))
        assert is_in_one(ours) and not is_in_one(theirs)
        for value in (ours, theirs):
            (2 * value).backward()
        gradients: Any = [leaf.grad for leaf in leaves]
        torch.testing.assert_close(ours.full_tensor(), theirs.full_tensor(), rtol=1e-6, atol=0)
        torch.testing.assert_close(*(y.full_tensor() for y in gradients), rtol=1e-5, atol=1e-7)


def check_a_second_backward(mesh: DeviceMesh) -> None:
    x, t, _, mask = operands(mesh).values()
    x.requires_grad_()
    value = cudaloss.smooth_l1_loss(x, t, mask=mask)
    assert is_in_one(value)
    first: Any
    second: Any
    (first,) = torch.autograd.grad(value, x, retain_graph=True)
    kept = first.to_local().clone()
    first.to_local().zero_()
    (second,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(second.to_local(), kept, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="second time"):
        value.backward()


def check_hooks_on_saved_tensors(mesh: DeviceMesh) -> None:
    """All that the node keeps passes them, the operands too, which derivatives of the gradients want."""
    x, t, _, mask = operands(mesh, torch.float64).values()
    found: Any = []
    curve: Any
    for hooks in (False, True):
        leaf, kept = x.detach().requires_grad_(), []
        pack = (lambda y, kept=kept: kept.append(y) or len(kept) - 1) if hooks else lambda y: y
        unpack = (lambda i, kept=kept: kept[i]) if hooks else lambda y: y
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            value = cudaloss.log_cosh_loss(leaf, t, mask=mask)
        assert is_in_one(value) and (len(kept) > 0) == hooks
        (slope,) = torch.autograd.grad(value, leaf, create_graph=True)
        (curve,) = torch.autograd.grad(slope.square().sum(), leaf)
        found.append([value.detach(), slope.detach(), curve])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours.full_tensor(), wanted.full_tensor(), rtol=0, atol=0)


def check_hooks_that_change_a_mask(mesh: DeviceMesh) -> None:
    """The kernels decline a mask that is not bool, so the reference makes the gradients."""
    x, t, w, mask = operands(mesh, torch.float64).values()

    def as_bytes(y: Tensor) -> Tensor:
        return y.to(torch.uint8) if y.dtype == torch.bool else y

    cancelling = distribute_tensor(torch.tensor([1.0, -1.0]).repeat(SHAPE[0], SHAPE[1] // 2), mesh, ROWS)
    for weight, chosen in ((w, mask), (torch.zeros_like(w), mask), (cancelling, torch.ones_like(mask))):
        leaves = [x.detach().requires_grad_() for _ in range(2)]
        cudaloss.mse_loss(leaves[0], t, mask=chosen, weight=weight).backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda y: y, as_bytes):
            cudaloss.mse_loss(leaves[1], t, mask=chosen, weight=weight).backward()
        wanted, found = (y.grad.to_local() for y in leaves)
        torch.testing.assert_close(found, wanted, rtol=1e-14, atol=0)


def check_what_goes_in_several(mesh: DeviceMesh) -> None:
    x, t, w, _ = operands(mesh).values()
    x.requires_grad_()
    assert is_in_one(cudaloss.mse_loss(x, t)) and is_in_one(cudaloss.mse_loss(x.half(), t))
    columns = distribute_tensor(t.full_tensor(), mesh, [Shard(1)])
    for call in (
        lambda: cudaloss.mse_loss(x, t, reduction="none"),
        lambda: cudaloss.mse_loss(x, t, batch_dims=1),
        lambda: cudaloss.mse_loss(x, columns),
        lambda: cudaloss.mse_loss(x, t, weight=w.detach().requires_grad_()),
    ):
        assert not is_in_one(call())


def check_two_meshes(mesh: DeviceMesh) -> None:
    x, t, _, _ = operands(mesh).values()
    cudaloss.mse_loss(x, t)  # known from now on
    other = DeviceMesh("cpu", list(reversed(range(PROCESSES))))
    with pytest.raises(RuntimeError, match="target must be on the mesh of input"):
        cudaloss.mse_loss(x, DTensor.from_local(t.to_local(), other, ROWS, shape=t.shape, stride=t.stride()))


def check_no_gradients(mesh: DeviceMesh) -> None:
    x, t, _, mask = operands(mesh).values()
    leaf = x.detach().requires_grad_()
    for mode, few in itertools.product((torch.no_grad, torch.inference_mode), (0, eager._FEW)):
        with mock.patch.object(eager, "_FEW", few):
            wanted: Any = cudaloss.mse_loss(leaf, t, mask=mask)
            with mode():
                found: Any = cudaloss.mse_loss(leaf, t, mask=mask)
        assert is_in_one(wanted) and isinstance(found, DTensor) and not found.requires_grad
        torch.testing.assert_close(found.to_local(), wanted.to_local(), rtol=0, atol=0)


def check_calls_that_are_known_are_few(mesh: DeviceMesh) -> None:
    for columns in range(1, 2 * eager._LIMIT):
        x = distribute_tensor(torch.zeros(4, columns), mesh, ROWS)
        cudaloss.mse_loss(x, x)
    assert 0 < len(eager._known) <= eager._LIMIT


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def find() -> dict[str, Any]:
    mesh, faults = init_device_mesh("cpu", (PROCESSES,)), {}
    eager._LIMIT = 64
    for name, check in CHECKS.items():
        torch.manual_seed(0)
        try:
            check(mesh)
        except Exception as error:  # the other processes have it too, or wait for this one in vain
            faults[name] = f"{type(error).__name__}: {error}"
    return faults


@pytest.fixture(scope="module")
def faults(tmp_path_factory) -> list[dict[str, str]]:
    return found_by_all(tmp_path_factory, PROCESSES, find)


@pytest.mark.parametrize("check", CHECKS)
def test_in_one_node(check: str, faults) -> None:
    assert [of_process.get(check) for of_process in faults] == [None] * PROCESSES
