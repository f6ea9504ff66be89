# Generated from the rows in _losses: change these, and run `make faces`.
"""The losses as modules, which can replace ``torch.nn``'s by changing the import."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn._reduction import legacy_get_string

from . import functional
from ._module_state import changed_options, keep, shown
from ._ops.checks import check_size_average
from .contrast import ClipLoss, InfoNCELoss, SigLipLoss
from .heads import LinearCrossEntropyLoss
from .overlap_modules import DiceBCELoss, DiceCELoss, DiceLoss, TverskyLoss

__all__ = [
    "SmoothL1Loss",
    "MSELoss",
    "HuberLoss",
    "L1Loss",
    "BCEWithLogitsLoss",
    "QuantileLoss",
    "PseudoHuberLoss",
    "CharbonnierLoss",
    "LogCoshLoss",
    "SoftMarginLoss",
    "HingeLoss",
    "KLDivLoss",
    "BCELoss",
    "PoissonNLLLoss",
    "GaussianNLLLoss",
    "SigmoidFocalLoss",
    "HingeEmbeddingLoss",
    "MarginRankingLoss",
    "VarifocalLoss",
    "CrossEntropyLoss",
    "NLLLoss",
    "CosineSimilarityLoss",
    "CosineEmbeddingLoss",
    "TripletMarginLoss",
    "KLDivWithLogitsLoss",
    "JSDWithLogitsLoss",
    "GeneralizedBoxIoULoss",
    "DistanceBoxIoULoss",
    "CompleteBoxIoULoss",
    "ClipLoss",
    "DiceBCELoss",
    "DiceCELoss",
    "DiceLoss",
    "InfoNCELoss",
    "LinearCrossEntropyLoss",
    "SigLipLoss",
    "TverskyLoss",
]


class SmoothL1Loss(torch.nn.Module):
    r"""``0.5 * d**2 / beta where |d| < beta, else |d| - 0.5 * beta``, with ``d = input - target``: the module of :func:`cudaloss.smooth_l1_loss`.

    Replaces :class:`torch.nn.SmoothL1Loss`. Source of the formula: Girshick, Fast R-CNN, 2015, equation 3.

    Args:
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        beta (float or Tensor): where the loss turns from quadratic to linear; 0 is L1; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.SmoothL1Loss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    beta: Tensor | float

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        beta: Tensor | float = 1.0,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("smooth_l1_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        keep(self, "beta", beta)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.smooth_l1_loss(
            input,
            target,
            reduction=self.reduction,
            beta=self.beta,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, beta={shown(self.beta)}{changed_options(self)}"


class MSELoss(torch.nn.Module):
    r"""``d**2``, with ``d = input - target``: the module of :func:`cudaloss.mse_loss`.

    Replaces :class:`torch.nn.MSELoss`. Source of the formula: Legendre, Nouvelles méthodes pour la détermination des orbites des comètes, 1805.

    Args:
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.MSELoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("mse_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.mse_loss(
            input,
            target,
            reduction=self.reduction,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}{changed_options(self)}"


class HuberLoss(torch.nn.Module):
    r"""``0.5 * d**2 where |d| < delta, else delta * (|d| - 0.5 * delta)``, with ``d = input - target``: the module of :func:`cudaloss.huber_loss`.

    Replaces :class:`torch.nn.HuberLoss`. Source of the formula: Huber, Robust Estimation of a Location Parameter, 1964.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        delta (float or Tensor): where the loss turns from quadratic to linear; a number > 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the number of elements that count, as in PyTorch.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.HuberLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    delta: Tensor | float

    def __init__(
        self,
        reduction: str = "mean",
        delta: Tensor | float = 1.0,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "delta", delta)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.huber_loss(
            input,
            target,
            reduction=self.reduction,
            delta=self.delta,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, delta={shown(self.delta)}{changed_options(self)}"


class L1Loss(torch.nn.Module):
    r"""``|d|``, with ``d = input - target``: the module of :func:`cudaloss.l1_loss`.

    Replaces :class:`torch.nn.L1Loss`. Source of the formula: Laplace, Sur quelques points du système du monde, 1793.

    Args:
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.L1Loss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("l1_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.l1_loss(
            input,
            target,
            reduction=self.reduction,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}{changed_options(self)}"


class BCEWithLogitsLoss(torch.nn.Module):
    r"""``(1 - target) * softplus(input) + pos_weight * target * softplus(-input)``: the module of :func:`cudaloss.binary_cross_entropy_with_logits`.

    Replaces :class:`torch.nn.BCEWithLogitsLoss`. Source of the formula: Good, Rational Decisions, 1952.

    Args:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the number of elements that count, as in PyTorch.
            Differentiable.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        pos_weight (float or Tensor, optional): the weight of positive targets; None is 1; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        label_smoothing (float): how far targets move towards 1/2; 1 moves them to 1/2; a number in [0, 1].
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.BCEWithLogitsLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    weight: Tensor | None
    pos_weight: Tensor | float | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | float | None = None,
        label_smoothing: float = 0.0,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("binary_cross_entropy_with_logits", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        keep(self, "weight", weight)
        keep(self, "pos_weight", pos_weight)
        self.label_smoothing = label_smoothing
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.binary_cross_entropy_with_logits(
            input,
            target,
            reduction=self.reduction,
            weight=self.weight,
            pos_weight=self.pos_weight,
            label_smoothing=self.label_smoothing,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, pos_weight={shown(self.pos_weight)}, label_smoothing={shown(self.label_smoothing)}{changed_options(self)}"


class QuantileLoss(torch.nn.Module):
    r"""``(1 - quantile) * |d| where d > 0, else quantile * |d|``, with ``d = input - target``: the module of :func:`cudaloss.quantile_loss`.

    Source of the formula: Koenker and Bassett, Regression Quantiles, 1978.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        quantile (float or Tensor): the quantile of the target that the best input is; a number in (0, 1),
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.QuantileLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    quantile: Tensor | float

    def __init__(
        self,
        reduction: str = "mean",
        quantile: Tensor | float = 0.5,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "quantile", quantile)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.quantile_loss(
            input,
            target,
            reduction=self.reduction,
            quantile=self.quantile,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, quantile={shown(self.quantile)}{changed_options(self)}"


class PseudoHuberLoss(torch.nn.Module):
    r"""``d**2 / (sqrt(1 + (d / delta)**2) + 1)``, with ``d = input - target``: the module of :func:`cudaloss.pseudo_huber_loss`.

    Source of the formula: Charbonnier et al., Deterministic Edge-Preserving Regularization in Computed Imaging, 1997.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        delta (float or Tensor): where the loss turns smoothly from quadratic to linear; a number > 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.PseudoHuberLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    delta: Tensor | float

    def __init__(
        self,
        reduction: str = "mean",
        delta: Tensor | float = 1.0,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "delta", delta)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.pseudo_huber_loss(
            input,
            target,
            reduction=self.reduction,
            delta=self.delta,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, delta={shown(self.delta)}{changed_options(self)}"


class CharbonnierLoss(torch.nn.Module):
    r"""``sqrt(d**2 + eps**2)``, with ``d = input - target``: the module of :func:`cudaloss.charbonnier_loss`.

    Source of the formula: Charbonnier et al., Two Deterministic Half-Quadratic Regularization Algorithms, 1994.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        eps (float or Tensor): the loss at 0, below which ``|d|`` has a quadratic loss; not squared; a number > 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.CharbonnierLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    eps: Tensor | float

    def __init__(
        self,
        reduction: str = "mean",
        eps: Tensor | float = 0.001,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "eps", eps)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.charbonnier_loss(
            input,
            target,
            reduction=self.reduction,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, eps={shown(self.eps)}{changed_options(self)}"


class LogCoshLoss(torch.nn.Module):
    r"""``log(cosh(d))``, with ``d = input - target``: the module of :func:`cudaloss.log_cosh_loss`.

    Source of the formula: Green, Bayesian Reconstructions from Emission Tomography Data Using a Modified EM Algorithm, 1990.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.LogCoshLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.log_cosh_loss(
            input,
            target,
            reduction=self.reduction,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}{changed_options(self)}"


class SoftMarginLoss(torch.nn.Module):
    r"""``softplus(-(target * input))``: the module of :func:`cudaloss.soft_margin_loss`.

    Replaces :class:`torch.nn.SoftMarginLoss`. Source of the formula: Cox, The Regression Analysis of Binary Sequences, 1958.

    Args:
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.SoftMarginLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("soft_margin_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.soft_margin_loss(
            input,
            target,
            reduction=self.reduction,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}{changed_options(self)}"


class HingeLoss(torch.nn.Module):
    r"""``(margin - target * input)**power where target * input < margin, else 0``: the module of :func:`cudaloss.hinge_loss`.

    Source of the formula: Rosasco et al., Are Loss Functions All the Same?, 2004.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        margin (float or Tensor): target * input has a loss below this; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        power (float): 1, or 2 for the squared hinge loss; a number that is 1 or 2.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.HingeLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    margin: Tensor | float

    def __init__(
        self,
        reduction: str = "mean",
        margin: Tensor | float = 1.0,
        power: float = 1.0,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "margin", margin)
        self.power = power
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.hinge_loss(
            input,
            target,
            reduction=self.reduction,
            margin=self.margin,
            power=self.power,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, margin={shown(self.margin)}, power={shown(self.power)}{changed_options(self)}"


class KLDivLoss(torch.nn.Module):
    r"""``target * log(target) - target * input``: the module of :func:`cudaloss.kl_div`.

    Replaces :class:`torch.nn.KLDivLoss`. Source of the formula: Kullback and Leibler, On Information and Sufficiency, 1951.

    Args:
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element. ``"batchmean"`` divides the sum by the first size of input.
        log_target (bool): whether target is a logarithm.
        log_input (bool): whether input is a logarithm; otherwise the same pass takes the logarithm.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.KLDivLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        log_target: bool = False,
        log_input: bool = True,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("kl_div", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.log_target = log_target
        self.log_input = log_input
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.kl_div(
            input,
            target,
            reduction=self.reduction,
            log_target=self.log_target,
            log_input=self.log_input,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, log_target={shown(self.log_target)}, log_input={shown(self.log_input)}{changed_options(self)}"


class BCELoss(torch.nn.Module):
    r"""``-(target * Max(log(input), -100) + (1 - target) * Max(log1p(-input), -100))``: the module of :func:`cudaloss.binary_cross_entropy`.

    Replaces :class:`torch.nn.BCELoss`. Source of the formula: Good, Rational Decisions, 1952.

    Args:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the number of elements that count, as in PyTorch.
            Differentiable.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.BCELoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("binary_cross_entropy", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        keep(self, "weight", weight)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.binary_cross_entropy(
            input,
            target,
            reduction=self.reduction,
            weight=self.weight,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}{changed_options(self)}"


class PoissonNLLLoss(torch.nn.Module):
    r"""``exp(input) - target * input``: the module of :func:`cudaloss.poisson_nll_loss`.

    Replaces :class:`torch.nn.PoissonNLLLoss`. Source of the formula: Nelder and Wedderburn, Generalized Linear Models, 1972.

    Args:
        log_input (bool): whether input is the logarithm of the rate.
        full (bool): whether Stirling's term is added for targets above 1.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        eps (float): added to an input that is not a logarithm; a number >= 0.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.PoissonNLLLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        log_input: bool = True,
        full: bool = False,
        size_average: bool | None = None,
        eps: float = 1e-08,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("poisson_nll_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.log_input = log_input
        self.full = full
        self.eps = eps
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.poisson_nll_loss(
            input,
            target,
            reduction=self.reduction,
            log_input=self.log_input,
            full=self.full,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, log_input={shown(self.log_input)}, full={shown(self.full)}, eps={shown(self.eps)}{changed_options(self)}"


class GaussianNLLLoss(torch.nn.Module):
    r"""``0.5 * log(Max(var, eps)) + 0.5 * (input - target)**2 / Max(var, eps)``: the module of :func:`cudaloss.gaussian_nll_loss`.

    Replaces :class:`torch.nn.GaussianNLLLoss`. Source of the formula: Nix and Weigend, Estimating the Mean and Variance of the Target Probability Distribution, 1994.

    Args:
        full (bool): whether the constant log(2 pi) / 2 is added.
        eps (float): the least variance; a smaller one counts as this; a number >= 0.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        var (float or Tensor): the variance; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked; if it has that shape without the last dimension, each of its numbers is for all of that dimension.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.GaussianNLLLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3), torch.ones(())).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        full: bool = False,
        eps: float = 1e-06,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.full = full
        self.eps = eps
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        var: Tensor | float,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.gaussian_nll_loss(
            input,
            target,
            reduction=self.reduction,
            full=self.full,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            var=var,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, full={shown(self.full)}, eps={shown(self.eps)}{changed_options(self)}"


class SigmoidFocalLoss(torch.nn.Module):
    r"""``(alpha * target + (1 - alpha) * (1 - target)) * (target * sigmoid(-input) + (1 - target) * sigmoid(input))**gamma * (target * softplus(-input) + (1 - target) * softplus(input))``: the module of :func:`cudaloss.sigmoid_focal_loss`.

    Source of the formula: Lin et al., Focal Loss for Dense Object Detection, 2017.

    Args:
        alpha (float or Tensor): the weight of positive targets; negative ones have 1 - alpha; a number <= 1,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        gamma (float): how much easy elements count less; 0 is binary cross entropy; a number >= 0.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.SigmoidFocalLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    alpha: Tensor | float

    def __init__(
        self,
        alpha: Tensor | float = 0.25,
        gamma: float = 2.0,
        reduction: str = "none",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "alpha", alpha)
        self.gamma = gamma
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.sigmoid_focal_loss(
            input,
            target,
            reduction=self.reduction,
            alpha=self.alpha,
            gamma=self.gamma,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return (
            f"reduction={self.reduction!r}, alpha={shown(self.alpha)}, gamma={shown(self.gamma)}{changed_options(self)}"
        )


class HingeEmbeddingLoss(torch.nn.Module):
    r"""``input where target == 1, else Max(margin - input, 0) where target == -1, else input + Max(margin - input, 0)``: the module of :func:`cudaloss.hinge_embedding_loss`.

    Replaces :class:`torch.nn.HingeEmbeddingLoss`. Source of the formula: Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, 2006.

    Args:
        margin (float or Tensor): an input of target -1 has a loss below this; a number,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.HingeEmbeddingLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    margin: Tensor | float

    def __init__(
        self,
        margin: Tensor | float = 1.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("hinge_embedding_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        keep(self, "margin", margin)
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.hinge_embedding_loss(
            input,
            target,
            reduction=self.reduction,
            margin=self.margin,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, margin={shown(self.margin)}{changed_options(self)}"


class MarginRankingLoss(torch.nn.Module):
    r"""``margin - target * (input1 - input2) where target * (input1 - input2) <= margin, else 0``: the module of :func:`cudaloss.margin_ranking_loss`.

    Replaces :class:`torch.nn.MarginRankingLoss`. Source of the formula: Herbrich et al., Support Vector Learning for Ordinal Regression, 1999.

    Args:
        margin (float): how much larger it should be; a number.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose input2 is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input1 and input2 promote to; under
            autocast at least float32.

    Keywords of a call:
        target (float or Tensor): 1 if input1 should be the larger one, -1 if input2 should; a number,
            or a tensor of a floating dtype that broadcasts to the joint shape of input1 and input2; its values are not checked.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input1 and input2; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input1 and input2. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input1 and input2 have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.MarginRankingLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3), torch.ones(())).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("margin_ranking_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.margin = margin
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input1: Tensor,
        input2: Tensor,
        target: Tensor | float,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.margin_ranking_loss(
            input1,
            input2,
            reduction=self.reduction,
            margin=self.margin,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            target=target,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, margin={shown(self.margin)}{changed_options(self)}"


class VarifocalLoss(torch.nn.Module):
    r"""``target * (target * softplus(-input) + (1 - target) * softplus(input)) where target > 0, else alpha * sigmoid(input)**gamma * softplus(input)``: the module of :func:`cudaloss.varifocal_loss`.

    Source of the formula: Zhang et al., VarifocalNet: An IoU-Aware Dense Object Detector, 2021.

    Args:
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        alpha (float or Tensor): the weight of negatives, whose target is 0; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        gamma (float): how much easy negatives count less; 0 is binary cross entropy; a number >= 0.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
        dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.VarifocalLoss(reduction="none")
        >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
        torch.Size([2, 3])
    """

    alpha: Tensor | float

    def __init__(
        self,
        reduction: str = "mean",
        alpha: Tensor | float = 0.75,
        gamma: float = 2.0,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        ignore_nan: bool = False,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        keep(self, "alpha", alpha)
        self.gamma = gamma
        self.scale = scale
        self.batch_dims = batch_dims
        self.ignore_nan = ignore_nan
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.varifocal_loss(
            input,
            target,
            reduction=self.reduction,
            alpha=self.alpha,
            gamma=self.gamma,
            scale=self.scale,
            batch_dims=self.batch_dims,
            ignore_nan=self.ignore_nan,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return (
            f"reduction={self.reduction!r}, alpha={shown(self.alpha)}, gamma={shown(self.gamma)}{changed_options(self)}"
        )


class CrossEntropyLoss(torch.nn.Module):
    r"""``logsumexp(input) - input[target]`` of each row of classes: the module of :func:`cudaloss.cross_entropy`.

    Replaces :class:`torch.nn.CrossEntropyLoss`. Source of the formula: Good, Rational Decisions, 1952.

    Args:
        weight (Tensor, optional): a factor for each class in the loss; of shape ``(classes,)`` and a floating dtype.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        ignore_index (int): rows whose target is this index do not count, for any input; not for a target of
            probabilities.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        label_smoothing (float): how far the target moves towards equal shares of all classes, in [0, 1] (Szegedy et
            al., Rethinking the Inception Architecture for Computer Vision, 2016).
        z_loss (float): at least 0; adds this times ``logsumexp(input)**2`` to each row's loss, which keeps logsumexp
            near 0 (Devlin et al., Fast and Robust Neural Network Joint Models, 2014; Chowdhery et al., PaLM, 2022).
        softcap (float, optional): above 0; ``softcap * tanh(input / softcap)`` replaces input in the whole formula
            (Gemma Team, Gemma 2, 2024).
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: input's dtype; with a target of probabilities the one
            that both promote to; under autocast at least float32.

    Keywords of a call:
        sample_weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts to the
            rows' shape (input's without the classes). ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row out, as
            ``ignore_index`` does: it adds nothing to the loss, to a gradient or to the count, even if its logits are NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input is ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)``. The rows, and class indices, have that
        shape without the classes; probabilities have input's shape. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.CrossEntropyLoss(reduction="none")
        >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3])).shape
        torch.Size([2])
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float | None = None,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("cross_entropy", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        keep(self, "weight", weight)
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss
        self.softcap = softcap
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.cross_entropy(
            input,
            target,
            reduction=self.reduction,
            weight=self.weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            sample_weight=sample_weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, weight={shown(self.weight)}, ignore_index={shown(self.ignore_index)}, label_smoothing={shown(self.label_smoothing)}, z_loss={shown(self.z_loss)}, softcap={shown(self.softcap)}{changed_options(self)}"


class NLLLoss(torch.nn.Module):
    r"""``-input[target]`` of each row of classes: the module of :func:`cudaloss.nll_loss`.

    Replaces :class:`torch.nn.NLLLoss`. Source of the formula: Fisher, On the Mathematical Foundations of Theoretical Statistics, 1922.

    Args:
        weight (Tensor, optional): a factor for each class in the loss; of shape ``(classes,)`` and a floating dtype.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        ignore_index (int): rows whose target is this index do not count, for any input.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: input's dtype; with a target of probabilities the one
            that both promote to; under autocast at least float32.

    Keywords of a call:
        sample_weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts to the
            rows' shape (input's without the classes). ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row out, as
            ``ignore_index`` does: it adds nothing to the loss, to a gradient or to the count, even if its logits are NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        input is ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)``. The rows, and class indices, have that
        shape without the classes. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.NLLLoss(reduction="none")
        >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3])).shape
        torch.Size([2])
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("nll_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        keep(self, "weight", weight)
        self.ignore_index = ignore_index
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.nll_loss(
            input,
            target,
            reduction=self.reduction,
            weight=self.weight,
            ignore_index=self.ignore_index,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            sample_weight=sample_weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, weight={shown(self.weight)}, ignore_index={shown(self.ignore_index)}{changed_options(self)}"


class CosineSimilarityLoss(torch.nn.Module):
    r"""``1 - cosine_similarity(input, target)`` of each row: the module of :func:`cudaloss.cosine_similarity_loss`.

    Source of the formula: Salton, Wong and Yang, A Vector Space Model for Automatic Indexing, 1975.

    Args:
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        dim (int): the vectors' dimension, as in :func:`torch.nn.functional.cosine_similarity`.
        eps (float): above 0; the least norm in the denominator.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.CosineSimilarityLoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        reduction: str = "mean",
        dim: int = 1,
        eps: float = 1e-08,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.dim = dim
        self.eps = eps
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.cosine_similarity_loss(
            input,
            target,
            reduction=self.reduction,
            dim=self.dim,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, dim={shown(self.dim)}, eps={shown(self.eps)}{changed_options(self)}"


class CosineEmbeddingLoss(torch.nn.Module):
    r"""``1 - cos where target == 1, else max(0, cos - margin)`` of each row: the module of :func:`cudaloss.cosine_embedding_loss`.

    Replaces :class:`torch.nn.CosineEmbeddingLoss`. Source of the formula: Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, 2006.

    Args:
        margin (float): dissimilar rows have a loss above this cosine.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.CosineEmbeddingLoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4), torch.ones(2)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        margin: float = 0.0,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("cosine_embedding_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.margin = margin
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        input1: Tensor,
        input2: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.cosine_embedding_loss(
            input1,
            input2,
            target,
            reduction=self.reduction,
            margin=self.margin,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, margin={shown(self.margin)}{changed_options(self)}"


class TripletMarginLoss(torch.nn.Module):
    r"""``max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)`` of each row: the module of :func:`cudaloss.triplet_margin_loss`.

    Replaces :class:`torch.nn.TripletMarginLoss`. Source of the formula: Balntas et al., Learning Shallow Convolutional Feature Descriptors with Triplet Losses, 2016.

    Args:
        margin (float): above 0; how much farther the negative should be.
        p (float): the norm of a distance.
        eps (float): added to each difference.
        swap (bool): whether to use the distance swap.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.TripletMarginLoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-06,
        swap: bool = False,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            check_size_average("triplet_margin_loss", size_average)
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.margin = margin
        self.p = p
        self.eps = eps
        self.swap = swap
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        anchor: Tensor,
        positive: Tensor,
        negative: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.triplet_margin_loss(
            anchor,
            positive,
            negative,
            reduction=self.reduction,
            margin=self.margin,
            p=self.p,
            eps=self.eps,
            swap=self.swap,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, margin={shown(self.margin)}, p={shown(self.p)}, eps={shown(self.eps)}, swap={shown(self.swap)}{changed_options(self)}"


class KLDivWithLogitsLoss(torch.nn.Module):
    r"""``temperature**2 * KL(softmax(target / temperature), softmax(input / temperature))`` of each row: the module of :func:`cudaloss.kl_div_with_logits`.

    Source of the formula: Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015.

    Args:
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        temperature (float): above 0; both operands' logits are divided by it.
        dim (int): the dimension of the classes; 1 also for 1-D operands.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.KLDivWithLogitsLoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        reduction: str = "mean",
        temperature: float = 1.0,
        *,
        dim: int = 1,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.temperature = temperature
        self.dim = dim
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.kl_div_with_logits(
            input,
            target,
            reduction=self.reduction,
            temperature=self.temperature,
            dim=self.dim,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, temperature={shown(self.temperature)}, dim={shown(self.dim)}{changed_options(self)}"


class JSDWithLogitsLoss(torch.nn.Module):
    r"""``temperature**2 * (beta * KL(p, m) + (1 - beta) * KL(q, m))`` of each row: the module of :func:`cudaloss.jsd_with_logits`.

    Source of the formula: Agarwal et al., On-Policy Distillation of Language Models, 2024.

    Args:
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        beta (float): in [0, 1]; the teacher's share of m.
        temperature (float): above 0; both operands' logits are divided by it.
        dim (int): the dimension of the classes; 1 also for 1-D operands.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.JSDWithLogitsLoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        reduction: str = "mean",
        beta: float = 0.5,
        temperature: float = 1.0,
        *,
        dim: int = 1,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.beta = beta
        self.temperature = temperature
        self.dim = dim
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.jsd_with_logits(
            input,
            target,
            reduction=self.reduction,
            beta=self.beta,
            temperature=self.temperature,
            dim=self.dim,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, beta={shown(self.beta)}, temperature={shown(self.temperature)}, dim={shown(self.dim)}{changed_options(self)}"


class GeneralizedBoxIoULoss(torch.nn.Module):
    r"""``1 - IoU + (C - U) / C`` of each row: the module of :func:`cudaloss.generalized_box_iou_loss`.

    Source of the formula: Rezatofighi et al., Generalized Intersection over Union, 2019.

    Args:
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        eps (float): above 0; added to each denominator.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.GeneralizedBoxIoULoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        reduction: str = "none",
        eps: float = 1e-07,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.eps = eps
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        boxes1: Tensor,
        boxes2: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.generalized_box_iou_loss(
            boxes1,
            boxes2,
            reduction=self.reduction,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, eps={shown(self.eps)}{changed_options(self)}"


class DistanceBoxIoULoss(torch.nn.Module):
    r"""``1 - IoU + r**2 / c**2`` of each row: the module of :func:`cudaloss.distance_box_iou_loss`.

    Source of the formula: Zheng et al., Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression, 2020.

    Args:
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        eps (float): above 0; added to each denominator.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.DistanceBoxIoULoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        reduction: str = "none",
        eps: float = 1e-07,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.eps = eps
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        boxes1: Tensor,
        boxes2: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.distance_box_iou_loss(
            boxes1,
            boxes2,
            reduction=self.reduction,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, eps={shown(self.eps)}{changed_options(self)}"


class CompleteBoxIoULoss(torch.nn.Module):
    r"""``1 - IoU + r**2 / c**2 + a * v`` of each row: the module of :func:`cudaloss.complete_box_iou_loss`.

    Source of the formula: Zheng et al., Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression, 2020.

    Args:
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        eps (float): above 0; added to each denominator.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Keywords of a call:
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.

    Shape:
        The rows have the operands' shape without the dimension of the vectors. The result has the shape of the first
        ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.
        IndexError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> criterion = cudaloss.CompleteBoxIoULoss(reduction="none")
        >>> criterion(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2])
    """

    def __init__(
        self,
        reduction: str = "none",
        eps: float = 1e-07,
        *,
        scale: float = 1.0,
        batch_dims: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.reduction = reduction
        self.eps = eps
        self.scale = scale
        self.batch_dims = batch_dims
        self.dtype = dtype

    def forward(
        self,
        boxes1: Tensor,
        boxes2: Tensor,
        *,
        weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        return functional.complete_box_iou_loss(
            boxes1,
            boxes2,
            reduction=self.reduction,
            eps=self.eps,
            scale=self.scale,
            batch_dims=self.batch_dims,
            dtype=self.dtype,
            weight=weight,
            mask=mask,
            normalizer=normalizer,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}, eps={shown(self.eps)}{changed_options(self)}"
