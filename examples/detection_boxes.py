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
from sklearn.datasets import load_digits
from torch import Tensor, nn

import cudaloss

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

BETA = 1 / 9
BAR = 1e-6  # of the loss, and of the gradient's largest element, against plain PyTorch
CANVAS, STRIDE = 32, 4  # pixels of a scene's side, of a grid cell's
CELLS = CANVAS // STRIDE
SIZES = (8, 14)  # of a digit's side in a scene, in pixels, lowest and highest
MOST = 3  # digits of a scene
INK = 0.2  # a pixel above it belongs to the digit
BATCH = 32
HELD_OUT = 297  # digits that only test scenes are made of; 1,500 are left to train on
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


@dataclass
class Agreement:
    """Largest differences from plain PyTorch, over all steps; tensors, so that no step waits for them."""

    value: list[Tensor] = field(default_factory=list)
    gradient: list[Tensor] = field(default_factory=list)

    def largest(self) -> tuple[float, float]:
        return torch.stack(self.value).max().item(), torch.stack(self.gradient).max().item()


def cell_centres(device: torch.device | None = None) -> Tensor:
    """(cells, 2): x and y in pixels."""
    line = (torch.arange(CELLS, device=device) + 0.5) * STRIDE
    return torch.cartesian_prod(line, line).flip(1)


def ink_box(digit: Tensor) -> Tensor:
    """Left, top, right, bottom of the digit's pixels."""
    y, x = (digit > INK).nonzero(as_tuple=True)
    return torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float()


def apart(box: Tensor, others: list[Tensor]) -> bool:
    return all((box[:2] >= other[2:]).any() or (box[2:] <= other[:2]).any() for other in others)


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
        box = ink_box(digit) + torch.tensor([x, y, x, y])
        if apart(box, boxes):
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
    images, positive, sides = [], [], []
    for _ in range(count):
        image, boxes = compose(digits, generator)
        cells = assign(boxes)
        images.append(image[None])
        positive.append(cells[0])
        sides.append(cells[1])
    return Scenes(*(torch.stack(tensors).to(device) for tensors in (images, positive, sides)))


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


def compare(sides: Tensor, scenes: Scenes, agreement: Agreement) -> None:
    """Value and gradient of the recipe against the idiom's, on the same predictions."""
    found, reference = (
        (loss, *torch.autograd.grad(loss, sides, retain_graph=True))
        for loss in (box_loss(sides, scenes), plain_box_loss(sides, scenes))
    )
    value, gradient = (((a - b).abs().max() / b.abs().max()).detach() for a, b in zip(found, reference, strict=True))
    agreement.value.append(value)
    agreement.gradient.append(gradient)


def train(model: Detector, scenes: Scenes, steps: int, seed: int, console: Console) -> tuple[Agreement, list[float]]:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    generator = torch.Generator().manual_seed(seed)
    agreement, losses = Agreement(), []
    for _ in track(range(steps), "training", console=console):
        batch = scenes.rows(torch.randint(len(scenes.images), (BATCH,), generator=generator))
        score, sides = model(batch.images)
        compare(sides, batch, agreement)
        box = box_loss(sides, batch)
        objectness = F.binary_cross_entropy_with_logits(score, batch.positive.float())
        optimizer.zero_grad()
        (box + objectness).backward()
        optimizer.step()
        schedule.step()
        losses.append(box.detach())
    return agreement, torch.stack(losses).tolist()


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


@torch.inference_mode()
def detect(model: Detector, image: Tensor) -> list[Tensor]:
    """The boxes of one scene: from the highest score down, those that overlap none that is chosen already."""
    score, sides = (tensor[0] for tensor in model(image[None]))
    found: list[Tensor] = []
    boxes = to_boxes(sides)
    for cell in score.flatten().argsort(descending=True):
        if score[cell] > 0 and all(intersection_over_union(boxes[cell], other) < 0.3 for other in found):
            found.append(boxes[cell])
    return found


def check_empty(model: Detector, scenes: Scenes) -> tuple[float, float, float]:
    """On scenes without a digit: the loss, its gradient's largest element, and the loss of the indexed form."""
    empty = scenes.rows(~scenes.positive.flatten(1).any(1))
    sides = model(empty.images)[1]
    loss = box_loss(sides, empty)
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    largest = max(gradient.abs().max().item() for gradient in gradients if gradient is not None)
    return loss.item(), largest, indexed_box_loss(sides, empty).item()


def draw(path: Path, model: Detector, scenes: Scenes, losses: list[float]) -> None:
    figure = plt.figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1, 2], squeeze=False).flat
    curve = left.subplots()
    curve.plot(losses, color="tab:blue", linewidth=1)
    curve.set(xlabel="step", ylabel="box loss: sum over positives / positives", yscale="log")
    shown = scenes.rows(torch.arange(SHOWN))
    for axes, image, positive, sides in zip(right.subplots(2, SHOWN // 2).flat, *shown, strict=True):
        axes.imshow(image[0].cpu(), cmap="gray_r", vmin=0, vmax=1, extent=(0, CANVAS, CANVAS, 0))
        for colour, boxes in (("tab:green", to_boxes(sides)[positive[:, 0]]), ("tab:red", detect(model, image))):
            for x0, y0, x1, y1 in (box.tolist() for box in boxes):
                axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=colour, linewidth=1.5))
        axes.set(xticks=[], yticks=[])
    right.suptitle("held-out scenes: boxes (green) and what is detected (red)")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def require(holds: bool, claim: str) -> None:
    if not holds:
        raise RuntimeError(f"does not hold: {claim}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a detector of digits with a box loss averaged over positives.")
    parser.add_argument("--steps", type=int, default=600, help="training steps (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("demo_output/detection_boxes.png"), help="%(default)s")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto: the GPU if there is one")
    parser.add_argument("--seed", type=int, default=0, help="of weights, scenes and batches (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if arguments.device == "auto" else arguments.device)
    torch.set_num_threads(1)  # layers this small gain nothing from a second
    console = Console(soft_wrap=True)
    digits = torch.from_numpy(load_digits(return_X_y=True)[0]).float() / 16
    scenes = make_scenes(digits[:-HELD_OUT], TRAIN_SCENES, arguments.seed, device)
    held_out = make_scenes(digits[-HELD_OUT:], TEST_SCENES, arguments.seed + 1, device)

    torch.manual_seed(arguments.seed)
    model = Detector().to(device)
    before = mean_overlap(predicted_sides(model, held_out), held_out)
    agreement, losses = train(model, scenes, arguments.steps, arguments.seed, console)
    after = mean_overlap(predicted_sides(model, held_out), held_out)
    constant = mean_overlap(scenes.sides.nanmean((0, 1)).expand_as(held_out.sides), held_out)
    value, gradient = agreement.largest()
    loss, largest, indexed = check_empty(model, held_out)

    counts = scenes.positive.flatten(1).sum(1)
    console.print(
        f"training scenes: {counts.min()} to {counts.max()} positives, none in {(counts == 0).sum()} of {len(counts)}"
    )
    console.print(f"largest relative difference from (loss * weight).sum() / avg_factor in {arguments.steps} steps:")
    console.print(f"    {value:.1e} of values, {gradient:.1e} of gradients; at most {BAR:g} is demanded")
    console.print(
        f"scenes without a digit: loss {loss:g}, gradient {largest:g}; F.smooth_l1_loss of no rows: {indexed:g}"
    )
    console.print("intersection over union with the boxes of held-out scenes, mean over positives:")
    console.print(f"    {before:.3f} before training, {after:.3f} after; {constant:.3f} of the mean box at every cell")
    draw(arguments.output, model, held_out, losses)
    console.print(f"picture: {arguments.output}")

    require(max(value, gradient) <= BAR, f"value and gradient are the idiom's to {BAR:g}")
    require(loss == 0 and largest == 0, "scenes without a digit give a loss of 0 and gradients of 0")
    require(math.isnan(indexed), "the mean of no positives is NaN in plain PyTorch")
    require(max(before, constant) < IOU_AFTER <= after, f"the overlap with held-out boxes rises to {IOU_AFTER}")


if __name__ == "__main__":
    main()
