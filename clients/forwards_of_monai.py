"""MONAI's modules with our functions: what they compute by options that ours do not have, MONAI computes as before."""

from __future__ import annotations

from typing import Any

from monai.losses import DiceCELoss, DiceLoss, TverskyLoss
from monai.metrics.utils import create_ignore_mask
from swap import counted
from torch import Tensor

import cudaloss

THEIRS = {kind: kind.forward for kind in (DiceLoss, TverskyLoss, DiceCELoss)}
dice_loss, tversky_loss, dice_ce_loss, dice_bce_loss = (
    counted(name, getattr(cudaloss, name)) for name in ("dice_loss", "tversky_loss", "dice_ce_loss", "dice_bce_loss")
)


def _have(module: Any) -> bool:
    return module.other_act is None and not module.soft_label


def _activation(module: Any, classes: int) -> str | None:
    """MONAI ignores a softmax over one class, which is an error of ours."""
    return "sigmoid" if module.sigmoid else "softmax" if module.softmax and classes > 1 else None


def _are_indices(module: Any, input: Tensor) -> bool:
    return module.to_onehot_y and input.shape[1] > 1


def _target(module: Any, input: Tensor, target: Tensor) -> Tensor:
    """MONAI's class indices may be of a floating-point dtype."""
    return target.long() if _are_indices(module, input) else target


def _common(module: Any, input: Tensor, target: Tensor) -> dict[str, Any]:
    """What all losses take. Voxels of a target without indices are left out by a mask."""
    names = "smooth_nr", "smooth_dr", "batch", "include_background"
    options = {name: getattr(module, name) for name in names}
    if _are_indices(module, input):
        return options | {"ignore_index": module.ignore_index}
    kept = create_ignore_mask(target, module.ignore_index)
    return options | {"mask": None if kept is None else kept.bool()}


def _classes_left(module: Any, classes: int) -> int:
    return classes if module.include_background or classes == 1 else classes - 1


def _dice(self: Any, input: Tensor, target: Tensor) -> Tensor:
    if not _have(self):
        return THEIRS[DiceLoss](self, input, target)
    classes, weight = input.shape[1], self.class_weight
    left = _classes_left(self, classes)
    loss = dice_loss(
        input,
        _target(self, input, target),
        self.reduction,
        activation=_activation(self, classes),
        squared=self.squared_pred,
        jaccard=self.jaccard,
        # MONAI's may be one number of any dtype, and is left out where one class is left.
        weight=None if weight is None or left == 1 else weight.double().expand(left),
        **_common(self, input, target),
    )
    return loss.reshape(loss.shape + (1,) * (input.dim() - 2)) if self.reduction == "none" else loss


def _tversky(self: Any, input: Tensor, target: Tensor) -> Tensor:
    if not _have(self):
        return THEIRS[TverskyLoss](self, input, target)
    return tversky_loss(
        input,
        _target(self, input, target),
        self.reduction,
        alpha=self.alpha,
        beta=self.beta,
        activation=_activation(self, input.shape[1]),
        **_common(self, input, target),
    )


def _dice_ce(self: Any, input: Tensor, target: Tensor) -> Tensor:
    """Where ours has no equal, MONAI adds two losses, each of which is swapped too."""
    dice, entropy, classes = self.dice, self.cross_entropy, input.shape[1]
    activation, weight = _activation(dice, classes), entropy.weight
    options = {
        "lambda_dice": self.lambda_dice,
        "squared": dice.squared_pred,
        "jaccard": dice.jaccard,
        **_common(dice, input, target),
    }
    if activation == "softmax" and not entropy.label_smoothing and (weight is None or _classes_left(dice, classes) > 1):
        target = _target(dice, input, target)
        return dice_ce_loss(input, target, dice.reduction, lambda_ce=self.lambda_ce, weight=weight, **options)
    if activation == "sigmoid" and classes == 1 and weight is None:
        return dice_bce_loss(input, target, dice.reduction, lambda_bce=self.lambda_ce, **options)
    return THEIRS[DiceCELoss](self, input, target)


FORWARDS = {DiceLoss: _dice, TverskyLoss: _tversky, DiceCELoss: _dice_ce}
