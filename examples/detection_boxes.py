"""A small anchor-free detector whose box loss is averaged over the positives, a count that never leaves the device.

Scenes of 32x32 pixels hold none to three of scikit-learn's handwritten digits, each enlarged to 8 to 14 pixels. Each of
a scene's 64 grid cells whose centre lies in a digit's box is a positive and learns the distances to the box's four
sides (FCOS, Tian et al. 2019); all cells learn whether they are one. The box loss is smooth L1 with beta 1/9, summed
over the positives and divided by their number in the batch: mmdetection's ``avg_factor``, here ``normalizer``.

At every training step the value and the gradient are compared with mmdetection's idiom in plain PyTorch,
``(loss * weight).sum() / avg_factor``; they must agree to 1e-6, and a batch without any digit must give 0 and gradients
of 0, else an error is raised. So is one if the boxes of held-out scenes are not found. Needs the demo requirements::

    python examples/detection_boxes.py
    python examples/detection_boxes.py --quick
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

BETA = 1 / 9
BAR = 1e-6  # of the loss, and of the gradient's largest element, against plain PyTorch
CANVAS, STRIDE = 32, 4  # pixels of a scene's side, of a grid cell's
BATCH, TRAIN_SCENES, TEST_SCENES = 32, 1024, 200
IOU_AFTER = 0.7  # what the boxes of held-out scenes must reach

LINE = (torch.arange(CANVAS // STRIDE) + 0.5) * STRIDE
CENTRES = torch.cartesian_prod(LINE, LINE).flip(1)  # (cells, 2): x and y in pixels


class Scenes(NamedTuple):
    images: Tensor  # (scenes, 1, CANVAS, CANVAS)
    positive: Tensor  # (scenes, cells, 1), bool
    sides: Tensor  # (scenes, cells, 4): distances from the cell's centre to left, top, right, bottom, in strides


def assign(boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Which cells are positives, and their distances to the sides; elsewhere NaN, for there is nothing to learn."""
    positive, sides = torch.zeros(len(CENTRES), 1, dtype=torch.bool), torch.full((len(CENTRES), 4), math.nan)
    for box in boxes:
        distances = torch.cat([CENTRES - box[:2], box[2:] - CENTRES], dim=1) / STRIDE
        inside = (distances > 0).all(1)
        positive[inside], sides[inside] = True, distances[inside]
    return positive, sides


def make_scenes(images: Tensor, count: int, seed: int, device: torch.device) -> Scenes:
    generator = torch.Generator().manual_seed(seed)
    composed = [scaffold.scene(images, CANVAS, 3, generator) for _ in range(count)]
    rows = [(image[None], *assign(boxes)) for image, boxes in composed]
    return Scenes(*(torch.stack(tensors).to(device) for tensors in zip(*rows, strict=True)))


def detector() -> nn.Module:
    """For every cell, the distances to the four sides and a score."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1)),
        *(nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.SiLU(), nn.Conv2d(32, 5, 1), nn.Flatten(2)),
    )


def parts(output: Tensor) -> tuple[Tensor, Tensor]:
    """(scenes, cells, 4) sides and (scenes, cells, 1) scores."""
    sides, score = output.transpose(1, 2).split([4, 1], dim=2)
    return sides, score


def box_loss(sides: Tensor, positive: Tensor, target: Tensor) -> Tensor:
    """The recipe. A count that is 0, where no scene has a digit, divides as 1."""
    count = positive.sum().clamp(min=1)
    return cudaloss.smooth_l1_loss(sides, target, beta=BETA, mask=positive, normalizer=count)


def plain_box_loss(sides: Tensor, positive: Tensor, target: Tensor) -> Tensor:
    """mmdetection's idiom, with weights of 0 and 1. Its targets must be finite everywhere, since 0 * NaN is NaN."""
    weight, avg_factor = positive.float().expand_as(sides), positive.sum().clamp(min=1)
    return (F.smooth_l1_loss(sides, target.nan_to_num(), reduction="none", beta=BETA) * weight).sum() / avg_factor


def indexed_box_loss(sides: Tensor, positive: Tensor, target: Tensor) -> Tensor:
    """What is written first: the positives picked out, which waits for their number, and a mean, NaN where it is 0."""
    chosen = positive.squeeze(2)
    return F.smooth_l1_loss(sides[chosen], target[chosen], beta=BETA)


def to_boxes(sides: Tensor) -> Tensor:
    """Left, top, right, bottom in pixels, of every cell's distances."""
    centres = CENTRES.to(sides.device)
    return torch.cat([centres - sides[..., :2] * STRIDE, centres + sides[..., 2:] * STRIDE], dim=-1)


def mean_overlap(sides: Tensor, scenes: Scenes) -> float:
    """Intersection over union of predicted and true boxes, over the positives."""

    def area(box: Tensor) -> Tensor:
        return (box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1)

    a, b = to_boxes(sides), to_boxes(scenes.sides)
    common = area(torch.cat([torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])], -1))
    return (common / (area(a) + area(b) - common))[scenes.positive.squeeze(2)].mean().item()


def check_empty(model: nn.Module, scenes: Scenes) -> None:
    """Scenes without a digit."""
    empty = Scenes(*(rows[~scenes.positive.flatten(1).any(1)] for rows in scenes))
    sides = parts(model(empty.images))[0]
    loss, indexed = (of(sides, empty.positive, empty.sides).item() for of in (box_loss, indexed_box_loss))
    gradient = torch.autograd.grad(box_loss(sides, empty.positive, empty.sides), sides)[0].abs().max().item()
    say(f"scenes without a digit: loss {loss:g}, gradient {gradient:g}; F.smooth_l1_loss of no rows: {indexed:g}")
    require(loss == 0 and gradient == 0, "scenes without a digit give a loss of 0 and gradients of 0")
    require(math.isnan(indexed), "the mean of no positives is NaN in plain PyTorch")


def draw(scenes: Scenes, sides: Tensor, losses: list[float], path: Path) -> None:
    figure, left, right = scaffold.beside((12, 5), 2)
    scaffold.show_curves(left.subplots(), {"training": losses}, "loss of boxes and scores")
    for place, axes in enumerate(right.subplots(2, 4).flat):
        found, true = (to_boxes(of_cells[place])[scenes.positive[place, :, 0]] for of_cells in (sides, scenes.sides))
        scaffold.show_boxes(axes, scenes.images[place, 0], {"tab:red": found, "tab:green": true})
    right.suptitle("held-out scenes: boxes (green) and what their cells predict (red)")
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Train a detector with a loss of positives.", 600, quick=200, device=True)
    device, seed, real = arguments.device, arguments.seed, scaffold.digits()
    scenes = make_scenes(real.images, TRAIN_SCENES, seed, device)
    held_out = make_scenes(real.held_out, TEST_SCENES, seed + 1, device)
    counts = scenes.positive.flatten(1).sum(1)
    say(f"training scenes: {counts.min()} to {counts.max()} positives, none in {(counts == 0).sum()} of {len(counts)}")
    model, compared = scaffold.seeded(detector, seed).to(device), scaffold.Compared(box_loss, plain_box_loss)

    def loss(output: Tensor, positive: Tensor, target: Tensor) -> Tensor:
        sides, score = parts(output)
        return compared(sides, positive, target) + F.binary_cross_entropy_with_logits(score, positive.float())

    before = parts(model(held_out.images))[0].detach()
    losses = scaffold.train(model, scaffold.batches(scenes, BATCH, seed), loss, arguments.steps, "training")
    sides = parts(model(held_out.images))[0].detach()
    draw(held_out, sides, losses, arguments.output)

    constant = scenes.sides.nanmean((0, 1)).expand_as(sides)
    overlaps = [mean_overlap(found, held_out) for found in (before, sides, constant)]
    say("intersection over union with the boxes of held-out scenes, mean over positives:")
    say("    {:.3f} before training, {:.3f} after; {:.3f} of the mean box at every cell".format(*overlaps))
    compared.require_within(BAR, "(loss * weight).sum() / avg_factor")
    check_empty(model, held_out)
    require(max(overlaps[::2]) < IOU_AFTER <= overlaps[1], f"the overlap with held-out boxes rises to {IOU_AFTER}")


if __name__ == "__main__":
    main()
