"""benchmarks/gpu_check.py: a long file's tests are shared out to several sanitizers, each of them to one."""

from __future__ import annotations

import argparse
import json
import os
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conftest

ROOT = Path(__file__).parents[2]


class _Test:
    def get_closest_marker(self, name: str) -> None:
        """None of these needs a GPU."""


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_test_is_in_one_part(count: int) -> None:
    every, chosen, left_out = [_Test() for _ in range(10)], [], []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    for place in range(1, count + 1):
        items: list[Any] = list(every)
        config: Any = SimpleNamespace(getoption=lambda _, place=place: f"{place}/{count}", hook=hook)
        conftest.pytest_collection_modifyitems(config, items)
        chosen += items
    assert len(chosen) == len(every) and set(chosen) == set(every)
    assert len(left_out) == (count - 1) * len(every)


def test_files_with_parts_exist() -> None:
    check = runpy.run_path(str(ROOT / "benchmarks" / "gpu_check.py"))
    sanitized = {*check["SANITIZED_TESTS"], *check["MEMCHECKED_TESTS"]}
    assert check["PARTS"].keys() <= sanitized and all((ROOT / "tests" / file).exists() for file in sanitized)
    assert check["parts_of"]("rows/test_heads.py") == ["rows/test_heads.py:1/2", "rows/test_heads.py:2/2"]
    assert check["parts_of"]("rows/test_nll.py") == ["rows/test_nll.py"]


@pytest.fixture
def check(tmp_path: Path) -> dict[str, Any]:
    """The program's names, with its folders in `tmp_path`."""
    found = runpy.run_path(str(ROOT / "benchmarks" / "gpu_check.py"))["main"].__globals__
    found.update(RESULTS=tmp_path, SCRATCH=tmp_path)
    return found


def test_processes_add_to_one_report(check: dict[str, Any], tmp_path: Path) -> None:
    environment = {"gpu": "A GPU", "date": "2026-01-02", "csrc_tree": "0" * 40, "torch": "2.11.0"}
    stages = [f"stage {i}" for i in range(40)]
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(lambda stage: check["add_to_report"]("gpu_check", environment, {stage: {}}), stages))
    assert [path.name for path in paths] == ["gpu_check-a-gpu-2026-01-02.json"]
    assert json.loads(paths.pop().read_text()).keys() == {"environment", *stages}


def test_a_suite_goes_on_with_the_parts_that_have_not_passed(check: dict[str, Any]) -> None:
    def run_with(wrong: str) -> tuple[dict[str, Any], list[str]]:
        ran: list[str] = []
        check["tests"] = lambda name, marker, option, part: (
            ran.append(part) or {"passed": part != wrong, "seconds": 1.5, "summary": [f"10 of {part}"]}
        )
        check["EARLIER"]["tests"] = outcome = check["suite"]()
        return outcome, ran

    outcome, ran = run_with("2/3")
    assert ran == ["1/3", "2/3", "3/3"] and not outcome["passed"] and outcome["seconds"] == 4.5
    outcome, ran = run_with("")
    assert ran == ["2/3"] and outcome["passed"]
    assert outcome["summary"] == ["1/3: 10 of 1/3", "2/3: 10 of 2/3", "3/3: 10 of 3/3"]
    assert run_with("")[1] == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux")
def test_stages_beside_have_a_gpu_and_cores_of_their_own(
    check: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said.json"
    (tmp_path / "program.py").write_text(
        "import json, os, sys\n"
        "row = [sys.argv[1:], os.environ['CUDA_VISIBLE_DEVICES'], sorted(os.sched_getaffinity(0))]\n"
        f"open({str(said)!r}, 'w').write(json.dumps(row))\n"
    )
    check["__file__"] = str(tmp_path / "program.py")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    cores = sorted(os.sched_getaffinity(0))
    try:
        process = check["start_beside"](["rows"], argparse.Namespace(name="some", cores=None))
        assert process.wait() == 0
        half = len(cores) // 2
        assert json.loads(said.read_text()) == [["--name", "some", "--stages", "rows"], "7", cores[half:]]
        assert sorted(os.sched_getaffinity(0)) == cores[:half] and os.environ["CUDA_VISIBLE_DEVICES"] == "4"
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.parametrize(
    ("devices", "arguments"),
    [
        ("0", ["--stages", "bench", "--beside", "rows"]),
        ("0,1", ["--beside", "rows"]),  # all stages are first: the build, and rows again
        ("0,1", ["--stages", "bench", "rows", "--beside", "rows"]),
        ("0,1", ["--stages", "bench", "--beside", "build"]),
        ("0,1", ["--stages", "bench", "--beside", "rows", "--wheel", "some.whl"]),
    ],
)
def test_stages_beside_that_cannot_be(
    check: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    devices: str,
    arguments: list[str],
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    monkeypatch.setattr("sys.argv", ["gpu_check.py", *arguments])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    check["start_beside"] = lambda *_: pytest.fail("it was started")
    with pytest.raises(SystemExit):
        check["main"]()
    assert "--beside needs two GPUs" in capsys.readouterr().err
