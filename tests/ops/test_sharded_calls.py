"""What losses of DTensors move between processes, under which modes they work, and what they refuse. Two processes:
gloo, and NCCL where there are two GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import cudaloss
from cudaloss._reference import definition
from processes import found_by_all

PROCESSES = 2
SHAPE = (7, 5)  # uneven
ROWS, COLUMNS = [Shard(0)], [Shard(1)]


class Data:
    """The same tensors on every process, whole and as DTensors."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        generator = torch.Generator().manual_seed(0)
        x, t, w = (torch.randn(SHAPE, generator=generator).to(mesh.device_type) for _ in range(3))
        self.whole = {"input": x, "target": t, "weight": w.abs() + 0.1, "mask": w > -0.5}

    def place(self, name: str, placements: list = ROWS) -> DTensor:
        found = distribute_tensor(self.whole[name], self.mesh, placements)
        return found.requires_grad_() if name == "input" else found


def counted(call: Callable[[], Tensor]) -> tuple[Tensor, int, int]:
    """A result, and how many collectives it took and its backward."""
    with CommDebugMode() as forward:
        value = call()
    grad_output = distribute_tensor(torch.ones_like(value.full_tensor()), value.device_mesh, value.placements)
    with CommDebugMode() as backward:
        value.backward(grad_output)
    return value, forward.get_total_counts(), backward.get_total_counts()


# The keywords, where input and target are, how many collectives the call takes, and where its result is.
MOVED = {
    "mean": ({}, ROWS, ROWS, 1, [Replicate()]),
    "sum": ({"reduction": "sum"}, ROWS, ROWS, 1, [Replicate()]),
    "normalizer": ({"normalizer": 3.0}, ROWS, ROWS, 1, [Replicate()]),
    "mask": ({"mask": ROWS}, ROWS, ROWS, 2, [Replicate()]),
    "weight": ({"weight": ROWS}, ROWS, ROWS, 2, [Replicate()]),
    "ignore_nan": ({"ignore_nan": True}, ROWS, ROWS, 2, [Replicate()]),
    "none": ({"reduction": "none", "mask": ROWS}, ROWS, ROWS, 0, ROWS),
    "rows kept": ({"batch_dims": 1, "mask": ROWS}, ROWS, ROWS, 0, ROWS),
    "rows kept, columns sharded": ({"batch_dims": 1}, COLUMNS, COLUMNS, 1, [Replicate()]),
    "rows kept, columns sharded, mask": ({"batch_dims": 1, "mask": COLUMNS}, COLUMNS, COLUMNS, 2, [Replicate()]),
    "replicated": ({"mask": [Replicate()]}, [Replicate()], [Replicate()], 0, [Replicate()]),
    "whole target": ({}, ROWS, [Replicate()], 1, [Replicate()]),
    "whole input": ({}, [Replicate()], COLUMNS, 1, [Replicate()]),
    "placed differently": ({}, ROWS, COLUMNS, 2, [Replicate()]),
}


def check_moved(data: Data, name: str) -> None:
    keywords, of_input, of_target, collectives, placements = MOVED[name]
    given = {k: data.place(k, v) if isinstance(v, list) else v for k, v in keywords.items()}
    plain = {k: data.whole[k] if isinstance(v, list) else v for k, v in keywords.items()}
    x, t = data.place("input", of_input), data.place("target", of_target)
    value, forward, backward = counted(lambda: cudaloss.smooth_l1_loss(x, t, **given))
    truth = cudaloss.smooth_l1_loss(data.whole["input"], data.whole["target"], **plain)
    assert (forward, backward) == (collectives, 0)
    assert list(value.placements) == placements
    torch.testing.assert_close(value.full_tensor(), truth, rtol=1e-6, atol=1e-7)


# ---- one check a function of the data; what it raises is what the test shows ----


def check_partial_input(data: Data) -> None:
    part = data.whole["input"] / PROCESSES
    x = DTensor.from_local(part, data.mesh, [Partial()]).requires_grad_()
    t = data.place("target", [Replicate()])
    value, forward, backward = counted(lambda: cudaloss.mse_loss(x, t))
    assert (forward, backward) == (1, 0)
    assert torch.allclose(value.full_tensor(), cudaloss.mse_loss(data.whole["input"], data.whole["target"]))


def check_the_kernels_compute(data: Data) -> None:
    with mock.patch.object(definition, "loss", side_effect=AssertionError("the reference was called")):
        cudaloss.smooth_l1_loss(data.place("input"), data.place("target"), mask=data.place("mask")).backward()
        index = torch.zeros(SHAPE[0], dtype=torch.int64, device=data.mesh.device_type)
        for placements, of_rows in ((ROWS, ROWS), (COLUMNS, [Replicate()])):
            target = distribute_tensor(index, data.mesh, of_rows)
            cudaloss.cross_entropy(data.place("input", placements), target).backward()


def check_item_is_the_global_mean(data: Data) -> None:
    found = cudaloss.mse_loss(data.place("input"), data.place("target")).item()
    assert found == pytest.approx(cudaloss.mse_loss(data.whole["input"], data.whole["target"]).item(), rel=1e-6)


def check_second_derivatives(data: Data) -> None:
    def twice(x: Tensor, t: Tensor, mask: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(cudaloss.mse_loss(x, t, mask=mask), x, create_graph=True)
        return torch.autograd.grad(slope.pow(3).sum(), x)[0]

    found = twice(data.place("input"), data.place("target"), data.place("mask"))
    wanted = twice(*(data.whole[k].clone().requires_grad_(k == "input") for k in ("input", "target", "mask")))
    torch.testing.assert_close(found.full_tensor(), wanted, rtol=1e-5, atol=1e-8)


def check_derivatives_by_the_incoming_gradient(data: Data) -> None:
    """Of the slopes' slopes too. It may be a plain number, which all processes have."""

    def chain(x: Tensor, t: Tensor, incoming: Tensor) -> list[Tensor]:
        (slope,), found = torch.autograd.grad(cudaloss.log_cosh_loss(x, t), x, incoming, create_graph=True), []
        for _ in range(3):
            slope, by_incoming = torch.autograd.grad(slope.pow(3).sum(), (x, incoming), create_graph=True)
            found += [slope, by_incoming]
        return [y.full_tensor() if isinstance(y, DTensor) else y for y in found]

    x, t, incoming = (
        y.double() for y in (data.whole["input"], data.whole["target"], data.whole["input"].new_tensor(1.7))
    )
    wanted = chain(x.clone().requires_grad_(), t, incoming.clone().requires_grad_())
    placed = [distribute_tensor(y, data.mesh, ROWS) for y in (x, t)]
    for given in (incoming, distribute_tensor(incoming, data.mesh, [Replicate()])):
        found = chain(placed[0].requires_grad_(), placed[1], given.requires_grad_())
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


def check_gradient_of_a_weight(data: Data) -> None:
    for batch_dims in (0, 1):
        plain, whole = data.whole["weight"][:1].clone().requires_grad_(), data.whole
        options = {"batch_dims": batch_dims}
        wanted = cudaloss.mse_loss(whole["input"], whole["target"], weight=plain, mask=whole["mask"], **options)
        wanted.sum().backward()
        weight = distribute_tensor(plain.detach(), data.mesh, [Replicate()]).requires_grad_()
        placed = COLUMNS if batch_dims else ROWS
        x, t, mask = (data.place(name, placed) for name in ("input", "target", "mask"))
        cudaloss.mse_loss(x, t, weight=weight, mask=mask, **options).sum().backward()
        torch.testing.assert_close(weight.grad.full_tensor(), plain.grad, rtol=1e-5, atol=1e-7)


def check_halves_are_rounded_once(data: Data) -> None:
    x, t = (data.whole[name].bfloat16() for name in ("input", "target"))
    placed = [distribute_tensor(operand, data.mesh, ROWS) for operand in (x, t)]
    assert torch.equal(cudaloss.l1_loss(*placed).full_tensor(), cudaloss.l1_loss(x.float(), t.float()).bfloat16())


def check_scaled_fp16(data: Data) -> None:
    x, t = (data.whole[name].half() for name in ("input", "target"))
    placed = distribute_tensor(x, data.mesh, ROWS).requires_grad_()
    (cudaloss.mse_loss(placed, distribute_tensor(t, data.mesh, ROWS)) * 65536.0).backward()
    plain = x.clone().requires_grad_()
    (cudaloss.mse_loss(plain, t) * 65536.0).backward()
    torch.testing.assert_close(placed.grad.full_tensor(), plain.grad, rtol=2e-3, atol=0)


def check_nothing_in_play(data: Data) -> None:
    x, none = data.place("input"), distribute_tensor(torch.zeros_like(data.whole["mask"]), data.mesh, ROWS)
    for options in ({"mask": none}, {"weight": none.float()}):
        x.grad = None
        value = cudaloss.mse_loss(x, data.place("target"), **options)
        value.backward()
        assert value.full_tensor().isnan()
        assert not x.grad.full_tensor().any()


def check_layouts(data: Data) -> None:
    found = cudaloss.mse_loss(data.place("input").t(), data.place("target").t(), reduction="none")
    wanted = cudaloss.mse_loss(data.whole["input"].t(), data.whole["target"].t(), reduction="none")
    assert found.stride() == wanted.stride() != tuple(reversed(wanted.stride()))
    assert torch.equal(found.full_tensor(), wanted)


def check_modes(data: Data) -> None:
    wanted = cudaloss.mse_loss(data.whole["input"], data.whole["target"])
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = cudaloss.mse_loss(data.place("input"), data.place("target")).full_tensor()
        assert torch.allclose(found, wanted)


def check_compile(data: Data) -> None:
    compiled = torch.compile(lambda x, t, **options: cudaloss.smooth_l1_loss(x, t, **options), fullgraph=True)
    for options in ({}, {"mask": "mask"}, {"weight": "weight", "batch_dims": 1}, {"reduction": "none"}):
        given = {k: data.place(v) if isinstance(v, str) and v in data.whole else v for k, v in options.items()}
        found = []
        for loss in (cudaloss.smooth_l1_loss, compiled):
            x = data.place("input")
            value = loss(x, data.place("target"), **given)
            value.sum().backward()
            found.append((value.full_tensor(), x.grad.full_tensor()))
        torch.testing.assert_close(found[1], found[0], rtol=1e-6, atol=1e-8)


def check_compile_for_other_sizes(data: Data) -> None:
    """The first process has 4 rows of 8 and of 7."""
    compiled = torch.compile(lambda x, t: cudaloss.mse_loss(x, t), fullgraph=True)
    for rows in (8, 7, 6):
        whole = torch.ones(rows, 6, device=data.mesh.device_type)
        x, t = (distribute_tensor(tensor, data.mesh, ROWS) for tensor in (whole, torch.zeros_like(whole)))
        assert compiled(x, t).item() == 1.0
    for rows in (8, 12, 16):
        whole = torch.randn(rows, 6, generator=torch.Generator().manual_seed(rows)).to(data.mesh.device_type)
        x, t = (distribute_tensor(tensor, data.mesh, ROWS) for tensor in (whole, torch.zeros_like(whole)))
        compiled(x.requires_grad_(), t).backward()
        torch.testing.assert_close(x.grad.full_tensor(), 2 * whole / whole.numel())


def check_rows_and_classes(data: Data) -> None:
    """A cross entropy of sharded rows, and of a sharded vocabulary."""
    target = torch.tensor([0, 4, -100, 2, 3, 1, 0], device=data.mesh.device_type)
    for placements in (ROWS, COLUMNS):
        for mask in (None, target != 3):
            plain = data.whole["input"].clone().requires_grad_()
            wanted = cudaloss.cross_entropy(plain, target, mask=mask)
            wanted.backward()
            x, of_rows = data.place("input", placements), ROWS if placements == ROWS else [Replicate()]
            beside = [None if y is None else distribute_tensor(y, data.mesh, of_rows) for y in (target, mask)]
            found = cudaloss.cross_entropy(x, beside[0], mask=beside[1])
            found.backward()
            torch.testing.assert_close(found.full_tensor(), wanted, rtol=1e-6, atol=0)
            torch.testing.assert_close(x.grad.full_tensor(), plain.grad, rtol=1e-5, atol=1e-7)


def check_changes_in_place(data: Data) -> None:
    for reduction in ("none", "mean"):
        x, t = data.place("input"), data.place("target")
        value = cudaloss.mse_loss(x, t, reduction=reduction).sum()
        t.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


def check_plain_grad_output(data: Data) -> None:
    x = data.place("input")
    value = cudaloss.mse_loss(x, data.place("target"), reduction="none")
    value.backward(torch.full(SHAPE, 2.0, device=data.mesh.device_type))
    wanted = 4 * (data.whole["input"] - data.whole["target"])
    torch.testing.assert_close(x.grad.full_tensor(), wanted)


def check_errors(data: Data) -> None:
    x, t = data.place("input"), data.place("target")
    mended = re.escape("mask = distribute_tensor(mask, input.device_mesh, input.placements)")
    with pytest.raises(TypeError, match=f"mask must be a DTensor, as input is, .*: {mended}"):
        cudaloss.mse_loss(x, t, mask=data.whole["mask"])
    with pytest.raises(TypeError, match="input must be a DTensor, as target is"):
        cudaloss.mse_loss(data.whole["input"], t)
    other = init_device_mesh(data.mesh.device_type, (1, PROCESSES))
    with pytest.raises(RuntimeError, match=r"target must be on the mesh of input, .*, got "):
        cudaloss.mse_loss(x, distribute_tensor(data.whole["target"], other, [Replicate(), Shard(0)]))


CHECKS: dict[str, Callable[[Data], None]] = {
    name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")
}
del CHECKS["moved"]
CHECKS |= {f"moved: {name}": lambda data, name=name: check_moved(data, name) for name in MOVED}


def find(device: str) -> dict[str, str]:
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank())
    data, faults = Data(init_device_mesh(device, (PROCESSES,))), {}
    for name, check in CHECKS.items():
        try:
            check(data)
        except Exception as error:  # the other process has it too, or waits for this one in vain
            faults[name] = f"{type(error).__name__}: {error}"
    return faults


@pytest.fixture
def faults(device: str, tmp_path_factory) -> list[dict[str, str]]:
    """What went wrong in each process, by check."""
    if device == "cuda" and torch.cuda.device_count() < PROCESSES:
        pytest.skip("needs two GPUs")
    backend = "nccl" if device == "cuda" else "gloo"
    return found_by_all(tmp_path_factory, PROCESSES, find, device, backend=backend)


@pytest.mark.parametrize("check", CHECKS)
def test_sharded(check: str, faults) -> None:
    assert [of_process.get(check) for of_process in faults] == [None] * PROCESSES
