"""Runs another project's own tests in this process, and says how each of them ended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class _Recorder:
    def __init__(self) -> None:
        self.found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Reported are setup, call and teardown: each of them can fail a test, setup and call can skip it.
        if report.when == "call" or report.outcome != "passed":
            self.found[report.nodeid] = report.outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            raise pytest.UsageError(str(report.longrepr))  # or all tests of a file would be one that fails with both


def outcomes(folder: Path, *files: str) -> dict[str, str]:
    """How each test ended, by its name: passed, failed or skipped. The project's settings of pytest are not read."""
    recorder = _Recorder()
    options = ["-qq", "--tb=no", "-W", "ignore", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    pytest.main([*options, *(str(folder / file) for file in files)], [recorder])
    return recorder.found
