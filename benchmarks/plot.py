"""Draws the figures of README.md and docs/performance.md from a report of the GPU check.

python benchmarks/plot.py benchmarks/results/<report>.json docs
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cudaloss.bench import plots

COURSE = "throughput-cross_entropy-classes.png"
FIGURES = (
    "training.png",
    "kernelbench.png",
    "throughput-smooth_l1-float32.png",
    "speedup-training-float32.png",
    COURSE,
)


def course(rows: list[dict[str, Any]], environment: dict[str, Any]) -> Figure:
    """Throughput of cross-entropy's training step over classes, from benchmarks/rows.py."""
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    title = f"cross_entropy, forward + backward, {plots.place(environment)}"
    figure, axes = plots.new_figure(title, len(dtypes))
    for axis, dtype in zip(axes, dtypes, strict=True):
        axis.set(title=dtype, ylabel="GB/s", xscale="log", xlabel="classes")
        for name, label in (("cudaloss", "cudaloss"), ("eager", "eager"), ("add", "ceiling (torch.add)")):
            points = [(row["classes"], row["gigabytes_per_second"][name]) for row in rows if row["dtype"] == dtype]
            style = (
                {"color": "black", "linestyle": ":"} if name == "add" else {"color": plots.COLOURS[name], "marker": "o"}
            )
            axis.plot(*zip(*points, strict=True), label=label, markersize=3, **style)
        axis.set_ylim(bottom=0)
    return plots.with_legend(figure, axes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--earlier", type=Path, help="a report for the stages that the first one does not have")
    arguments = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in (arguments.report, arguments.earlier) if path]
    found = {}
    for report in reversed(reports):  # the first one's figures, where it has any, are those that stay
        if "bench" in report:
            found |= plots.figures(report["bench"]["report"]["rows"], report["environment"])
        if "rows" in report:
            found[COURSE] = partial(course, report["rows"]["report"]["course"], report["environment"])
    missing = [name for name in FIGURES if name not in found]
    chosen = {name: found[name] for name in FIGURES if name in found}
    for path in plots.draw(chosen, arguments.folder):
        print(path)
    if missing:
        print(f"the report has no rows for {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
