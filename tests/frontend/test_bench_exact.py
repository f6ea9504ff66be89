"""What the accuracy table counts errors against, and the README's table of what single losses take of their own."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from bench_rows import made_up
from cudaloss._call.call import Call
from cudaloss._losses.table import SPECS, LossSpec
from cudaloss._reference import definition
from cudaloss.bench import symbolic
from cudaloss.bench.errors import compensated_sum, largest_error, sum_and_error
from oracle import leaf, parameters
from wide import Wide

mpmath = pytest.importorskip("mpmath")
NAMED = {spec.name: spec for spec in SPECS}


def script(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_cross_entropy_has_seventy_bits() -> None:
    torch.manual_seed(0)
    ends = torch.tensor([0.0, 1e-300, -1e-9, 1e-5, -600, 600, 36.7, -0.3465, 0.6931], dtype=torch.float64)
    x = torch.cat([20 * torch.randn(500, dtype=torch.float64), ends])
    t = torch.rand_like(x)
    t[::2].round_()
    found = script("accuracy").exact(NAMED["binary_cross_entropy_with_logits"], x, t)
    with mpmath.workprec(200):
        for i in range(len(x)):
            a, b = mpmath.mpf(x[i].item()), mpmath.mpf(t[i].item())
            tail = mpmath.log1p(mpmath.exp(-abs(a)))
            value = (1 - b) * (max(a, 0) + tail) + b * (max(-a, 0) + tail)
            terms = (1 - b) / (1 + mpmath.exp(-a)), b / (1 + mpmath.exp(a))
            of_value = mpmath.mpf(found.value[i].item()) + found.rest_of_value[i].item()
            of_slope = mpmath.mpf(found.slope[i].item()) + found.rest_of_slope[i].item()
            assert abs(of_value - value) <= value * 2.0**-70
            assert abs(of_slope - (terms[0] - terms[1])) <= max(terms) * 2.0**-70
            assert math.isclose(found.size_of_slope[i].item(), max(terms), rel_tol=1e-14)


@pytest.mark.parametrize("m", [np, torch], ids=["long_double", "float64"])
def test_formulas_are_read_as_they_are_written(spec: LossSpec, m: ModuleType) -> None:
    """Against the rows' own formulas, which autograd differentiates."""
    torch.manual_seed(0)
    x, t = 3 * torch.randn(500, dtype=torch.float64), torch.rand(500, dtype=torch.float64)
    for third in parameters(spec):
        own = [leaf(y) for y in (x, t)]
        value = definition.loss(Call.of(spec, *own, "none", third, torch.float64))
        expected = value, *torch.autograd.grad(value.sum(), own)
        operands = x, t, torch.tensor(third, dtype=torch.float64)
        if m is np:
            operands = [Wide(y.numpy()) for y in operands]
        for which, truth in enumerate(expected):
            with np.errstate(divide="ignore", invalid="ignore"):  # a beta of 0
                number = symbolic.term(spec, which, m, *operands).number
            found = number if m is torch else torch.from_numpy(np.asarray(number, dtype=np.float64))
            torch.testing.assert_close(found.expand(truth.shape), truth.detach(), rtol=1e-13, atol=1e-15)


def test_what_float64_lacks_is_counted() -> None:
    exact, rest = torch.tensor([1.0], dtype=torch.float64), torch.tensor([2.0**-54], dtype=torch.float64)
    assert largest_error(exact, exact, torch.float64) == 0
    assert largest_error(exact, exact, torch.float64, rest=rest) == 0.25
    terms = torch.tensor([1.0, 2.0**-60, -1.0, 2.0**-80], dtype=torch.float64)
    total, error = sum_and_error(terms)
    assert total + error == compensated_sum(terms) == 2.0**-60 + 2.0**-80


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("each", SPECS, ids=lambda spec: spec.name)
def test_accuracy_has_a_row_of_every_loss(each: LossSpec, dtype: torch.dtype) -> None:
    row = script("accuracy").measure(each, 100, dtype, "cpu")
    kinds = ("value", "gradient") if each.is_rational else ("value", "gradient", "single")
    assert {f"{name}_{kind}_ulp" for name in ("cudaloss", "torch") for kind in kinds} < set(row)
    assert row["cudaloss_value_ulp"] < 2


def test_accuracy_without_pytorch_where_its_way_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def out_of_memory(*_: object, **__: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    accuracy, mse = script("accuracy"), NAMED["mse"]
    monkeypatch.setattr(accuracy, "rival", lambda _: out_of_memory)
    row = accuracy.measure(mse, 100, torch.float32, "cpu")
    assert row["holds"]
    assert {key for key in row if key.endswith("_ulp")} == {"cudaloss_value_ulp", "cudaloss_gradient_ulp"}
    assert not accuracy.bound(mse, row, "value") > 1
    monkeypatch.setattr(accuracy.cudaloss, "mse_loss", out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        accuracy.measure(mse, 100, torch.float32, "cpu")


def test_a_gpu_report_says_what_was_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a failing test of random calls: the error and the call."""
    gpu_check = script("gpu_check")
    monkeypatch.setattr(gpu_check, "SCRATCH", tmp_path)
    test = tmp_path / "test_drawn.py"
    test.write_text(
        "from hypothesis import given, strategies as st\n\n"
        "@given(data=st.data())\ndef test_it(data):\n    assert data.draw(st.integers()) < 7, 'too much'\n"
    )
    outcome = gpu_check.run("tests", [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(test)])
    assert not outcome["passed"]
    assert [name.partition("::")[2] for name in outcome["failed"]] == ["test_it"]
    assert outcome["wrong"][0].startswith("AssertionError: too much")
    assert "Draw 1: 7" in outcome["wrong"]


def test_pytorchs_error_excuses_none_of_exponentials() -> None:
    accuracy = script("accuracy")
    row = {"dtype": "float32", "torch_single_ulp": 1e7, "torch_value_ulp": 1.5}
    assert accuracy.bound(NAMED["binary_cross_entropy_with_logits"], row, "single") == 2
    assert accuracy.bound(NAMED["binary_cross_entropy_with_logits"], {**row, "dtype": "float16"}, "single") == 1
    assert accuracy.bound(NAMED["mse"], row, "value") == 1.5


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_accuracy_keeps_the_rows_before_its_end(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracy, path, measure = script("accuracy"), tmp_path / "rows.json", script("accuracy").measure

    def measured(spec: LossSpec, size: int, dtype: torch.dtype, device: str) -> dict[str, object]:
        if spec is not SPECS[0]:
            raise error
        return measure(spec, size, dtype, device)

    monkeypatch.setattr(accuracy, "measure", measured)
    monkeypatch.setattr("sys.argv", ["accuracy.py", "--device=cpu", "--sizes", "7", "--json", str(path)])
    if error is KeyboardInterrupt:
        assert accuracy.main() == 130
    else:
        with pytest.raises(error):
            accuracy.main()
    assert [row["loss"] for row in json.loads(path.read_text())] == [SPECS[0].name]
    interrupted = f"interrupted after 1 of {4 * len(SPECS)} rows" in capsys.readouterr().out
    assert interrupted == (error is KeyboardInterrupt)


def test_readme_has_what_single_losses_take() -> None:
    matrix = {"suite": "features", "shape": [16384, 16384], "size": 1 << 28}
    bce = {**matrix, "loss": "binary_cross_entropy_with_logits"}
    rows = [
        made_up((0.001, 0.0009, 0.0011), **bce, mode="pos_weights", of_ceiling=0.987),
        made_up((0.5, 0.4, 0.6), **matrix, loss="quantile", mode="quantile"),
    ]
    readme = script("readme")
    text = readme.block({"environment": {"gpu": "a GPU", "torch": "2.13"}, "bench": {"report": {"rows": rows}}})
    assert text.split("\n\n")[1:] == [
        "| forward + backward, 16384 x 16384 | ms | x eager | x compile | of `torch.add`'s throughput |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| binary cross entropy, a pos_weight for each class | 1.00 | 2000.00x |  | 0.99 |\n"
        "| quantile loss, one quantile | 500.00 | 4.00x |  |  |"
    ]


def test_no_oracle_is_of_numpys_long_double():
    """It is float64 on Apple silicon, where 42 tests failed with it."""
    name = "long" + "double"
    folders = (Path(__file__).resolve().parents[1], Path(symbolic.__file__).parents[1])
    assert [path for folder in folders for path in folder.rglob("*.py") if name in path.read_text()] == []
