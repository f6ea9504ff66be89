"""Figures of a report's rows. Needs matplotlib, and is imported only if figures are wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .cases import Row
from .modes import FORWARD, STEP
from .rivals import RIVALS

COLOURS = {
    "cudaloss": "tab:blue",
    "eager": "tab:gray",
    "compile": "tab:orange",
    "torchvision": "tab:green",
    "liger_kernel": "tab:red",
}
LABELS = {name: name for name in COLOURS} | {"compile": "torch.compile"}
PLAIN = {"forward": FORWARD.name, "training": STEP.name}  # the mode that a suite's figures show over sizes
CEILING_OF = {"forward": "sum", "training": "add"}
# One of each kind, for the README's picture.
TYPICAL = ("mse", "smooth_l1", "binary_cross_entropy_with_logits", "kl_div", "quantile", "sigmoid_focal")


def place(environment: dict[str, Any]) -> str:
    """The device and the torch, for titles."""
    return f"{environment['gpu'] or environment['processor']}, torch {environment['torch']}"


def new_figure(title: str, axes: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    figure.suptitle(title, fontsize=10)
    places = list(figure.subplots(1, axes, sharey=True, squeeze=False)[0])
    for axis in places:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, places


def with_legend(figure: Figure, axes: list[Axes]) -> Figure:
    found = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(list(found.values()), list(found), loc="outside lower center", ncols=len(found), frameon=False)
    return figure


def _by_size(axis: Axes, points: dict[int, float], **style: Any) -> None:
    sizes = sorted(points)
    if sizes:
        axis.plot(sizes, [points[size] for size in sizes], marker="o", markersize=3, **style)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("elements")


def _measured(rows: list[Row], suite: str) -> list[Row]:
    found = [row for row in rows if row["suite"] == suite and "skipped" not in row]
    return [row for row in found if row["mode"] == PLAIN[suite]] if suite in PLAIN else found


def _plain(rows: list[Row], dtype: str) -> dict[str, list[Row]]:
    """The rows in the plain mode, by suite, if there are any."""
    found = {suite: [row for row in _measured(rows, suite) if row["dtype"] == dtype] for suite in PLAIN}
    return {suite: group for suite, group in found.items() if group}


def _rates(rows: list[Row], loss: str, dtype: str, where: str) -> Figure:
    """GB/s of every contestant over sizes, and the ceiling."""
    suites = _plain(rows, dtype)
    ceilings = [row["gigabytes_per_second"] for row in _measured(rows, "ceilings")]
    figure, axes = new_figure(f"{loss}, {dtype}, {where}", len(suites))
    for axis, (suite, group) in zip(axes, suites.items(), strict=True):
        axis.set(title=suite, ylabel="GB/s")
        for name, colour in COLOURS.items():
            found = {row["size"]: row["gigabytes_per_second"] for row in group if row["loss"] == loss}
            points = {size: rates[name] for size, rates in found.items() if name in rates}
            _by_size(axis, points, color=colour, label=LABELS[name])
        if ceilings:
            axis.axhline(ceilings[0][CEILING_OF[suite]], color="black", linestyle=":", label="ceiling (sum, add)")
    return with_legend(figure, axes)


def _speedups(rows: list[Row], suite: str, dtype: str, where: str) -> Figure:
    """Every loss's speed-up over eager and over torch.compile, over sizes."""
    group = _plain(rows, dtype)[suite]
    rivals = _rivals(group)
    figure, axes = new_figure(f"{suite}, {dtype}, {where}", len(rivals))
    for axis, rival in zip(axes, rivals, strict=True):
        axis.set(title=f"times as fast as {LABELS[rival]}")
        axis.axhline(1, color="black", linestyle=":", linewidth=1)
        for loss in _losses(group):
            found = {row["size"]: row["speedup"] for row in group if row["loss"] == loss}
            _by_size(axis, {size: by[rival] for size, by in found.items() if rival in by}, label=loss)
    return with_legend(figure, axes)


def _rivals(rows: list[Row]) -> list[str]:
    return [name for name in RIVALS if any(name in row["speedup"] for row in rows)]


def _losses(rows: Iterable[Row]) -> list[str]:
    return list(dict.fromkeys(row["loss"] for row in rows))


def _bars(axis: Axes, groups: list[dict[str, dict[str, float]]]) -> None:
    """A group of bars, in ms, for each of `groups`, which are seconds by contestant; the first at the top."""
    for offset, name in zip((0.27, 0.0, -0.27), ("eager", "compile", "cudaloss"), strict=True):
        points = {offset - i: times[name]["median"] * 1e3 for i, times in enumerate(groups) if name in times}
        if points:
            bars = axis.barh(list(points), list(points.values()), height=0.25, color=COLOURS[name], label=LABELS[name])
            axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    axis.set(xlabel="ms", yticks=[-i for i in range(len(groups))])
    axis.margins(x=0.12)


def _training(rows: list[Row]) -> list[Row]:
    """The training steps of typical losses in float32 at the largest size."""
    found = _measured(rows, "training") + _measured(rows, "family")
    found = [row for row in found if (row["mode"], row["dtype"]) == (STEP.name, "float32") and row["loss"] in TYPICAL]
    size = max((row["size"] for row in found), default=0)
    return sorted((row for row in found if row["size"] == size), key=lambda row: TYPICAL.index(row["loss"]))


def _steps(rows: list[Row], where: str) -> Figure:
    """Training steps of typical losses as bars, with the time in which torch.add moves as many bytes."""
    found = _training(rows)
    title = f"forward + backward, {found[0]['size']:,} float32 elements, {where}"
    figure, (axis,) = new_figure(title, 1)
    _bars(axis, [row["seconds"] for row in found])
    rates = [row["gigabytes_per_second"]["add"] for row in _measured(rows, "ceilings")]
    if rates:
        floor = found[0]["bytes"] / rates[0] / 1e6
        axis.axvline(floor, color="black", linestyle=":", label="torch.add's time for as many bytes")
    axis.set_yticklabels([row["loss"] for row in found])
    return with_legend(figure, [axis])


def _kernelbench(rows: list[Row], where: str) -> Figure:
    """KernelBench's problems, each at its largest size, as bars."""
    found = _measured(rows, "kernelbench")
    largest = {row["problem"]: row for row in sorted(found, key=lambda row: row["size"])}
    figure, axes = new_figure(f"{found[0]['dtype']}, {where}", len(largest))
    for axis, (problem, row) in zip(axes, sorted(largest.items()), strict=True):
        shape = " x ".join(str(length) for length in row["shape"])
        same = [other for other in found if (other["problem"], other["size"]) == (problem, row["size"])]
        modes = {other["mode"]: other["seconds"] for other in same}
        _bars(axis, list(modes.values()))
        names = [{FORWARD.name: "forward", STEP.name: "forward + backward"}[mode] for mode in modes]
        axis.set_title(f"problem {problem}, {row['loss']}\n{shape}")
        axis.set_yticklabels(names)
    return with_legend(figure, axes)


def _courses(rows: list[Row]) -> list[str]:
    """The dtypes that were measured at more than one size."""
    sizes: dict[str, set[int]] = {}
    for row in (row for suite in PLAIN for row in _measured(rows, suite)):
        sizes.setdefault(row["dtype"], set()).add(row["size"])
    return [dtype for dtype, found in sizes.items() if len(found) > 1]


def figures(rows: list[Row], environment: dict[str, Any]) -> dict[str, Callable[[], Figure]]:
    """By file name, a function that draws the figure, if `rows` have enough for it."""
    where, found = place(environment), {}
    for dtype in _courses(rows):
        suites, name = _plain(rows, dtype), f"{dtype.replace('/', '-')}.png"
        for loss in _losses(row for group in suites.values() for row in group):
            found[f"throughput-{loss}-{name}"] = partial(_rates, rows, loss, dtype, where)
        for suite in (suite for suite, group in suites.items() if _rivals(group)):
            found[f"speedup-{suite}-{name}"] = partial(_speedups, rows, suite, dtype, where)
    if _training(rows):
        found["training.png"] = partial(_steps, rows, where)
    if _measured(rows, "kernelbench"):
        found["kernelbench.png"] = partial(_kernelbench, rows, where)
    return found


def draw(drawn: dict[str, Callable[[], Figure]], folder: Path) -> list[Path]:
    """Writes `figures` to `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in drawn.items():
        figure().savefig(folder / name, dpi=130)
    return [folder / name for name in drawn]
