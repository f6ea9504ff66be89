"""A 3D U-Net with Dice and cross entropy, as nnU-Net trains it, without its further losses at smaller scales."""

from __future__ import annotations

import itertools

import torch
from overlap import dice_ce
from torch import Tensor, nn

import cudaloss

from . import Step, compiled, of_outputs, sgd


def block(channels: int, width: int, stride: int = 1) -> nn.Module:
    layers: list[nn.Module] = []
    for count, step in ((channels, stride), (width, 1)):
        layers += [nn.Conv3d(count, width, 3, step, 1), nn.InstanceNorm3d(width, affine=True), nn.LeakyReLU(0.01, True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.first = block(1, widths[0])
        self.down = nn.ModuleList(block(above, below, 2) for above, below in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose3d(below, above, 2, 2) for above, below in reversed(pairs))
        self.join = nn.ModuleList(block(2 * above, above) for above, _ in reversed(pairs))
        self.head = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        levels = []
        for down in self.down:
            levels.append(x)
            x = down(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat((levels.pop(), up(x)), 1))
        return self.head(x)


def plain(logits: Tensor, labels: Tensor) -> Tensor:
    """MONAI's DiceCELoss(softmax=True, to_onehot_y=True)."""
    return dice_ce(logits, labels.long())


def step(device: str, is_small: bool) -> Step:
    count, side, classes = (2, 16, 5) if is_small else (2, 128, 14)
    widths = [4, 8, 16] if is_small else [32, 64, 128, 256, 320, 320]
    with torch.device(device):
        model = UNet(widths, classes)
        volumes = torch.randn(count, 1, side, side, side)
        labels = torch.randint(classes, (count, 1, side, side, side), dtype=torch.uint8)
    losses = {"eager": plain, **compiled(plain, is_small), "dice_ce_loss": cudaloss.dice_ce_loss}
    text = f"3D U-Net, {count} volumes of {side}^3, {classes} classes, Dice and cross entropy, SGD"
    return Step(text, model, sgd(model, 0.99), of_outputs(lambda: (model(volumes), labels), losses))
