"""Losses of segmentation: how little the probabilities of each class and its voxels overlap. A loss reads the logits
once; its gradient is one more reading and one writing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._heads.public import public
from ._overlap import losses
from ._overlap.losses import Options

__all__ = [
    "dice_bce_loss",
    "dice_ce_loss",
    "dice_loss",
    "tversky_loss",
]


@public
def dice_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    activation: str | None = None,
    squared: bool = False,
    jaccard: bool = False,
    smooth_nr: float = 1e-5,
    smooth_dr: float = 1e-5,
    batch: bool = False,
    include_background: bool = True,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - (2 sum(p g) + smooth_nr) / (sum(p) + sum(g) + smooth_dr)`` of each sample and class, summed over space,
    with the probabilities ``p = activation(input)`` and the target's shares ``g``.

    Source of the formula: Milletari, Navab and Ahmadi, V-Net, 2016. The values are those of MONAI's ``DiceLoss``, whose
    names differ in ``squared`` (``squared_pred``), ``activation`` (``sigmoid=True``, ``softmax=True``) and the target,
    which here need not be one-hot (``to_onehot_y=True``).

    Args:
        input (Tensor): logits or probabilities of shape ``(N, classes, d1, ...)``, of any strides and any number of
            dimensions of space; float32, float64, float16 or bfloat16.
        target (Tensor): the class index of each voxel, of shape ``(N, d1, ...)`` or ``(N, 1, d1, ...)`` and an integer
            dtype; or shares of each class (one-hot, labels that do not exclude each other, probabilities), of input's
            shape and any dtype. Indices are never expanded.
        reduction (str): ``"mean"`` over samples and classes, ``"sum"``, or ``"none"`` for one loss for each sample and
            class.
        activation (str, optional): ``"softmax"`` over the classes, ``"sigmoid"`` of each element, or None if input has
            probabilities.
        squared (bool): whether the denominator sums ``p**2`` and ``g**2``.
        jaccard (bool): the Jaccard index: the denominator is ``2 (sum(p) + sum(g) - sum(p g)) + smooth_dr``.
        smooth_nr, smooth_dr (float): at least 0; added to numerator and denominator.
        batch (bool): whether the sums run over the samples too, so that there is one loss for each class.
        include_background (bool): False leaves out the class 0, if there are several.
        weight (Tensor, optional): multiplies each class's loss, of the classes that are left. A mean is not divided by
            it, as in MONAI, which leaves out the weight if only one class is left.
        mask (Tensor, optional): bool, of a shape that broadcasts to ``(N, d1, ...)``. ``False`` leaves a voxel out,
            even if its logits are NaN or Inf.
        ignore_index (int, optional): voxels with this index are left out.
        dtype (torch.dtype, optional): the result's dtype. Default: input's; under autocast at least float32. The sums
            are of float64.

    Returns:
        Tensor: 0-d; for ``reduction="none"`` of shape ``(N, classes)``, or ``(classes,)`` with ``batch``, with the
        classes that are left. Differentiable in input, and by plain PyTorch in a target of shares, any number of times.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``reduction`` or ``activation`` is unknown; a softmax is over one class; ``ignore_index`` beside a
            target of shares.
        RuntimeError: the shapes do not fit; the devices differ; a number is negative; on the CPU, a class index is out
            of range. On the GPU the loss is then NaN.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([[[4.0, 0.0], [0.0, 4.0]]], requires_grad=True)  # one sample, two classes, two voxels
        >>> loss = cudaloss.dice_loss(input, torch.tensor([[0, 1]]), activation="softmax")
        >>> loss.backward()
        >>> loss.detach()  # 1 - sigmoid(4)
        tensor(0.0180)
    """
    options = Options(activation, smooth_nr, smooth_dr, batch, include_background, weight, mask, ignore_index, dtype)
    return losses.dice_loss(input, target, reduction, squared, jaccard, options)


@public
def tversky_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    alpha: float = 0.5,
    beta: float = 0.5,
    activation: str | None = None,
    smooth_nr: float = 1e-5,
    smooth_dr: float = 1e-5,
    batch: bool = False,
    include_background: bool = True,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - (tp + smooth_nr) / (tp + alpha fp + beta fn + smooth_dr)`` of each sample and class, with ``tp = sum(p
    g)``, ``fp = sum(p (1 - g))`` and ``fn = sum((1 - p) g)`` over space.

    Source of the formula: Salehi, Erdogmus and Gholipour, Tversky Loss Function for Image Segmentation Using 3D Fully
    Convolutional Deep Networks, 2017. The values are those of MONAI's ``TverskyLoss``.

    Args:
        input (Tensor): as of :func:`cudaloss.dice_loss`.
        target (Tensor): likewise.
        reduction (str): likewise.
        alpha (float): at least 0; the weight of false positives.
        beta (float): at least 0; the weight of false negatives.
        activation, smooth_nr, smooth_dr, batch, include_background, weight, mask, ignore_index, dtype: as of
            :func:`cudaloss.dice_loss`.

    Returns:
        Tensor: as :func:`cudaloss.dice_loss`.

    Raises:
        TypeError: as :func:`cudaloss.dice_loss`.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> p, g = torch.tensor([[[0.5, 0.5, 0.0]]]), torch.tensor([[[1.0, 0.0, 1.0]]])
        >>> cudaloss.tversky_loss(p, g, alpha=0.2, beta=0.8)  # 1 - 0.5 / (0.5 + 0.2 * 0.5 + 0.8 * 1.5)
        tensor(0.7222)
    """
    options = Options(activation, smooth_nr, smooth_dr, batch, include_background, weight, mask, ignore_index, dtype)
    return losses.tversky_loss(input, target, reduction, alpha, beta, options)


@public
def dice_ce_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    lambda_dice: float = 1.0,
    lambda_ce: float = 1.0,
    squared: bool = False,
    jaccard: bool = False,
    smooth_nr: float = 1e-5,
    smooth_dr: float = 1e-5,
    batch: bool = False,
    include_background: bool = True,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``lambda_dice`` times the Dice loss of the softmax over the classes, plus ``lambda_ce`` times the cross entropy
    of the same logits, in one pass.

    Source of the formula: Isensee et al., nnU-Net, 2021. The values are those of MONAI's
    ``DiceCELoss(softmax=True)``.

    Args:
        input (Tensor): logits of shape ``(N, classes, d1, ...)`` with at least two classes; as of
            :func:`cudaloss.dice_loss`.
        target (Tensor): as of :func:`cudaloss.dice_loss`. Shares are taken as probabilities by the cross entropy, and
            are computed in plain PyTorch.
        reduction (str): ``"mean"`` or ``"sum"``, of both losses: the cross entropy's runs over the voxels.
        lambda_dice, lambda_ce (float): at least 0.
        weight (Tensor, optional): of all classes, for both losses. A mean of the cross entropy is divided by the
            voxels' weights, as PyTorch's.
        squared, jaccard, smooth_nr, smooth_dr, batch, include_background, mask, ignore_index, dtype: as of
            :func:`cudaloss.dice_loss`.

    Returns:
        Tensor: 0-d.

    Raises:
        TypeError: as :func:`cudaloss.dice_loss`.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([[[4.0, 0.0], [0.0, 4.0]]], requires_grad=True)
        >>> loss = cudaloss.dice_ce_loss(input, torch.tensor([[0, 1]]))
        >>> loss.backward()
        >>> loss.detach()  # 1 - sigmoid(4) + softplus(-4)
        tensor(0.0361)
    """
    options = Options("softmax", smooth_nr, smooth_dr, batch, include_background, weight, mask, ignore_index, dtype)
    factors = lambda_dice, lambda_ce
    return losses.dice_entropy_loss(input, target, reduction, squared, jaccard, factors, "lambda_ce", options)


@public
def dice_bce_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    lambda_dice: float = 1.0,
    lambda_bce: float = 1.0,
    squared: bool = False,
    jaccard: bool = False,
    smooth_nr: float = 1e-5,
    smooth_dr: float = 1e-5,
    batch: bool = False,
    include_background: bool = True,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    ignore_index: int | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``lambda_dice`` times the Dice loss of the sigmoid of each element, plus ``lambda_bce`` times the binary cross
    entropy of the same logits, in one pass.

    Source of the formula: Isensee et al., nnU-Net, 2021. The values are those of MONAI's ``DiceCELoss(sigmoid=True)``
    of one class without a weight, which is a ``pos_weight`` there.

    Args:
        input (Tensor): logits of shape ``(N, classes, d1, ...)``; as of :func:`cudaloss.dice_loss`.
        target (Tensor): as of :func:`cudaloss.dice_loss`.
        reduction (str): ``"mean"`` or ``"sum"``, of both losses: the binary cross entropy's runs over all elements.
        lambda_dice, lambda_bce (float): at least 0.
        weight (Tensor, optional): of all classes, for both losses. No mean is divided by it.
        squared, jaccard, smooth_nr, smooth_dr, batch, include_background, mask, ignore_index, dtype: as of
            :func:`cudaloss.dice_loss`.

    Returns:
        Tensor: 0-d.

    Raises:
        TypeError: as :func:`cudaloss.dice_loss`.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([[[4.0, -4.0]]], requires_grad=True)
        >>> loss = cudaloss.dice_bce_loss(input, torch.tensor([[[1, 0]]]))
        >>> loss.backward()
        >>> loss.detach()  # 1 - sigmoid(4) + softplus(-4)
        tensor(0.0361)
    """
    options = Options("sigmoid", smooth_nr, smooth_dr, batch, include_background, weight, mask, ignore_index, dtype)
    factors = lambda_dice, lambda_bce
    return losses.dice_entropy_loss(input, target, reduction, squared, jaccard, factors, "lambda_bce", options)
