"""A diffusion transformer on pixels that predicts the noise, with the square of the error, a weight for each image
(min-SNR) and a mask of the pixels that count (inpainting)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import cudaloss

from . import Step, adamw, compiled, of_outputs
from .layers import Attention, mlp


class Block(nn.Module):
    """Its norms are shifted and scaled, and its parts weighted, by the noise level."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.parts = nn.ModuleList((Attention(width, heads, is_causal=False), mlp(width)))
        self.modulation = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        modulation = self.modulation(level).unsqueeze(1).chunk(6, 2)
        for norm, part, by in zip(self.norms, self.parts, (modulation[:3], modulation[3:]), strict=True):
            shift, scale, gate = by
            x = x + gate * part(norm(x) * (1 + scale) + shift)
        return x


class Transformer(nn.Module):
    def __init__(self, side: int, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.patch, places = patch, (side // patch) ** 2
        self.embed = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn(places, width))
        self.of_level = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.blocks = nn.ModuleList(Block(width, width // 64) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 3 * patch**2)

    def forward(self, images: Tensor, alpha: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).transpose(1, 2) + self.position
        level = self.of_level(alpha.flatten(1))
        for block in self.blocks:
            x = block(x, level)
        patches = self.head(self.norm(x)).transpose(1, 2)
        return nn.functional.fold(patches, images.shape[2:], self.patch, stride=self.patch)


def plain(predicted: Tensor, noise: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    return (mask * weight * (predicted.float() - noise) ** 2).sum() / mask.sum()


def ours(predicted: Tensor, noise: Tensor, weight: Tensor, mask: Tensor) -> Tensor:
    return cudaloss.mse_loss(predicted, noise, weight=weight, mask=mask, normalizer=mask.sum())


def step(device: str, is_small: bool) -> Step:
    count, side, patch, width, depth = (2, 32, 8, 64, 2) if is_small else (128, 256, 16, 768, 12)
    with torch.device(device):
        model = Transformer(side, patch, width, depth)
        clean, noise = torch.randn(2, count, 3, side, side).unbind()
        alpha = 0.01 + 0.98 * torch.rand(count, 1, 1, 1)
        mask = torch.rand(count, 1, side, side) < 0.4
    noisy, ratio = alpha.sqrt() * clean + (1 - alpha).sqrt() * noise, alpha / (1 - alpha)
    weight = ratio.clamp(max=5) / ratio
    losses = {"eager": plain, **compiled(plain, is_small), "mse_loss": ours}
    text = f"diffusion transformer, {count} images of 3 x {side}^2, masked and weighted MSE, AdamW"
    return Step(text, model, adamw(model), of_outputs(lambda: (model(noisy, alpha), noise, weight, mask), losses))
