"""Writes the tables of the README and of docs/performance.md from a report of the GPU check, between two comments.

python benchmarks/readme.py benchmarks/results/<report>.json README.md docs/performance.md [--earlier REPORT]
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
COLUMNS = ("eager", "compile")  # the rivals in the tables' headers
RATIOS = "speed-up over eager, over compile"
# The losses in the README's table: common ones, and some that are slow.
SHOWN = (
    "smooth_l1",
    "mse",
    "binary_cross_entropy_with_logits",
    "quantile",
    "kl_div",
    "poisson_nll",
    "gaussian_nll",
    "sigmoid_focal",
    "varifocal",
)

Row = dict[str, Any]
Cell = Callable[[list[Row]], str]  # from the rows of one loss; empty if there is nothing to show


def select(rows: list[Row], **fields: Any) -> list[Row]:
    return [row for row in rows if all(row.get(key) == value for key, value in fields.items())]


def largest(rows: list[Row], **fields: Any) -> Row | None:
    return max(select(rows, **fields), key=lambda row: row["size"], default=None)


def ratios(row: Row) -> str:
    return ", ".join(f"{row['speedup'][rival]:.2f}x" for rival in COLUMNS if rival in row["speedup"])


def of_row(text: Callable[[Row], str], **fields: Any) -> Cell:
    """The largest row with those fields, as text."""

    def cell(rows: list[Row]) -> str:
        row = largest(rows, **fields)
        return text(row) if row else ""

    return cell


def of_add(row: Row) -> str:
    return f"{row['of_ceiling']:.2f}" if "of_ceiling" in row else ""


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


# The tables with a line for each loss: the columns by title.
SPEED: dict[str, Cell] = {
    "forward fp32": of_row(ratios, mode="forward", dtype="float32"),
    "forward bf16": of_row(ratios, mode="forward", dtype="bfloat16"),
    "training fp32": of_row(ratios, mode="step", dtype="float32"),
    "training bf16": of_row(ratios, mode="step", dtype="bfloat16"),
    "training fp32, of `torch.add`'s throughput": of_row(of_add, mode="step", dtype="float32"),
}
TRAINING: dict[str, Cell] = {
    "bf16 input, fp32 target, autocast": of_row(ratios, mode="step", dtype="bfloat16/float32"),
    "fp32, loss scaled": of_row(ratios, mode="scaled", dtype="float32"),
    "fp32, misaligned slices": of_row(ratios, mode="misaligned", dtype="float32", suite="training"),
}
CALLS: dict[str, Cell] = {
    "function": host("forward", "cudaloss"),
    "the op": host("forward", "op"),
    "training step": host("step", "cudaloss"),
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


def losses_table(rows: list[Row], title: str, columns: dict[str, Cell]) -> str | None:
    """A line for each loss, with `columns`; losses with nothing to show are left out."""
    by_loss = {loss: select(rows, loss=loss) for loss in dict.fromkeys(row["loss"] for row in rows)}
    said = {name: cell for name, cell in columns.items() if any(cell(found) for found in by_loss.values())}
    body = [[loss, *(cell(found) for cell in said.values())] for loss, found in by_loss.items()]
    body = [line for line in body if any(line[1:])]
    return markdown([title, *said], body) if body else None


def speed_table(rows: list[Row], columns: dict[str, Cell] = SPEED, title: str = RATIOS) -> str | None:
    """Speeds only at the largest size: at others the caches and the host count too."""
    found = [row for row in rows if row["suite"] in ("forward", "training", "family")]
    size = max((row["size"] for row in found), default=0)
    return losses_table(select(found, size=size), f"{title}, {size_text(size)} elements", columns)


def shown_table(rows: list[Row]) -> str | None:
    return speed_table([row for row in rows if row.get("loss") in SHOWN])


def training_table(rows: list[Row]) -> str | None:
    return speed_table(rows, TRAINING, f"training: {RATIOS}")


def calls_table(rows: list[Row]) -> str | None:
    found = select(rows, suite="latency")
    return losses_table(found, f"host's time of a call on {HOST_SIZE:,} elements, times as fast as eager", CALLS)


def small_table(rows: list[Row]) -> str | None:
    found = [row for row in rows if row["suite"] in ("graph", "memory")]
    sizes = sorted(row["size"] for row in select(found, suite="graph"))
    span = f", {size_text(sizes[0])} to {size_text(sizes[-1])} elements" if sizes else ""
    columns = {f"forward in a CUDA graph{span}: times as fast as eager": replay, "peak memory of a training step": peak}
    return losses_table(found, "fp32; memory in bytes an element", columns)


def _times(row: Row) -> list[str]:
    ratios = (f"{row['speedup'][rival]:.2f}x" if rival in row["speedup"] else "" for rival in COLUMNS)
    return [f"{row['seconds']['cudaloss']['median'] * 1e3:.2f}", *ratios]


def features_table(rows: list[Row]) -> str | None:
    """Features of one loss at the largest size."""
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
    """Single losses' own features, at the largest size, with the share of torch.add's throughput."""
    meanings = {mode.name: mode.meaning for mode in OWN_FEATURES}
    rows = [row for row in select(rows, suite="features") if row["mode"] in meanings]
    first = largest(rows)
    if not first:
        return None
    body = []
    for row in select(rows, size=first["size"]):
        body.append([meanings[row["mode"]], *_times(row), of_add(row)])
    shape = " x ".join(map(str, first["shape"]))
    header = [f"forward + backward, {shape}", "ms", "x eager", "x compile", "of `torch.add`'s throughput"]
    return markdown(header, body)


def loss_of(row: Row) -> str:
    """The function that a case of benchmarks/rows.py calls: its name comes first, where it is not cross_entropy."""
    return row["case"].partition("(")[0].strip() or "cross_entropy"


def cases_table(what: str, cases: list[Row]) -> str:
    body = [
        [
            f"{row['case']}",
            f"{row['ms']['cudaloss']:.3f}",
            *(f"{row['ratio'][rival]:.2f}x" if rival in row["ratio"] else "" for rival in COLUMNS),
            str(row["gigabytes_per_second"]),
        ]
        for row in cases
    ]
    return markdown([what, "ms", "x eager", "x compile", "GB/s"], body)


def rows_table(report: dict[str, Any]) -> str | None:
    """Of benchmarks/rows.py, if the report has it."""
    if "rows" not in report:
        return None
    found = report["rows"]["report"]
    times = ", ".join(f"`{name}` {times:.2f}" for name, times in found["times_of_plain"].items())
    own = f"The loss's own arguments at the first shape, times of the plain step: {times}."
    small = found["small_times_of_eager"]
    ways = [way for way in small[0] if way != "case"]
    cells = [[row["case"], *(f"{row[way]:.2f}" for way in ways)] for row in small]
    cases = cases_table("`cross_entropy`, forward + backward, unless said", found["cases"])
    return "\n\n".join([cases, own, markdown(["our time over eager's", *ways], cells)])


def overlap_table(report: dict[str, Any]) -> str | None:
    """Of benchmarks/overlap.py, if the report has it."""
    if "overlap" not in report:
        return None
    body = []
    for name, found in report["overlap"]["report"]["ms"].items():
        ways = (found["step"], found["forward"])
        times = [
            [f"{of['ours']:.3f}", *(f"{of[way] / of['ours']:.2f}x" for way in ("eager", "compiled"))] for of in ways
        ]
        body.append(
            [name, *times[0], *times[1], ", ".join(f"{found['MiB'][way]}" for way in ("ours", "eager", "compiled"))]
        )
    rivals = ["x eager", "x compile"]
    header = ["as called", "step, ms", *rivals, "forward, ms", *rivals, "MiB beside the gradient: ours, eager, compile"]
    return markdown(header, body)


def endtoend_tables(report: dict[str, Any]) -> str | None:
    """Of benchmarks/endtoend.py, if the report has it with the optimizer's step."""
    found = report.get("endtoend", {}).get("report") or {}
    if not found.get("steps"):
        return None
    lead = (
        "Whole training steps (forward, loss, backward, optimizer) under bfloat16 autocast. The first line of each "
        "table is the loss as people write it. A loss can save no more than its own share of the step; "
        "that of a `linear_` loss includes the head."
    )
    tables = []
    for name, text in found["steps"].items():
        first = next(iter(found[name].values()))["ms"]
        body = [
            [loss, f"{row['ms']:.1f}", f"{first / row['ms']:.2f}x", f"{row['MiB']:,}" if row["MiB"] else ""]
            for loss, row in found[name].items()
        ]
        tables.append(markdown([text, "ms", "x the first", "peak, MiB"], body))
    return "\n\n".join([lead, *tables])


def caption(environment: dict[str, Any]) -> str:
    parts = [
        environment.get("gpu") or environment.get("processor"),
        f"torch {environment['torch']}" if environment.get("torch") else None,
        f"CUDA {environment['torch_cuda']}" if environment.get("torch_cuda") else None,
        (environment.get("date") or "")[:10],
        f"`csrc_tree` {environment['csrc_tree'][:12]}" if environment.get("csrc_tree") else None,
    ]
    where = ", ".join(part for part in parts if part)
    return f"{where}: cudaloss against eager PyTorch and `torch.compile` of it, alternately in one process."


README = (kernelbench_table, shown_table)
PERFORMANCE = (
    kernelbench_table,
    speed_table,
    training_table,
    calls_table,
    small_table,
    features_table,
    own_features_table,
)


OF_STAGES = (rows_table, overlap_table, endtoend_tables)


def block(
    report: dict[str, Any],
    tables: tuple[Callable[[list[Row]], str | None], ...] = PERFORMANCE,
    earlier: dict[str, Any] | None = None,
) -> str:
    """The text between the comments, without tables and lines for which the report has no rows. The tables that only
    an earlier report has are below that one's caption."""
    own = made(report, tables)
    older = {table: text for table, text in made(earlier, tables).items() if table not in own} if earlier else {}
    if not own and not older:
        raise ValueError("the report has no rows of the suites that are shown")
    text = [caption(report["environment"]), *own.values()] if own else []
    if earlier and older:
        text += [caption(earlier["environment"]), *older.values()]
    return "\n\n".join(text)


def made(report: dict[str, Any], tables: tuple[Callable[[list[Row]], str | None], ...]) -> dict[Any, str]:
    """The tables for which a report has rows."""
    measured = report["bench"]["report"]["rows"] if "bench" in report else []
    rows = [row for row in measured if "skipped" not in row]
    of_stages = OF_STAGES if tables is PERFORMANCE else ()
    found = {**{table: table(rows) for table in tables}, **{table: table(report) for table in of_stages}}
    return {table: text for table, text in found.items() if text}


def replaced(text: str, new: str) -> str:
    """`text` with the part between the two comments replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"the text must have {BEGIN} and, after it, {END}, once each")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{new}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("readme", type=Path)
    parser.add_argument("performance", type=Path, nargs="?", help="the page that has every table")
    parser.add_argument("--earlier", type=Path, help="a report for the stages that the first one does not have")
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    earlier = json.loads(arguments.earlier.read_text()) if arguments.earlier else None
    for page, tables in ((arguments.readme, README), (arguments.performance, PERFORMANCE)):
        if page is None:
            continue
        try:
            text = replaced(page.read_text(), block(report, tables, earlier))
        except ValueError as error:
            sys.exit(f"{page}, {arguments.report}: {error}")
        page.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
