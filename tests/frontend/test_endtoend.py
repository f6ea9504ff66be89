"""benchmarks/endtoend.py: its small steps, losses that are wrong, and the tables of its report."""

from __future__ import annotations

import importlib.util
import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOSSES = {
    "gpt2": {"transformers", "cross_entropy", "linear_cross_entropy"},
    "unet": {"eager", "dice_ce_loss"},
    "detector": {"eager", "focal, L1 and complete IoU losses"},
    "diffusion": {"eager", "mse_loss"},
    "grpo": {"eager", "token_log_prob", "linear_token_log_prob", "linear_token_log_prob, fast"},
}


@pytest.fixture
def endtoend(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "endtoend.py"))


def test_small_steps_and_their_tables(
    endtoend: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    command = ["endtoend.py", "--small", "--device", "cpu", "--rounds", "2", "--json", str(path)]
    monkeypatch.setattr("sys.argv", command)
    endtoend["main"]()
    said = capsys.readouterr().out
    report = json.loads(path.read_text())
    measured = set(LOSSES) if importlib.util.find_spec("transformers") else set(LOSSES) - {"gpt2"}
    assert set(report["steps"]) == measured and set(report["skipped"]) == set(LOSSES) - measured
    assert report["wrong"] == {}
    assert all(f"{name}: left out, needs transformers" in said for name in report["skipped"])
    for name in measured:
        assert set(report[name]) >= LOSSES[name]
        assert all(row["ms"] > 0 and row["MiB"] is None for row in report[name].values())
    made = runpy.run_path(str(BENCHMARKS / "readme.py"))["endtoend_tables"]({"endtoend": {"report": report}})
    lead, *tables = made.split("\n\n")
    assert lead.startswith("Whole training steps") and len(tables) == len(measured)
    assert all(" 1.00x |" in table.splitlines()[2] for table in tables)


def test_tables_of_a_report() -> None:
    tables = runpy.run_path(str(BENCHMARKS / "readme.py"))["endtoend_tables"]
    rows = {"eager": {"ms": 90.04, "MiB": 12345}, "mse_loss": {"ms": 60.0, "MiB": 9}}
    report = {"steps": {"diffusion": "a transformer"}, "diffusion": rows}
    assert tables({"endtoend": {"report": report}}).split("\n\n")[1].splitlines() == [
        "| a transformer | ms | x the first | peak, MiB |",
        "| --- | --- | --- | --- |",
        "| eager | 90.0 | 1.00x | 12,345 |",
        "| mse_loss | 60.0 | 1.50x | 9 |",
    ]
    of_forward_and_backward = {"gpt2": rows}  # as it was before the steps had an optimizer
    assert all(tables(old) is None for old in ({}, {"endtoend": {"report": of_forward_and_backward}}))


def test_a_wrong_loss_is_not_timed(endtoend: dict[str, Any]) -> None:
    model = torch.nn.Linear(8, 8)
    x = torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)

    def error() -> torch.Tensor:
        return model(x).float().square().mean()

    def with_other_gradients() -> torch.Tensor:
        loss = error()
        return loss.detach() + 1.1 * (loss - loss.detach())

    def broken() -> torch.Tensor:
        raise RuntimeError("no memory")

    losses = {
        "eager": error,
        "/ 4": lambda: error() / 4,
        "too large": lambda: 1.01 * error(),
        "gradients": with_other_gradients,
        "NaN": lambda: error() * float("nan"),
        "broken": broken,
    }
    step = endtoend["Step"]("a layer", model, optimizer, losses, {"/ 4": 0.25})
    report: dict[str, Any] = {"steps": {}, "wrong": {}}
    endtoend["add"](report, "layer", step, "cpu", 2)
    assert set(report["layer"]) == {"eager", "/ 4"} and report["steps"] == {"layer": "a layer"}
    assert set(report["wrong"]) == {f"layer, {name}" for name in ("too large", "gradients", "NaN", "broken")}
    assert "no memory" in report["wrong"]["layer, broken"]
    assert report["layer"]["/ 4"]["loss"] == pytest.approx(report["layer"]["eager"]["loss"])


def test_an_unknown_step_and_a_wrong_one_end_with_an_error(
    endtoend: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main, path = endtoend["main"], tmp_path / "report.json"
    monkeypatch.setattr("sys.argv", ["endtoend.py", "--only", "no step"])
    with pytest.raises(SystemExit, match="2"):
        main()

    def add(report: dict[str, Any], name: str, *_: Any) -> None:
        report["wrong"][name] = "0 instead of 1"

    monkeypatch.setitem(main.__globals__, "add", add)
    monkeypatch.setattr("sys.argv", ["endtoend.py", "--device", "cpu", "--only", "diffusion", "--json", str(path)])
    with pytest.raises(SystemExit, match="diffusion: 0 instead of 1"):
        main()
    assert json.loads(path.read_text())["wrong"] == {"diffusion": "0 instead of 1"}
