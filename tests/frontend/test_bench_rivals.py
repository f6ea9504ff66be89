"""The benchmark's rivals and what they are measured on: numbers that suit a loss, libraries, KernelBench's problems."""

from __future__ import annotations

import dataclasses
import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cudaloss.bench import cases, domains, measure, modes, plan, rivals, suites, tables
from cudaloss.bench.cases import COMPARABLE, KERNELBENCH, Case
from cudaloss.bench.modes import BFLOAT16, FEATURES, FLOAT32, FORWARD, STEP, TRAINING_MODES, Dtypes, Mode
from cudaloss.bench.plan import Options

WITHIN = {
    "real": (0, 1),
    "logits": (-domains.LARGEST_LOGIT, domains.LARGEST_LOGIT),
    "in [0, 1]": (0, 1),
    "in (0, 1)": (0, 1),
    "in (0, 1]": (0, 1),
    "logarithms": (0, 1),
    "> 0": (0, 1.01),
    "log probabilities": (-5, 0),
    "1 or -1": (-1, 1),
    ">= 0": (0, domains.LARGEST_COUNT),
}


def case(loss: str, mode: Mode = STEP, dtypes: Dtypes = FLOAT32, **changed: Any) -> Case:
    return Case("training", dataclasses.replace(COMPARABLE[loss], **changed), mode, dtypes, (4096,), "cpu")


def kernelbench(**options: Any) -> list[Case]:
    return plan.cases(Options(suites=("kernelbench",), **options))


@pytest.mark.parametrize("dtypes", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("numbers", WITHIN)
def test_operands_are_the_numbers_that_a_row_says(numbers: str, dtypes: Dtypes) -> None:
    low, high = WITHIN[numbers]
    for operand in case("mse", dtypes=dtypes, inputs=numbers, targets=numbers).operands():
        assert operand.is_leaf and low <= operand.min() < low + 0.1 * (high - low)
        assert high - 0.1 * (high - low) < operand.max() <= high
        if numbers in ("1 or -1", ">= 0"):
            assert len(operand.unique()) == (2 if numbers == "1 or -1" else high + 1) and operand.equal(operand.round())
        if numbers in ("in [0, 1]", "log probabilities"):
            assert operand.isfinite().all() and (operand != low).all() and (operand != high).all()


def test_every_row_says_known_numbers() -> None:
    assert {numbers for spec in COMPARABLE.values() for numbers in (spec.inputs, spec.targets)} <= set(WITHIN)
    with pytest.raises(KeyError):
        domains.suited(torch.rand(3), "imaginary")
    assert domains.suited(torch.tensor([0, 1]), "1 or -1").tolist() == [0, 1]


def test_every_loss_is_in_a_suite_of_throughput() -> None:
    found = [(case.suite, case.spec.name) for case in plan.cases(Options(device="cuda"))]
    family = {loss for suite, loss in found if suite == "family"}
    assert family == {name for name, spec in COMPARABLE.items() if spec.kernels == "general"}
    assert {loss for suite, loss in found if suite == "training"} == set(COMPARABLE) - family
    on_cpu = {case.spec.name for case in plan.cases(Options(suites=("training", "family")))}
    assert on_cpu == {"smooth_l1", "binary_cross_entropy_with_logits", "kl_div"}
    named = plan.cases(Options(device="cuda", suites=("training", "family"), losses=("mse", "kl_div"), sizes=(8,)))
    assert {(case.suite, case.spec.name) for case in named} == {
        (suite, loss) for suite in ("training", "family") for loss in ("mse", "kl_div")
    }


def test_a_variance_has_a_gradient_of_its_own() -> None:
    (one,) = plan.cases(Options(suites=("features",), losses=("gaussian_nll",), modes=("variance",), sizes=(8,)))
    assert one.bytes_an_element == 4 * 5
    *_, var = operands = one.operands()
    step = cases._work(one.mode, cases._losses(one, False, with_op=False)["cudaloss"], *operands)
    step()
    first = var.grad
    step()
    assert var.grad is not first and torch.equal(var.grad, first) and var.grad.count_nonzero() > 0


def test_focal_loss_is_composed_as_it_is_defined() -> None:
    x, t = 3 * torch.randn(1000, dtype=torch.float64), torch.rand(1000).round().double()
    of_target = torch.where(t == 1, x.sigmoid(), 1 - x.sigmoid())
    expected = -torch.where(t == 1, 0.25, 0.75) * (1 - of_target) ** 2 * of_target.log()
    torch.testing.assert_close(rivals.COMPOSED["sigmoid_focal"](x, t, reduction="none"), expected)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Both, as if they were installed: their losses are the squared error."""
    seen = SimpleNamespace(rows=None, reductions=[])

    def focal(x: Tensor, y: Tensor, reduction: str) -> Tensor:
        seen.reductions.append(reduction)
        return F.mse_loss(x, y, reduction=reduction)

    def divergence(x: Tensor, y: Tensor, reduction: str) -> Tensor:
        seen.rows = x.shape
        return focal(x, y, reduction)

    liger = SimpleNamespace(LigerKLDivLossFunction=SimpleNamespace(apply=divergence))
    monkeypatch.setitem(sys.modules, "torchvision.ops", SimpleNamespace(sigmoid_focal_loss=focal))
    monkeypatch.setitem(sys.modules, "liger_kernel.ops.kl_div", liger)
    monkeypatch.setattr(rivals, "find_spec", lambda name: ModuleSpec(name, None))
    for losses in rivals.LIBRARIES.values():
        monkeypatch.setitem(losses, "mse", next(iter(losses.values())))
    return seen


def test_libraries_are_rivals_where_they_are_installed(libraries: SimpleNamespace) -> None:
    row = suites.measured(case("mse"), Options(rounds=2, compile=False), {"add": 2.0})
    assert set(row["speedup"]) == {"eager", "torchvision", "liger_kernel"} and "notes" not in row
    assert set(libraries.reductions) == {"mean"} and libraries.rows == (1, 4096)
    assert rivals._in_rows(torch.empty(3 * 4096)).shape == (3, 4096) and rivals._in_rows(torch.empty(9)).shape == (1, 9)
    (table,) = tables.tables([row])
    headers = [str(column.header) for column in table.columns]
    assert {"torchvision, us", "times as fast as torchvision", "times as fast as liger_kernel"} <= set(headers)


def test_libraries_are_rivals_in_the_plain_call_alone(libraries: SimpleNamespace) -> None:
    for mode in (*TRAINING_MODES, *FEATURES):
        if mode.compiled:
            continue
        found = cases._losses(case("mse", mode), with_compile=False, with_op=False)
        assert ("torchvision" in found) == (mode.call is modes.PLAIN and not mode.both), mode.name
    assert "torchvision" not in cases._losses(case("l1"), with_compile=False, with_op=False)


def test_a_library_that_is_missing_is_no_rival_and_a_broken_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    spec = dataclasses.replace(COMPARABLE["mse"], name="sigmoid_focal")
    assert rivals.of_libraries(spec) == {}
    monkeypatch.setattr(rivals, "find_spec", lambda name: ModuleSpec(name, None))
    monkeypatch.setitem(sys.modules, "torchvision.ops", None)  # its import fails
    (loss,) = rivals.of_libraries(spec).values()
    works = {"cudaloss": lambda: None, "torchvision": lambda: loss(torch.rand(3), torch.rand(3))}
    (note,) = cases.leave_out_failing(works)
    assert note.startswith("torchvision failed, ModuleNotFoundError") and list(works) == ["cudaloss"]


def test_a_loss_that_needs_a_third_operand_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Huber's, as if PyTorch's had no default."""
    given = dataclasses.replace(
        modes.WITH_THIRD["gaussian_nll"],
        ours=modes._given_as("delta"),
        eager=lambda loss, x, y, delta: torch.where(
            (x - y).abs() < delta, 0.5 * (x - y) ** 2, delta * ((x - y).abs() - 0.5 * delta)
        ).mean(),
        op=modes._given_as("delta_tensor"),
    )
    monkeypatch.setitem(modes.WITH_THIRD, "huber", given)
    one = case("huber", FORWARD, BFLOAT16)
    assert one.bytes_an_element == 6 and case("huber").bytes_an_element == 16
    *_, third = one.operands()
    assert third.dtype == torch.bfloat16 and third.shape == one.shape and third.min() > 0
    one = case("huber", FORWARD)
    operands = one.operands()
    found = {name: loss(*operands) for name, loss in cases._losses(one, False, with_op=True).items()}
    assert set(found) == {"cudaloss", "eager", "op"}
    for value in found.values():
        torch.testing.assert_close(value, found["eager"])
    assert "huber" in STEP.losses and "huber" not in modes.MASKED.losses


@pytest.mark.parametrize("loss", KERNELBENCH)
def test_contestants_of_kernelbench_compute_the_same(loss: str) -> None:
    forward, step = kernelbench(losses=(loss,), sizes=(13,))
    assert (forward.mode.name, step.mode.name) == ("forward", "step")
    operands = step.operands()
    found = {}
    for name, function in cases._losses(step, with_compile=False, with_op=False).items():
        operands[0].grad = None
        value = function(*operands)
        value.backward()
        found[name] = value.detach(), operands[0].grad
    assert found["eager"][0] > 0
    torch.testing.assert_close(found["cudaloss"], found["eager"])


def test_one_row_of_targets_is_neither_expanded_nor_counted() -> None:
    forward, step = kernelbench(losses=("hinge",), sizes=(13,))
    input, target = step.operands()
    assert input.shape == (64, 128) and target.shape == (128,) and set(target.tolist()) == {-1, 1}
    assert (forward.bytes_an_element, step.bytes_an_element) == (4, 8)


def test_every_problem_of_kernelbench_has_its_size() -> None:
    found = {one.row()["problem"]: one.shape for one in kernelbench(device="cuda")}
    square = {power: (2 ** (power // 2), 2 ** (power // 2)) for power in (28, 30)}
    assert found == {94: square[30], 96: square[30], 98: square[28], 100: square[30]}


def test_what_waits_for_the_gpu_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without eager, and what is printed of it."""
    mode = ["default"]

    def waiting(*_: object) -> None:
        assert mode == ["default"], "called a synchronizing CUDA operation"

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda new: mode.__setitem__(0, new))
    monkeypatch.setattr(F, "mse_loss", waiting)
    monkeypatch.setattr(measure, "graph_replay", lambda works, *_: measure.latency(works, 2, 1))
    row = suites.measured(dataclasses.replace(case("mse", FORWARD), suite="graph"), Options(rounds=2), {})
    assert set(row["seconds"]) == {"cudaloss"} and row["speedup"] == {} and "slower" not in row
    assert mode == ["default"] and row["notes"][0].startswith("eager failed, AssertionError: called a synchronizing")
    assert [column.header for table in tables.tables([row]) for column in table.columns][4:] == ["cudaloss, us"]
    assert list(tables.verdict([row])) == ["nothing was compared with eager"]


@pytest.mark.cuda
def test_graphs_of_a_rival_that_waits() -> None:
    (one,) = plan.cases(Options(device="cuda", suites=("graph",), losses=("gaussian_nll",), sizes=(10,)))
    assert suites.measured(one, Options(device="cuda", rounds=2), {})["seconds"]["cudaloss"]["median"] > 0
