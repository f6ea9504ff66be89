"""A wheel file in its own environment: its requirements are there, it is what Python imports, and its tests pass."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from tools import environments
from tools.environments import ROOT

REQUIREMENTS = ("test.txt", "wheels.txt")
ALSO = ("scikit-learn", "ninja", "pip")  # further needs of tests: of the examples, of setup.py, of the index
# Prints which torch and Python these are, and that tests import the installed package with its binary.
SAY = """
import json, sys, torch, cudaloss
from cudaloss._install.build import INFO
print(json.dumps({
    "python": sys.version.split()[0], "torch": torch.__version__, "torch_cuda": torch.version.cuda,
    "file": cudaloss.__file__, "version": cudaloss.__version__, "build": INFO,
}))
"""


def variables() -> dict[str, str]:
    """This process's environment without anything that would import the checkout's package."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}


def requirement(torch: str, least: str) -> str:
    if torch == "newest":
        return "torch"
    return f"torch=={least}.*" if torch == "least" else f"torch=={torch}"


def prepare(python: str, torch: str, least: str) -> Path:
    inside = environments.create(f"{python}-{torch}", environments.interpreter(python))
    environments.install_torch(inside, requirement(torch, least))
    wanted = [part for name in REQUIREMENTS for part in ("--requirement", ROOT / "requirements" / name)]
    # From its metadata: torch's own version may have a label that the index does not know.
    frozen = environments.answer(inside, "import importlib.metadata as m; print(m.version('torch'))")
    environments.install(inside, *wanted, *ALSO, f"torch=={frozen}")
    return inside


def put_in(inside: Path, wheel: Path) -> str | None:
    """Installs the file itself, over anything that was there before. Returns what is wrong with its requirements, if
    anything."""
    environments.install(inside, "--reinstall", "--no-deps", "--no-cache", wheel)
    command = [environments.find_uv_bin(), "pip", "check", "--python", inside]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stderr.strip() if done.returncode else None


def said(inside: Path, torch: str) -> dict[str, Any]:
    done = subprocess.run(
        [inside, "-c", SAY],
        cwd=ROOT,  # where the tests run
        env={**variables(), "CUDALOSS_REQUIRE_COMPILED": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return {"error": done.stderr.strip()}
    facts = json.loads(done.stdout)
    file = Path(facts.pop("file"))
    if not file.is_relative_to(inside.parent.parent):
        facts["error"] = f"cudaloss is imported from {file.parent}, not from the environment"
    elif (facts["torch_cuda"] is None) != ("+cpu" in torch) and torch not in ("least", "newest"):
        facts["error"] = f"torch {facts['torch']} is not the build that {torch} stands for"
    return facts


def diagnostics(inside: Path) -> dict[str, Any]:
    """The output of ``python -m cudaloss``; its exit status is 0 if all fits."""
    with tempfile.TemporaryDirectory() as elsewhere:
        command = [inside, "-m", "cudaloss"]
        done = subprocess.run(command, cwd=elsewhere, env=variables(), capture_output=True, text=True)
    return {"passed": done.returncode == 0, "output": (done.stdout + done.stderr).strip().splitlines()}


def counted(junit: Path) -> dict[str, Any]:
    """The numbers of tests by outcome, why tests were skipped, and which failed."""
    numbers: dict[str, int] = dict.fromkeys(("passed", "failed", "skipped"), 0)
    reasons: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    for case in ElementTree.parse(junit).iter("testcase"):
        skipped = case.find("skipped")
        if skipped is not None:
            numbers["skipped"] += 1
            reasons[skipped.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            numbers["failed"] += 1
            failures.append(f"{case.get('classname')}::{case.get('name')}")
        else:
            numbers["passed"] += 1
    return {**numbers, "reasons": dict(reasons.most_common()), "failures": failures}


def tests(inside: Path, arguments: list[str]) -> dict[str, Any]:
    """The checkout's tests. src/ is not on their path, but the installed package is."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [inside, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", f"--junitxml={junit}"]
        done = subprocess.run([*command, *arguments], cwd=ROOT, env=variables())
        if not junit.exists():
            return {"passed": 0, "failed": 0, "skipped": 0, "failures": [f"pytest ended with status {done.returncode}"]}
        return {"arguments": arguments, **counted(junit), "exit": done.returncode}


def check(wheel: Path, python: str, torch: str, least: str, arguments: list[str]) -> dict[str, Any]:
    """`wheel` with `torch`: a version, ``least`` or ``newest``; `arguments` are pytest's."""
    start = time.monotonic()
    inside = prepare(python, torch, least)
    unfit = put_in(inside, wheel)
    row: dict[str, Any] = {"error": unfit} if unfit else said(inside, torch)
    if "error" not in row:
        row["diagnostics"] = diagnostics(inside)
        row["tests"] = tests(inside, arguments)
    row["seconds"] = round(time.monotonic() - start)
    row["passed"] = (
        "error" not in row and row["diagnostics"]["passed"] and row["tests"].get("exit") == 0 < row["tests"]["passed"]
    )
    return row
