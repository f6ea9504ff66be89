"""Every example as its user runs it: its claims hold, and fail if cudaloss ignores the options that they are about."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import cudaloss

imread = pytest.importorskip("matplotlib.image").imread
pytest.importorskip("sklearn")

# Left out: scaffold.py, which the examples import, and digits.py, whose claim is PyTorch's very loss, without an
# option. CI runs it at length as the demo.
FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {FOLDER / "digits.py", FOLDER / "scaffold.py"})
DEAF_TO = "weight", "pos_weight", "quantile", "delta", "mask", "normalizer", "ignore_nan"
IN_THEIR_PLACE = {"gamma": "0.0", "var": "1.0"}  # of keywords without which a call means another thing, or nothing

DEAF = f"""
import cudaloss

HEARD = {{{", ".join(f"{key!r}: {value}" for key, value in IN_THEIR_PLACE.items())}}}

def deaf(function):
    def call(*args, **keywords):
        heard = {{key: HEARD.get(key, value) for key, value in keywords.items() if key not in {DEAF_TO}}}
        return function(*args, **heard)
    return call

for name in cudaloss.functional.__all__:
    function = deaf(getattr(cudaloss.functional, name))
    setattr(cudaloss.functional, name, function)  # which the modules call
    setattr(cudaloss, name, function)
"""


def run(example: Path, folder: Path, *first_on_path: Path) -> subprocess.CompletedProcess[str]:
    quick = ["--quick"] if "--quick" in example.read_text() else []
    package = Path(cudaloss.__file__).parent.parent
    path = os.pathsep.join(map(str, (*first_on_path, package)))
    return subprocess.run(
        [sys.executable, str(example), *quick],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_holds(example: Path, tmp_path: Path) -> None:
    ran = run(example, tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not re.search(r"\w*Warning\b", ran.stderr), ran.stderr
    shown = re.findall(r"picture: (\S+)", ran.stdout)
    assert {tmp_path / path for path in shown} == set(tmp_path.rglob("*.png"))
    for path in shown:
        assert imread(tmp_path / path).std() > 0, f"{path} is blank"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_fails_where_cudaloss_is_deaf(example: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    ran = run(example, tmp_path, tmp_path)
    assert ran.returncode != 0, ran.stdout
    assert "sitecustomize" not in ran.stderr, ran.stderr  # it was the example that failed


def test_there_are_examples() -> None:
    names = {example.stem for example in EXAMPLES}
    assert {"distillation", "latitude_weights", "masked_pretraining", "missing_values"} <= names
    assert {"multi_label", "quantile_intervals"} <= names
