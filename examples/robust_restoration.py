"""Restores photographs from exposures with hot pixels, by losses that outliers do not pull: Charbonnier, pseudo-Huber.

There is no clean photograph to learn from, only pairs of exposures (Noise2Noise, Lehtinen et al. 2018). Each has
Gaussian noise, of another strength in every pair, and a tenth of its pixels are stuck at white. A network predicts the
second exposure from the first. The best prediction by the squared error is the mean over exposures, which hot pixels
brighten; by a loss that is linear in large differences it is close to the median, which they hardly move. The pseudo-
Huber loss turns linear at ``delta``: a tensor of shape (N, 1, 1, 1), a number for each pair, a multiple of its noise.
The multiple falls from 4 to 1 during training, so that the first steps are near those of least squares.

The network learns from a photograph of scikit-learn's, of a temple, and is tested on the other one, of a flower. The
claims, each checked, with a raised error where it fails:

* value and gradient are those of the loss written out in PyTorch in float64, to 1e-6, at every training step;
* against the clean photograph, the RMS error is at most 0.8 of that after training by the squared error, with either
  of the two losses, and the mean error, how much too bright the prediction is, at most 0.3.

Needs scikit-learn, matplotlib and rich::

    python examples/robust_restoration.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require

NOISE = (0.02, 0.1)  # standard deviation, lowest and highest; pixels are 0..1
HOT = 0.1  # share of the pixels that are white
MULTIPLES = (4, 1)  # of the noise is delta, at the first and at the last step
SIDE, BATCH = 16, 32  # of a patch, patches


def photograph(name: str) -> Tensor:
    """(1, 1, height, width), grey, 0..1, at half the size."""
    pixels = torch.tensor(load_sample_image(name)).float().mean(-1) / 255
    return nn.functional.avg_pool2d(pixels[None, None], 2)


def exposure(images: Tensor, noise: Tensor, generator: torch.Generator) -> Tensor:
    noisy = images + noise * torch.randn(images.shape, generator=generator)
    return noisy.masked_fill(torch.rand(images.shape, generator=generator) < HOT, 1)


def pairs(photo: Tensor, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Two exposures of some patches, and the delta of each pair."""
    patches = photo.unfold(2, SIDE, SIDE // 2).unfold(3, SIDE, SIDE // 2).reshape(-1, 1, SIDE, SIDE)
    generator = torch.Generator().manual_seed(seed)
    first, last = MULTIPLES
    for multiple in first * (last / first) ** torch.linspace(0, 1, steps):
        clean = patches[torch.randint(len(patches), (BATCH,), generator=generator)]
        noise = NOISE[0] + (NOISE[1] - NOISE[0]) * torch.rand(BATCH, 1, 1, 1, generator=generator)
        yield exposure(clean, noise, generator), exposure(clean, noise, generator), multiple * noise


def network() -> nn.Module:
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU()]
    return nn.Sequential(*layers, nn.Conv2d(16, 1, 3, padding=1))


def pseudo_huber(predicted: Tensor, target: Tensor, delta: Tensor) -> Tensor:
    """The recipe: one delta a sample. Nothing is expanded."""
    return cudaloss.pseudo_huber_loss(predicted, target, delta=delta)


def plain_pseudo_huber(predicted: Tensor, target: Tensor, delta: Tensor) -> Tensor:
    """In float64, since the difference of the root and 1 cancels."""
    difference = (predicted.double() - target.double()) / delta.double()
    return (delta.double().square() * ((1 + difference.square()).sqrt() - 1)).mean()


def charbonnier(predicted: Tensor, target: Tensor, _: Tensor) -> Tensor:
    return cudaloss.charbonnier_loss(predicted, target, eps=0.01)


def plain_charbonnier(predicted: Tensor, target: Tensor, _: Tensor) -> Tensor:
    return ((predicted.double() - target.double()).square() + 0.01**2).sqrt().mean()


def squared(predicted: Tensor, target: Tensor, _: Tensor) -> Tensor:
    return cudaloss.mse_loss(predicted, target)


def draw(images: dict[str, Tensor], path: Path) -> None:
    figure = Figure(figsize=(15, 2.5), layout="constrained")
    for axes, (name, image) in zip(figure.subplots(1, len(images)), images.items(), strict=True):
        axes.imshow(image[0, 0, 40:160, 90:270], cmap="gray", vmin=0, vmax=1)
        axes.set(title=name, xticks=[], yticks=[])
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Restore photographs by Charbonnier's and the pseudo-Huber loss.", 400)
    steps, seed = arguments.steps, arguments.seed
    learned, tested = photograph("china.jpg"), photograph("flower.jpg")
    given = exposure(tested, torch.tensor(sum(NOISE) / 2), torch.Generator().manual_seed(seed + 1))
    losses = {
        "squared error": squared,
        "Charbonnier": scaffold.Compared(charbonnier, plain_charbonnier),
        "pseudo-Huber": scaffold.Compared(pseudo_huber, plain_pseudo_huber),
    }
    images, rms, bias = {"clean": tested, "exposure": given}, {}, {}
    for name, loss in losses.items():
        model = scaffold.seeded(network, seed)
        scaffold.train(model, pairs(learned, steps, seed), loss, steps, name)
        images[name] = model(given).detach()
    for name, image in images.items():
        rms[name], bias[name] = (image - tested).square().mean().sqrt().item(), (image - tested).mean().item()
    rows = [(name, f"{rms[name]:.4f}", f"{bias[name]:+.4f}") for name in images]
    scaffold.show_table("against the clean photograph", ("", "RMS error", "mean error"), rows)
    draw(images, arguments.output)

    for name in ("Charbonnier", "pseudo-Huber"):
        losses[name].require_within(1e-6, f"{name} written out in float64")
    for name in ("Charbonnier", "pseudo-Huber"):
        require(rms[name] <= 0.8 * rms["squared error"], f"{name}: the RMS error falls to 0.8 of the squared error's")
        require(abs(bias[name]) <= 0.3 * bias["squared error"], f"{name}: the mean error falls to 0.3")


if __name__ == "__main__":
    main()
