"""ResNet-50 with a feature pyramid."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def conv(channels: int, width: int, side: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, width, side, stride, side // 2, bias=False), nn.BatchNorm2d(width))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce, self.middle = conv(channels, width, 1), conv(width, width, 3, stride)
        self.widen = conv(width, 4 * width, 1)
        self.skip = conv(channels, 4 * width, 1, stride) if stride > 1 or channels != 4 * width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.widen(F.relu(self.middle(F.relu(self.reduce(x)))))
        return F.relu(y + self.skip(x))


class Pyramid(nn.Module):
    """Features of the strides 8, 16, 32, 64 and 128."""

    def __init__(self, width: int, depths: tuple[int, ...], out: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, width, 7, 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1))
        self.stages, channels = nn.ModuleList(), width
        for level, depth in enumerate(depths):
            inner = width << level
            blocks = [Bottleneck(channels, inner, 1 if level == 0 else 2)]
            channels = 4 * inner
            self.stages.append(nn.Sequential(*blocks, *(Bottleneck(channels, inner, 1) for _ in range(depth - 1))))
        self.lateral = nn.ModuleList(nn.Conv2d(channels >> by, out, 1) for by in (2, 1, 0))
        self.smooth = nn.ModuleList(nn.Conv2d(out, out, 3, 1, 1) for _ in range(3))
        self.coarse = nn.ModuleList(nn.Conv2d(out, out, 3, 2, 1) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        x, found = self.stem(x), []
        for stage in self.stages:
            found.append(x := stage(x))
        levels = [lateral(x) for lateral, x in zip(self.lateral, found[1:], strict=True)]
        for fine in (1, 0):
            levels[fine] = levels[fine] + F.interpolate(levels[fine + 1], levels[fine].shape[2:], mode="nearest")
        levels = [smooth(x) for smooth, x in zip(self.smooth, levels, strict=True)]
        for coarse in self.coarse:
            levels.append(coarse(levels[-1]))
        return levels
