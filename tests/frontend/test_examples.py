"""Every example as its user runs it: its claims hold, and fail if cudaloss ignores the options that they are about."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.multiprocessing import ProcessRaisedException, start_processes  # pyright: ignore[reportPrivateImportUsage]

import cudaloss
from processes import METHOD, start

imread = pytest.importorskip("matplotlib.image").imread
pytest.importorskip("sklearn")

# Left out: scaffold.py, which the examples import, and digits.py, whose claim is PyTorch's very loss, without an
# option. CI runs it at length as the demo.
FOLDER = Path(__file__).resolve().parents[2] / "examples"
PACKAGE = Path(cudaloss.__file__).parent.parent
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {FOLDER / "digits.py", FOLDER / "scaffold.py"})
DEAF_TO = "weight", "pos_weight", "quantile", "delta", "mask", "normalizer", "ignore_nan", "temperature", "memory"
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

# What each example claims of single calls, before all of its training: it holds or fails in few steps.
OF_CALLS = (
    "value and gradient are those of",
    "the global mean's gradient is the whole batch's",
    "loss and gradients are those of the whole network",
    "weighted means are the integrals",
    "gives NaN gradients or none, as it must",
    "the least memory keeps nothing of the logits' size",
)


def run(_: int, example: Path, folder: Path, is_deaf: bool) -> None:
    """In a process that has imported PyTorch already (processes.py), which takes seconds."""
    os.chdir(folder)
    if METHOD == "forkserver" and sys.platform == "linux":  # an example's own processes are forked from its own
        forked = partial(start_processes, start_method="fork")
        torch.multiprocessing.spawn = forked  # pyright: ignore[reportPrivateImportUsage]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (folder, PACKAGE)))  # of processes that the example starts
    if is_deaf:
        runpy.run_path("sitecustomize.py")
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(folder / stream.name.strip("<>"), os.O_WRONLY | os.O_CREAT), stream.fileno())
    sys.path.insert(0, str(FOLDER))
    options = ["--steps", "10"] if is_deaf else ["--quick"] if "--quick" in example.read_text() else []
    sys.argv = [str(example), *options]
    runpy.run_path(str(example), run_name="__main__")


of_examples = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@of_examples
def test_example_holds(example: Path, tmp_path: Path) -> None:
    start(run, (example, tmp_path, False), 1)
    printed, warned = ((tmp_path / name).read_text() for name in ("stdout", "stderr"))
    assert not re.search(r"\w*Warning\b", warned), warned
    shown = re.findall(r"picture: (\S+)", printed)
    assert {tmp_path / path for path in shown} == set(tmp_path.rglob("*.png"))
    for path in shown:
        assert imread(tmp_path / path).std() > 0, f"{path} is blank"


def test_an_example_runs_as_its_user_runs_it(tmp_path: Path) -> None:
    """One that starts processes, which import anew."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, str(FOLDER / "sharded.py")]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0 and not ran.stderr, ran.stdout + ran.stderr


@of_examples
def test_example_fails_where_cudaloss_is_deaf(example: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(DEAF)
    with pytest.raises(ProcessRaisedException, match=f"does not hold: .*({'|'.join(OF_CALLS)})"):
        start(run, (example, tmp_path, True), 1)


def test_there_are_examples() -> None:
    names = {example.stem for example in EXAMPLES}
    assert {"distillation", "latitude_weights", "masked_pretraining", "missing_values"} <= names
    assert {"multi_label", "quantile_intervals", "language_model_head", "policy_gradient"} <= names
