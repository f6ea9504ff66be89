"""A small anchor-free detector whose box loss is averaged over the positives, a count that never leaves the device.

Scenes of 32x32 pixels hold none to three of scikit-learn's handwritten digits, each enlarged to 8 to 14 pixels. Each of
a scene's 64 grid cells whose centre lies in a digit's box is a positive and learns the distances to the box's four
sides (FCOS, Tian et al. 2019); all cells learn whether they are one. The box loss is smooth L1 with beta 1/9, summed
over the positives and divided by their number in the batch: mmdetection's ``avg_factor``, here ``normalizer``.

At every training step the value and the gradient are compared with mmdetection's idiom in plain PyTorch,
``(loss * weight).sum() / avg_factor``; they must agree to 1e-6, and a batch without any digit must give 0 and gradients
of 0, else an error is raised. So is one if the boxes of held-out scenes are not found. Needs the demo requirements::

    python examples/detection_boxes.py
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
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
    show_curves,
    value_and_gradient,
)

BETA = 1 / 9
BAR = 1e-6  # of the loss, and of the gradient's largest element, against plain PyTorch
CANVAS, STRIDE = 32, 4  # pixels of a scene's side, of a grid cell's
CELLS = CANVAS // STRIDE
SIZES = (8, 14)  # of a digit's side in a scene, in pixels, lowest and highest
MOST = 3  # digits of a scene
INK = 0.2  # a pixel above it belongs to the digit
BATCH = 32
TRAIN_SCENES, TEST_SCENES = 1024, 200
IOU_AFTER = 0.7  # what the boxes of held-out scenes must reach
SHOWN = 8  # scenes in the picture


class Scenes(NamedTuple):
    """What a loader gives: images, and for every cell whether it is a positive and of which box."""

    images: Tensor  # (scenes, 1, CANVAS, CANVAS)
    positive: Tensor  # (scenes, cells, 1), bool
    sides: Tensor  # (scenes, cells, 4): distances from the cell's centre to left, top, right, bottom, in strides

    def rows(self, chosen: Tensor) -> Scenes:
        return Scenes(*(tensor[chosen] for tensor in self))


def cell_centres(device: torch.device | None = None) -> Tensor:
    """(cells, 2): x and y in pixels."""
    line = (torch.arange(CELLS, device=device) + 0.5) * STRIDE
    return torch.cartesian_prod(line, line).flip(1)


def compose(digits: Tensor, generator: torch.Generator) -> tuple[Tensor, list[Tensor]]:
    """One scene and its boxes: none to three digits at random places, without those that would touch another."""

    def number(lowest: int, highest: int) -> int:
        return int(torch.randint(lowest, highest + 1, (), generator=generator))

    canvas, boxes = torch.zeros(CANVAS, CANVAS), []
    for _ in range(number(0, MOST)):
        size = number(*SIZES)
        digit = digits[number(0, len(digits) - 1)].view(1, 1, 8, 8)
        digit = F.interpolate(digit, size=(size, size), mode="bilinear", align_corners=False)[0, 0]
        x, y = number(0, CANVAS - size), number(0, CANVAS - size)
        rows, columns = (digit > INK).nonzero(as_tuple=True)
        box = torch.stack([x + columns.min(), y + rows.min(), x + columns.max() + 1, y + rows.max() + 1]).float()
        if all((box[:2] >= other[2:]).any() or (box[2:] <= other[:2]).any() for other in boxes):
            boxes.append(box)
            place = canvas[y : y + size, x : x + size]
            torch.maximum(place, digit, out=place)
    return canvas, boxes


def assign(boxes: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Which cells are positives, and their distances to the sides; elsewhere NaN, for there is nothing to learn."""
    centres = cell_centres()
    positive, sides = torch.zeros(len(centres), 1, dtype=torch.bool), torch.full((len(centres), 4), math.nan)
    for box in boxes:
        distances = torch.cat([centres - box[:2], box[2:] - centres], dim=1) / STRIDE
        inside = (distances > 0).all(1)
        positive[inside], sides[inside] = True, distances[inside]
    return positive, sides


def make_scenes(digits: Tensor, count: int, seed: int, device: torch.device) -> Scenes:
    generator = torch.Generator().manual_seed(seed)
    composed = [compose(digits, generator) for _ in range(count)]
    rows = [(image[None], *assign(boxes)) for image, boxes in composed]
    return Scenes(*(torch.stack(tensors).to(device) for tensors in zip(*rows, strict=True)))


class Detector(nn.Module):
    """For every cell, a score and the distances to the four sides."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, 2, 1), nn.SiLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.SiLU()),
            *(nn.Conv2d(32, 32, 3, 1, 1), nn.SiLU(), nn.Conv2d(32, 32, 3, 1, 1), nn.SiLU(), nn.Conv2d(32, 5, 1)),
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        score, sides = self.layers(images).flatten(2).transpose(1, 2).split([1, 4], dim=2)
        return score, sides


def box_loss(sides: Tensor, scenes: Scenes) -> Tensor:
    """The recipe. A count that is 0, where no scene has a digit, divides as 1."""
    return cudaloss.smooth_l1_loss(
        sides, scenes.sides, beta=BETA, mask=scenes.positive, normalizer=scenes.positive.sum().clamp(min=1)
    )


def plain_box_loss(sides: Tensor, scenes: Scenes) -> Tensor:
    """mmdetection's idiom, with weights of 0 and 1. Its targets must be finite everywhere, since 0 * NaN is NaN."""
    weight = scenes.positive.float().expand_as(sides)
    avg_factor = scenes.positive.sum().clamp(min=1)
    loss = F.smooth_l1_loss(sides, scenes.sides.nan_to_num(), reduction="none", beta=BETA)
    return (loss * weight).sum() / avg_factor


def indexed_box_loss(sides: Tensor, scenes: Scenes) -> Tensor:
    """What is written first: the positives picked out, which waits for their number, and a mean, NaN where it is 0."""
    chosen = scenes.positive.squeeze(2)
    return F.smooth_l1_loss(sides[chosen], scenes.sides[chosen], beta=BETA)


def train(model: Detector, scenes: Scenes, steps: int, seed: int) -> tuple[Tensor, list[float]]:
    """The largest relative differences of value and gradient from the idiom's, and the box losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    differences, box_losses = [], []

    def batch_loss() -> Tensor:
        batch = scenes.rows(torch.randint(len(scenes.images), (BATCH,), generator=generator))
        score, sides = model(batch.images)
        found, reference = (value_and_gradient(loss(sides, batch), sides) for loss in (box_loss, plain_box_loss))
        differences.append(torch.stack([relative_difference(*pair) for pair in zip(found, reference, strict=True)]))
        box = box_loss(sides, batch)
        box_losses.append(box.detach())
        return box + F.binary_cross_entropy_with_logits(score, batch.positive.float())

    fit(torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps), batch_loss, steps, "training")
    return torch.stack(differences).amax(0), torch.stack(box_losses).tolist()


def to_boxes(sides: Tensor) -> Tensor:
    """Left, top, right, bottom in pixels, of every cell's distances."""
    centres = cell_centres(sides.device)
    return torch.cat([centres - sides[..., :2] * STRIDE, centres + sides[..., 2:] * STRIDE], dim=-1)


def intersection_over_union(a: Tensor, b: Tensor) -> Tensor:
    def area(lower: Tensor, upper: Tensor) -> Tensor:
        return (upper - lower).clamp(min=0).prod(-1)

    common = area(torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:]))
    return common / (area(a[..., :2], a[..., 2:]) + area(b[..., :2], b[..., 2:]) - common)


def mean_overlap(sides: Tensor, scenes: Scenes) -> float:
    """Intersection over union of predicted and true boxes, over the positives."""
    overlap = intersection_over_union(to_boxes(sides), to_boxes(scenes.sides))
    return overlap[scenes.positive.squeeze(2)].mean().item()


@torch.inference_mode()
def predicted_sides(model: Detector, scenes: Scenes) -> Tensor:
    return model(scenes.images)[1]


def check_empty(model: Detector, scenes: Scenes) -> tuple[float, float, float]:
    """On scenes without a digit: the loss, its gradient's largest element, and the loss of the indexed form."""
    empty = scenes.rows(~scenes.positive.flatten(1).any(1))
    sides = model(empty.images)[1]
    loss = box_loss(sides, empty)
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    largest = max(gradient.abs().max().item() for gradient in gradients if gradient is not None)
    return loss.item(), largest, indexed_box_loss(sides, empty).item()


def draw(scenes: Scenes, sides: Tensor, losses: list[float]) -> Figure:
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 2], squeeze=False).flat
    show_curves(left.subplots(), {"training": losses}, "box loss: sum over positives / positives")
    for scene, axes in enumerate(right.subplots(2, SHOWN // 2).flat):
        axes.imshow(scenes.images[scene, 0].cpu(), cmap="gray_r", vmin=0, vmax=1, extent=(0, CANVAS, CANVAS, 0))
        for colour, of_cells in (("tab:red", sides), ("tab:green", scenes.sides)):
            for x0, y0, x1, y1 in to_boxes(of_cells[scene])[scenes.positive[scene, :, 0]].tolist():
                axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour))
        axes.set(xticks=[], yticks=[])
    right.suptitle("held-out scenes: boxes (green) and what their cells predict (red)")
    return figure


def main() -> None:
    arguments = options(__file__, "Train a detector with a box loss averaged over positives.", 600, device=True)
    device, seed = arguments.device, arguments.seed
    real = digits()
    scenes = make_scenes(real.images, TRAIN_SCENES, seed, device)
    held_out = make_scenes(real.held_out, TEST_SCENES, seed + 1, device)
    model = seeded(Detector, seed).to(device)
    before = mean_overlap(predicted_sides(model, held_out), held_out)
    differences, losses = train(model, scenes, arguments.steps, seed)
    sides = predicted_sides(model, held_out)
    after = mean_overlap(sides, held_out)
    constant = mean_overlap(scenes.sides.nanmean((0, 1)).expand_as(held_out.sides), held_out)
    value, gradient = differences.tolist()
    loss, largest, indexed = check_empty(model, held_out)

    counts = scenes.positive.flatten(1).sum(1)
    say(f"training scenes: {counts.min()} to {counts.max()} positives, none in {(counts == 0).sum()} of {len(counts)}")
    say(f"largest relative difference from (loss * weight).sum() / avg_factor in {arguments.steps} steps:")
    say(f"    {value:.1e} of values, {gradient:.1e} of gradients; at most {BAR:g} is demanded")
    say(f"scenes without a digit: loss {loss:g}, gradient {largest:g}; F.smooth_l1_loss of no rows: {indexed:g}")
    say("intersection over union with the boxes of held-out scenes, mean over positives:")
    say(f"    {before:.3f} before training, {after:.3f} after; {constant:.3f} of the mean box at every cell")
    save(draw(held_out, sides, losses), arguments.output)

    require(max(value, gradient) <= BAR, f"value and gradient are the idiom's to {BAR:g}")
    require(loss == 0 and largest == 0, "scenes without a digit give a loss of 0 and gradients of 0")
    require(math.isnan(indexed), "the mean of no positives is NaN in plain PyTorch")
    require(max(before, constant) < IOU_AFTER <= after, f"the overlap with held-out boxes rises to {IOU_AFTER}")


if __name__ == "__main__":
    main()
