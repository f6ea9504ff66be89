"""The modules of :mod:`cudaloss.overlap`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._module_state import keep
from .overlap import dice_bce_loss, dice_ce_loss, dice_loss, tversky_loss

__all__ = ["DiceBCELoss", "DiceCELoss", "DiceLoss", "TverskyLoss"]


class _OverlapLoss(torch.nn.Module):
    """What the modules share: the function, and its keywords. A weight is a buffer."""

    _function: Any
    weight: Tensor | None

    def __init__(self, reduction: str, weight: Tensor | None, **keywords: Any) -> None:
        super().__init__()
        self.reduction, self.keywords = reduction, keywords
        keep(self, "weight", weight)

    def forward(self, input: Tensor, target: Tensor, *, mask: Tensor | None = None) -> Tensor:
        call = type(self)._function
        return call(input, target, self.reduction, weight=self.weight, mask=mask, **self.keywords)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        named = ", ".join(f"{name}={value!r}" for name, value in self.keywords.items())
        return f"reduction={self.reduction!r}, {named}"


class DiceLoss(_OverlapLoss):
    r"""The module of :func:`cudaloss.dice_loss`.

    Args:
        reduction, activation, squared, jaccard, smooth_nr, smooth_dr, batch, include_background, weight, ignore_index:
            as the function's.

    Keywords of a call:
        mask: as the function's.

    Shape:
        As the function's.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.DiceLoss("none", activation="softmax")
        >>> criterion(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)).shape
        torch.Size([2, 3])
    """

    _function = staticmethod(dice_loss)

    def __init__(
        self,
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
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(
            reduction,
            weight,
            activation=activation,
            squared=squared,
            jaccard=jaccard,
            smooth_nr=smooth_nr,
            smooth_dr=smooth_dr,
            batch=batch,
            include_background=include_background,
            ignore_index=ignore_index,
        )


class TverskyLoss(_OverlapLoss):
    r"""The module of :func:`cudaloss.tversky_loss`.

    Args:
        reduction, alpha, beta, activation, smooth_nr, smooth_dr, batch, include_background, weight, ignore_index: as
            the function's.

    Keywords of a call:
        mask: as the function's.

    Shape:
        As the function's.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.TverskyLoss("none", alpha=0.3, beta=0.7, activation="softmax")
        >>> criterion(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)).shape
        torch.Size([2, 3])
    """

    _function = staticmethod(tversky_loss)

    def __init__(
        self,
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
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(
            reduction,
            weight,
            alpha=alpha,
            beta=beta,
            activation=activation,
            smooth_nr=smooth_nr,
            smooth_dr=smooth_dr,
            batch=batch,
            include_background=include_background,
            ignore_index=ignore_index,
        )


class DiceCELoss(_OverlapLoss):
    r"""The module of :func:`cudaloss.dice_ce_loss`.

    Args:
        reduction, lambda_dice, lambda_ce, squared, jaccard, smooth_nr, smooth_dr: as the function's.
        batch, include_background, weight, ignore_index: likewise.

    Keywords of a call:
        mask: as the function's.

    Shape:
        As the function's.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.DiceCELoss(include_background=False)
        >>> criterion(torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)).shape
        torch.Size([])
    """

    _function = staticmethod(dice_ce_loss)

    def __init__(
        self,
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
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(
            reduction,
            weight,
            lambda_dice=lambda_dice,
            lambda_ce=lambda_ce,
            squared=squared,
            jaccard=jaccard,
            smooth_nr=smooth_nr,
            smooth_dr=smooth_dr,
            batch=batch,
            include_background=include_background,
            ignore_index=ignore_index,
        )


class DiceBCELoss(_OverlapLoss):
    r"""The module of :func:`cudaloss.dice_bce_loss`.

    Args:
        reduction, lambda_dice, lambda_bce, squared, jaccard, smooth_nr, smooth_dr: as the function's.
        batch, include_background, weight, ignore_index: likewise.

    Keywords of a call:
        mask: as the function's.

    Shape:
        As the function's.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.DiceBCELoss()
        >>> criterion(torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4)).shape
        torch.Size([])
    """

    _function = staticmethod(dice_bce_loss)

    def __init__(
        self,
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
        ignore_index: int | None = None,
    ) -> None:
        super().__init__(
            reduction,
            weight,
            lambda_dice=lambda_dice,
            lambda_bce=lambda_bce,
            squared=squared,
            jaccard=jaccard,
            smooth_nr=smooth_nr,
            smooth_dr=smooth_dr,
            batch=batch,
            include_background=include_background,
            ignore_index=ignore_index,
        )
