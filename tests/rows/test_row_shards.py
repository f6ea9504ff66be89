"""Losses of rows of DTensors are those of the whole tensors, whatever is sharded how; of a cross entropy whose classes
are sharded no logit moves. Four processes, gloo, started once; each leaves what it found."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode

import cudaloss
from cudaloss._losses.table import OF_ROWS
from exact_boxes import drawn as drawn_boxes
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
# Placements know what a loss reads, and whether a third operand is differentiated.
LOSSES = list({(spec.reads, spec.operands): spec for spec in OF_ROWS}.values())
ROWS, CLASSES = Shard(0), Shard(1)


def place(draw: random.Random, mesh, whole: Tensor) -> Tensor:
    choice = [Replicate(), *map(Shard, range(whole.dim()))]
    return distribute_tensor(whole, mesh, [draw.choice(choice) for _ in range(mesh.ndim)])


def draw_call(draw: random.Random, spec, shape: tuple[int, ...]) -> tuple[list[Tensor], dict[str, Any]]:
    """Operands in float64 and keywords of a call, on one process; the floating ones of `shape`: (N, C) or (N, C, K)."""
    rows = (shape[0], *shape[2:])
    options: dict[str, Any] = {"reduction": draw.choice(["mean", "mean", "sum", "none"])}
    weight = "weight" if spec.of_vectors else "sample_weight"
    if draw.random() < 0.4:
        options["mask"] = torch.rand(rows) < draw.choice([0.6, 0.6, 0.0])
    if draw.random() < 0.4:
        options[weight] = torch.rand(rows, dtype=torch.float64) + 0.1
    if options["reduction"] != "none":
        options["batch_dims"] = draw.choice([0, 0, 1])
        options["scale"] = draw.choice([1.0, 0.5])
    if options["reduction"] == "mean" and draw.random() < 0.2:
        options["normalizer"] = torch.tensor(3.0)
    operands = [torch.randn(shape, dtype=torch.float64) for _ in spec.operands]
    if spec.reads == "boxes":
        operands = drawn_boxes(shape[:-1], torch.float64)
    if spec.of_vectors:
        if spec.name == "cosine_embedding":
            operands[2] = torch.randint(0, 2, rows) * 2 - 1
        return operands, options
    index = torch.randint(0, shape[1], rows)
    operands[1] = torch.where(torch.rand(rows) < 0.2, -100, index)
    if spec.name == "cross_entropy" and draw.random() < 0.5:
        options |= {"label_smoothing": 0.1, "z_loss": draw.choice([0.0, 0.01])}
        operands[1] = operands[1] if draw.random() < 0.5 else operands[0].softmax(1)
    if draw.random() < 0.3:
        options["weight"] = torch.rand(shape[1], dtype=torch.float64) + 0.1
    return operands, options


def narrowed(tensors: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [x.to(dtype) if x.is_floating_point() else x for x in tensors]


def check_call(spec, mesh, operands: list[Tensor], options: dict[str, Any], dtype: torch.dtype, place: Any) -> Tensor:
    """Value and gradients of one call must be those of one process; returns this process's value."""
    op = getattr(torch.ops.cudaloss, spec.name)
    operands = narrowed(operands, dtype)
    wide = [x.double().requires_grad_() if x.is_floating_point() else x for x in operands]
    leaves = [x for x in wide if x.requires_grad]
    truth = op(*wide, **options)
    grad_output = torch.rand_like(truth)
    wanted = torch.autograd.grad(truth, leaves, grad_output)
    sharded = [place(x).detach().requires_grad_(x.is_floating_point()) for x in operands]
    given = {name: place(x) if isinstance(x, Tensor) else x for name, x in options.items()}
    value = op(*sharded, **given, dtype=torch.promote_types(dtype, torch.float32))
    assert isinstance(value, DTensor) and not any(x.is_partial() for x in value.placements)
    incoming = distribute_tensor(grad_output.to(value.dtype), mesh, value.placements)
    found = torch.autograd.grad(value, [x for x in sharded if x.requires_grad], incoming)
    assert_close(value.full_tensor(), truth.detach(), min(BARS[dtype], 1e-6))
    for gradient, theirs in zip(found, wanted, strict=True):
        assert_close(gradient.full_tensor(), theirs, BARS[dtype])
    return value.detach().full_tensor()


def check_random_call(spec, draw: random.Random, mesh, sizes: Sequence[int] = (2, 3, 5, 6, 7)) -> Tensor:
    shape = tuple(draw.choice(sizes) for _ in range(draw.choice([2, 3])))
    if spec.name in ("triplet_margin", "cosine_embedding"):
        shape = shape[:2]
    if spec.reads == "boxes":
        shape = (shape[0], 4)
    operands, options = draw_call(draw, spec, shape)
    dtype = draw.choice([torch.float32, torch.float32, torch.float64])
    return check_call(spec, mesh, operands, options, dtype, partial(place, draw, mesh))


# ---- classes that are sharded: (mesh, where the logits are) ----

VOCABULARIES = (((4,), [CLASSES]), ((2, 2), [ROWS, CLASSES]), ((2, 2), [CLASSES, Replicate()]))
CALLS = (
    {},
    {"reduction": "none"},
    {"reduction": "sum", "z_loss": 0.01},
    {"mask": torch.tensor([True, False, True, True, True, True])},
    {"sample_weight": torch.linspace(0.5, 1.5, 6), "batch_dims": 1},
    {"normalizer": torch.tensor(7.0), "scale": 0.5},
    {"mask": torch.zeros(6, dtype=torch.bool)},
)


def logits_and_target(classes: int, *beyond: int) -> tuple[Tensor, Tensor]:
    """Six rows: with a class ruled out; all of a process's classes; the target's; nearly certain; ignored; plain."""
    x, t = 8 * torch.randn(6, classes, *beyond, dtype=torch.float64), torch.randint(0, classes, (6, *beyond))
    x[0, 0], t[0] = -torch.inf, classes - 1
    x[1, : classes // 2], t[1] = -torch.inf, classes - 1
    x[2, 1], t[2] = 40.0, 1
    t[3] = -100
    return x, t


def place_in_rows(mesh, of_input: list, of_rows: list, dims: int, whole: Tensor) -> Tensor:
    everywhere = [Replicate()] * mesh.ndim
    return distribute_tensor(whole, mesh, of_input if whole.dim() > dims else of_rows if whole.dim() else everywhere)


def run_vocabulary(mesh, of_input: list) -> list[str]:
    spec = next(spec for spec in OF_ROWS if spec.name == "cross_entropy")
    of_rows = [placement if placement == ROWS else Replicate() for placement in of_input]
    faults = []
    for dtype in BARS:
        for sizes in ((2,), (9,), (40, 3)):  # shards that are empty, uneven, of more dimensions
            for call in CALLS:
                operands = list(logits_and_target(*sizes))
                given = {k: v.view(6, *(1,) * (len(sizes) - 1)) if k == "mask" else v for k, v in call.items()}
                if len(sizes) > 1 and "sample_weight" in call:
                    given["sample_weight"] = call["sample_weight"].view(6, 1).expand(6, 3)
                take = partial(place_in_rows, mesh, of_input, of_rows, len(sizes))
                try:
                    check_call(spec, mesh, operands, given, dtype, take)
                except Exception as error:
                    faults.append(f"{dtype} {sizes} {list(call)}: {type(error).__name__}: {error}")
    return faults


def check_a_target_that_is_ruled_out(mesh) -> None:
    """Its loss is inf, and its gradient PyTorch's."""
    x, t = torch.randn(2, 6), torch.tensor([4, 1])
    x[0, 4] = -torch.inf
    plain = x.clone().requires_grad_()
    torch.nn.functional.cross_entropy(plain, t, reduction="sum").backward()
    sharded = distribute_tensor(x, mesh, [CLASSES]).requires_grad_()
    value = cudaloss.cross_entropy(sharded, distribute_tensor(t, mesh, [Replicate()]), reduction="sum")
    value.backward()
    assert value.item() == torch.inf
    torch.testing.assert_close(sharded.grad.full_tensor(), plain.grad)


def check_what_is_left_out(mesh) -> None:
    """Masked rows of NaN, or of only -inf, reach neither the value nor first or second gradients."""
    x, t = torch.randn(4, 6, dtype=torch.float64), torch.tensor([4, 1, 0, -100])
    x[1], x[2], x[3] = torch.nan, -torch.inf, -torch.inf
    mask = torch.tensor([True, False, False, True])
    sharded = distribute_tensor(x, mesh, [CLASSES]).requires_grad_()
    target, beside = (distribute_tensor(y, mesh, [Replicate()]) for y in (t, mask))
    value = cudaloss.cross_entropy(sharded, target, mask=beside, z_loss=0.1)
    plain = x[:1].clone().requires_grad_()
    wanted = cudaloss.cross_entropy(plain, t[:1], z_loss=0.1)
    assert_close(value.full_tensor(), wanted, 1e-12)
    for create_graph in (False, True):
        (found,) = torch.autograd.grad(value, sharded, create_graph=create_graph, retain_graph=True)
        (slope,) = torch.autograd.grad(wanted, plain, create_graph=create_graph, retain_graph=True)
        assert_close(found.full_tensor(), torch.cat([slope, torch.zeros(3, 6)]), 1e-12)
    (found,) = torch.autograd.grad(found.pow(3).sum(), sharded)
    (slope,) = torch.autograd.grad(slope.pow(3).sum(), plain)
    assert_close(found.full_tensor(), torch.cat([slope, torch.zeros(3, 6)]), 1e-12)


def check_a_class_of_bytes_that_is_no_ignore_index(mesh) -> None:
    """156 of uint8, which is -100 of int8."""
    x, t = torch.randn(4, 200), torch.tensor([156, 1, 2, 156], dtype=torch.uint8)
    wanted = torch.nn.functional.cross_entropy(x, t.long())
    for placement, of_target in ((CLASSES, Replicate()), (ROWS, ROWS)):
        found = cudaloss.cross_entropy(*(distribute_tensor(y, mesh, [z]) for y, z in ((x, placement), (t, of_target))))
        torch.testing.assert_close(found.full_tensor(), wanted)


def check_an_ignored_class_is_no_part(mesh) -> None:
    """The parts' numbers have targets of their own, 1, 3, 5, ..., which the call's ignore_index does not mean."""
    x, t = torch.randn(8, 8), torch.arange(8)
    for ignored in (1, 3):
        wanted = torch.nn.functional.cross_entropy(x, t, ignore_index=ignored)
        sharded, target = distribute_tensor(x, mesh, [CLASSES]), distribute_tensor(t, mesh, [Replicate()])
        for of_input in (sharded, sharded.clone().requires_grad_()):
            found = cudaloss.cross_entropy(of_input, target, ignore_index=ignored)
            torch.testing.assert_close(found.full_tensor(), wanted)


def check_what_moves(mesh) -> None:
    """The count's and the value's sums over rows, and one all-gather of numbers of rows; nothing backward."""
    x, t = logits_and_target(8)
    for placements, wanted in (([CLASSES], 1), ([ROWS], 2)):
        sharded = distribute_tensor(x, mesh, placements).requires_grad_()
        target = distribute_tensor(t, mesh, [ROWS if placements == [ROWS] else Replicate()])
        with CommDebugMode() as forward:
            value = cudaloss.cross_entropy(sharded, target)
        one = distribute_tensor(torch.ones((), dtype=torch.float64), mesh, value.placements)
        with CommDebugMode() as backward:
            value.backward(one)
        assert (forward.get_total_counts(), backward.get_total_counts()) == (wanted, 0)
        assert sharded.grad.placements == sharded.placements


def check_derivatives_of_higher_orders(mesh) -> None:
    for classes in (2, 6):  # some processes have no class
        x, t = torch.randn(4, classes, dtype=torch.float64), torch.tensor([1, 0, -100, 1])
        sharded, target = distribute_tensor(x, mesh, [CLASSES]), distribute_tensor(t, mesh, [Replicate()])
        found = derivatives(lambda x, t=target: cudaloss.cross_entropy(x, t, z_loss=0.1), sharded.requires_grad_())
        wanted = derivatives(lambda x, t=t: cudaloss.cross_entropy(x, t, z_loss=0.1), x.clone().requires_grad_())
        for ours, theirs in zip(found, wanted, strict=True):
            assert_close(ours.detach().full_tensor(), theirs.detach(), 1e-12)


def check_an_index_out_of_range(mesh) -> None:
    x, t = distribute_tensor(torch.randn(2, 6), mesh, [CLASSES]), torch.tensor([4, 6])
    with pytest.raises(RuntimeError, match=r"target must hold class indices at least 0 and below 6, .* got 6"):
        cudaloss.cross_entropy(x, distribute_tensor(t, mesh, [Replicate()]))


CHECKS = (
    check_a_target_that_is_ruled_out,
    check_what_is_left_out,
    check_a_class_of_bytes_that_is_no_ignore_index,
    check_an_ignored_class_is_no_part,
    check_what_moves,
    check_derivatives_of_higher_orders,
    check_an_index_out_of_range,
)


def find() -> dict[Any, Any]:
    found: dict[Any, Any] = {
        (spec.name, mesh): run_random_calls(spec.name, mesh, CASES, partial(check_random_call, spec))
        for spec in LOSSES
        for mesh in MESHES
    }
    for case, (shape, placements) in enumerate(VOCABULARIES):
        torch.manual_seed(case)
        found[case] = run_vocabulary(init_device_mesh("cpu", shape), placements)
    mesh = init_device_mesh("cpu", (PROCESSES,))
    for check in CHECKS:
        torch.manual_seed(0)
        check(mesh)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict]:
    """What each process found, by loss and mesh, or by the vocabulary's place."""
    return found_by_all(tmp_path_factory, PROCESSES, find)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("loss", [spec.name for spec in LOSSES])
def test_random_calls_are_those_of_the_whole(loss, mesh, found):
    assert_of_the_whole([of_process[loss, mesh] for of_process in found], CASES)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_random_calls_in_one_process(loss, mesh):
    assert_right_in_one_process(loss.name, mesh, 2, partial(check_random_call, loss, sizes=EVEN))


@pytest.mark.parametrize("case", range(len(VOCABULARIES)), ids=[str(case) for case in VOCABULARIES])
def test_a_sharded_vocabulary(case, found):
    assert [of_process[case] for of_process in found] == [[]] * PROCESSES
