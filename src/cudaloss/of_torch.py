"""The losses of ``torch.nn`` that this package does not compute by kernels of their own, so that one import has all of
them: PyTorch's own, unchanged; and ``multilabel_soft_margin_loss``, another mean of
:func:`cudaloss.binary_cross_entropy_with_logits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import (
    AdaptiveLogSoftmaxWithLoss,
    CTCLoss,
    MultiLabelMarginLoss,
    MultiMarginLoss,
    TripletMarginWithDistanceLoss,
)
from torch.nn._reduction import legacy_get_string
from torch.nn.functional import (
    ctc_loss,
    multi_margin_loss,
    multilabel_margin_loss,
    triplet_margin_with_distance_loss,
)

from . import functional as _functional

__all__ = [
    "AdaptiveLogSoftmaxWithLoss",
    "CTCLoss",
    "MultiLabelMarginLoss",
    "MultiLabelSoftMarginLoss",
    "MultiMarginLoss",
    "TripletMarginWithDistanceLoss",
    "ctc_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "triplet_margin_with_distance_loss",
]


def multilabel_soft_margin_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The mean over the classes of the binary cross entropy of logits: the kernels of
    :func:`cudaloss.binary_cross_entropy_with_logits`, with the arguments and results of
    :func:`torch.nn.functional.multilabel_soft_margin_loss`.

    Source of the formula: Good, Rational Decisions, 1952.

    Args:
        input (Tensor): logits of shape ``(..., classes)`` and a floating dtype.
        target (Tensor): labels in [0, 1], of input's shape.
        weight (Tensor, optional): multiplies each class's loss; broadcasts to input's shape.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` or ``"sum"`` over the rows, or ``"none"`` for one loss for each row.

    Returns:
        Tensor: 0-d; for ``"none"`` of input's shape without the classes.

    Raises:
        TypeError: as :func:`cudaloss.binary_cross_entropy_with_logits`.
        ValueError: likewise; input's shape is not target's.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> logits = torch.zeros(2, 3, requires_grad=True)
        >>> loss = cudaloss.multilabel_soft_margin_loss(logits, torch.tensor([[1.0, 0, 1], [0, 0, 1]]))
        >>> loss.backward()
        >>> loss.detach()  # log(2)
        tensor(0.6931)
    """
    if size_average is not None or reduce is not None:
        reduction = legacy_get_string(size_average, reduce)
    bce = _functional.binary_cross_entropy_with_logits
    if reduction == "sum":
        return bce(input, target, weight, reduction="sum", scale=1 / max(input.shape[-1], 1) if input.dim() else 1.0)
    rows = input.dim() - 1 if reduction == "none" and input.dim() else 0
    return bce(input, target, weight, reduction="mean" if reduction == "none" else reduction, batch_dims=rows)


class MultiLabelSoftMarginLoss(torch.nn.Module):
    """The module of :func:`cudaloss.multilabel_soft_margin_loss`.

    Args:
        weight, size_average, reduce, reduction: as the function's. The weight is a buffer.

    Shape:
        input and target are ``(..., classes)``.

    Raises:
        TypeError: when the module is called, as the function does.
        ValueError: likewise.
        RuntimeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> cudaloss.MultiLabelSoftMarginLoss(reduction="none")(torch.zeros(2, 3), torch.ones(2, 3))
        tensor([0.6931, 0.6931])
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        if size_average is not None or reduce is not None:
            reduction = legacy_get_string(size_average, reduce)
        self.reduction = reduction
        self.register_buffer("weight", weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return multilabel_soft_margin_loss(input, target, self.weight, reduction=self.reduction)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"
