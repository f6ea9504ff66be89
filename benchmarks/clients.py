"""Runs other projects' software with cudaloss's losses instead of PyTorch's, and compares: ``make clients``.

Each client (``clients/with_*.py``) runs twice on the CPU, each time in its own process: with PyTorch's losses and
with ours. Losses, gradients and trained parameters must be the same except for rounding, and calls must have gone
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
from readme import markdown, replaced
from torch import Tensor

import cudaloss

ROOT = Path(__file__).resolve().parent.parent
CLIENTS = sorted(path.stem.removeprefix("with_") for path in ROOT.glob("clients/with_*.py"))
# Of a tensor's largest element. It allows for rounding errors of float32, in which some clients compute losses of
# float64 models, and for their growth in training.
BOUND = 1e-6
PAGE = ROOT / "docs" / "clients.md"


def run(client: str, losses: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "results.pt")
        command = [sys.executable, str(ROOT / "clients" / "one.py"), client, losses, str(file)]
        subprocess.run(command, check=True, cwd=folder)
        return torch.load(file)


def difference(theirs: Tensor, ours: Tensor) -> float:
    """The largest difference, over the tensor's largest element; for integers any difference is infinite."""
    if theirs.dtype == ours.dtype and torch.equal(theirs, ours):
        return 0.0
    if theirs.dtype != ours.dtype or theirs.shape != ours.shape or not theirs.is_floating_point():
        return float("inf")
    return ((theirs - ours).abs().max() / theirs.abs().max()).item()


def compared(client: str) -> dict[str, Any]:
    """A row of the table; raises if the results differ, or if no call went through cudaloss."""
    theirs, ours = (run(client, losses) for losses in ("torch", "cudaloss"))
    if not ours["calls"] or theirs["calls"]:
        raise SystemExit(f"{client}: {sum(ours['calls'].values())} calls went through cudaloss")
    if theirs["results"].keys() != ours["results"].keys():
        raise SystemExit(f"{client}: other results: {theirs['results'].keys() ^ ours['results'].keys()}")
    found = {name: difference(x, ours["results"][name]) for name, x in theirs["results"].items()}
    wrong = {name: how for name, how in found.items() if not how <= BOUND}
    if wrong:
        raise SystemExit(f"{client}: differs in {len(wrong)} of {len(found)} results: {dict(list(wrong.items())[:5])}")
    return {
        "client": f"{client.replace('_', '-')} {importlib.metadata.version(client)}",
        "results": len(found),
        "dtypes": ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in theirs["results"].values()})),
        "difference": max(found.values()),
        "calls": ", ".join(f"`{name}` {count}" for name, count in sorted(ours["calls"].items())),
    }


def table(rows: list[dict[str, Any]]) -> str:
    versions = f"torch {torch.__version__}, cudaloss {cudaloss.__version__}, Python {platform.python_version()}"
    header = ["client", "results compared", "dtypes", "largest difference", "calls through cudaloss"]
    body = [[f"{x:.1e}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    return f"{time.strftime('%Y-%m-%d', time.gmtime())}, on a CPU: {versions}.\n\n{markdown(header, body)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", help=f"of {', '.join(CLIENTS)}; all, unless some are named")
    chosen = parser.parse_args().clients or CLIENTS
    rows = []
    for client in chosen:
        rows.append(compared(client))
        print(*rows[-1].values(), sep=", ", flush=True)
    if chosen == CLIENTS:
        PAGE.write_text(replaced(PAGE.read_text(), table(rows)))


if __name__ == "__main__":
    main()
