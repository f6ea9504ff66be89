"""segmentation_models_pytorch's modules with our functions, where ours are the same loss.

Its losses sum over the batch, take the smaller of a probability and a share, add ``smooth`` to numerator and
denominator, and are 0 for a class that the target does not have. The smaller one is the product if all shares are 0 or
1. Our ``weight`` leaves out a class. What ours do not have, the modules compute as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from segmentation_models_pytorch.losses import DiceLoss, JaccardLoss, TverskyLoss
from segmentation_models_pytorch.losses.constants import BINARY_MODE, MULTICLASS_MODE, MULTILABEL_MODE
from swap import counted
from torch import Tensor

import cudaloss

THEIRS = {kind: kind.forward for kind in (DiceLoss, JaccardLoss, TverskyLoss)}
NOT_ZERO = 1e-30  # instead of `eps`: a class without voxels and probabilities has no 0 / 0. It changes no other ratio
ACTIVATIONS = {BINARY_MODE: "sigmoid", MULTICLASS_MODE: "softmax", MULTILABEL_MODE: "sigmoid"}
dice_loss, tversky_loss = (counted(name, getattr(cudaloss, name)) for name in ("dice_loss", "tversky_loss"))


def _ours(module: Any) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """Our function and its options. Dice's numerator has twice the product, so twice what is added to it."""
    is_tversky = isinstance(module, TverskyLoss)
    smooth = module.smooth if is_tversky else 2 * module.smooth
    options = {"smooth_nr": smooth, "smooth_dr": smooth + NOT_ZERO}
    if is_tversky:
        return tversky_loss, {**options, "alpha": module.alpha, "beta": module.beta}
    return dice_loss, {**options, "jaccard": isinstance(module, JaccardLoss)}


def _have(module: Any) -> bool:
    """A class of the target has a denominator of at least 1, or of `beta` if nothing is found: then `eps` is no limit.
    Our masks leave out voxels, those of several labels a voxel's label.
    """
    is_limit = module.eps > min(1.0, getattr(module, "beta", 0.5))
    masks_labels = module.mode == MULTILABEL_MODE and module.ignore_index is not None
    return not (module.log_loss or getattr(module, "gamma", 1.0) != 1.0 or is_limit or masks_labels)


def _weight(module: Any, present: Tensor) -> Tensor:
    """Each class's part of the sum: a mean of the chosen classes, with their weights."""
    chosen = torch.zeros(len(present), dtype=torch.float64)
    chosen[slice(None) if module.classes is None else module.classes] = 1.0
    if module.class_weights is not None:
        chosen *= module.class_weights
    return chosen / chosen.sum() * present


def _forward(self: Any, y_pred: Tensor, y_true: Tensor) -> Tensor:
    has_indices, ignored = self.mode == MULTICLASS_MODE, self.ignore_index
    target = y_true if has_indices else y_true.reshape(y_pred.shape)
    kept = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    counted_in = target[kept]
    if not _have(self) or not (has_indices or torch.equal(counted_in, counted_in.bool().to(target.dtype))):
        return THEIRS[type(self)](self, y_pred, y_true)
    if has_indices:
        present = torch.bincount(counted_in, minlength=y_pred.shape[1]) > 0
        leave = {"ignore_index": ignored}
    else:
        present = (target * kept).transpose(0, 1).flatten(1).any(1)
        leave = {"mask": None if ignored is None else kept}
    function, options = _ours(self)
    activation = ACTIVATIONS[self.mode] if self.from_logits else None
    weight = _weight(self, present)
    return function(y_pred, target, "sum", activation=activation, batch=True, weight=weight, **leave, **options)


FORWARDS = dict.fromkeys(THEIRS, _forward)
