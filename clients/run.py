"""Runs other projects' software with cudaloss's losses in the place of PyTorch's, and compares: ``make clients``.

Each client runs twice on the CPU, each time in a process of its own: with PyTorch's losses and with ours
(``swap.py``). Losses, gradients and trained parameters must be the same but for rounding, and calls must have gone
through cudaloss. Writes the table of docs/clients.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

HERE = Path(__file__).resolve().parent
CLIENTS = sorted(path.stem.removeprefix("with_") for path in HERE.glob("with_*.py"))
# Of a tensor's largest element: rounding errors of float32, in which some clients compute losses of float64 models, and
# what training makes of them.
BOUND = 1e-6
PAGE = HERE.parent / "docs" / "clients.md"
BEGIN, END = "<!-- clients:begin -->\n", "<!-- clients:end -->\n"


def run(client: str, losses: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.pt")
        subprocess.run([sys.executable, str(HERE / "one.py"), client, losses, str(file)], check=True, cwd=folder)
        return torch.load(file)


def difference(theirs: Tensor, ours: Tensor) -> float:
    """The largest, of their largest element."""
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
        return float("inf")
    largest = theirs.double().abs().max().item() if theirs.numel() else 0.0
    if torch.equal(theirs, ours) or largest == 0.0:
        return 0.0 if torch.equal(theirs, ours) else float("inf")
    return (theirs.double() - ours.double()).abs().max().item() / largest


def compared(client: str) -> dict[str, Any]:
    """A row of the table; raises where the results differ, or where nothing went through cudaloss."""
    start = time.monotonic()
    theirs, ours = (run(client, losses) for losses in ("torch", "cudaloss"))
    if not ours["calls"] or theirs["calls"]:
        raise SystemExit(f"{client}: {sum(ours['calls'].values())} calls went through cudaloss")
    if theirs["results"].keys() != ours["results"].keys():
        raise SystemExit(f"{client}: other results: {theirs['results'].keys() ^ ours['results'].keys()}")
    found = {name: (difference(x, ours["results"][name]), x.dtype) for name, x in theirs["results"].items()}
    wrong = {
        name: how for name, (how, dtype) in found.items() if not how <= (BOUND if dtype.is_floating_point else 0.0)
    }
    if wrong:
        raise SystemExit(f"{client}: differs in {len(wrong)} of {len(found)} results: {dict(list(wrong.items())[:5])}")
    return {
        "client": client.replace("_", "-"),
        "version": importlib.metadata.version(client),
        "results": len(found),
        "dtypes": ", ".join(sorted({str(dtype).removeprefix("torch.") for _, dtype in found.values()})),
        "difference": max(how for how, _ in found.values()),
        "calls": ours["calls"],
        "seconds": time.monotonic() - start,
    }


def table(rows: list[dict[str, Any]]) -> str:
    import cudaloss

    versions = f"torch {torch.__version__}, cudaloss {cudaloss.__version__}, Python {platform.python_version()}"
    lines = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, on a CPU: {versions}.\n",
        "| client | results compared | dtypes | largest difference | calls through cudaloss |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        calls = ", ".join(f"`{name}` {count}" for name, count in sorted(row["calls"].items()))
        how = f"{row['difference']:.1e}" if row["difference"] else "none"
        lines.append(f"| {row['client']} {row['version']} | {row['results']} | {row['dtypes']} | {how} | {calls} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(CLIENTS)}; all, unless some are named")
    chosen = parser.parse_args().clients or CLIENTS
    console, rows = Console(), []
    for client in chosen:
        rows.append(compared(client))
        row = rows[-1]
        console.print(
            f"{client}: {row['results']} results, {row['difference']:.1e}, {row['calls']}, {row['seconds']:.0f} s"
        )
    if chosen == CLIENTS:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main()
