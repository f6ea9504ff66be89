"""What the examples share beside their subject: options, training loop, tables, pictures, and the check of a claim."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
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


def value_and_gradient(loss: Tensor, input: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, input, retain_graph=True)[0]


def relative_difference(found: Tensor, reference: Tensor) -> Tensor:
    """The largest one, of the reference's largest element."""
    return (found - reference).abs().max() / reference.abs().max()


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def show_digits(figure: SubFigure, rows: dict[str, Tensor], count: int) -> None:
    """The first images of each row, with the row's name at the left."""
    for axes_row, (label, images) in zip(figure.subplots(len(rows), count), rows.items(), strict=True):
        for axes, image in zip(axes_row, images[:count], strict=True):
            axes.imshow(image.reshape(8, 8).cpu(), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        axes_row[0].set_ylabel(label)


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
