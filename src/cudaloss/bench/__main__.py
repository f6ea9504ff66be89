"""``python -m cudaloss.bench``: cudaloss beside eager PyTorch and torch.compile."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from . import suites
from .environment import environment

SUITES = ("ceilings", "throughput", "latency", "graph")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cudaloss.bench", description=__doc__)
    parser.add_argument("--suites", nargs="+", choices=SUITES, help="default: all that this machine can run")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64", "float16", "bfloat16"])
    parser.add_argument("--sizes", type=int, nargs="+", metavar="LOG2", help="sizes as powers of two, for every suite")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, help="of the CPU kernels")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--json", type=Path, help="where to write the rows")
    return parser.parse_args()


def rows(arguments: argparse.Namespace) -> Iterator[suites.Row]:
    device, dtype = arguments.device, getattr(torch, arguments.dtype)
    chosen = arguments.suites or [name for name in SUITES if name != "graph" or device == "cuda"]

    def sizes(*default: int) -> list[int]:
        return [1 << power for power in arguments.sizes or default]

    large = 28 if device == "cuda" else 24
    if "ceilings" in chosen:
        yield suites.ceilings(sizes(large)[-1], device, arguments.rounds)
    if "throughput" in chosen:
        yield from suites.throughput(sizes(20, large), dtype, device, not arguments.no_compile, arguments.rounds)
    if "latency" in chosen:
        yield from suites.latency(sizes(6, 12, 16), dtype, device)
    if "graph" in chosen:
        yield from suites.graph(sizes(10, 12, 17, 20, 22), dtype, device)


def table(found: list[suites.Row]) -> Table:
    timed = [row for row in found if "seconds" in row]
    names = list(dict.fromkeys(name for row in timed for name in row["seconds"]))
    result = Table("suite", "loss", "mode", "size", *(f"{n}, us" for n in names), "speed-up", "GB/s", title="cudaloss")
    for row in timed:
        times = [f"{row['seconds'][n]['median'] * 1e6:.1f}" if n in row["seconds"] else "" for n in names]
        speedups = ", ".join(f"{ratio:.2f} {name}" for name, ratio in row["speedup"].items())
        rate = f"{row['gigabytes_per_second']:.0f}" if "gigabytes_per_second" in row else ""
        result.add_row(row["suite"], row["loss"], row["mode"], f"{row['size']:,}", *times, speedups, rate)
    return result


def main() -> None:
    arguments = parse()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    console = Console()
    found = list(track(rows(arguments), description="measuring", console=console))
    for row in found:
        if row["suite"] == "ceilings":
            rates = ", ".join(f"{name} {rate:.0f}" for name, rate in row["gigabytes_per_second"].items())
            console.print(f"ceilings at {row['size']:,} elements, GB/s: {rates}")
    console.print(table(found))
    if arguments.json:
        report = {"environment": environment(), "rows": found}
        arguments.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
