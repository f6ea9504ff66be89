"""Finds digits on a canvas by a map of scores, one a pixel, of which one in two thousand is a positive: the focal loss.

A scene of 64x64 pixels holds none to four of scikit-learn's handwritten digits, each enlarged to 8 to 14 pixels, under
noise. The target is 1 at the pixel in the middle of a digit and 0 at all others. The focal loss (Lin et al. 2017)
weights an element by (1 - p)^2, where p is the probability given to the right answer, so that the many easy negatives
hardly count. Its sum is divided by the number of positives in the batch, a tensor of no dimension that never leaves its
device: ``normalizer``. One network is trained with it, another with binary cross entropy, averaged over the pixels, for
as many steps. A digit counts as found where a peak of the map lies within 2 pixels of its middle. The claims, each
checked, with a raised error where it fails:

* value and gradient are those of the loss composed in PyTorch, in float64, to 1e-6, at every training step, also where
  a batch has no positive;
* on held-out scenes the average precision of the peaks is higher by 0.03 or more than with binary cross entropy;
* the recall at a score of 0.3 is higher by 0.1 or more.

Needs scikit-learn, matplotlib and rich::

    python examples/dense_detection.py
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

SIDE, TRAINED, TESTED, BATCH = 64, 400, 100, 8
NEAR = 2  # pixels
GAMMA, ALPHA = 2.0, 0.25  # the paper's
THRESHOLD = 0.3  # of the score


class Scenes(NamedTuple):
    images: Tensor  # (scenes, 1, SIDE, SIDE)
    middles: Tensor  # the same, 0 or 1


def make_scenes(images: Tensor, count: int, seed: int) -> Scenes:
    generator = torch.Generator().manual_seed(seed)
    canvases, middles = torch.zeros(count, 1, SIDE, SIDE), torch.zeros(count, 1, SIDE, SIDE)
    for canvas, middle in zip(canvases, middles, strict=True):
        canvas[0], boxes = scaffold.scene(images, SIDE, 4, generator)
        x, y = ((boxes[:, :2] + boxes[:, 2:]) / 2).long().unbind(1)
        middle[0, y, x] = 1
    return Scenes(canvases + 0.3 * torch.randn(canvases.shape, generator=generator), middles)


def network() -> nn.Module:
    """Scores start at a probability of 0.01, as in the paper."""
    layers = [nn.Conv2d(1, 12, 5, 2, 2), nn.SiLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.SiLU(), nn.Conv2d(24, 24, 3, 1, 1)]
    last = nn.Conv2d(24, 16, 3, 1, 1)
    nn.init.constant_(last.get_parameter("bias"), -4.6)
    return nn.Sequential(*layers, nn.SiLU(), last, nn.PixelShuffle(4))


def focal(logits: Tensor, target: Tensor) -> Tensor:
    """The recipe: the sum over the number of positives. A batch without any is divided by 1."""
    positives = target.sum().clamp(min=1)
    return cudaloss.sigmoid_focal_loss(logits, target, alpha=ALPHA, gamma=GAMMA, reduction="mean", normalizer=positives)


def plain_focal(logits: Tensor, target: Tensor) -> Tensor:
    """As torchvision composes it, in float64."""
    x, t = logits.double(), target.double()
    wrong = x.sigmoid() * (1 - t) + (-x).sigmoid() * t
    each = F.binary_cross_entropy_with_logits(x, t, reduction="none") * wrong**GAMMA
    return (each * (ALPHA * t + (1 - ALPHA) * (1 - t))).sum() / t.sum().clamp(min=1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    return cudaloss.binary_cross_entropy_with_logits(logits, target)


def score(model: nn.Module, scenes: Scenes) -> tuple[Tensor, Tensor]:
    """The peaks' scores and whether each is a digit's; digits without a peak have a score of 0."""
    scores = model(scenes.images).detach().sigmoid()
    peaks = scores == F.max_pool2d(scores, 2 * NEAR + 1, 1, NEAR)
    near = F.max_pool2d(scenes.middles, 2 * NEAR + 1, 1, NEAR) > 0  # of some digit
    best = F.max_pool2d(scores * peaks, 2 * NEAR + 1, 1, NEAR)[scenes.middles > 0]  # of each digit
    wrong = scores[peaks & ~near]
    return torch.cat([best, wrong]), torch.cat([torch.ones_like(best), torch.zeros_like(wrong)])


def draw(scenes: Scenes, models: dict[str, nn.Module], path: Path) -> None:
    figure, left, right = scaffold.beside((12, 6), 1)
    for part, (name, model) in zip((left, right), models.items(), strict=True):
        part.suptitle(f"{name}: middles (green) and scores above {THRESHOLD} (red)")
        for axes, image, middle in zip(part.subplots(2, 2).flat, *scenes, strict=False):
            found = model(image[None]).detach().sigmoid()[0] > THRESHOLD
            boxes = {"tab:green": middle, "tab:red": found}
            scaffold.show_boxes(axes, image[0], {colour: squares(where[0]) for colour, where in boxes.items()})
    scaffold.save(figure, path)


def squares(where: Tensor) -> Tensor:
    corners = where.nonzero().flip(1).float()
    return torch.cat([corners - NEAR, corners + NEAR + 1], 1)


def main() -> None:
    arguments = scaffold.options(__file__, "Find digits on a canvas with the focal loss.", 200)
    seed, real = arguments.seed, scaffold.digits()
    scenes, held_out = make_scenes(real.images, TRAINED, seed), make_scenes(real.held_out, TESTED, seed + 1)
    say(f"{scenes.middles.sum():g} positives in {TRAINED} scenes: {scenes.middles.mean():.2%} of the pixels")
    compared, models, rows, found = scaffold.Compared(focal, plain_focal), {}, [], []
    for name, loss in {"focal loss": compared, "binary cross entropy": cross_entropy}.items():
        models[name] = model = scaffold.seeded(network, seed)
        scaffold.train(model, scaffold.batches(scenes, BATCH, seed), loss, arguments.steps, name, rate=3e-3)
        scores, right = score(model, held_out)
        precision = float(average_precision_score(right.numpy(), scores.numpy()))
        recall = (scores[right > 0] > THRESHOLD).float().mean().item()
        rows.append((name, f"{precision:.3f}", f"{recall:.3f}"))
        found.append((precision, recall))
    columns = "trained by", "average precision", f"recall at a score of {THRESHOLD}"
    scaffold.show_table(f"{TESTED} held-out scenes", columns, rows)
    draw(held_out, models, arguments.output)

    empty = Scenes(*(rows[scenes.middles.flatten(1).sum(1) == 0] for rows in scenes))
    compared(models["focal loss"](empty.images), empty.middles)
    compared.require_within(1e-6, "the loss composed in float64")
    (precision, recall), (other_precision, other_recall) = found
    require(precision >= other_precision + 0.03, "the average precision is higher by 0.03 or more")
    require(recall >= other_recall + 0.1, "the recall is higher by 0.1 or more")


if __name__ == "__main__":
    main()
