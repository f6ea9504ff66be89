"""Proves wheel files: ``make wheel-check``, or ``python -m tools.check_wheel dist/*.whl``.

It checks what each file is (--static: only that), and that this file, not rebuilt, passes the test suite with the
oldest torch, a CPU-only one, one for another CUDA and the newest. Each has its own environment, kept in
build/wheel-envs. Outcomes go into build/wheel_check.json as they come, and stay there as long as the file is the same;
commit a complete one as benchmarks/results/wheel_check-<date>.json. pip must find a CPU-only torch, or reach PyTorch's
own index.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packaging.utils import parse_wheel_filename
from rich.console import Console
from rich.table import Table

from tools import wheel_static, wheel_suite
from tools.environments import ROOT
from tools.wheel import digest, measurements

REPORT = ROOT / "build" / "wheel_check.json"
TORCHES = ("least", "2.11.0", "2.13.0+cpu", "newest")
ELSEWHERE = ("2.11.0", "newest")  # for wheels of other Python versions than this one
# The limits for a build: minutes on at most this many cores, GiB (8 GB).
MINUTES, CORES, PEAK_GIB = 15, 2, 8e9 / 2**30


def python_of(wheel: Path) -> str:
    """``"3.11"`` of a wheel that is tagged cp311."""
    (tag, *_) = parse_wheel_filename(wheel.name)[3]
    return f"{tag.interpreter[2]}.{tag.interpreter[3:]}"


def torches(wheel: Path, wish: list[str] | None) -> Sequence[str]:
    return wish or (TORCHES if python_of(wheel) == "{}.{}".format(*sys.version_info) else ELSEWHERE)


def build(wheel: Path) -> dict[str, Any] | None:
    """The measurements of `make wheel`, if it built this file. The time means something only on few cores."""
    path = measurements(wheel)
    row = json.loads(path.read_text()) if path.exists() else None
    if row is None or row.pop("sha256") != digest(wheel):
        return None
    in_time = row["cores"] > CORES or row["seconds"] < 60 * MINUTES
    return {**row, "passed": in_time and row["peak_gib"] < PEAK_GIB}


def earlier(report: Path, wheel: Path) -> dict[str, Any]:
    """The environments' outcomes for the same file in an earlier run."""
    old = json.loads(report.read_text())["wheels"].get(wheel.name) if report.exists() else None
    return old["environments"] if old and old["sha256"] == digest(wheel) else {}


def passed(row: dict[str, Any]) -> bool:
    rows = [*row["static"].values(), *row["environments"].values(), *([row["build"]] if row["build"] else [])]
    return all(one["passed"] for one in rows)


def mark(row: dict[str, Any]) -> str:
    return "[green]passed" if row["passed"] else "[red]FAILED"


def told(row: dict[str, Any]) -> str:
    """An environment's outcome as text."""
    if "error" in row:
        return row["error"]
    tests = row["tests"]
    text = f"torch {row['torch']}, Python {row['python']}: {tests['passed']} passed, {tests['skipped']} skipped"
    if tests.get("arguments"):
        text += f" of {' '.join(tests['arguments'])} alone"
    if tests["failed"] or tests["failures"]:
        text += f", {tests['failed']} failed: {', '.join(tests['failures'][:5])}"
    if not row["diagnostics"]["passed"]:
        text += f"; python -m cudaloss: {' '.join(row['diagnostics']['output'][-3:])}"
    return f"{text} ({row['seconds']} s)"


def show(name: str, row: dict[str, Any], console: Console) -> None:
    table = Table(title=name, title_justify="left")
    for column in ("check", "outcome"):
        table.add_column(column, no_wrap=True)
    table.add_column("found", overflow="fold")
    for title, one in row["static"].items():
        table.add_row(title, mark(one), one["found"])
    if row["build"]:
        one = row["build"]
        found = f"{one['seconds'] / 60:.1f} minutes on {one['cores']} cores, at most {one['peak_gib']:.1f} GiB"
        table.add_row("build", mark(one), found)
    for title, one in row["environments"].items():
        table.add_row(f"tests, {title}", mark(one), told(one))
    console.print(table)


def write(report: Path, rows: dict[str, Any]) -> None:
    machine = {"platform": platform.platform(), "machine": platform.machine()}
    report.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"date": datetime.date.today().isoformat(), **machine, "wheels": rows}, indent=2)
    report.write_text(text.replace(f"{ROOT}/", "") + "\n")  # it is committed, without this machine's folders


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", nargs="*", type=Path, help="all of dist/ where none is named")
    parser.add_argument("--static", action="store_true", help="the file alone, nothing is installed")
    parser.add_argument("--architectures", help="what it must have kernels for, instead of the release's list")
    parser.add_argument("--torch", action="append", metavar="VERSION", help=f"one of {', '.join(TORCHES)} or another")
    parser.add_argument("--tests", default="", metavar="ARGUMENTS", help="pytest's, to try a part")
    parser.add_argument("--report", type=Path, default=REPORT)
    options = parser.parse_args()
    wheels = options.wheels or sorted((ROOT / "dist").glob("*.whl"))
    if not wheels:
        parser.error("dist/ has no wheel: build one with make wheel, or name the files")

    console, rows = Console(width=None if sys.stdout.isatty() else 150), {}
    for wheel in map(Path.absolute, wheels):
        with tempfile.TemporaryDirectory() as folder:
            static = wheel_static.check(wheel, Path(folder), options.architectures)
            least = wheel_static.Wheel(wheel, Path(folder)).least_torch
        row = rows[wheel.name] = {"sha256": digest(wheel), "static": static, "build": build(wheel), "environments": {}}
        if not options.static:
            row["environments"] = earlier(options.report, wheel)
            for torch in torches(wheel, options.torch):
                done = wheel_suite.check(wheel, python_of(wheel), torch, least, shlex.split(options.tests))
                row["environments"][torch] = done
                write(options.report, rows)
        show(wheel.name, row, console)
    return 0 if all(map(passed, rows.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
