"""Draws the README's figure from a report of the GPU check.

python benchmarks/plot.py benchmarks/results/<report>.json docs/kernelbench.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {"eager": "tab:gray", "torch.compile": "tab:orange", "cudaloss": "tab:blue"}


def draw(report: dict[str, Any], path: Path) -> None:
    kernelbench = report["kernelbench"]["report"]
    timings = kernelbench["timings"]
    problems = list(dict.fromkeys(row["problem"] for row in timings))
    figure, axes = plt.subplots(1, len(problems), figsize=(10, 3.6), sharey=True, layout="constrained")
    for axis, problem in zip(axes, problems, strict=True):
        rows = [row for row in timings if row["problem"] == problem]
        passes = list(dict.fromkeys(row["pass"] for row in rows))
        for offset, (name, colour) in zip((0.27, 0.0, -0.27), COLOURS.items(), strict=True):
            found = {row["pass"]: row["seconds"]["median"] * 1e3 for row in rows if row["of"] == name}
            places = [-index + offset for index in range(len(passes))]
            bars = axis.barh(places, [found[one] for one in passes], height=0.25, color=colour, label=name)
            axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axis.set(title=problem, xlabel="ms", yticks=[-i for i in range(len(passes))], yticklabels=passes)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.12)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLOURS), frameon=False)
    shape = " x ".join(str(size) for size in kernelbench["shape"])
    where = report["environment"]
    figure.suptitle(f"{shape} float32, {where['gpu']}, torch {where['torch']}", fontsize=10)
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("figure", type=Path)
    arguments = parser.parse_args()
    draw(json.loads(arguments.report.read_text()), arguments.figure)


if __name__ == "__main__":
    main()
