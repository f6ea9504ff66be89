"""Losses of pairs: each member of one side is to be found among all of the other, by the products of their features.
The matrix of these is made in chunks of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._heads import contrast
from ._heads.public import public

__all__ = ["ClipLoss", "InfoNCELoss", "SigLipLoss", "clip_loss", "info_nce_loss", "siglip_loss"]


@public
def info_nce_loss(
    query: Tensor,
    key: Tensor,
    temperature: float = 0.07,
    *,
    reduction: str = "mean",
    memory: str | None = None,
    group: Any = None,
) -> Tensor:
    r"""The contrastive loss of queries and keys: the cross entropy of ``query @ key.T / temperature`` with the i-th key
    as the i-th query's class.

    Source of the formula: van den Oord, Li and Vinyals, Representation Learning with Contrastive Predictive Coding,
    2018.

    Args:
        query (Tensor): of shape ``(pairs, features)`` and a floating dtype, as a rule of norm 1.
        key (Tensor): of shape ``(keys, features)``, at least as many as queries. ``key[i]`` is the partner of
            ``query[i]``; all others, also those behind the last partner (a queue), are negatives.
        temperature (float): above 0; divides the logits. For one that learns, pass ``query * scale`` and 1.
        reduction (str): ``"mean"``, ``"sum"``, or ``"none"`` for a loss for each query.
        memory (str, optional): as in :func:`cudaloss.linear_cross_entropy`.
        group (torch.distributed.ProcessGroup, optional): of processes with as many queries and keys each. The keys of
            all are gathered. The result is the loss of this process's queries; average results and gradients over the
            processes, as DistributedDataParallel does.

    Shape:
        The result is 0-d; for ``reduction="none"`` of shape ``(pairs,)``.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``reduction`` or ``memory`` is wrong.
        RuntimeError: if shapes, dtypes or devices do not fit, or ``temperature`` is out of its range.

    Example:
        >>> import torch, cudaloss
        >>> x = torch.eye(3, 8, requires_grad=True)
        >>> cudaloss.info_nce_loss(x, x, temperature=1.0).detach()  # log(e + 2) - 1
        tensor(0.5514)
    """
    return contrast.info_nce_loss(query, key, temperature, reduction, memory, group)


@public
def clip_loss(
    image_features: Tensor,
    text_features: Tensor,
    logit_scale: Tensor | float,
    *,
    memory: str | None = None,
    group: Any = None,
) -> Tensor:
    r"""The loss of CLIP: the mean of the cross entropies of ``logits = logit_scale * image_features @
    text_features.T`` over rows and over columns, with the i-th image and the i-th text as partners.

    The logits are made once for both directions. Source of the formula: Radford et al., Learning Transferable Visual
    Models From Natural Language Supervision, 2021. The order of arguments is open_clip's.

    Args:
        image_features (Tensor): of shape ``(pairs, features)`` and a floating dtype, as a rule of norm 1.
        text_features (Tensor): of image_features's shape and dtype.
        logit_scale (Tensor or float): the factor of the logits; a tensor of one number gets a gradient.
        memory (str, optional): ``"fast"``, the default, keeps the logits in the features' dtype until the backward and
            takes three products. ``"least"`` makes them again, about 128 MiB at a time, and takes four.
        group (torch.distributed.ProcessGroup, optional): of processes with as many pairs each. The texts of all are
            gathered, the pairs' own logits, and each process's sums of the columns; the logits of a process are those
            of its images and all texts. The result is the loss of this process's images and texts; average results and
            gradients over the processes, as DistributedDataParallel does.

    Shape:
        The result is 0-d.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``memory`` is wrong.
        RuntimeError: if shapes, dtypes or devices do not fit.

    Example:
        >>> import torch, cudaloss
        >>> x = torch.eye(3, 8, requires_grad=True)
        >>> cudaloss.clip_loss(x, x, logit_scale=1.0).detach()  # log(e + 2) - 1, in both directions
        tensor(0.5514)
    """
    return contrast.clip_loss(image_features, text_features, logit_scale, memory, group)


@public
def siglip_loss(
    image_features: Tensor,
    text_features: Tensor,
    logit_scale: Tensor | float,
    logit_bias: Tensor | float | None = None,
    *,
    memory: str | None = None,
    group: Any = None,
) -> Tensor:
    r"""The loss of SigLIP: ``softplus(-y * logits)`` with ``logits = logit_scale * image_features @ text_features.T +
    logit_bias``, and ``y`` 1 for partners and -1 for all other pairs; summed, and divided by the number of images.

    Source of the formula: Zhai et al., Sigmoid Loss for Language Image Pre-Training, 2023. The order of arguments is
    open_clip's.

    Args:
        image_features (Tensor): of shape ``(pairs, features)`` and a floating dtype, as a rule of norm 1.
        text_features (Tensor): of image_features's shape and dtype.
        logit_scale (Tensor or float): the factor of the logits; a tensor of one number gets a gradient.
        logit_bias (Tensor or float, optional): is added to the logits; likewise.
        memory (str, optional): ``"fast"``, the default, takes three products: the forward makes the features'
            gradients, in float32 for halves, with about 256 MiB of logits at a time. ``"least"`` makes them in the
            backward, takes four, and has about 128 MiB.
        group (torch.distributed.ProcessGroup, optional): as in :func:`cudaloss.clip_loss`.

    Shape:
        The result is 0-d.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``memory`` is wrong.
        RuntimeError: if shapes, dtypes or devices do not fit.

    Example:
        >>> import torch, cudaloss
        >>> x = torch.eye(3, 8, requires_grad=True)
        >>> cudaloss.siglip_loss(x, x, 10.0, -10.0).detach()  # log(2) + 2 softplus(-10)
        tensor(0.6932)
    """
    return contrast.siglip_loss(image_features, text_features, logit_scale, logit_bias, memory, group)


class InfoNCELoss(torch.nn.Module):
    r"""The module of :func:`cudaloss.info_nce_loss`.

    Args:
        temperature, reduction, memory, group: as the function's.

    Shape:
        query has the shape ``(pairs, features)``, key ``(keys, features)``.

    Raises:
        RuntimeError: when the module is called, as the function does.
        ValueError: likewise.
        TypeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> x = torch.eye(3, 8)
        >>> cudaloss.InfoNCELoss(temperature=1.0)(x, x)
        tensor(0.5514)
    """

    def __init__(
        self, temperature: float = 0.07, *, reduction: str = "mean", memory: str | None = None, group: Any = None
    ) -> None:
        super().__init__()
        self.temperature, self.reduction, self.memory, self.group = temperature, reduction, memory, group

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        call = self.temperature
        return info_nce_loss(query, key, call, reduction=self.reduction, memory=self.memory, group=self.group)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}, reduction={self.reduction!r}, memory={self.memory!r}"


class ClipLoss(torch.nn.Module):
    r"""The module of :func:`cudaloss.clip_loss`. It has no parameters: a call takes the scale, as open_clip's.

    Args:
        memory, group: as the function's.

    Shape:
        image_features and text_features have the shape ``(pairs, features)``, logit_scale is one number.

    Raises:
        RuntimeError: when the module is called, as the function does.
        ValueError: likewise.
        TypeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> x = torch.eye(3, 8)
        >>> cudaloss.ClipLoss()(x, x, 1.0)
        tensor(0.5514)
    """

    def __init__(self, *, memory: str | None = None, group: Any = None) -> None:
        super().__init__()
        self.memory, self.group = memory, group

    def forward(self, image_features: Tensor, text_features: Tensor, logit_scale: Tensor | float) -> Tensor:
        return clip_loss(image_features, text_features, logit_scale, memory=self.memory, group=self.group)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"memory={self.memory!r}"


class SigLipLoss(torch.nn.Module):
    r"""The module of :func:`cudaloss.siglip_loss`. It has no parameters: a call takes the scale and the bias.

    Args:
        memory, group: as the function's.

    Shape:
        image_features and text_features have the shape ``(pairs, features)``, logit_scale and logit_bias are one number
        each.

    Raises:
        RuntimeError: when the module is called, as the function does.
        ValueError: likewise.
        TypeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> x = torch.eye(3, 8)
        >>> cudaloss.SigLipLoss()(x, x, 10.0, -10.0)
        tensor(0.6932)
    """

    def __init__(self, *, memory: str | None = None, group: Any = None) -> None:
        super().__init__()
        self.memory, self.group = memory, group

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor | float,
        logit_bias: Tensor | float | None = None,
    ) -> Tensor:
        numbers = logit_scale, logit_bias
        return siglip_loss(image_features, text_features, *numbers, memory=self.memory, group=self.group)

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"memory={self.memory!r}"
