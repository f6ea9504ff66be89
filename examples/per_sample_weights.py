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

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import cudaloss
from scaffold import (
    digits,
    fit,
    options,
    relative_difference,
    require,
    save,
    say,
    seeded,
    show_table,
    value_and_gradient,
)

GAMMA = 5.0  # the paper's
BAR = 1e-6  # of the loss, and of the gradient's largest element, against plain PyTorch
COMPARED = 5  # one training step in so many is compared
TIMES = 200  # noise levels
BINS = 10  # of time steps, in the log
BATCH = 100
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


def train(model: Denoiser, images: Tensor, schedule: Schedule, steps: int, seed: int) -> Log:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True)
    generator = torch.Generator().manual_seed(seed)
    log = Log()

    def batch_loss() -> Tensor:
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        batch = schedule.noised(images[chosen], generator)
        weights = schedule.weights(batch.time)
        prediction = model(batch.images, batch.time)
        if len(log.time) % COMPARED == 0:
            compare(log, prediction, batch.noise, weights)
        losses = weighted_losses(prediction, batch.noise, weights)
        log.mean_weight.append(weights.mean())
        log.time.append(batch.time)
        log.per_sample.append(losses.detach() * BATCH / weights)  # no pass of its own over the elements
        return losses.sum()

    fit(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps), batch_loss, steps, "training")
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

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.digits = images.flatten(1).cpu()
        self.classifier = LogisticRegression(max_iter=2000).fit(self.digits.numpy(), labels.numpy())

    def __call__(self, images: Tensor) -> tuple[float, float]:
        """The median distance, as the RMS of a pixel's difference, and the likeliest class's mean probability."""
        rows = images.flatten(1).cpu()
        distance = torch.cdist(rows, self.digits).amin(1).median().item() / math.sqrt(64)
        return distance, float(self.classifier.predict_proba(rows.numpy()).max(axis=1).mean())


def draw(log: Log, samples: Tensor) -> Figure:
    figure = Figure(figsize=(12, 4.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.2], squeeze=False).flat
    axes = left.subplots()
    tenth = max(len(log.time) // 10, 1)
    centres = (torch.arange(BINS) + 0.5) * TIMES / BINS
    axes.plot(centres, log.by_time(slice(tenth)).cpu(), "o-", color="tab:orange", label=f"first {tenth} steps")
    axes.plot(centres, log.by_time(slice(-tenth, None)).cpu(), "o-", color="tab:blue", label=f"last {tenth} steps")
    axes.set(xlabel="time step (more noise to the right)", ylabel="squared error of the noise", yscale="log")
    axes.legend()
    for axes, image in zip(right.subplots(4, SHOWN // 4).flat, samples, strict=False):
        axes.imshow(image[0].cpu(), cmap="gray_r", vmin=-1, vmax=1)
        axes.set(xticks=[], yticks=[])
    right.suptitle("generated digits")
    return figure


def main() -> None:
    arguments = options(__file__, "Train a diffusion model with a weight for each sample.", 1600, device=True)
    device, seed = arguments.device, arguments.seed
    real = digits(device)
    images, held_out = (2 * rows.view(-1, 1, 8, 8) - 1 for rows in (real.images, real.held_out))
    schedule, model = Schedule(device), seeded(Denoiser, seed).to(device)
    untrained = generate(model, schedule, seed + 1, device)
    log = train(model, images, schedule, arguments.steps, seed)
    samples = generate(model, schedule, seed + 1, device)

    value, gradient = torch.stack(log.value).max().item(), torch.stack(log.gradient).max().item()
    weights = torch.stack(log.mean_weight)
    say(f"largest relative difference from plain PyTorch, of three forms at {len(log.value) // 3} steps:")
    say(f"    {value:.1e} of values, {gradient:.1e} of gradients; at most {BAR:g} is demanded")
    off = f"{1 / weights.max():.3f} to {1 / weights.min():.3f} times"
    say(f"divided by the sum of the weights, a batch's loss would be {off} as large")
    judge = Judge(images, real.labels)
    judged = {"held-out digits": judge(held_out), "generated": judge(samples)}
    judged["generated untrained"] = judge(untrained)
    rows = [(name, f"{distance:.3f}", f"{certainty:.3f}") for name, (distance, certainty) in judged.items()]
    show_table("generated digits", ("", "nearest training digit, RMS", "classifier's certainty"), rows)
    save(draw(log, samples), arguments.output)

    require(max(value, gradient) <= BAR, f"value and gradient are plain PyTorch's to {BAR:g}")
    (real_distance, _), (distance, certainty), (untrained_distance, untrained_certainty) = judged.values()
    farthest = FARTHER * real_distance
    require(distance <= farthest, f"generated digits are as near as {FARTHER} times held-out ones")
    require(untrained_distance > farthest, "those of the untrained network are farther")
    require(certainty > untrained_certainty, "a classifier is more certain of them than of the untrained network's")


if __name__ == "__main__":
    main()
