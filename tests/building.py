"""Shared code of the build's tests: stand-ins for compilers, setup.py in a process, and the page with its messages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "building.md").read_text(encoding="utf-8")
# Of the page's table: a message as code, with ... for what differs, and what to do.
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", PAGE, re.MULTILINE)


def documented(message: str) -> str:
    """The message, on one line, which a row of docs/building.md must show."""
    line = " ".join(message.split())
    patterns = [".*?".join(re.escape(part) for part in row.split("...")) for row, _ in ROWS]
    assert any(re.search(pattern, line) for pattern in patterns), f"no row of docs/building.md shows: {line}"
    return line


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def nvcc(folder: Path, version: str = "12.8", codes: str = "", options: str = "", top: Path | None = None) -> Path:
    """A folder with an nvcc that answers like one of `version`."""
    answers = {
        "--version": f"Cuda compilation tools, release {version}, V0",
        "--list-gpu-code": codes,
        "--help": options,
    }
    cases = "".join(f"{option}) echo '{answer}';;\n" for option, answer in answers.items())
    dryrun = f"--dryrun) echo '#$ TOP={top}' >&2;;\n" if top else ""
    program(folder / "bin" / "nvcc", f'case "$1" in\n{cases}{dryrun}esac')
    return folder


def stopped(call: Callable[..., object], *arguments: object) -> str:
    """The message with which the build ends."""
    with pytest.raises(SystemExit) as raised:
        call(*arguments)
    return documented(str(raised.value))


def run_setup(before: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """setup.py in a process of its own, after the Python `before`."""
    code = f"import runpy, sys, setuptools\n{before}\nsys.argv = {['setup.py', *arguments]}\n"
    code += "runpy.run_path('setup.py', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
    )
