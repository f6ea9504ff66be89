"""The benchmark: its command line on small sizes, and what it says of timings that were made up."""

from __future__ import annotations

import argparse
import csv
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from bench_rows import case, made_up
from cudaloss.bench import cases, cli, measure, plan, suites, tables
from cudaloss.bench.measure import Timing
from cudaloss.bench.modes import FLOAT32, FORWARD, STEP, TRAINING_MODES, Dtypes, Mode
from cudaloss.bench.plan import Options

MISALIGNED, BOTH = TRAINING_MODES[2], TRAINING_MODES[3]


class Run(NamedTuple):
    """What a run of the command line wrote."""

    rows: list[cases.Row]
    printed: str
    json: dict[str, Any]
    csv: list[dict[str, str]]
    figures: Path


LOSSES = ("smooth_l1", "mse")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("bench") / "new"
    paths = {name: folder / name for name in ("json", "csv", "plot")}
    options = ["--rounds", "3", "--sizes", "4", "6", "--losses", *LOSSES, *(f"--{k}={v}" for k, v in paths.items())]
    with redirect_stdout(io.StringIO()) as printed:
        assert cli.main(["--device", "cpu", "--no-compile", *options]) == 0
    report = json.loads(paths["json"].read_text())
    with paths["csv"].open(newline="") as file:
        lines = list(csv.DictReader(file))
    return Run(report["rows"], printed.getvalue(), report, lines, paths["plot"])


def test_every_suite_is_run_or_says_why_not(run: Run) -> None:
    assert run.json["environment"]["torch"] == torch.__version__
    assert {row["suite"] for row in run.rows} == set(plan.SUITE_NAMES)
    skipped = {row["suite"]: row["skipped"] for row in run.rows if "skipped" in row}
    assert skipped == dict.fromkeys(plan.NEEDS_GPU, "needs a CUDA device")
    assert "graph: skipped, needs a CUDA device" in run.printed


def test_rows_have_what_the_tables_need(run: Run) -> None:
    ceilings = run.rows[0]["gigabytes_per_second"]
    assert run.rows[0]["size"] == 64 and set(ceilings) == {"copy", "sum", "add"}
    for name, tensors in {"copy": 2, "sum": 1, "add": 3}.items():
        seconds = run.rows[0]["seconds"][name]["median"]
        assert ceilings[name] == pytest.approx(tensors * 4 * 64 / seconds / 1e9)
    compared = [row for row in run.rows if "seconds" in row][1:]
    assert {(row["loss"], row["size"]) for row in compared} == {(loss, size) for loss in LOSSES for size in (16, 64)}
    for row in compared:
        assert row["speedup"]["eager"] == row["seconds"]["eager"]["median"] / row["seconds"]["cudaloss"]["median"]
        assert row["slower"] in ("no", "within noise", "beyond noise")
    for row in (row for row in compared if row["suite"] in plan.THROUGHPUT):
        rate = row["bytes"] / row["seconds"]["cudaloss"]["median"] / 1e9
        assert row["gigabytes_per_second"]["cudaloss"] == pytest.approx(rate)
        assert "of_ceiling" not in row and row["l2_flushed"] is False  # a cache holds them
    ops = {(row["suite"], row["mode"]) for row in compared if "op" in row["seconds"]}
    assert ops == {("latency", "forward"), ("latency", "masked_forward")}


def test_tables_are_not_folded_where_there_is_no_terminal(run: Run) -> None:
    lines = run.printed.splitlines()
    for row in (row for row in run.rows if "speedup" in row):
        cells = [row["loss"], row["mode"], row["dtype"], tables.size_text(row["size"])]
        found = [line for line in lines if [cell.strip() for cell in line.split("│")[1:5]] == cells]
        assert any(f" {row['speedup']['eager']:.2f} " in line for line in found), cells


def test_csv_has_a_line_for_each_row(run: Run) -> None:
    assert [line["suite"] for line in run.csv] == [row["suite"] for row in run.rows]
    for line, row in zip(run.csv, run.rows, strict=True):
        median = row.get("seconds", {}).get("eager", {}).get("median", "")
        assert line["seconds.eager.median"] == str(median)


def test_figures(run: Run) -> None:
    names = {f"throughput-{loss}-float32.png" for loss in LOSSES} | {"kernelbench.png", "training.png"}
    names |= {f"speedup-{suite}-float32.png" for suite in ("forward", "training")}
    assert {path.name for path in run.figures.iterdir()} == names
    assert all((run.figures / name).read_bytes().startswith(b"\x89PNG") for name in names)


def test_figures_need_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        cli.main(["--device", "cpu", "--plot", "nowhere"])
    assert "pip install matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("texts", "powers"),
    [(["6"], (6,)), (["6-9"], (6, 7, 8, 9)), (["20", "6-7", "7"], (6, 7, 20))],
)
def test_ranges_of_sizes(texts: list[str], powers: tuple[int, ...]) -> None:
    assert plan.parse_sizes(texts) == powers


@pytest.mark.parametrize("text", ["", "x", "9-6", "6-", "-6", "1.5", "6-7-8"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a power of two or a range"):
        plan.parse_sizes([text])


@pytest.mark.parametrize("arguments", [["--sizes", "x"], ["--dtypes", "int8"], ["--losses", "no"], ["--rounds", "1"]])
def test_refused_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as found:
        cli.main(["--device", "cpu", *arguments])
    assert found.value.code == 2
    assert arguments[1] in capsys.readouterr().err or arguments[0] == "--rounds"


def test_dtype_pairs() -> None:
    pair = Dtypes.parse("bfloat16/float32")
    assert (pair.input, pair.target, pair.autocast) == (torch.bfloat16, torch.float32, torch.bfloat16)
    assert str(pair) == "bfloat16/float32" and str(Dtypes.parse("float16/float16")) == "float16"
    assert Dtypes.parse("bfloat16").autocast is None
    with pytest.raises(argparse.ArgumentTypeError, match="autocast"):
        Dtypes.parse("float32/float64")


@pytest.mark.parametrize(
    ("mode", "dtypes", "number"),
    [
        (FORWARD, "float32", 8),
        (STEP, "float32", 12),
        (BOTH, "float32", 16),
        (MISALIGNED, "float64", 24),
        (FORWARD, "bfloat16/float32", 6),
        (STEP, "bfloat16/float32", 8),
        (STEP, "float32/bfloat16", 10),
        (BOTH, "bfloat16/float32", 12),
    ],
)
def test_bytes_an_element(mode: Mode, dtypes: str, number: int) -> None:
    assert case(mode, dtypes).bytes_an_element == number
    assert case(mode, dtypes, size=64).bytes == 64 * number


def test_mixed_pair_is_measured_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    theirs = torch.nn.functional.mse_loss

    def spy(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        seen.append((input.dtype, target.dtype, torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
        return theirs(input, target)

    monkeypatch.setattr(torch.nn.functional, "mse_loss", spy)
    monkeypatch.setattr(measure, "cache_bytes", lambda device: 256)  # half of what is moved
    row = suites.measured(case(STEP, "bfloat16/float32"), Options(rounds=2, compile=False), {"add": 2.0})
    assert set(row["seconds"]) == {"cudaloss", "eager"} and "notes" not in row
    assert set(seen) == {(torch.bfloat16, torch.float32, True, torch.bfloat16)}
    assert row["bytes"] == 64 * 8 and row["of_ceiling"] == row["gigabytes_per_second"]["cudaloss"] / 2


def test_misaligned_operands() -> None:
    input, target = case(MISALIGNED).operands()
    assert input.storage_offset() == 1 and target.storage_offset() == 3 and input.shape == target.shape == (64,)
    assert input.is_leaf and input.requires_grad and not target.requires_grad
    input, target = case(BOTH).operands()
    assert input.storage_offset() == 0 and input.requires_grad and target.requires_grad


def test_every_step_makes_its_gradient() -> None:
    for mode in TRAINING_MODES:
        one = case(mode)
        input, target = one.operands()
        loss = cases._losses(one, with_compile=False, with_op=False)["cudaloss"]
        step = cases._work(mode, loss, input, target)
        step()
        step()  # the first gradient must not be added to
        assert input.grad is not None and (target.grad is not None) == mode.both
        expected = 2 * (input - target).detach() / 64 * (mode.factor or 1)
        torch.testing.assert_close(input.grad, expected)


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [
        ((1.0, 0.9, 1.1), "no"),
        ((2.0, 1.9, 2.1), "no"),
        ((2.05, 1.95, 2.2), "within noise"),
        ((2.2, 2.1, 2.3), "within noise"),
        ((2.2, 2.11, 2.3), "beyond noise"),
        ((2.01, 2.005, 2.02), "within noise"),
    ],
)
def test_noise(ours: tuple[float, float, float], verdict: str) -> None:
    assert Timing(*ours).slower_than(Timing(2.0, 1.9, 2.1)) == verdict


def test_verdict_names_slower_rows() -> None:
    faster, noisy, slow = made_up((1.0, 0.9, 1.1)), made_up((2.05, 1.95, 2.2)), made_up((4.0, 3.9, 4.1), loss="l1")
    assert list(tables.verdict([faster])) == ["never slower than eager beyond noise, in 1 rows"]
    assert len(list(tables.verdict([faster, noisy]))) == 3
    _, first, second = tables.verdict([faster, noisy, slow])
    assert "0.50x  beyond noise  training l1 step float32 2^6" in first and "within noise" in second


@pytest.mark.parametrize(("ours", "code"), [(1.0, 0), (2.05, 0), (9.0, 1)])
def test_fail_if_slower(ours: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "measure", lambda _: [made_up((ours, ours - 0.1, ours + 0.1))])
    assert cli.main(["--device", "cpu", "--fail-if-slower"]) == code
    assert cli.main(["--device", "cpu"]) == 0


def test_too_large_sizes_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> cases.Row:
        raise AssertionError("measured nonetheless")

    monkeypatch.setattr(suites, "_free_bytes", lambda _: 64 * 2**30)
    monkeypatch.setitem(suites.MEASURES, "training", refuse)
    row = suites.measured(case(size=2**40), Options(), {})
    assert row["skipped"] == "needs about 32768.0 GiB of memory, 64.0 GiB are free"
    assert list(tables.remarks([row])) == [f"training mse step float32 2^40: skipped, {row['skipped']}"]
    assert "skipped" in suites.ceilings(2**40, Options())
    with pytest.raises(AssertionError):
        suites.measured(case(size=2**30), Options(), {})  # 32 GiB


def test_free_memory_is_read_from_the_system() -> None:
    free = suites._free_bytes("cpu")
    assert free is None or 2**20 < free < 2**50


def test_failing_rivals_leave_with_a_note() -> None:
    def fail() -> None:
        raise RuntimeError("no compiler\nand more")

    works: dict[str, measure.Work] = {"cudaloss": lambda: None, "eager": lambda: None, "compile": fail}
    assert cases.leave_out_failing(works) == ["compile failed, RuntimeError: no compiler"]
    assert list(works) == ["cudaloss", "eager"]
    with pytest.raises(RuntimeError):
        cases.leave_out_failing({"cudaloss": fail})


def test_default_plan_varies_one_thing_at_a_time() -> None:
    (part,) = plan.SUITES["training"]
    combinations = list(plan._combinations(Options(device="cuda", suites=("training",)), "training", part))
    plain = [size for mode, dtype, size in combinations if mode is STEP and dtype == FLOAT32]
    assert plain == list(part.sizes["cuda"])
    others = [found for found in combinations if found[0] is not STEP or found[1] != FLOAT32]
    assert {size for *_, size in others} == {plain[-1]}
    assert all(mode is STEP or dtype == FLOAT32 for mode, dtype, _ in others)
    assert len(others) == len(TRAINING_MODES) - 1 + 2


def test_what_is_asked_for_is_crossed() -> None:
    options = Options(sizes=(4, 5), dtypes=(FLOAT32, Dtypes.parse("float64")), modes=("scaled", "both"))
    rows = [one.row() for one in plan.cases(options)]
    training = {(row["mode"], row["dtype"], row["size"]) for row in rows if row["suite"] == "training"}
    assert training == {(m, d, s) for m in ("scaled", "both") for d in ("float32", "float64") for s in (16, 32)}
    assert {row["mode"] for row in rows if row["suite"] == "forward"} == {"forward"}
    kernelbench = [row for row in rows if row["suite"] == "kernelbench"]
    assert {row["dtype"] for row in kernelbench} == {"float32"} and [4, 8] in [row["shape"] for row in kernelbench]


@pytest.mark.parametrize(
    ("options", "size"),
    [
        (Options(sizes=(4, 6)), 2**6),
        (Options(sizes=(4, 27)), 2**24),
        (Options(device="cuda"), 2**28),
        (Options(sizes=(4, 27), ceiling_size=10), 2**10),
        (Options(suites=("latency",)), None),
        (Options(suites=("ceilings",), sizes=(20,)), 2**20),
    ],
)
def test_size_of_the_ceilings(options: Options, size: int | None) -> None:
    assert plan.ceiling_size(options) == size


def test_gpu_calls_are_timed_apart_from_what_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            log.append("event")

        def elapsed_time(self, _: Event) -> float:
            return 2.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    found = measure.throughput({"x": lambda: log.append("x")}, "cuda", 2, 1, before=lambda: log.append("before"))
    assert log == ["before", "event", "x", "event"] * 3
    assert found["x"].median == 0.002


def test_small_works_find_an_empty_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []

    class Scratch:
        def zero_(self) -> None:
            log.append("flush")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=100))
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: log.append("sleep"))
    monkeypatch.setattr(torch, "empty", lambda size, **_: Scratch() if size > 100 else None)
    before, flushed = measure.before_call("cuda", 199)
    assert before and flushed
    before()
    assert log == ["flush", "sleep"]
    before, flushed = measure.before_call("cuda", 200)
    assert before and not flushed
    before()
    assert log == ["flush", "sleep", "sleep"]
    assert measure.before_call("cpu", 1) == (None, False)


def test_a_share_of_the_ceiling_is_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    row = lambda: suites.measured(case(STEP, "float32"), Options(rounds=2, compile=False), {"add": 2.0, "sum": 1.0})  # noqa: E731
    assert "of_ceiling" not in row()
    monkeypatch.setattr(measure, "cache_bytes", lambda device: 100)
    found = row()
    assert found["of_ceiling"] == found["gigabytes_per_second"]["cudaloss"] / 2


def test_a_system_that_does_not_say_how_large_its_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.os, "sysconf", lambda name: 0)
    assert measure.cache_bytes("cpu") == measure.USUAL_CACHE
    monkeypatch.setattr(measure.os, "sysconf", int)  # of a name: ValueError
    assert measure.cache_bytes("cpu") == measure.USUAL_CACHE


def test_peak_memory_is_counted_above_the_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 100)
    monkeypatch.setattr(measure, "peak_bytes", lambda work: work() or 612)
    row = suites.measured(case(suite="memory"), Options(compile=False), {})
    assert row["peak_bytes"] == {"cudaloss": 512, "eager": 512}
    (table,) = tables.tables([row])
    assert [list(column.cells) for column in table.columns][-2:] == [["8.00"], ["8.00"]]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_rows_are_kept_when_one_ends_the_run(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [made_up((1.0, 0.9, 1.1))]

    def measured(*_: object) -> cases.Row:
        if not rows:
            raise error
        return rows.pop()

    monkeypatch.setattr(suites, "measured", measured)
    paths = tmp_path / "rows.json", tmp_path / "rows.csv"
    options = ["--device=cpu", "--suites=latency", f"--json={paths[0]}", f"--csv={paths[1]}"]
    if error is KeyboardInterrupt:
        assert cli.main(options) == 130
    else:
        with pytest.raises(error):
            cli.main(options)
    assert len(json.loads(paths[0].read_text())["rows"]) == 1 and len(paths[1].read_text().splitlines()) == 2
    printed = capsys.readouterr().out
    assert "in 1 rows" in printed and ("interrupted after 1 of " in printed) == (error is KeyboardInterrupt)
