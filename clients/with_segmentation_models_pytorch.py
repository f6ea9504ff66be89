"""segmentation_models_pytorch: its losses with their options, and a small Unet trained by them."""

from __future__ import annotations

from typing import Any

import torch
from seeded import seed, state
from segmentation_models_pytorch import Unet
from segmentation_models_pytorch.losses import DiceLoss, FocalLoss, JaccardLoss, SoftBCEWithLogitsLoss, TverskyLoss
from torch import Tensor, nn

SAMPLES, CLASSES, SIZE, IGNORED = 2, 4, 32, 255
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
MISSED: dict[str, Any] = {"alpha": 0.3, "beta": 0.7}
PROBABILITIES: dict[str, Any] = {"from_logits": False}
WEIGHTS: dict[str, Any] = {"class_weights": [0.5, 1.0, 2.0, 0.25]}

# Of all losses of overlap. The last class is in no target: its loss is 0.
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "binary": ({}, {"smooth": 1.0}, {"ignore_index": IGNORED}, PROBABILITIES),
    "multiclass": (
        {},
        {"smooth": 0.5, "classes": [1, 3]},
        {"ignore_index": IGNORED, "smooth": 1.0},
        WEIGHTS,
        {**WEIGHTS, "classes": [0, 2], "ignore_index": IGNORED},
        PROBABILITIES,
    ),
    "multilabel": ({}, {"smooth": 1.0, "classes": [2, 3]}, {**WEIGHTS, **PROBABILITIES}),
}
OVERLAP: tuple[tuple[type[nn.Module], dict[str, Any]], ...] = (
    (DiceLoss, {}),
    (JaccardLoss, {}),
    (TverskyLoss, {}),
    (TverskyLoss, MISSED),
)


def _target(mode: str, ignored: bool) -> Tensor:
    """Of 0 and 1 only: for shares between them its losses take the smaller of two numbers, ours their product."""
    size = (SIZE, SIZE)
    indices = torch.randint(CLASSES - 1, (SAMPLES, *size))
    if mode == "multilabel":
        labels = torch.rand(SAMPLES, CLASSES, *size, **DOUBLE) > 0.6
        labels[:, -1] = False
        return labels.double()
    if ignored:
        indices[:, :3] = IGNORED
    if mode == "multiclass":
        return indices
    return torch.where(indices == IGNORED, IGNORED, indices == 1).double().unsqueeze(1)


def _of_options() -> dict[str, Tensor]:
    found = {}
    for mode, several in OPTIONS.items():
        for options in several:
            for kind, own in OVERLAP:
                seed()
                target = _target(mode, "ignore_index" in options)
                input = torch.randn(SAMPLES, 1 if mode == "binary" else CLASSES, SIZE, SIZE, **DOUBLE)
                input = (input if options.get("from_logits", True) else input.sigmoid()).requires_grad_()
                loss = kind(mode, **own, **options)(input, target)
                loss.backward()
                name = f"{kind.__name__}({mode}, {own | options})"
                found |= {f"{name}: loss": loss.detach().clone(), f"{name}: gradient": input.grad}
    return found


# The mode, and the losses whose sum the network learns.
TRAININGS: dict[str, tuple[str, tuple[nn.Module, ...]]] = {
    "binary": ("binary", (DiceLoss("binary"), SoftBCEWithLogitsLoss())),
    "multiclass": ("multiclass", (DiceLoss("multiclass"), nn.CrossEntropyLoss())),
    "multiclass, Tversky": ("multiclass", (TverskyLoss("multiclass", smooth=1.0, **MISSED), FocalLoss("multiclass"))),
    "multilabel": ("multilabel", (JaccardLoss("multilabel"), FocalLoss("multilabel"))),
}


def _of_training(name: str, mode: str, criteria: tuple[nn.Module, ...]) -> dict[str, Tensor]:
    seed()
    classes = 1 if mode == "binary" else CLASSES
    small: dict[str, Any] = {"encoder_depth": 3, "decoder_channels": (16, 8, 8)}
    model = Unet("tu-test_resnet", encoder_weights=None, classes=classes, **small).double()  # timm's for its tests
    images, target = torch.randn(SAMPLES, 3, SIZE, SIZE, **DOUBLE), _target(mode, False)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(3):
        optimizer.zero_grad()
        logits = model(images)
        loss = torch.stack([criterion(logits, target) for criterion in criteria]).sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    gradients = torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])
    return {f"{name}: losses": torch.stack(losses), f"{name}: last gradients": gradients, **state(name, model)}


def results() -> dict[str, Tensor]:
    found = _of_options()
    for name, (mode, criteria) in TRAININGS.items():
        found |= _of_training(f"Unet, {name}", mode, criteria)
    return found
