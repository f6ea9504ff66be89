"""What builds wheels and runs the test suite over them: Pythons, measurements, and what tests say of themselves."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path

import pytest

for tool in ("uv", "build", "psutil", "torch_abi_audit", "elftools"):
    pytest.importorskip(tool, reason=f"needs {tool}, of requirements/wheels.txt")
check_wheel, environments, measured, wheel, wheel_suite = (
    importlib.import_module(f"tools.{name}")
    for name in ("check_wheel", "environments", "measured", "wheel", "wheel_suite")
)
HERE = "{}.{}".format(*sys.version_info)


def stand_in(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_python_that_answers_is_taken_before_one_that_does_not(tmp_path, monkeypatch):
    stand_in(tmp_path / "shims", f"python{HERE}", "echo not found >&2; exit 127")
    real = stand_in(tmp_path / "pyenv", f"versions/{HERE}.1/bin/python", f'exec "{sys.executable}" "$@"')
    monkeypatch.setenv("PATH", str(tmp_path / "shims"), prepend=os.pathsep)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert real in environments.candidates(HERE)
    for wish in (HERE, f"python{HERE}", str(real)):
        assert environments.version(environments.interpreter(wish)) == HERE


def test_another_python_than_the_one_named_is_not_taken(tmp_path, monkeypatch):
    stand_in(tmp_path, "python3.99", f'exec "{sys.executable}" "$@"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(SystemExit, match=r"No Python '3\.99' answers"):
        environments.interpreter("3.99")


def test_memory_of_children_is_measured():
    child = "import time; x = bytearray(300 << 20); time.sleep(1)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); sys.exit(3)"
    outcome = measured.run([sys.executable, "-c", parent])
    assert outcome.code == 3
    assert 0.29 < outcome.peak_gib < 1
    assert 1 <= outcome.seconds < 60


JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" name="one"/>
<testcase classname="tests.a" name="two"><skipped message="no GPU"/></testcase>
<testcase classname="tests.b" name="two"><skipped message="no GPU"/></testcase>
<testcase classname="tests.b" name="three"><failure message="no"/></testcase>
<testcase classname="tests.c" name="four"><error message="no"/></testcase>
</testsuite></testsuites>"""


def test_outcomes_are_counted(tmp_path):
    (tmp_path / "junit.xml").write_text(JUNIT)
    assert wheel_suite.counted(tmp_path / "junit.xml") == {
        "passed": 1,
        "failed": 2,
        "skipped": 2,
        "reasons": {"no GPU": 2},
        "failures": ["tests.b::three", "tests.c::four"],
    }


def test_the_package_of_another_place_is_refused(tmp_path, monkeypatch):
    """`said` asks a Python which package it imports; here one whose environment is elsewhere."""
    elsewhere = stand_in(tmp_path, "env/bin/python", f'exec "{sys.executable}" "$@"')
    monkeypatch.setattr(wheel_suite, "variables", lambda: dict(os.environ))
    assert "not from the environment" in wheel_suite.said(elsewhere, "newest")["error"]


def test_nothing_leads_to_the_checkouts_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    assert "PYTHONPATH" not in wheel_suite.variables()


@pytest.mark.parametrize(
    ("row", "passes"),
    [
        ({"seconds": 899, "cores": 2, "peak_gib": 7.4}, True),
        ({"seconds": 901, "cores": 2, "peak_gib": 7.4}, False),
        ({"seconds": 901, "cores": 8, "peak_gib": 7.4}, True),
        ({"seconds": 60, "cores": 2, "peak_gib": 7.5}, False),
    ],
)
def test_builds_have_bars(tmp_path, monkeypatch, row, passes):
    file = tmp_path / "cudaloss-1.2-cp311-cp311-manylinux_2_28_x86_64.whl"
    file.write_bytes(b"wheel")
    monkeypatch.setattr(wheel, "ROOT", tmp_path)
    wheel.keep(file, row)
    assert check_wheel.build(file)["passed"] == passes
    file.write_bytes(b"another of that name")
    assert check_wheel.build(file) is None


def test_outcomes_of_the_same_file_stay(tmp_path):
    file, report = tmp_path / "a.whl", tmp_path / "report.json"
    file.write_bytes(b"wheel")
    assert check_wheel.earlier(report, file) == {}
    outcomes = {"newest": {"passed": True}}
    report.write_text(json.dumps({"wheels": {"a.whl": {"sha256": wheel.digest(file), "environments": outcomes}}}))
    assert check_wheel.earlier(report, file) == outcomes
    file.write_bytes(b"another")
    assert check_wheel.earlier(report, file) == {}


def test_torches_of_a_wheel():
    here, other = (
        f"cudaloss-1.2-{tag}-{tag}-manylinux_2_28_x86_64.whl" for tag in ("cp" + HERE.replace(".", ""), "cp399")
    )
    assert check_wheel.python_of(Path(other)) == "3.99"
    assert check_wheel.torches(Path(here), None) == check_wheel.TORCHES
    assert set(check_wheel.torches(Path(other), None)) < set(check_wheel.TORCHES)
    assert [wheel_suite.requirement(torch, "2.10") for torch in ("least", "2.11.0", "newest")] == [
        "torch==2.10.*",
        "torch==2.11.0",
        "torch",
    ]
