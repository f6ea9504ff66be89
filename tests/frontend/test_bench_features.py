"""The benchmark's suite of features: all contestants compute the same, on the operands that a row says it has."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cudaloss.bench import cases, measure, modes, plan, rivals, suites
from cudaloss.bench.cases import COMPARABLE, Case, Row
from cudaloss.bench.modes import FEATURES, FLOAT32, MASKED, MASKED_FORWARD, OWN_FEATURES, Mode
from cudaloss.bench.plan import Options
from oracle import TIE_SLOPE

MODES = {mode.name: mode for mode in FEATURES}
OWN = {mode.name: mode for mode in OWN_FEATURES}


PAIRS = [(mode, loss) for mode in FEATURES for loss in mode.losses]
OWN_PAIRS = [(mode, loss) for mode in OWN_FEATURES for loss in mode.losses]


def feature(mode: Mode, loss: str = "smooth_l1", power: int = 12, device: str = "cpu") -> Case:
    shape = plan._shape("features", mode, power)
    return Case("features", COMPARABLE[loss], mode, mode.dtypes or FLOAT32, shape, device)


def planned(**options: Any) -> list[Row]:
    return [case.row() for case in plan.cases(Options(**options))]


def computed(case: Case, loss: modes.Loss, operands: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    operands[0].grad = None
    value = loss(*operands)
    value.backward()
    gradient = operands[0].grad
    assert gradient is not None
    return value.detach(), gradient


@pytest.mark.parametrize(("mode", "loss"), PAIRS + OWN_PAIRS, ids=lambda x: x if isinstance(x, str) else x.name)
def test_contestants_compute_the_same(mode: Mode, loss: str) -> None:
    case = feature(mode, loss)
    operands = case.operands()
    losses = cases._losses(case, with_compile=False, with_op=True)
    if mode.call.compiled:  # what torch.compile is given, in eager PyTorch
        losses["compiled"] = cases._bound(mode.call.compiled, rivals.rival(case.spec))
    assert ("indexed" in losses) == (mode.call is modes.MASK)
    value, gradient = computed(case, losses.pop("eager"), operands)
    assert value.dim() == 0 and value > 0 and gradient.count_nonzero() > gradient.numel() / 4
    # What is composed takes its first steps, or all, in bfloat16 there.
    near = {"rtol": 2e-3, "atol": 1e-7} if case.dtypes.autocast and loss in ("gaussian_nll", "sigmoid_focal") else {}
    if case.dtypes == modes.BFLOAT16 and loss == "log_cosh":
        near = {"rtol": 4e-2, "atol": 1e-7}
    for name, other in losses.items():
        found = computed(case, other, operands)
        torch.testing.assert_close(found[0], value, msg=lambda text, name=name: f"{name}: {text}", **near)
        near_gradient = {"rtol": 2e-2, "atol": 1e-2 * gradient.abs().max().item()} if near else {}
        ours = found[1]
        if TIE_SLOPE == 0 and loss == "margin_ranking":
            ours = torch.where((operands[0] == operands[1]) & (gradient == 0), 0, ours)
        torch.testing.assert_close(ours, gradient, msg=lambda text, name=name: f"{name}: {text}", **near_gradient)


def test_operands_are_as_the_modes_say() -> None:
    shape = plan._images(12)
    found = {mode.name: feature(mode).operands() for mode in FEATURES}
    assert all(operand.shape == shape for operands in found.values() for operand in operands[:2])
    assert all(input.is_leaf and input.requires_grad for input, *_ in found.values())
    layouts = {name: [x.is_contiguous() for x in operands[:2]] for name, operands in found.items()}
    assert layouts.pop("nhwc") == layouts.pop("sliced") == [False, False]
    assert layouts.pop("nhwc_nchw") == [False, True]
    assert layouts.pop("bf16_columns") == layouts.pop("bf16_rows") == layouts.pop("masked_rows") == [True, False]
    assert set(map(tuple, layouts.values())) == {(True, True)}
    assert all(x.is_contiguous(memory_format=torch.channels_last) for x in found["nhwc"])
    assert [x.stride() for x in found["sliced"]] == [torch.empty(*shape[:-1], shape[-1] + 8).stride()] * 2
    assert [x.dtype for x in found["autocast"]] == [torch.bfloat16, torch.float32]
    assert set(found["integer_target"][1].unique().tolist()) == {0, 1}
    assert 0.45 < found["masked"][2].float().mean() < 0.55
    assert found["weighted"][2].shape == (1, 1, shape[2], 1)
    assert found["per_sample_weighted"][2].shape == shape[:1]


@pytest.mark.parametrize(
    ("name", "number"),
    [("masked", 14), ("masked_autocast", 10), ("autocast", 8), ("integer_target", 9), ("weighted", 12), ("sliced", 12)],
)
def test_bytes_an_element(name: str, number: int) -> None:
    assert feature(MODES[name]).bytes == number << 12


def test_losses_have_operands_that_suit_them() -> None:
    input, target = feature(OWN["logits"], "binary_cross_entropy_with_logits").operands()
    assert 0 <= target.min() < 0.1 and 0.9 < target.max() <= 1
    assert -8 <= input.min() < -7 and 7 < input.max() <= 8
    for name, loss in [("pos_weights", "binary_cross_entropy_with_logits"), ("quantiles", "quantile")]:
        numbers = feature(OWN[name], loss).operands()[2]
        assert numbers.shape == (64,) and 0 < numbers.min() < numbers.max() < 1


def test_modes_of_one_loss_are_measured_for_it_alone() -> None:
    rows = planned(suites=("features",), losses=("mse", "quantile"), modes=("weighted", "quantiles", "betas"))
    assert [(row["mode"], row["loss"]) for row in rows] == [
        ("weighted", "mse"),
        ("weighted", "quantile"),
        ("quantiles", "quantile"),
    ]


def test_every_loss_has_a_rival() -> None:
    for spec in COMPARABLE.values():
        case = Case("forward", spec, modes.FORWARD, FLOAT32, (1000,), "cpu")
        operands = case.operands()
        found = {name: loss(*operands) for name, loss in cases._losses(case, False, with_op=False).items()}
        torch.testing.assert_close(found["eager"], found["cudaloss"])
        if case.call is modes.PLAIN:
            unknown = dataclasses.replace(spec, name="unknown", function="unknown")
            torch.testing.assert_close(rivals.rival(unknown)(*operands), found["cudaloss"])


def test_masked_forward_has_no_gradient() -> None:
    case = feature(MASKED_FORWARD)
    assert case.bytes_an_element == 10 and not case.operands()[0].requires_grad
    found = {name: work() for name, work in cases.works(case, with_compile=False, with_op=True).items()}
    assert set(found) == {"cudaloss", "eager", "op", "indexed"}
    for value in found.values():
        torch.testing.assert_close(value, found["eager"])


@pytest.mark.parametrize(
    ("power", "shape"),
    [(28, (64, 16, 512, 512)), (30, (256, 16, 512, 512)), (21, (8, 16, 128, 128)), (12, (4, 4, 16, 16))],
)
def test_images(power: int, shape: tuple[int, ...]) -> None:
    assert plan._images(power) == shape


def test_images_have_the_size_that_is_asked_for() -> None:
    assert [torch.Size(plan._images(power)).numel() for power in range(33)] == [1 << power for power in range(33)]


def test_default_plan_has_every_feature_of_one_loss() -> None:
    rows = planned(device="cuda", suites=("features", "latency", "memory"))
    features = [row for row in rows if row["suite"] == "features"]
    of_all = [row for row in features if row["mode"] in MODES]
    assert [row["mode"] for row in of_all] == list(MODES)
    assert {row["loss"] for row in of_all} == {"smooth_l1"}
    assert {tuple(row["shape"]) for row in of_all} == {(64, 16, 512, 512)}
    own = [row for row in features if row not in of_all]
    assert [(row["mode"], row["loss"]) for row in own] == [(mode.name, loss) for mode, loss in OWN_PAIRS]
    assert {tuple(row["shape"]) for row in own} == {(16384, 16384)}
    masked = [(row["suite"], row["mode"], row["loss"], row["size"]) for row in rows if row not in features]
    masked = [what for what in masked if what[1].startswith("masked")]
    assert masked == [
        ("latency", "masked_forward", "smooth_l1", 4096),
        ("latency", "masked", "smooth_l1", 4096),
        ("latency", "masked_autocast", "smooth_l1", 4096),
        ("latency", "masked_rows", "smooth_l1", 4096),
        ("memory", "masked", "smooth_l1", 1 << 28),
    ]


def test_features_that_are_asked_for_are_crossed() -> None:
    rows = planned(suites=("features",), losses=("mse", "l1"), sizes=(8, 10), modes=("masked", "both", "autocast"))
    found = {(row["mode"], row["dtype"], row["loss"], row["size"]) for row in rows}
    dtypes = {"masked": "float32", "autocast": "bfloat16/float32"}
    assert found == {(m, d, loss, s) for m, d in dtypes.items() for loss in ("mse", "l1") for s in (256, 1024)}
    assert len(rows) == len(found)
    assert {row["size"] for row in planned(suites=("features",), sizes=(8, 10)) if row["mode"] == "sliced"} == {
        256,
        1024,
    }


def test_modes_with_dtypes_of_their_own_keep_them() -> None:
    asked = tuple(map(modes.Dtypes.parse, ("float64", "bfloat16")))
    rows = planned(suites=("features",), dtypes=asked, modes=("weighted", "integer_target"))
    assert [(row["mode"], row["dtype"]) for row in rows] == [
        ("weighted", "float64"),
        ("weighted", "bfloat16"),
        ("integer_target", "float32/uint8"),
    ]


def test_indexing_by_a_mask_needs_memory_for_indices() -> None:
    plain, masked = feature(MODES["sliced"]), feature(MASKED)
    assert masked.bytes_needed - plain.bytes_needed == (2 + cases.INDEXED_BYTES) << 12


def test_row_of_a_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "cache_bytes", lambda device: 1 << 12)
    row = suites.measured(feature(MASKED), Options(rounds=2, compile=False), {"add": 2.0})
    assert set(row["seconds"]) == {"cudaloss", "eager", "indexed"}
    assert set(row["speedup"]) == {"eager", "indexed"} and "notes" not in row
    assert row["speedup"]["indexed"] == row["seconds"]["indexed"]["median"] / row["seconds"]["cudaloss"]["median"]
    assert row["bytes"] == 14 << 12 and row["of_ceiling"] == row["gigabytes_per_second"]["cudaloss"] / 2
    assert "kernels" not in row


def test_kernels_are_counted_without_annotations_and_host_events(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    found = [("CPU", False), ("CUDA", False), ("CUDA", True), ("CUDA", False)]

    class Profile:
        def __init__(self, **_: object) -> None:
            pass

        def __enter__(self) -> Profile:
            log.append("start")
            return self

        def __exit__(self, *_: object) -> None:
            log.append("stop")

        def events(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(device_type=SimpleNamespace(name=n), is_user_annotation=x) for n, x in found]

    monkeypatch.setattr(measure, "profile", Profile)
    monkeypatch.setattr(measure, "synchronize", lambda: log.append("synchronize"))
    assert measure.gpu_kernels(lambda: log.append("work")) == 2
    assert log == ["start", "work", "synchronize", "stop"]


@pytest.mark.cuda
@pytest.mark.parametrize("mode", [*FEATURES, *OWN_FEATURES], ids=lambda mode: mode.name)
def test_features_are_measured_on_a_gpu(mode: Mode) -> None:
    row = suites.measured(
        feature(mode, mode.losses[0], device="cuda"), Options(device="cuda", rounds=2, compile=False), {}
    )
    kernels = row["kernels"]
    assert "notes" not in row and set(kernels) == set(row["seconds"])
    assert 1 <= kernels["cudaloss"] <= kernels["eager"]
