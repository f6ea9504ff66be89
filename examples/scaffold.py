"""What the examples share beside their subject: options, data, training, tables, pictures, and the check of a claim."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

console = Console()
say = partial(console.print, soft_wrap=True)

HELD_OUT = 297  # of the 1,797 digits, by other writers; 1,500 are left to train on


Model = TypeVar("Model", bound=nn.Module)


class Digits(NamedTuple):
    images: Tensor  # rows of 64 pixels in 0..1
    labels: Tensor
    held_out: Tensor
    held_out_labels: Tensor


def digits(device: torch.device | None = None) -> Digits:
    data, target = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(data).to(device, torch.float32) / 16, torch.from_numpy(target)
    return Digits(images[:-HELD_OUT], labels[:-HELD_OUT], images[-HELD_OUT:], labels[-HELD_OUT:])


INK = 0.2  # a pixel above it belongs to the digit


def scene(images: Tensor, side: int, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A picture of that side with none to so many digits, enlarged to 8 to 14 pixels, and their boxes, one a row.

    A box is left, top, right, bottom in pixels. What would touch an earlier digit's box is left out.
    """

    def number(lowest: int, highest: int) -> int:
        return int(torch.randint(lowest, highest + 1, (), generator=generator))

    canvas, boxes = torch.zeros(side, side), []
    for _ in range(number(0, most)):
        size, image = number(8, 14), images[number(0, len(images) - 1)].view(1, 1, 8, 8)
        digit = F.interpolate(image, size=(size, size), mode="bilinear", align_corners=False)[0, 0]
        x, y = number(0, side - size), number(0, side - size)
        rows, columns = (digit > INK).nonzero(as_tuple=True)
        box = torch.stack([x + columns.min(), y + rows.min(), x + columns.max() + 1, y + rows.max() + 1]).float()
        if all((box[:2] >= other[2:]).any() or (box[2:] <= other[:2]).any() for other in boxes):
            boxes.append(box)
            place = canvas[y : y + size, x : x + size]
            torch.maximum(place, digit, out=place)
    return canvas, torch.stack(boxes) if boxes else torch.zeros(0, 4)


def temperatures(hours: int, rooms: int, generator: torch.Generator) -> Tensor:
    """(hours, rooms + 1), in degrees Celsius, of a simulated building: its rooms, which lie in a row, and outdoors.

    The outdoors has a yearly and a daily wave, and weather that lasts 60 hours. A room exchanges heat with it and with
    its neighbours, and is warmed by the sun, by people and by a thermostat, which cools too.
    """
    hour = torch.arange(hours)
    waves = 10 - 9 * torch.cos(2 * math.pi * hour / 8760) - 4 * torch.cos(2 * math.pi * (hour - 4) / 24)
    sun = 0.8 * torch.exp(-((hour[:, None] % 24 - torch.linspace(9, 17, rooms)) ** 2) / 8)  # east to west
    gains = sun + 0.3 * torch.rand(hours, rooms, generator=generator)
    shocks, loss = 0.7 * torch.randn(hours, generator=generator), 1 / torch.linspace(30, 60, rooms)
    weather, inside, rows = torch.zeros(()), torch.full((rooms,), 18.0), []
    for hour in range(hours):  # Euler's steps of an hour, far below the rooms' time constants
        weather = math.exp(-1 / 60) * weather + shocks[hour]
        outdoors = waves[hour] + weather
        row = torch.cat([inside[:1], inside, inside[-1:]])
        neighbours = (row[2:] + row[:-2] - 2 * inside) / 15
        thermostat = 0.2 * ((20 - inside).clamp(0, 5) - (inside - 25).clamp(0, 5))
        inside = inside + loss * (outdoors - inside) + neighbours + gains[hour] + thermostat
        rows.append(torch.cat([inside, outdoors[None]]))
    return torch.stack(rows)


def bursts(shape: tuple[int, int], up: float, down: float, generator: torch.Generator) -> Tensor:
    """Which hours (rows) two-state chains are down, one a column, whose states last so many hours on average."""
    draws, is_down = torch.rand(shape, generator=generator), torch.zeros(shape, dtype=torch.bool)
    for hour in range(1, shape[0]):
        is_down[hour] = torch.where(is_down[hour - 1], draws[hour] >= 1 / down, draws[hour] < 1 / up)
    return is_down


def options(file: str, description: str, steps: int, *, quick: int = 0, device: bool = False) -> argparse.Namespace:
    """The command line's steps, seed, output and, where asked for, device; --quick stands for so many steps."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--steps", type=int, default=steps, help="training steps of each network (default: %(default)s)"
    )
    if quick:
        parser.add_argument(
            "--quick", action="store_const", dest="steps", const=quick, help=f"{quick} steps, for tests"
        )
    output = Path("demo_output", Path(file).stem).with_suffix(".png")
    parser.add_argument("--output", type=Path, default=output, help="picture (default: %(default)s)")
    if device:
        parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    if device:
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        arguments.device = torch.device(automatic if arguments.device == "auto" else arguments.device)
    torch.set_num_threads(1)  # networks this small gain nothing from a second
    return arguments


def seeded(make: Callable[[], Model], seed: int) -> Model:
    """The same weights at every call."""
    torch.manual_seed(seed)
    return make()


def fit(
    schedule: torch.optim.lr_scheduler.LRScheduler, batch_loss: Callable[[], Tensor], steps: int, label: str
) -> list[float]:
    """Trains the parameters of the schedule's optimizer on the loss of so many batches; returns the loss curve."""
    losses = []
    for _ in track(range(steps), label, console=console):
        loss = batch_loss()
        schedule.optimizer.zero_grad()
        loss.backward()
        schedule.optimizer.step()
        schedule.step()
        losses.append(loss.detach())  # on its device: no step waits for it
    return torch.stack(losses).tolist()


def batches(tensors: Sequence[Tensor], size: int, seed: int) -> Iterator[tuple[Tensor, ...]]:
    """The same random rows of every tensor, without an end."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        chosen = torch.randint(len(tensors[0]), (size,), generator=generator)
        yield tuple(tensor[chosen] for tensor in tensors)


def one_cycle(model: nn.Module, rate: float, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(torch.optim.Adam(model.parameters(), rate), rate, steps)


def train(
    model: nn.Module,
    batch: Iterator[tuple[Tensor, ...]],
    loss: Callable[..., Tensor],
    steps: int,
    label: str,
    rate: float = 1e-2,
) -> list[float]:
    """By Adam, on a one-cycle schedule; the loss is given the model's output and what follows the input."""

    def batch_loss() -> Tensor:
        input, *target = next(batch)
        return loss(model(input), *target)

    return fit(one_cycle(model, rate, steps), batch_loss, steps, label)


def value_and_gradient(loss: Tensor, input: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, input, retain_graph=True)[0]


def relative_difference(found: Tensor, reference: Tensor) -> Tensor:
    """The largest one, of the reference's largest element; 0 where both are 0 everywhere."""
    return (found - reference).abs().max() / reference.abs().max().clamp(min=torch.finfo(reference.dtype).tiny)


class Compared:
    """A loss that is compared with a reference at every call, in its value and in the gradients of its first operands.

    A value that may pass 0 has a unit: what it is off is taken of the larger of its size and the unit.
    """

    def __init__(
        self, loss: Callable[..., Tensor], reference: Callable[..., Tensor], unit: float = 0.0, operands: int = 1
    ) -> None:
        self.loss, self.reference, self.unit, self.operands = loss, reference, unit, operands
        self.differences: list[Tensor] = []  # relative, of value and gradients; on their device

    def __call__(self, *given: Any) -> Tensor:
        found = loss, wanted = self.loss(*given), self.reference(*given)
        off = (loss - wanted).detach().abs() / wanted.detach().abs().clamp(min=self.unit)
        slopes = [torch.autograd.grad(each, given[: self.operands], retain_graph=True) for each in found]
        of_slopes = [relative_difference(gradient, slope) for gradient, slope in zip(*slopes, strict=True)]
        self.differences.append(torch.stack([off, torch.stack(of_slopes).amax()]))
        return loss

    def require_within(self, bar: float, of: str) -> None:
        largest = torch.stack(self.differences).amax(0)  # NaN where one is
        say(f"largest relative difference from {of}, in {len(self.differences)} calls:")
        say("    {:.1e} of values, {:.1e} of gradients; at most {:g} is demanded".format(*largest.tolist(), bar))
        require(bool((largest <= bar).all()), f"value and gradient are those of {of}, to {bar:g}")


def left_allocated(forward: Callable[[], Tensor], on_gpu: bool = False) -> int:
    """The bytes that a forward leaves allocated, because its backward needs them."""
    if on_gpu:
        before = torch.cuda.memory_allocated()
        loss = forward()  # the name keeps the graph
        return torch.cuda.memory_allocated() - before
    # Not saved_tensors_hooks: they do not see what a node keeps in another way.
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        loss = forward()  # noqa: F841
    return sum(event.self_cpu_memory_usage for event in profile.events() or [])


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def beside(size: tuple[float, float], ratio: float) -> tuple[Figure, SubFigure, SubFigure]:
    """A figure, its left part, and its right part, which is so many times as wide."""
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, ratio], squeeze=False).flat
    return figure, left, right


def above(size: tuple[float, float], ratio: float) -> tuple[Figure, SubFigure, SubFigure]:
    """A figure, its upper part, which is so many times as high as the lower, and the lower."""
    figure = Figure(figsize=size, layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[ratio, 1], squeeze=False).flat
    return figure, upper, lower


def show_digits(figure: SubFigure, rows: dict[str, Tensor], count: int) -> None:
    """The first images of each row side by side, with the row's name at the left."""
    for axes, (label, images) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
        spaced = F.pad(images[:count].reshape(-1, 8, 8).cpu(), (0, 1), value=math.nan)
        axes.imshow(spaced.transpose(0, 1).flatten(1)[:, :-1], cmap="gray_r", vmin=0, vmax=1)
        axes.set(xticks=[], yticks=[], ylabel=label, facecolor="lightsteelblue")


def show_boxes(axes: Axes, image: Tensor, boxes: dict[str, Tensor]) -> None:
    """The boxes (left, top, right, bottom) of each colour over the image."""
    axes.imshow(image.cpu(), cmap="gray_r", vmin=0, vmax=1, extent=(0, image.shape[1], image.shape[0], 0))
    for colour, rows in boxes.items():
        for left, top, right, bottom in rows.tolist():
            axes.add_patch(Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=colour))
    axes.set(xticks=[], yticks=[])


def show_curves(axes: Axes, curves: dict[str, list[float]], label: str, **style: Any) -> None:
    """Over the steps, in the log; each curve thinner than the one below it, so that equal ones are all seen."""
    for width, (name, values) in zip(range(2 * len(curves) - 1, 0, -2), curves.items(), strict=True):
        axes.plot(values, linewidth=width, alpha=0.7, label=name, **style)
    axes.set_yscale("log", nonpositive="mask")
    axes.set(xlabel="step", ylabel=label)
    axes.legend()


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    say(f"picture: {path}")


def require(holds: bool, claim: str) -> None:
    if not holds:
        raise AssertionError(f"does not hold: {claim}")
