"""Rows as text: a table for each suite, the skipped rows, and where cudaloss is slower than eager PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from .cases import Row
from .rivals import RIVALS

TITLES = {
    "forward": "forward without grad, time on the device",
    "training": "forward and backward of a mean, time on the device",
    "family": "forward, and forward and backward, of a mean, time on the device",
    "kernelbench": "KernelBench's problems 94, 96, 98 and 100, time on the device",
    "latency": "the host's time for one call",
    "graph": "forward under CUDA graph replay, the GPU's time for one call",
    "features": "forward and backward of what is used beside the plain loss, time on the device",
    "memory": "peak memory of forward and backward above the operands",
    "ceilings": "throughput of simple kernels",
}


def size_text(size: int) -> str:
    return f"2^{size.bit_length() - 1}" if size & (size - 1) == 0 else f"{size:,}"


def label(row: Row) -> str:
    """The content of a row, in a line."""
    words = [row[key] for key in ("suite", "loss", "mode", "dtype") if key in row]
    return " ".join([*words, size_text(row["size"])] if "size" in row else words)


def _microseconds(seconds: float) -> str:
    found = seconds * 1e6
    return f"{found:.2f}" if found < 100 else f"{found:.1f}" if found < 1000 else f"{found:.0f}"


def _time_text(timing: dict[str, float]) -> str:
    median, p20, p80 = (_microseconds(timing[key]) for key in ("median", "p20", "p80"))
    return f"{median} ({p20}\u2013{p80})"


def _table(suite: str, *columns: str) -> Table:
    result = Table(title=f"{suite}: {TITLES[suite]}")
    for name in ("loss", "mode", "dtype"):
        result.add_column(name)
    for name in ("size, elements", *columns):
        result.add_column(name, justify="right")
    return result


def _what(row: Row) -> tuple[str, str, str, str]:
    return row["loss"], row["mode"], row["dtype"], size_text(row["size"])


def _names(rows: list[Row], key: str) -> list[str]:
    """The contestants of all rows, in order of appearance."""
    return list(dict.fromkeys(name for row in rows for name in row[key]))


def times_table(rows: list[Row]) -> Table:
    names, has_rate = _names(rows, "seconds"), any("bytes" in row for row in rows)
    rivals = [name for name in RIVALS if name in names]
    rates = ("GB/s", "of ceiling, %") if has_rate else ()
    speeds = (f"times as fast as {name}" for name in rivals)
    result = _table(rows[0]["suite"], *(f"{name}, us" for name in names), *speeds, *rates)
    for row in rows:
        times = [_time_text(row["seconds"][name]) if name in row["seconds"] else "" for name in names]
        speedups = [f"{row['speedup'][name]:.2f}" if name in row["speedup"] else "" for name in rivals]
        reached = f"{100 * row['of_ceiling']:.0f}" if "of_ceiling" in row else ""
        cells = (f"{row['gigabytes_per_second']['cudaloss']:.1f}", reached) if has_rate else ()
        result.add_row(*_what(row), *times, *speedups, *cells)
    return result


def memory_table(rows: list[Row]) -> Table:
    names = _names(rows, "peak_bytes")
    result = _table("memory", *(f"{name}, bytes an element" for name in names))
    for row in rows:
        peaks = row["peak_bytes"]
        result.add_row(*_what(row), *(f"{peaks[name] / row['size']:.2f}" if name in peaks else "" for name in names))
    return result


def ceilings_table(rows: list[Row]) -> Table:
    names = _names(rows, "gigabytes_per_second")
    result = Table(
        "dtype", "size, elements", *(f"{name}, GB/s" for name in names), title=f"ceilings: {TITLES['ceilings']}"
    )
    for row in rows:
        rates = row["gigabytes_per_second"]
        result.add_row(row["dtype"], size_text(row["size"]), *(f"{rates[name]:.1f}" for name in names))
    return result


def tables(rows: list[Row]) -> Iterator[Table]:
    """A table for each suite that measured something."""
    special = {"memory": memory_table, "ceilings": ceilings_table}
    for suite in dict.fromkeys(row["suite"] for row in rows):
        measured = [row for row in rows if row["suite"] == suite and "skipped" not in row]
        if measured:
            yield special.get(suite, times_table)(measured)


def remarks(rows: list[Row]) -> Iterator[str]:
    """Why rows, or contestants, are missing."""
    for row in rows:
        for reason in [row["skipped"]] if "skipped" in row else row.get("notes", []):
            yield f"{label(row)}: {'skipped, ' if 'skipped' in row else ''}{reason}"


def slower(rows: list[Row], how: str) -> list[Row]:
    return [row for row in rows if row.get("slower") == how]


def verdict(rows: list[Row]) -> Iterator[str]:
    """Every row in which cudaloss is slower than eager PyTorch."""
    compared = [row for row in rows if "slower" in row]
    if not compared:
        yield "nothing was compared with eager"
        return
    beyond, within = slower(compared, "beyond noise"), slower(compared, "within noise")
    if not beyond:
        yield f"never slower than eager beyond noise, in {len(compared)} rows"
    if beyond or within:
        yield "slower than eager (within noise: the intervals p20 to p80 overlap):"
    for row in [*beyond, *within]:
        yield f"  {row['speedup']['eager']:.2f}x  {row['slower']:12}  {label(row)}"
