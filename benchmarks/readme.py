"""Writes the README's tables from a report of the GPU check, between the README's two bench comments.

python benchmarks/readme.py benchmarks/results/<report>.json README.md
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cudaloss.bench.modes import FEATURES, OWN_FEATURES
from cudaloss.bench.tables import size_text

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
HOST_SIZE = 4096
FAMILY_DTYPES = {"float32": "fp32", "bfloat16": "bf16"}
COLUMNS = ("eager", "compile")  # the rivals that the tables' headers name

Row = dict[str, Any]
Cell = Callable[[list[Row]], str]  # of the rows of one loss; empty where there is nothing to say


def select(rows: list[Row], **fields: Any) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in fields.items())]


def largest(rows: list[Row], **fields: Any) -> Row | None:
    return max(select(rows, **fields), key=lambda row: row["size"], default=None)


def ratios(row: Row) -> str:
    return ", ".join(f"{row['speedup'][rival]:.2f}x" for rival in COLUMNS if rival in row["speedup"])


def training(mode: str, dtype: str, size: int | None) -> Cell:
    def cell(rows: list[Row]) -> str:
        row = largest(rows, suite="training", mode=mode, dtype=dtype, size=size)
        return ratios(row) if row else ""

    return cell


def host(mode: str, of: str) -> Cell:
    def cell(rows: list[Row]) -> str:
        row = largest(rows, suite="latency", mode=mode, dtype="float32", size=HOST_SIZE)
        if not row or of not in row["seconds"]:
            return ""
        ours = row["seconds"][of]["median"]
        eager = row["seconds"].get("eager")
        return f"{ours * 1e6:.1f} us" + (f": {eager['median'] / ours:.2f}x" if eager else "")

    return cell


def replay(rows: list[Row]) -> str:
    found = [row["speedup"]["eager"] for row in select(rows, suite="graph") if "eager" in row["speedup"]]
    return f"{min(found):.2f}x to {max(found):.2f}x" if found else ""


def peak(rows: list[Row]) -> str:
    row = largest(rows, suite="memory", mode="step", dtype="float32")
    if not row:
        return ""
    peaks = {name: f"{peak / row['size']:.1f}" for name, peak in row["peak_bytes"].items()}
    others = ", ".join(f"{name} {peak}" for name, peak in peaks.items() if name != "cudaloss")
    return f"{peaks['cudaloss']} ({others})" if others else peaks["cudaloss"]


def lines(rows: list[Row]) -> dict[str, Cell]:
    """The second table's lines by title."""
    at = {suite: sorted({row["size"] for row in select(rows, suite=suite)}) for suite in ("training", "graph")}
    size = at["training"][-1] if at["training"] else None
    step = f"training, {size_text(size)}" if size else "training"
    span = f", {size_text(at['graph'][0])} to {size_text(at['graph'][-1])}" if at["graph"] else ""
    call = f"host, {HOST_SIZE:,} elements"
    return {
        f"{step}: fp32": training("step", "float32", size),
        f"{step}: bf16": training("step", "bfloat16", size),
        f"{step}: bf16 input, fp32 target, autocast": training("step", "bfloat16/float32", size),
        f"{step}: fp32, loss scaled": training("scaled", "float32", size),
        f"{step}: fp32, misaligned slices": training("misaligned", "float32", size),
        f"{call}: function": host("forward", "cudaloss"),
        f"{call}: the op": host("forward", "op"),
        f"{call}: training step": host("step", "cudaloss"),
        f"forward in a CUDA graph{span}": replay,
        "peak memory of a training step, fp32, bytes an element": peak,
    }


def markdown(header: list[str], body: list[list[str]]) -> str:
    rule = ["---"] * len(header)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [header, rule, *body])


def kernelbench_table(rows: list[Row]) -> str | None:
    found = select(rows, suite="kernelbench")
    if not found:
        return None
    body = []
    for problem, loss in dict.fromkeys((row["problem"], row["loss"]) for row in found):
        cells, of_problem = [], select(found, problem=problem)
        size = max(row["size"] for row in of_problem)
        shape = " x ".join(map(str, select(of_problem, size=size)[0]["shape"]))
        for mode in ("forward", "step"):
            row = largest(of_problem, size=size, mode=mode)
            text = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in row["speedup"].items()) if row else ""
            cells.append(f"{row['seconds']['cudaloss']['median'] * 1e3:.2f} ms: {text}" if row else "")
        body.append([f"problem {problem}, {loss}, {shape}", *cells])
    return markdown(["KernelBench, fp32", "forward", "forward + backward"], body)


def losses_table(rows: list[Row]) -> str | None:
    found = [row for row in rows if row["suite"] in ("training", "latency", "graph", "memory")]
    by_loss = {loss: select(found, loss=loss) for loss in dict.fromkeys(row["loss"] for row in found)}
    body = [[title, *(cell(of) for of in by_loss.values())] for title, cell in lines(found).items()]
    body = [line for line in body if any(line[1:])]
    names = [loss.replace("binary_cross_entropy", "bce") for loss in by_loss]  # as wide a column as the others
    return markdown(["times as fast as eager, as compile", *names], body) if body else None


def _times(row: Row) -> list[str]:
    ratios = (f"{row['speedup'][rival]:.2f}x" if rival in row["speedup"] else "" for rival in COLUMNS)
    return [f"{row['seconds']['cudaloss']['median'] * 1e3:.2f}", *ratios]


def family_table(rows: list[Row]) -> str | None:
    """The losses that have fewer kernels, at the largest size: what each is to eager and to compile."""
    found = select(rows, suite="family")
    first = largest(found)
    if not first:
        return None
    body = []
    for loss in dict.fromkeys(row["loss"] for row in found):
        of_loss = select(found, loss=loss, size=first["size"])
        cells = [largest(of_loss, mode=mode, dtype=dtype) for mode in ("forward", "step") for dtype in FAMILY_DTYPES]
        share = f"{cells[2]['of_ceiling']:.2f}" if cells[2] and "of_ceiling" in cells[2] else ""
        body.append([loss, *(ratios(cell) if cell else "" for cell in cells), share])
    titles = [f"{title} {dtype}" for title in ("forward", "training") for dtype in FAMILY_DTYPES.values()]
    header = [f"times as fast as eager, as compile, {size_text(first['size'])}", *titles, "of `torch.add`'s throughput"]
    return markdown(header, body)


def features_table(rows: list[Row]) -> str | None:
    """Of one loss at the largest size."""
    own = [mode.name for mode in OWN_FEATURES]
    rows = [row for row in select(rows, suite="features") if row["mode"] not in own]
    first = largest(rows)
    if not first:
        return None
    meanings = {mode.name: mode.meaning for mode in FEATURES}
    found = select(rows, loss=first["loss"], size=first["size"])
    body = [[f"{row['mode']}: {meanings.get(row['mode'], row['dtype'])}", *_times(row)] for row in found]
    shape = " x ".join(map(str, first["shape"]))
    return markdown([f"{first['loss']}, forward + backward, {shape}", "ms", "x eager", "x compile"], body)


def own_features_table(rows: list[Row]) -> str | None:
    """What single losses take of their own, at the largest size, with the share of torch.add's throughput."""
    meanings = {mode.name: mode.meaning for mode in OWN_FEATURES}
    rows = [row for row in select(rows, suite="features") if row["mode"] in meanings]
    first = largest(rows)
    if not first:
        return None
    body = []
    for row in select(rows, size=first["size"]):
        share = f"{row['of_ceiling']:.2f}" if "of_ceiling" in row else ""
        body.append([meanings[row["mode"]], *_times(row), share])
    shape = " x ".join(map(str, first["shape"]))
    header = [f"forward + backward, {shape}", "ms", "x eager", "x compile", "of `torch.add`'s throughput"]
    return markdown(header, body)


def caption(environment: dict[str, Any]) -> str:
    parts = [
        environment.get("gpu") or environment.get("processor"),
        f"torch {environment['torch']}" if environment.get("torch") else None,
        f"CUDA {environment['torch_cuda']}" if environment.get("torch_cuda") else None,
        (environment.get("date") or "")[:10],
        f"`csrc_tree` {environment['csrc_tree'][:12]}" if environment.get("csrc_tree") else None,
    ]
    where = ", ".join(part for part in parts if part)
    return f"{where}: cudaloss against eager PyTorch and `torch.compile` of it, in turns in one process."


def block(report: dict[str, Any]) -> str:
    """What stands between the comments. Tables and lines for which the report has no rows are left out."""
    rows = [row for row in report["bench"]["report"]["rows"] if "skipped" not in row]
    tables = (kernelbench_table, losses_table, family_table, features_table, own_features_table)
    made = [table(rows) for table in tables]
    found = [table for table in made if table]
    if not found:
        raise ValueError("the report has no rows of the suites that the README shows")
    return "\n\n".join([caption(report["environment"]), *found])


def replaced(text: str, new: str) -> str:
    """`text` with what stands between the two comments replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"the text must have {BEGIN} and, after it, {END}, once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("readme", type=Path)
    arguments = parser.parse_args()
    try:
        text = replaced(arguments.readme.read_text(), block(json.loads(arguments.report.read_text())))
    except ValueError as error:
        sys.exit(f"{arguments.readme}, {arguments.report}: {error}")
    arguments.readme.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
