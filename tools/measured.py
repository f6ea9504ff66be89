"""Runs a command and measures it with all its children: the time, and the most memory that they used at once."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import asdict, dataclass

import psutil

INTERVAL = 0.2  # seconds between two samples; a compiler's memory grows over several


@dataclass(frozen=True)
class Measured:
    code: int
    seconds: float
    peak_gib: float  # the sum of the resident sets, so that shared pages count more than once
    cores: int

    def row(self) -> dict[str, float]:
        return {key: round(value, 2) for key, value in asdict(self).items() if key != "code"}


def resident(process: psutil.Process) -> int:
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.NoSuchProcess:  # ended after it was listed
            continue
    return total


def run(command: list[str], **options) -> Measured:
    start, peak = time.monotonic(), 0
    process = subprocess.Popen(command, **options)
    watched = psutil.Process(process.pid)
    while process.poll() is None:
        try:
            peak = max(peak, resident(watched))
        except psutil.NoSuchProcess:
            break
        time.sleep(INTERVAL)
    code = process.wait()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Measured(code, time.monotonic() - start, peak / 2**30, cores)
