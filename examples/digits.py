"""Trains one denoising autoencoder twice, in lockstep: with cudaloss's smooth-L1 loss and with PyTorch's.

The images are scikit-learn's 1,797 handwritten digits of 8x8 pixels. Both networks start from the same weights and see
the same batches under the same noise, so that only the loss function differs. What comes out:

* the largest relative difference of the two loss curves, over all steps. On the CPU it must stay within 1e-5, else the
  exit status is 1;
* the last loss and the median time of a training step (forward, loss, backward, optimizer) of each;
* a picture: held-out digits with noise, restored and clean, and both loss curves.

Needs the package's demo requirements (scikit-learn, matplotlib, rich)::

    python examples/digits.py
    python examples/digits.py --steps 200 --device cpu --output demo_output/digits.png
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import SubFigure
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

import cudaloss

matplotlib.use("Agg")
import matplotlib.pyplot as plt

CURVE_BAR = 1e-5  # largest relative difference of the loss curves on the CPU
NOISE = 0.35  # standard deviation; pixels are 0..1
BATCH = 100  # no power of two, by which both losses would divide without rounding, and so alike
HELD_OUT = 297  # test images; 1,500 are left to train on
WARM_UP = 10  # first steps, left out of the timing
SHOWN = 12  # digits in the picture


@dataclass
class Run:
    """One network, its loss function, and what its training steps gave."""

    name: str
    loss_function: Callable[[Tensor, Tensor], Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def step_time(self) -> float:
        """Median, in seconds."""
        return statistics.median(self.seconds[WARM_UP:] or self.seconds)


def autoencoder() -> nn.Module:
    # SiLU and not ReLU: where an input lies an ulp from ReLU's corner, the two runs' gradients would part for good.
    return nn.Sequential(
        nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 48), nn.SiLU(), nn.Linear(48, 256), nn.SiLU(), nn.Linear(256, 64)
    )


def make_run(name: str, loss_function: Callable[[Tensor, Tensor], Tensor], seed: int, device: torch.device) -> Run:
    torch.manual_seed(seed)  # the same weights for every run
    model = autoencoder().to(device)
    return Run(name, loss_function, model, torch.optim.Adam(model.parameters(), lr=2e-3))


def load_images(device: torch.device) -> tuple[Tensor, Tensor]:
    """Training and held-out images, as rows of 64 pixels in 0..1."""
    images = torch.from_numpy(load_digits(return_X_y=True)[0]).to(device, torch.float32) / 16
    return images[:-HELD_OUT], images[-HELD_OUT:]


def add_noise(images: Tensor, generator: torch.Generator) -> Tensor:
    return images + NOISE * torch.randn(images.shape, generator=generator, device=images.device)


def batches(images: Tensor, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`steps` pairs of a noisy batch and its clean images, fixed by the seed."""
    generator = torch.Generator(images.device).manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(images), (BATCH,), generator=generator, device=images.device)
        yield add_noise(images[chosen], generator), images[chosen]


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def training_step(run: Run, noisy: Tensor, clean: Tensor) -> None:
    wait_for(clean.device)
    start = time.perf_counter()
    run.optimizer.zero_grad()
    loss = run.loss_function(run.model(noisy), clean)
    loss.backward()
    run.optimizer.step()
    wait_for(clean.device)
    run.seconds.append(time.perf_counter() - start)
    run.losses.append(loss.item())


def train(runs: list[Run], images: Tensor, steps: int, seed: int, console: Console) -> None:
    batch_stream = track(batches(images, steps, seed), "training both networks", total=steps, console=console)
    for step, (noisy, clean) in enumerate(batch_stream):
        # In turns first and second, since the second of a step finds the batch in the cache.
        for run in runs if step % 2 else reversed(runs):
            training_step(run, noisy, clean)


def relative_differences(curve: list[float], reference: list[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(curve, reference, strict=True)]


def summary(ours: Run, theirs: Run, difference: float, on_cpu: bool) -> Table:
    verdict = "holds" if difference <= CURVE_BAR else "DOES NOT HOLD"
    # A GPU's matrix products may differ from run to run, so the bar is the CPU's.
    bar = f"at most {CURVE_BAR:g}: {verdict}" if on_cpu else f"{CURVE_BAR:g} is demanded on the CPU only"
    table = Table("", ours.name, theirs.name, "compared", title=f"{len(ours.losses)} training steps of each")
    table.add_row("loss curves", "", "", f"largest relative difference {difference:.1e}; {bar}")
    table.add_row("last loss", f"{ours.losses[-1]:.7f}", f"{theirs.losses[-1]:.7f}", "")
    ratio = ours.step_time / theirs.step_time
    table.add_row(
        "median step", f"{ours.step_time * 1e3:.3f} ms", f"{theirs.step_time * 1e3:.3f} ms", f"ratio {ratio:.3f}"
    )
    return table


def draw_digits(figure: SubFigure, rows: dict[str, Tensor]) -> None:
    grid = figure.subplots(len(rows), SHOWN)
    for axes_row, (label, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(axes_row, images[:SHOWN], strict=True):
            axes.imshow(image.reshape(8, 8).cpu(), cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        axes_row[0].set_ylabel(label)


def draw_curves(figure: SubFigure, ours: Run, theirs: Run) -> None:
    loss_axes, difference_axes = figure.subplots(1, 2)
    loss_axes.plot(theirs.losses, color="tab:orange", linewidth=4, alpha=0.5, label=theirs.name)
    loss_axes.plot(ours.losses, color="tab:blue", linewidth=1, label=ours.name)
    loss_axes.set(xlabel="step", ylabel="smooth-L1 loss", yscale="log")
    loss_axes.legend()
    difference_axes.plot(relative_differences(ours.losses, theirs.losses), ".", color="tab:blue", markersize=2)
    difference_axes.axhline(CURVE_BAR, color="tab:red", linestyle="--", label=f"bar on the CPU: {CURVE_BAR:g}")
    difference_axes.set_yscale("log", nonpositive="mask")  # equal losses show no dot
    difference_axes.set(xlabel="step", ylabel="relative difference of the losses")
    difference_axes.legend()


def draw(path: Path, rows: dict[str, Tensor], ours: Run, theirs: Run) -> None:
    figure = plt.figure(figsize=(11, 6.5), layout="constrained")
    digits, curves = figure.subfigures(2, 1, height_ratios=[1, 1.1], squeeze=False).flat
    draw_digits(digits, rows)
    draw_curves(curves, ours, theirs)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def rms(images: Tensor, clean: Tensor) -> float:
    return (images - clean).square().mean().sqrt().item()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a denoising autoencoder with cudaloss's and PyTorch's loss.")
    parser.add_argument("--steps", type=int, default=1000, help="training steps of each network (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo_output/digits.png"), help="default: %(default)s")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and noise (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, got {arguments.steps}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if arguments.device == "auto" else arguments.device)
    torch.set_num_threads(1)  # networks this small gain nothing from a second, and waiting for it is noise
    console = Console()
    images, held_out = load_images(device)
    ours = make_run("cudaloss", cudaloss.smooth_l1_loss, arguments.seed, device)
    theirs = make_run("PyTorch", nn.functional.smooth_l1_loss, arguments.seed, device)
    train([ours, theirs], images, arguments.steps, arguments.seed, console)

    noisy = add_noise(held_out, torch.Generator(device).manual_seed(arguments.seed + 1))
    with torch.inference_mode():
        restored = ours.model(noisy)
    difference = max(relative_differences(ours.losses, theirs.losses))
    on_cpu = device.type == "cpu"
    console.print(summary(ours, theirs, difference, on_cpu))
    console.print(
        f"held-out digits: error (RMS) {rms(noisy, held_out):.3f} with noise, {rms(restored, held_out):.3f} restored"
    )
    draw(arguments.output, {"noisy": noisy, "restored": restored, "clean": held_out}, ours, theirs)
    console.print(f"picture: {arguments.output}")
    return 1 if on_cpu and difference > CURVE_BAR else 0


if __name__ == "__main__":
    sys.exit(main())
