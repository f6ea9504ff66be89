"""A diffusion model of digits whose samples' losses are weighted by their noise level, in one reduction.

The model (DDPM, Ho et al. 2020) predicts the noise that was added to scikit-learn's 8x8 handwritten digits. A sample's
squared error is averaged over its pixels and weighted by min(SNR, gamma) / SNR of its time step (min-SNR-gamma, Hang et
al. 2023, arXiv 2303.09556), and the batch's loss is the sum over the samples divided by their number B: so the sum over
all elements is divided by B times the pixels, whatever the weights. That is ``weight`` of shape (B, 1, 1, 1) with
``normalizer``; a mean without it would divide by the sum of the weights, another number for each batch.

At one training step in five, value and gradient are compared with the usual composition in plain PyTorch; they must
agree to 1e-6, else an error is raised. So is one if the generated digits are not near real ones: their distance to the
nearest training digit and the certainty of a classifier are measured. Needs the package's demo requirements::

    python examples/per_sample_weights.py
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import cudaloss

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GAMMA = 5.0  # the paper's
BAR = 1e-6  # of the loss, and of the gradient's largest element, against plain PyTorch
COMPARED = 5  # one training step in so many is compared
TIMES = 200  # noise levels
BINS = 10  # of time steps, in the log
BATCH = 100
HELD_OUT = 297  # digits to compare the generated ones with; 1,500 are left to train on
SAMPLES = 200
FARTHER = 1.5  # generated digits may be so much farther from the training digits than held-out ones are
SHOWN = 24  # samples in the picture


class Noised(NamedTuple):
    """A batch, as the network sees it, and what it is to tell."""

    time: Tensor  # (B,)
    images: Tensor  # (B, 1, 8, 8)
    noise: Tensor  # (B, 1, 8, 8)


class Schedule:
    """The cosine schedule of Nichol and Dhariwal (2021): what is left of the image's variance at each time step."""

    def __init__(self, device: torch.device) -> None:
        line = (torch.arange(TIMES + 1, dtype=torch.float64) / TIMES + 0.008) / 1.008
        squared = (line * math.pi / 2).cos() ** 2
        step = (squared[1:] / squared[:-1]).clamp(min=0.001)
        self.step = step.float().to(device)
        self.left = step.cumprod(0).float().to(device)
        self.signal_to_noise = self.left / (1 - self.left)

    def weights(self, time: Tensor) -> Tensor:
        """Min-SNR-gamma's, for a network that predicts the noise."""
        ratio = self.signal_to_noise[time]
        return ratio.clamp(max=GAMMA) / ratio

    def noised(self, images: Tensor, generator: torch.Generator) -> Noised:
        time = torch.randint(TIMES, (len(images),), generator=generator).to(images.device)
        noise = torch.randn(images.shape, generator=generator).to(images.device)
        left = self.left[time].view(-1, 1, 1, 1)
        return Noised(time, left.sqrt() * images + (1 - left).sqrt() * noise, noise)


class Denoiser(nn.Module):
    """A residual perceptron over the pixels and the time step's sines."""

    frequencies: Tensor

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.exp2(torch.arange(16) / 2))
        self.entry = nn.Linear(64 + 32, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(2)
        )
        self.exit = nn.Linear(width, 64)

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] / TIMES * self.frequencies
        hidden = self.entry(torch.cat([images.flatten(1), angles.sin(), angles.cos()], dim=1))
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.exit(hidden).view_as(images)


def weighted_loss(prediction: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """The recipe: mean over the batch of weight times a sample's mean, as one sum over all elements / their number."""
    return cudaloss.mse_loss(prediction, noise, weight=weights.view(-1, 1, 1, 1), normalizer=noise.numel())


def weighted_losses(prediction: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """The loss as one addend a sample, for a log: their sum, the loss, sends back a gradient of 1 to each."""
    weight = weights.view(-1, 1, 1, 1)
    return cudaloss.mse_loss(prediction, noise, weight=weight, normalizer=noise.numel(), batch_dims=1)


def per_sample_losses(prediction: Tensor, noise: Tensor) -> Tensor:
    """Each sample's mean. To weight these is right too, but the gradient that comes back to them is not 1."""
    return cudaloss.mse_loss(prediction, noise, batch_dims=1)


def plain_loss(prediction: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """The composition that is usually written; it stores one loss an element."""
    return (F.mse_loss(prediction, noise, reduction="none").mean(dim=(1, 2, 3)) * weights).mean()


@dataclass
class Log:
    """What training steps gave; tensors on the device, so that no step waits for them."""

    value: list[Tensor] = field(default_factory=list)  # largest relative difference from plain PyTorch
    gradient: list[Tensor] = field(default_factory=list)
    mean_weight: list[Tensor] = field(default_factory=list)  # of each batch
    time: list[Tensor] = field(default_factory=list)
    per_sample: list[Tensor] = field(default_factory=list)  # not weighted

    def by_time(self, steps: slice) -> Tensor:
        """The mean loss of each bin of time steps."""
        time, losses = torch.cat(self.time[steps]), torch.cat(self.per_sample[steps])
        bins = time * BINS // TIMES
        total = torch.zeros(BINS, device=losses.device).index_add_(0, bins, losses)
        return total / torch.bincount(bins, minlength=BINS)


def value_and_gradient(loss: Tensor, prediction: Tensor) -> tuple[Tensor, Tensor]:
    return loss.detach(), torch.autograd.grad(loss, prediction, retain_graph=True)[0]


def relative_difference(found: Tensor, reference: Tensor) -> Tensor:
    """Of the largest element."""
    return (found - reference).abs().max() / reference.abs().max()


def compare(log: Log, prediction: Tensor, noise: Tensor, weights: Tensor) -> None:
    """All forms of the recipe with the plain one, on the same predictions."""
    reference = value_and_gradient(plain_loss(prediction, noise, weights), prediction)
    for loss in (
        weighted_loss(prediction, noise, weights),
        weighted_losses(prediction, noise, weights).sum(),
        (per_sample_losses(prediction, noise) * weights).mean(),
    ):
        found = value_and_gradient(loss, prediction)
        log.value.append(relative_difference(found[0], reference[0]))
        log.gradient.append(relative_difference(found[1], reference[1]))


def train(model: Denoiser, images: Tensor, schedule: Schedule, steps: int, seed: int, console: Console) -> Log:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    log = Log()
    for step in track(range(steps), "training", console=console):
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        batch = schedule.noised(images[chosen], generator)
        weights = schedule.weights(batch.time)
        prediction = model(batch.images, batch.time)
        if step % COMPARED == 0:
            compare(log, prediction, batch.noise, weights)
        losses = weighted_losses(prediction, batch.noise, weights)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        decay.step()
        log.mean_weight.append(weights.mean())
        log.time.append(batch.time)
        log.per_sample.append(losses.detach() * BATCH / weights)  # no pass of its own over the elements
    return log


@torch.inference_mode()
def generate(model: Denoiser, schedule: Schedule, seed: int, device: torch.device) -> Tensor:
    """DDPM's ancestral sampling, from noise."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((SAMPLES, 1, 8, 8), generator=generator).to(device)
    for time in reversed(range(TIMES)):
        noise = model(images, torch.full((SAMPLES,), time, device=device))
        left, step = schedule.left[time], schedule.step[time]
        before = schedule.left[time - 1] if time else torch.ones_like(left)
        clean = ((images - (1 - left).sqrt() * noise) / left.sqrt()).clamp(-1, 1)
        mean = (before.sqrt() * (1 - step) * clean + step.sqrt() * (1 - before) * images) / (1 - left)
        deviation = ((1 - before) / (1 - left) * (1 - step)).sqrt()
        images = mean + deviation * torch.randn(images.shape, generator=generator).to(device)
    return images


class Judge:
    """How near images are to digits: by their nearest training digit, and by a classifier's certainty."""

    def __init__(self, digits: Tensor, labels: Tensor) -> None:
        self.digits = digits.flatten(1).cpu()
        self.classifier = LogisticRegression(max_iter=2000).fit(self.digits.numpy(), labels.numpy())

    def distance(self, images: Tensor) -> float:
        """Median over the images, as the root mean square of a pixel's difference; pixels are -1..1."""
        nearest = torch.cdist(images.flatten(1).cpu(), self.digits).min(dim=1).values
        return nearest.median().item() / math.sqrt(64)

    def certainty(self, images: Tensor) -> float:
        """The mean probability of the likeliest class."""
        return float(self.classifier.predict_proba(images.flatten(1).cpu().numpy()).max(axis=1).mean())


def load_images(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Training and held-out images, of pixels in -1..1, and the labels of the former."""
    data, target = load_digits(return_X_y=True)
    images = torch.from_numpy(data).view(-1, 1, 8, 8).to(device, torch.float32) / 8 - 1
    return images[:-HELD_OUT], images[-HELD_OUT:], torch.from_numpy(target[:-HELD_OUT])


def draw(path: Path, log: Log, samples: Tensor) -> None:
    figure = plt.figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.2], squeeze=False).flat
    axes = left.subplots()
    tenth = max(len(log.time) // 10, 1)
    centres = (torch.arange(BINS) + 0.5) * TIMES / BINS
    axes.plot(centres, log.by_time(slice(tenth)).cpu(), "o-", color="tab:orange", label=f"first {tenth} steps")
    axes.plot(centres, log.by_time(slice(-tenth, None)).cpu(), "o-", color="tab:blue", label=f"last {tenth} steps")
    axes.set(
        xlabel="time step (more noise to the right)", ylabel="squared error of the noise, per sample", yscale="log"
    )
    axes.legend()
    for axes, image in zip(right.subplots(4, SHOWN // 4).flat, samples, strict=False):
        axes.imshow(image[0].cpu(), cmap="gray_r", vmin=-1, vmax=1)
        axes.set(xticks=[], yticks=[])
    right.suptitle("generated digits")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def require(holds: bool, claim: str) -> None:
    if not holds:
        raise RuntimeError(f"does not hold: {claim}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a diffusion model of digits with a weight for each sample.")
    parser.add_argument("--steps", type=int, default=1600, help="training steps (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo_output/per_sample_weights.png"), help="%(default)s")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one")
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and noise (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if arguments.device == "auto" else arguments.device)
    torch.set_num_threads(1)  # layers this small gain nothing from a second
    console = Console(soft_wrap=True)
    images, held_out, labels = load_images(device)
    schedule, judge = Schedule(device), Judge(images, labels)
    torch.manual_seed(arguments.seed)
    model = Denoiser().to(device)
    untrained = generate(model, schedule, arguments.seed + 1, device)
    log = train(model, images, schedule, arguments.steps, arguments.seed, console)
    samples = generate(model, schedule, arguments.seed + 1, device)

    value, gradient = torch.stack(log.value).max().item(), torch.stack(log.gradient).max().item()
    weights = torch.stack(log.mean_weight)
    console.print(f"largest relative difference from plain PyTorch, of three forms at {len(log.value) // 3} steps:")
    console.print(f"    {value:.1e} of values, {gradient:.1e} of gradients; at most {BAR:g} is demanded")
    off = f"{1 / weights.max():.3f} to {1 / weights.min():.3f} times"
    console.print(f"divided by the sum of the weights, a batch's loss would be {off} as large")
    table = Table("", "nearest training digit, RMS", "classifier's certainty")
    for name, of_rows in {"held-out digits": held_out, "generated": samples, "generated untrained": untrained}.items():
        table.add_row(name, f"{judge.distance(of_rows):.3f}", f"{judge.certainty(of_rows):.3f}")
    console.print(table)
    draw(arguments.output, log, samples)
    console.print(f"picture: {arguments.output}")

    require(max(value, gradient) <= BAR, f"value and gradient are plain PyTorch's to {BAR:g}")
    farthest = FARTHER * judge.distance(held_out)
    require(judge.distance(samples) <= farthest, f"generated digits are as near as {FARTHER} times held-out ones")
    require(judge.distance(untrained) > farthest, "those of the untrained network are farther")
    certain = judge.certainty(samples) > judge.certainty(untrained)
    require(certain, "a classifier is more certain of generated digits than of the untrained network's")


if __name__ == "__main__":
    main()
