"""Trains a small convolutional network to say for each pixel which digit it belongs to.

A picture is four of scikit-learn's handwritten digits, enlarged, in a square. A pixel of ink has its digit's class, the
others are background; pixels at a digit's edge, where nobody can tell, have the label 255, which is ignored. The
labels are uint8, as datasets keep them. The claims, each checked, with a raised error where it fails:

* value and gradient of ``cudaloss.cross_entropy(logits, labels, weight=weight, ignore_index=255)``, on logits of shape
  (N, C, H, W), are those of ``torch.nn.functional.cross_entropy``, to 1e-6, at every training step;
* whatever stands at ignored pixels, NaN too, leaves no trace in the loss and no gradient;
* most of the ink of held-out pictures, by other writers, is given its digit.

Needs scikit-learn, matplotlib and rich::

    python examples/segmentation.py
    python examples/segmentation.py --quick
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

SIZE = 12  # pixels of a digit's side, enlarged from 8
CERTAIN = 0.15  # a pixel is left unlabelled where its ink is nearer to scaffold.INK than this
CLASSES, BACKGROUND, IGNORED = 11, 10, 255
BATCH, WIDTH = 16, 32
BACKGROUND_WEIGHT = 0.2  # most pixels are background


def pictures(digits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Of (4 N) digits: (N, 1, 24, 24), and the pixels' classes in uint8, (N, 24, 24)."""
    side = 2 * SIZE
    ink = F.interpolate(digits.view(-1, 1, 8, 8), size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    classes = torch.where(ink > scaffold.INK, labels.view(-1, 1, 1, 1), BACKGROUND)
    classes = classes.where((ink - scaffold.INK).abs() > CERTAIN, IGNORED)
    image, target = (x.view(-1, 2, 2, SIZE, SIZE).transpose(2, 3).reshape(-1, side, side) for x in (ink, classes))
    return image[:, None], target.to(torch.uint8)


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for channels, dilation in ((1, 1), (WIDTH, 2), (WIDTH, 4), (WIDTH, 1)):
        layers += [nn.Conv2d(channels, WIDTH, 3, padding=dilation, dilation=dilation), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(WIDTH, CLASSES, 1))


WEIGHT = torch.ones(CLASSES)
WEIGHT[BACKGROUND] = BACKGROUND_WEIGHT


def fused(logits: Tensor, target: Tensor) -> Tensor:
    return cudaloss.cross_entropy(logits, target, weight=WEIGHT, ignore_index=IGNORED)


def plain(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target.long(), weight=WEIGHT, ignore_index=IGNORED)


def ignored_leave_no_trace(logits: Tensor, target: Tensor) -> bool:
    """Whether NaN logits at ignored pixels change nothing, and get a gradient of 0."""
    ignored = (target == IGNORED)[:, None]
    spoilt = logits.detach().masked_fill(ignored, torch.nan).requires_grad_()
    loss = fused(spoilt, target)
    (gradient,) = torch.autograd.grad(loss, spoilt)
    return bool(loss == fused(logits.detach(), target)) and not gradient.masked_select(ignored).any()


def draw(image: Tensor, target: Tensor, found: Tensor, losses: list[float], path: Path) -> None:
    figure, left, right = scaffold.beside((9, 4), 2)
    for axes, (name, shown) in zip(
        left.subplots(3), {"picture": image, "labels": target, "found": found}.items(), strict=True
    ):
        axes.imshow(shown, cmap="gray_r" if name == "picture" else "tab20", vmin=0, vmax=1 if name == "picture" else 19)
        axes.set_title(name)
        axes.set_axis_off()
    scaffold.show_curves(right.subplots(), {"training": losses}, "loss")
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Train a small segmentation network.", 400, quick=250)
    data = scaffold.digits()
    held_out = pictures(data.held_out[:296], data.held_out_labels[:296])
    model = scaffold.seeded(network, arguments.seed)
    drawn = scaffold.batches((data.images, data.labels), 4 * BATCH, arguments.seed)
    compared = scaffold.Compared(fused, plain)

    def batch_loss() -> Tensor:
        image, target = pictures(*next(drawn))
        return compared(model(image), target)

    losses = scaffold.fit(scaffold.one_cycle(model, 1e-2, arguments.steps), batch_loss, arguments.steps, "training")
    image, target = held_out
    with torch.no_grad():
        logits = model(image)
    found = logits.argmax(1)
    ink = target < BACKGROUND
    right = float((found == target)[ink].float().mean())
    say(f"{float((target == IGNORED).float().mean()):.0%} of the pixels have no label")
    say(f"held-out: {right:.1%} of the ink is given its digit; loss {float(fused(logits, target)):.3f}")
    draw(image[0, 0], target[0].masked_fill(target[0] == IGNORED, 19), found[0], losses, arguments.output)

    compared.require_within(1e-6, "F.cross_entropy")
    require(ignored_leave_no_trace(logits, target), "NaN logits at ignored pixels leave no trace")
    require(right > 0.5, "most of the ink is given its digit")


if __name__ == "__main__":
    main()
