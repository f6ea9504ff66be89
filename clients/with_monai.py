"""MONAI: its losses of overlap with their options, and its UNet trained by them on small images and volumes."""

from __future__ import annotations

from typing import Any

import torch
from monai.losses import DiceCELoss, DiceFocalLoss, DiceLoss, MaskedDiceLoss, TverskyLoss
from monai.networks.nets import UNet
from seeded import seed, state
from torch import Tensor, nn

SAMPLES, CLASSES = 3, 4
SPACES = {"2-d": (9, 11), "3-d": (5, 6, 7)}
IGNORED = 255
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
INDICES = {"softmax": True, "to_onehot_y": True}
ORGANS = {**INDICES, "include_background": False}
WEIGHTS = torch.tensor([0.5, 2.0, 1.5, 1.0], dtype=torch.float64)

# By the form of the target. MONAI makes float32 of class indices, and its squares then have float32's errors: the
# losses of squares have targets of shares.
OF_DICE: dict[str, tuple[dict[str, Any], ...]] = {
    "indices": (
        INDICES,
        {**INDICES, "reduction": "none"},
        {**INDICES, "jaccard": True, "reduction": "sum"},
        {**INDICES, "batch": True, "reduction": "none"},
        {**INDICES, "weight": WEIGHTS},
        {**INDICES, "smooth_nr": 0.0, "smooth_dr": 1e-3},
        {**ORGANS, "weight": [0.5, 2.0, 1.5], "batch": True},
        {**ORGANS, "weight": 2, "reduction": "none"},
        {"sigmoid": True, "to_onehot_y": True, "include_background": False},
    ),
    "indices, some ignored": (
        {**INDICES, "ignore_index": IGNORED},
        {**ORGANS, "ignore_index": IGNORED, "batch": True, "jaccard": True},
    ),
    "shares": (
        {},
        {"sigmoid": True},
        {"softmax": True, "squared_pred": True},
        {"sigmoid": True, "squared_pred": True, "batch": True, "reduction": "sum"},
        {"softmax": True, "squared_pred": True, "jaccard": True, "include_background": False},
        {"sigmoid": True, "jaccard": True, "weight": WEIGHTS, "reduction": "none"},
    ),
    "one class": (
        {"sigmoid": True},
        {"sigmoid": True, "squared_pred": True, "include_background": False, "reduction": "none"},
        {"sigmoid": True, "weight": [2.0]},  # which MONAI leaves out
        {"sigmoid": True, "ignore_index": IGNORED},
    ),
}
OF_TVERSKY: dict[str, tuple[dict[str, Any], ...]] = {
    "indices": (
        INDICES,
        {**INDICES, "alpha": 0.3, "beta": 0.7, "reduction": "none"},
        {**ORGANS, "alpha": 1.0, "beta": 1.0, "batch": True, "reduction": "sum"},
    ),
    "indices, some ignored": ({**INDICES, "alpha": 0.2, "ignore_index": IGNORED},),
    "shares": ({"beta": 0.9}, {"sigmoid": True, "alpha": 0.7, "smooth_nr": 1e-3, "smooth_dr": 1e-2}),
    "one class": ({"sigmoid": True, "alpha": 0.0, "beta": 1.0}, {"sigmoid": True, "batch": True}),
}
OF_DICE_CE: dict[str, tuple[dict[str, Any], ...]] = {
    "indices": (
        INDICES,
        {**INDICES, "reduction": "sum", "lambda_ce": 0.5},
        {**ORGANS, "weight": WEIGHTS, "lambda_dice": 2.0},
        {**ORGANS, "batch": True, "jaccard": True},
        {**INDICES, "label_smoothing": 0.1},  # the sum of two losses that are swapped, as the next
        {"sigmoid": True, "to_onehot_y": True},
    ),
    "shares": (
        {"softmax": True, "squared_pred": True},
        {"softmax": True, "weight": WEIGHTS, "reduction": "sum"},
    ),
    "one class": (
        {"sigmoid": True, "squared_pred": True},
        {"sigmoid": True, "lambda_dice": 0.5, "lambda_ce": 2.0, "reduction": "sum", "jaccard": True},
        {"sigmoid": True, "weight": torch.tensor([2.0], dtype=torch.float64)},  # the two losses: it is a `pos_weight`
    ),
}
# MONAI's modules that call the ones above.
OTHERS = {
    "indices": ((DiceFocalLoss, INDICES), (DiceFocalLoss, {**ORGANS, "gamma": 1.0, "weight": [0.5, 2.0, 1.5]})),
    "shares": ((MaskedDiceLoss, {"softmax": True, "batch": True}), (MaskedDiceLoss, {"sigmoid": True})),
}


def _operands(form: str, space: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (SAMPLES, 1, *space))
    if form == "one class":
        return torch.randn(SAMPLES, 1, *space, **DOUBLE), (labels == 1).double()
    if form == "shares":
        shares = torch.zeros(SAMPLES, CLASSES, *space, **DOUBLE).scatter_(1, labels, 1.0)
        return torch.rand(shares.shape, **DOUBLE), shares
    if form == "indices, some ignored":
        labels[..., :2] = IGNORED
    return torch.randn(SAMPLES, CLASSES, *space, **DOUBLE), labels


def _of_options() -> dict[str, Tensor]:
    found = {}
    cases = {form: list(kinds) for form, kinds in OTHERS.items()}
    for kind, forms in ((DiceLoss, OF_DICE), (TverskyLoss, OF_TVERSKY), (DiceCELoss, OF_DICE_CE)):
        for form, several in forms.items():
            cases.setdefault(form, []).extend((kind, options) for options in several)
    for form, modules in cases.items():
        for space, size in SPACES.items():
            for kind, options in modules:
                seed()
                input, target = _operands(form, size)
                input.requires_grad_()
                masks = (torch.rand(SAMPLES, 1, *size) > 0.3,) if kind is MaskedDiceLoss else ()
                loss = kind(**options)(input, target, *masks)
                loss.square().sum().backward()
                name = f"{kind.__name__}({options}) of {form}, {space}"
                found |= {f"{name}: loss": loss.detach().clone(), f"{name}: gradient": input.grad}
    return found


# The classes of the network's output, and the loss.
TRAININGS: dict[str, tuple[int, nn.Module]] = {
    "DiceCELoss": (CLASSES, DiceCELoss(**INDICES)),
    "DiceCELoss of organs": (CLASSES, DiceCELoss(**ORGANS, batch=True, lambda_ce=0.5)),
    "DiceCELoss of one class": (1, DiceCELoss(sigmoid=True, squared_pred=True)),
    "DiceLoss": (CLASSES, DiceLoss(**INDICES, jaccard=True)),
    "TverskyLoss": (CLASSES, TverskyLoss(**INDICES, alpha=0.3, beta=0.7)),
}


def _of_training(space: tuple[int, ...], classes: int, criterion: nn.Module, name: str) -> dict[str, Tensor]:
    seed()
    sizes = {"channels": (4, 8), "strides": (2,), "num_res_units": 1}
    model = UNet(len(space), in_channels=1, out_channels=classes, **sizes).double()
    # MONAI's transforms make labels of a floating-point dtype.
    images, labels = torch.randn(2, 1, *space, **DOUBLE), torch.randint(max(classes, 2), (2, 1, *space)).double()
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach().clone())
    gradients = torch.cat([x.grad.flatten() for x in model.parameters()])
    return {f"{name}: losses": torch.stack(losses), f"{name}: last gradients": gradients, **state(name, model)}


def results() -> dict[str, Tensor]:
    found = _of_options()
    for name, (classes, criterion) in TRAININGS.items():
        for space, size in {"2-d": (16, 16), "3-d": (8, 8, 8)}.items():
            found |= _of_training(size, classes, criterion, f"UNet, {space}, {name}")
    return found
