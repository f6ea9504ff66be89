"""Checks the jobs of ``jobs.py`` and times their ops on KernelBench's inputs.

Every job must give the reference's results on random draws of the benchmark's inputs, and show what it promises beyond
them (``checks.py``). Then ModelNew, the reference and torch.compile of the reference are timed in turns in this
process, and beside them what memory gives simpler kernels. The exit status is 1 if a check fails. Needs rich::

    python examples/kernelbench/run.py
    python examples/kernelbench/run.py --shape 1000 1001 --device cpu --no-compile --json kernelbench.json

The default shapes are the benchmark's on a GPU, from 32768 x 4096 of 95 to 32768 x 32768 of 94, 96 and 100 (4 GiB a
tensor), and 2048 x 2048 on the CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch
from checks import Comparison, Finding, compare, summarise
from jobs import JOBS, Job
from problems import PROBLEMS, Problem
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from timing import Pass, Timed, ceilings, time_losses

import cudaloss

CPU_SHAPE = (2048, 2048)
PASSED = {True: "ok", False: "FAILED", None: "not checked"}

Draws = dict[str, Comparison]  # by the draw's name
Timings = dict[Problem, dict[Pass, Timed]]


def compare_draws(problem: Problem, draws: int, seed: int, device: torch.device) -> dict[str, Draws]:
    """For each reduction that a job of `problem` needs: ModelNew's and the reference's errors on each draw."""
    reductions = sorted({reduction for job in JOBS if job.problem is problem for reduction in job.reductions})
    found: dict[str, Draws] = {reduction: {} for reduction in reductions}
    for i in range(draws):
        inputs = problem.draw(device, seed + i)
        for reduction in reductions:
            found[reduction][f"draw {i + 1}"] = compare(problem, inputs, reduction)
        del inputs  # before the next draw comes: on the benchmark's shape one takes 8 GiB
    return found


def check_job(job: Job, draws: dict[str, Draws], device: torch.device) -> list[Finding]:
    on_draws = [summarise(f"{len(draws[r])} draws, {r}", draws[r]) for r in job.reductions]
    return on_draws + [check(job.problem, job.reductions, device) for check in job.shows]


def check_all(draws: int, seed: int, device: torch.device, console: Console) -> dict[str, list[Finding]]:
    findings = {}
    with console.status("drawing and comparing with float64") as status:
        by_problem = {problem: compare_draws(problem, draws, seed, device) for problem in PROBLEMS}
        for job in JOBS:
            status.update(f"checking job ({job.letter})")
            findings[job.letter] = check_job(job, by_problem[job.problem], device)
    return findings


def time_all(
    seed: int, rounds: int, with_compile: bool, device: torch.device, console: Console
) -> tuple[Timings, dict[str, float]]:
    timings: Timings = {}
    inputs: list[torch.Tensor] = []
    for problem in PROBLEMS:
        with console.status(f"timing {problem.name}"):
            inputs = []  # the last problem's go before the next's come
            inputs = problem.draw(device, seed)
            timings[problem] = time_losses(problem, inputs, device, rounds, with_compile)
    return timings, ceilings(inputs[0], device, rounds)


def job_table(findings: dict[str, list[Finding]]) -> Table:
    table = Table("job", "check", "", "detail", title="Jobs; errors in ulps of float32, worst of all elements")
    for job in JOBS:
        table.add_section()
        table.add_row(f"({job.letter})", f"[bold]{job.problem.name}[/]", "", f"[bold]{job.statement}[/]")
        for finding in findings[job.letter]:
            table.add_row("", finding.check, PASSED[finding.passed], escape(finding.detail))
    return table


def timing_table(timings: Timings) -> Table:
    table = Table("problem", "pass", "of", title="Time of one call; a ratio above 1 is faster")
    for name in ("ms", "p20 to p80", "vs eager", "vs compile", "GB/s"):
        table.add_column(name, justify="right", no_wrap=True)
    for problem, passes in timings.items():
        for one, (by_loss, moved) in passes.items():
            table.add_section()
            for name, timing in by_loss.items():
                rivals = (by_loss.get("eager"), by_loss.get("torch.compile"))
                ratios = [f"{rival.median / timing.median:.2f}" if rival else "" for rival in rivals]
                spread = f"{timing.p20 * 1e3:.3f} to {timing.p80 * 1e3:.3f}"
                speed = f"{timing.gigabytes_per_second(moved):.1f}"
                table.add_row(problem.name, one.name, name, f"{timing.median * 1e3:.3f}", spread, *ratios, speed)
    return table


def machine(device: torch.device) -> dict[str, Any]:
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if on_gpu else f"{platform.machine()} CPU",
        "peak_gib": torch.cuda.max_memory_allocated(device) / 2**30 if on_gpu else None,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudaloss": cudaloss.__version__,
    }


def timing_records(timings: Timings) -> list[dict[str, Any]]:
    return [
        {
            "problem": problem.name,
            "pass": one.name,
            "of": name,
            "seconds": dataclasses.asdict(timing),
            "gb_per_s": timing.gigabytes_per_second(moved),
        }
        for problem, passes in timings.items()
        for one, (by_loss, moved) in passes.items()
        for name, timing in by_loss.items()
    ]


def job_records(findings: dict[str, list[Finding]]) -> list[dict[str, Any]]:
    return [
        {
            "job": job.letter,
            "problem": job.problem.name,
            "statement": job.statement,
            "findings": [dataclasses.asdict(finding) for finding in findings[job.letter]],
        }
        for job in JOBS
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Check and time cudaloss on KernelBench's problems 94 to 100 but 97, which is attention."
    )
    parser.add_argument(
        "--shape", type=int, nargs=2, help="of the inputs (default: the benchmark's on a GPU, 2048 2048 on the CPU)"
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one")
    parser.add_argument("--draws", type=int, default=5, help="random draws to check (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=30, help="timed calls of each (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first draw (default: %(default)s)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path, help="file to write everything to")
    arguments = parser.parse_args()
    if arguments.draws < 1 or arguments.rounds < 2 or min(arguments.shape or [1]) < 1:
        parser.error("--draws and both numbers of --shape must be at least 1, --rounds at least 2")
    return arguments


def choose_device(name: str) -> torch.device:
    device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)  # where streams, events and graphs are made
    return device


def set_shape(shape: list[int] | None, device: torch.device) -> dict[str, tuple[int, ...]]:
    """Gives all problems the shape asked for; returns those in force."""
    if shape or device.type == "cpu":
        for problem in PROBLEMS:
            problem.reference.SHAPE = tuple(shape or CPU_SHAPE)
    return {problem.name: problem.reference.SHAPE for problem in PROBLEMS}


def main() -> int:
    arguments = parse_arguments()
    started = time.perf_counter()
    device = choose_device(arguments.device)
    shapes = set_shape(arguments.shape, device)
    console = Console()

    findings = check_all(arguments.draws, arguments.seed, device, console)
    console.print(job_table(findings))
    timings, memory = time_all(arguments.seed, arguments.rounds, not arguments.no_compile, device, console)
    console.print(timing_table(timings))
    console.print("ceilings, TB/s: " + ", ".join(f"{name} {speed:.3g}" for name, speed in memory.items()))
    failed = [job for job, found in findings.items() if any(finding.passed is False for finding in found)]
    record = {
        "machine": machine(device),
        "shapes": shapes,
        "draws": arguments.draws,
        "seed": arguments.seed,
        "rounds": arguments.rounds,
        "jobs": job_records(findings),
        "failed": failed,
        "timings": timing_records(timings),
        "ceilings_tb_per_s": memory,
        "seconds": time.perf_counter() - started,
    }
    console.print(", ".join(f"{name}: {shape}" for name, shape in shapes.items()))
    console.print(f"on {record['machine']['device']}, {record['seconds']:.0f} s")
    console.print(f"jobs failed: {', '.join(failed) or 'none'}")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
