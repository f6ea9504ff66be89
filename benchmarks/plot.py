"""Draws the figures of README.md and docs/performance.md from a report of the GPU check.

python benchmarks/plot.py benchmarks/results/<report>.json docs
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cudaloss.bench import plots

FIGURES = ("training.png", "kernelbench.png", "throughput-smooth_l1-float32.png", "speedup-training-float32.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    found = plots.figures(report["bench"]["report"]["rows"], report["environment"])
    missing = [name for name in FIGURES if name not in found]
    chosen = {name: found[name] for name in FIGURES if name in found}
    for path in plots.draw(chosen, arguments.folder):
        print(path)
    if missing:
        print(f"the report has no rows for {', '.join(missing)}", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
