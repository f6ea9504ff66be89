"""Runs other projects' software with cudaloss's losses instead of PyTorch's, and compares: ``make clients``.

Each client (``clients/with_*.py``) runs twice on the CPU, each time in its own process: with PyTorch's losses and
with ours. Losses, gradients and trained parameters must be the same except for rounding. Some clients' own tests
(``clients/tests_of_*.py``) run twice in the same way, and each test must end in the same way. Calls must have gone
through cudaloss. Writes the tables of docs/clients.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from readme import markdown, replaced
from torch import Tensor

import cudaloss

ROOT = Path(__file__).resolve().parent.parent
CLIENTS, TESTED = (
    sorted(path.stem.removeprefix(prefix) for path in ROOT.glob(f"clients/{prefix}*.py"))
    for prefix in ("with_", "tests_of_")
)
assert set(TESTED) <= set(CLIENTS), "clients/tests_of_*.py without a with_*.py"
# Of a tensor's largest element. It allows for rounding errors of float32, in which some clients compute losses of
# float64 models, and for their growth in training.
BOUND = 1e-6
PAGE = ROOT / "docs" / "clients.md"


def run(module: str, losses: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.pt")
        command = [sys.executable, str(ROOT / "clients" / "one.py"), module, losses, str(file)]
        subprocess.run(command, check=True, cwd=folder)
        return torch.load(file)


def with_both(module: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """The results with PyTorch's losses and with ours, and the calls; raises if nothing went through cudaloss."""
    theirs, ours = (run(module, losses) for losses in ("torch", "cudaloss"))
    if not ours["calls"] or theirs["calls"]:
        raise SystemExit(f"{module}: {sum(ours['calls'].values())} calls went through cudaloss")
    if theirs["results"].keys() != ours["results"].keys():
        raise SystemExit(f"{module}: other results: {theirs['results'].keys() ^ ours['results'].keys()}")
    calls = ", ".join(f"`{name}` {count}" for name, count in sorted(ours["calls"].items()))
    return theirs["results"], ours["results"], calls


def refuse(module: str, wrong: dict[str, Any], total: int) -> None:
    if wrong:
        raise SystemExit(f"{module}: differs in {len(wrong)} of {total} results: {dict(list(wrong.items())[:5])}")


def titled(client: str) -> str:
    (distribution,) = set(importlib.metadata.packages_distributions()[client])
    return f"{client.replace('_', '-')} {importlib.metadata.version(distribution)}"


def difference(theirs: Tensor, ours: Tensor) -> float:
    """The largest difference, over the tensor's largest element; for integers any difference is infinite."""
    if theirs.dtype == ours.dtype and torch.equal(theirs, ours):
        return 0.0
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape or not theirs.is_floating_point():
        return float("inf")
    return ((theirs - ours).abs().max() / theirs.abs().max()).item()


def compared(client: str) -> dict[str, Any]:
    """A row of the first table; raises if the results differ."""
    module = f"with_{client}"
    theirs, ours, calls = with_both(module)
    found = {name: difference(x, ours[name]) for name, x in theirs.items()}
    refuse(module, {name: how for name, how in found.items() if not how <= BOUND}, len(found))
    return {
        "client": titled(client),
        "results compared": len(found),
        "dtypes": ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in theirs.values()})),
        "largest difference": max(found.values()),
        "calls through cudaloss": calls,
    }


def tested(client: str) -> dict[str, Any]:
    """A row of the second table; raises if a test ends differently than with PyTorch's losses."""
    module = f"tests_of_{client}"
    theirs, ours, calls = with_both(module)
    refuse(module, {name: (end, ours[name]) for name, end in theirs.items() if end != ours[name]}, len(theirs))
    count = Counter(theirs.values())
    if not count["passed"]:
        raise SystemExit(f"{module}: no test passed")
    return {
        "tests of": titled(client),
        "passed with PyTorch's losses": count["passed"],
        "passed with ours": Counter(ours.values())["passed"],
        "failed with both": count["failed"],
        "skipped": count["skipped"],
        "calls through cudaloss": calls,
    }


def table(rows: list[dict[str, Any]]) -> str:
    body = [[f"{x:.1e}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    return markdown(list(rows[0]), body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(CLIENTS)}; all, unless some are named")
    chosen = parser.parse_args().clients or CLIENTS
    if unknown := set(chosen) - set(CLIENTS):
        parser.error(f"no such client: {', '.join(sorted(unknown))}")
    tables: list[list[dict[str, Any]]] = []
    for row, clients in ((compared, CLIENTS), (tested, TESTED)):
        tables.append([])
        for client in clients:
            if client in chosen:
                tables[-1].append(row(client))
                print(*tables[-1][-1].values(), sep=", ", flush=True)
    if chosen == CLIENTS:
        versions = f"torch {torch.__version__}, cudaloss {cudaloss.__version__}, Python {platform.python_version()}"
        head = f"{time.strftime('%Y-%m-%d', time.gmtime())}, on a CPU: {versions}."
        PAGE.write_text(replaced(PAGE.read_text(), "\n\n".join([head, *map(table, tables)])))


if __name__ == "__main__":
    main()
