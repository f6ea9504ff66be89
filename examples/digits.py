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

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from matplotlib.figure import Figure
from rich.progress import track
from torch import Tensor, nn

import cudaloss
from scaffold import console, digits, options, save, say, seeded, show_curves, show_digits, show_table

CURVE_BAR = 1e-5  # largest relative difference of the loss curves on the CPU
NOISE = 0.35  # standard deviation; pixels are 0..1
BATCH = 100  # no power of two, by which both losses would divide without rounding, and so alike
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
    model = seeded(autoencoder, seed).to(device)
    return Run(name, loss_function, model, torch.optim.Adam(model.parameters(), lr=2e-3))


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


def train(runs: list[Run], images: Tensor, steps: int, seed: int) -> None:
    batch_stream = track(batches(images, steps, seed), "training both networks", total=steps, console=console)
    for step, (noisy, clean) in enumerate(batch_stream):
        # In turns first and second, since the second of a step finds the batch in the cache.
        for run in runs if step % 2 else reversed(runs):
            training_step(run, noisy, clean)


def relative_differences(curve: list[float], reference: list[float]) -> list[float]:
    return [abs(a - b) / abs(b) for a, b in zip(curve, reference, strict=True)]


def summary(ours: Run, theirs: Run, difference: float, on_cpu: bool) -> None:
    verdict = "holds" if difference <= CURVE_BAR else "DOES NOT HOLD"
    # A GPU's matrix products may differ from run to run, so the bar is the CPU's.
    bar = f"at most {CURVE_BAR:g}: {verdict}" if on_cpu else f"{CURVE_BAR:g} is demanded on the CPU only"
    times = [f"{run.step_time * 1e3:.3f} ms" for run in (ours, theirs)]
    rows = (
        ("loss curves", "", "", f"largest relative difference {difference:.1e}; {bar}"),
        ("last loss", f"{ours.losses[-1]:.7f}", f"{theirs.losses[-1]:.7f}", ""),
        ("median step", *times, f"ratio {ours.step_time / theirs.step_time:.3f}"),
    )
    show_table(f"{len(ours.losses)} training steps of each", ("", ours.name, theirs.name, "compared"), rows)


def draw(rows: dict[str, Tensor], ours: Run, theirs: Run) -> Figure:
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    digits, curves = figure.subfigures(2, 1, height_ratios=[1, 1.1], squeeze=False).flat
    show_digits(digits, rows, SHOWN)
    losses, differences = curves.subplots(1, 2)
    show_curves(losses, {theirs.name: theirs.losses, ours.name: ours.losses}, "smooth-L1 loss")
    relative = relative_differences(ours.losses, theirs.losses)
    differences.axhline(CURVE_BAR, color="tab:red", linestyle="--", label=f"bar on the CPU: {CURVE_BAR:g}")
    show_curves(differences, {"relative difference": relative}, "difference of the losses", linestyle="", marker=".")
    return figure


def main() -> int:
    description = "Train a denoising autoencoder with cudaloss's and PyTorch's loss."
    arguments = options(__file__, description, 1000, device=True)
    device, seed = arguments.device, arguments.seed
    real = digits(device)
    ours = make_run("cudaloss", cudaloss.smooth_l1_loss, seed, device)
    theirs = make_run("PyTorch", nn.functional.smooth_l1_loss, seed, device)
    train([ours, theirs], real.images, arguments.steps, seed)

    noisy = add_noise(real.held_out, torch.Generator(device).manual_seed(seed + 1))
    with torch.inference_mode():
        restored = ours.model(noisy)
    difference = max(relative_differences(ours.losses, theirs.losses))
    on_cpu = device.type == "cpu"
    summary(ours, theirs, difference, on_cpu)
    before, after = (nn.functional.mse_loss(images, real.held_out).sqrt().item() for images in (noisy, restored))
    say(f"held-out digits: error (RMS) {before:.3f} with noise, {after:.3f} restored")
    save(draw({"noisy": noisy, "restored": restored, "clean": real.held_out}, ours, theirs), arguments.output)
    return 1 if on_cpu and difference > CURVE_BAR else 0


if __name__ == "__main__":
    sys.exit(main())
