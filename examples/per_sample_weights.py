"""A diffusion model of digits whose samples' losses are weighted by their noise level, in one reduction.

The model (DDPM, Ho et al. 2020) predicts the noise that was added to scikit-learn's 8x8 handwritten digits. A sample's
squared error is averaged over its pixels and weighted by min(SNR, gamma) / SNR of its time step (min-SNR-gamma, Hang et
al. 2023, arXiv 2303.09556), and the batch's loss is the sum over the samples divided by their number B: so the sum over
all elements is divided by B times the pixels, whatever the weights. That is ``weight`` of shape (B, 1) with
``normalizer``; a mean without it would divide by the sum of the weights, another number for each batch.

At one training step in five, value and gradient must agree with plain PyTorch's to 1e-6. The generated digits must be
near real ones, by their distance to the nearest training digit and a classifier's certainty. Else an error is raised::

    python examples/per_sample_weights.py
    python examples/per_sample_weights.py --quick
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

GAMMA = 5.0  # the paper's
BAR = 1e-6  # of the loss, and of the gradient's largest element, against plain PyTorch
TIMES, BATCH, SAMPLES = 200, 100, 200  # time steps, images of a batch, generated digits
FARTHER = 1.5  # generated digits may be so much farther from the training digits than held-out ones are

# The cosine schedule of Nichol and Dhariwal (2021): what is left of the image's variance at each time step.
LINE = (torch.arange(TIMES + 1, dtype=torch.float64) / TIMES + 0.008) / 1.008 * math.pi / 2
STEP = (LINE[1:].cos() / LINE[:-1].cos()).square().clamp(min=0.001)
LEFT = STEP.cumprod(0)


def min_snr(time: Tensor) -> Tensor:
    """The weights of Min-SNR-gamma, for a network that predicts the noise."""
    ratio = (LEFT / (1 - LEFT)).float().to(time.device)[time]
    return ratio.clamp(max=GAMMA) / ratio


class Denoiser(nn.Module):
    """A residual perceptron over the pixels and the time step's sines."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        block = nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width)
        self.entry, self.block, self.exit = nn.Linear(64 + 32, width), nn.Sequential(*block), nn.Linear(width, 64)

    def forward(self, images: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] / TIMES * torch.exp2(torch.arange(16, device=time.device) / 2)
        hidden = self.entry(torch.cat([images, angles.sin(), angles.cos()], dim=1))
        return self.exit(hidden + self.block(hidden))


def weighted_loss(prediction: Tensor, noise: Tensor, weights: Tensor, batch_dims: int = 0) -> Tensor:
    """The recipe: mean over the batch of weight times a sample's mean, as one sum over all elements / their number.

    With batch_dims=1 it is one addend a sample, for a log: their sum, the loss, sends back a gradient of 1 to each.
    """
    weight = weights[:, None]
    return cudaloss.mse_loss(prediction, noise, weight=weight, normalizer=noise.numel(), batch_dims=batch_dims)


def weighted_afterwards(prediction: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """To weight each sample's mean is right too, but the gradient that comes back to it is not 1."""
    return (cudaloss.mse_loss(prediction, noise, batch_dims=1) * weights).mean()


def plain_loss(prediction: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """The composition that is usually written; it stores one loss an element."""
    return (F.mse_loss(prediction, noise, reduction="none").mean(dim=1) * weights).mean()


FORMS = {
    "normalizer": scaffold.Compared(weighted_loss, plain_loss),
    "normalizer, batch_dims": scaffold.Compared(lambda *x: weighted_loss(*x, batch_dims=1).sum(), plain_loss),
    "batch_dims": scaffold.Compared(weighted_afterwards, plain_loss),
}


def train(model: Denoiser, images: Tensor, steps: int, seed: int) -> tuple[Tensor, ...]:
    """The time steps, weights and unweighted losses of all samples, a row a training step."""
    batches, generator = scaffold.batches([images], BATCH, seed), torch.Generator().manual_seed(seed)
    remains, log = LEFT.float().to(images.device), []

    def batch_loss() -> Tensor:
        (clean,) = next(batches)
        time = torch.randint(TIMES, (BATCH,), generator=generator).to(images.device)
        noise = torch.randn(clean.shape, generator=generator).to(images.device)
        left, weights = remains[time, None], min_snr(time)
        prediction = model(left.sqrt() * clean + (1 - left).sqrt() * noise, time)
        if len(log) % 5 == 0:
            for form in FORMS.values():
                form(prediction, noise, weights)
        losses = weighted_loss(prediction, noise, weights, batch_dims=1)
        log.append((time, weights, losses.detach() * BATCH / weights))  # no pass of its own over the elements
        return losses.sum()

    scaffold.fit(scaffold.one_cycle(model, 4e-3, steps), batch_loss, steps, "training")
    return tuple(map(torch.stack, zip(*log, strict=True)))


@torch.inference_mode()
def generate(model: Denoiser, seed: int, device: torch.device) -> Tensor:
    """DDPM's ancestral sampling, from noise."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn((SAMPLES, 64), generator=generator).to(device)
    for time in reversed(range(TIMES)):
        noise = model(images, torch.full((SAMPLES,), time, device=device))
        left, step, before = LEFT[time].item(), STEP[time].item(), LEFT[time - 1].item() if time else 1.0
        clean = ((images - (1 - left) ** 0.5 * noise) / left**0.5).clamp(-1, 1)
        mean = (before**0.5 * (1 - step) * clean + step**0.5 * (1 - before) * images) / (1 - left)
        deviation = ((1 - before) / (1 - left) * (1 - step)) ** 0.5
        images = mean + deviation * torch.randn(images.shape, generator=generator).to(device)
    return images.cpu()


def draw(time: Tensor, losses: Tensor, rows: dict[str, Tensor], path: Path) -> None:
    figure, left, right = scaffold.beside((12, 4), 1.2)
    axes = left.subplots()
    axes.plot(time[-100:].flatten().cpu(), losses[-100:].flatten().cpu(), ".", markersize=1)
    axes.set(xlabel="time step (more noise to the right)", ylabel="sample's loss, last 100 steps", yscale="log")
    scaffold.show_digits(right, {name: (images + 1) / 2 for name, images in rows.items()}, 8)
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Train a diffusion model with weights.", 1600, quick=600, device=True)
    device, seed, real = arguments.device, arguments.seed, scaffold.digits()
    known, held_out = 2 * real.images - 1, 2 * real.held_out - 1
    model = scaffold.seeded(Denoiser, seed).to(device)
    rows = {"untrained": generate(model, seed + 1, device)}
    time, weights, losses = train(model, known.to(device), arguments.steps, seed)
    rows |= {"generated": generate(model, seed + 1, device), "held out": held_out}
    draw(time, losses, rows, arguments.output)

    for name, form in FORMS.items():
        form.require_within(BAR, f"plain PyTorch, by {name}")
    least, most = (1 / weights.mean(1)).aminmax()
    say(f"divided by the sum of the weights, a batch's loss would be {least:.3f} to {most:.3f} times as large")
    # How near images are to digits: the median of the RMS distance, and the likeliest class's mean probability.
    classifier = LogisticRegression(max_iter=2000).fit(known.numpy(), real.labels.numpy())
    nearest = {name: torch.cdist(x, known).amin(1).median().item() / 8 for name, x in rows.items()}
    certainty = {name: float(classifier.predict_proba(x.numpy()).max(axis=1).mean()) for name, x in rows.items()}
    table = [(name, f"{nearest[name]:.3f}", f"{certainty[name]:.3f}") for name in rows]
    scaffold.show_table("digits", ("", "nearest training digit, RMS", "classifier's certainty"), table)
    farthest = FARTHER * nearest["held out"]
    require(nearest["generated"] <= farthest, f"generated digits are as near as {FARTHER} times held-out ones")
    require(nearest["untrained"] > farthest, "those of the untrained network are farther")
    require(certainty["generated"] > certainty["untrained"], "a classifier is more certain than of the untrained one's")


if __name__ == "__main__":
    main()
