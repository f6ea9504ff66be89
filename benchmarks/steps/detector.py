"""RetinaNet (Lin et al. 2017) with three terms: focal loss of the classes, L1 of the box regression and complete IoU
of the boxes, each divided by the number of anchors that have an object."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cudaloss
from cudaloss._reference import boxes as plain_boxes
from cudaloss.bench.rivals import COMPOSED

from . import Step, compiled, of_outputs, sgd
from .resnet import Pyramid

ANCHORS = 9  # at each place: three sizes and three shapes
PRIOR = 0.01  # the probability of a class at first
LONGEST = math.log(1000 / 16)  # of a logarithm of a box's size over its anchor's
EPS = 1e-7


class Head(nn.Module):
    """Of every anchor at all levels: (images, anchors, numbers)."""

    def __init__(self, width: int, numbers: int, bias: float) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, 1, 1), nn.ReLU(True)]
        self.numbers, self.tower = numbers, nn.Sequential(*layers)
        self.last = nn.Conv2d(width, ANCHORS * numbers, 3, 1, 1)
        nn.init.normal_(self.last.weight, std=0.01)
        assert self.last.bias is not None
        nn.init.constant_(self.last.bias, bias)

    def forward(self, levels: list[Tensor]) -> Tensor:
        found = (self.last(self.tower(x)).permute(0, 2, 3, 1) for x in levels)
        return torch.cat([x.reshape(len(x), -1, self.numbers) for x in found], 1)


class RetinaNet(nn.Module):
    def __init__(self, width: int, depths: tuple[int, ...], out: int, classes: int) -> None:
        super().__init__()
        self.features = Pyramid(width, depths, out)
        self.classes = Head(out, classes, -math.log((1 - PRIOR) / PRIOR))
        self.boxes = Head(out, 4, 0.0)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        levels = self.features(images)
        return self.classes(levels), self.boxes(levels).float()


class Matched(NamedTuple):
    """The anchors, and what a matcher says of each."""

    anchors: Tensor  # (anchors, 4): centre and size
    positive: Tensor  # (images, anchors): whether it has an object
    kind: Tensor  # the object's class
    boxes: Tensor  # the object's box as corners
    sides: Tensor  # the same as the regression's target


def anchors_of(side: int) -> Tensor:
    found = []
    for stride in (8, 16, 32, 64, 128):
        line = (torch.arange(math.ceil(side / stride)) + 0.5) * stride
        y, x = torch.meshgrid(line, line, indexing="ij")
        centres = torch.stack((x, y), 2).view(-1, 1, 2)
        sizes = torch.tensor([2 ** (i / 3) for i in range(3)]).repeat_interleave(3) * 4 * stride
        shapes = torch.tensor([0.5, 1.0, 2.0]).sqrt().repeat(3)
        each = torch.stack((sizes * shapes, sizes / shapes), 1).expand(len(centres), -1, -1)
        found.append(torch.cat((centres.expand_as(each), each), 2).flatten(0, 1))
    return torch.cat(found)


def decoded(sides: Tensor, anchors: Tensor) -> Tensor:
    """Corners, from shifts and logarithms of sizes relative to the anchors."""
    centre, size = anchors.split(2, -1)
    centre, half = centre + sides[..., :2] * size, sides[..., 2:].clamp(max=LONGEST).exp() * size / 2
    return torch.cat((centre - half, centre + half), -1)


def one_hot(logits: Tensor, matched: Matched, dtype: torch.dtype) -> Tensor:
    target = torch.zeros(logits.shape, dtype=dtype, device=logits.device)
    return target.scatter_(2, matched.kind.unsqueeze(2), matched.positive.unsqueeze(2).to(dtype))


def plain(logits: Tensor, sides: Tensor, matched: Matched) -> Tensor:
    """The boxes of positives alone."""
    positive = matched.positive
    count = positive.sum().clamp(min=1)
    focal = COMPOSED["sigmoid_focal"]
    classes = focal(logits.float(), one_hot(logits, matched, torch.float32), reduction="sum")
    chosen, anchors = sides[positive], matched.anchors.expand_as(sides)[positive]
    distance = F.l1_loss(chosen, matched.sides[positive], reduction="sum")
    found = decoded(chosen, anchors), matched.boxes[positive]
    boxes = plain_boxes.value("complete_box_iou", found, 1, EPS).sum()
    return (classes + distance + boxes) / count


def ours(logits: Tensor, sides: Tensor, matched: Matched) -> Tensor:
    """The host waits for nothing."""
    positive = matched.positive
    options = {"reduction": "mean", "normalizer": positive.sum().clamp(min=1)}
    target = one_hot(logits, matched, torch.uint8)
    classes = cudaloss.sigmoid_focal_loss(logits, target, **options, dtype=torch.float32)
    distance = cudaloss.l1_loss(sides, matched.sides, mask=positive.unsqueeze(2), **options)
    found = decoded(sides, matched.anchors)
    boxes = cudaloss.complete_box_iou_loss(found, matched.boxes, mask=positive, eps=EPS, **options)
    return classes + distance + boxes


def matched_of(count: int, side: int, classes: int) -> Matched:
    """Objects near some of the anchors."""
    anchors = anchors_of(side)
    shape = (count, len(anchors))
    positive, kind = torch.rand(shape) < 100 / len(anchors), torch.randint(classes, shape)
    sides = 0.3 * torch.randn(*shape, 4)
    return Matched(anchors, positive, kind, decoded(sides, anchors), sides)


def step(device: str, is_small: bool) -> Step:
    count, side, classes = (2, 128, 7) if is_small else (16, 800, 80)
    sizes = (4, (1, 1, 1, 1), 16) if is_small else (64, (3, 4, 6, 3), 256)
    with torch.device(device):
        model = RetinaNet(*sizes, classes).to(memory_format=torch.channels_last)
        images = torch.randn(count, 3, side, side).to(memory_format=torch.channels_last)
        matched = matched_of(count, side, classes)
    name = "focal, L1 and complete IoU losses"
    losses = {"eager": plain, **compiled(plain, is_small), name: ours}
    text = f"RetinaNet, {count} images of {side}^2, {classes} classes, three terms, SGD"
    return Step(text, model, sgd(model, 0.9), of_outputs(lambda: (*model(images), matched), losses))
