"""Losses of a head: hidden states times a weight, and then a loss of the logits, which are never whole in memory; and
the log-probabilities of tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ._heads import calls
from ._heads.distillation import linear_jsd_with_logits, linear_sparse_cross_entropy, sparse_cross_entropy
from ._heads.public import public

__all__ = [
    "LinearCrossEntropyLoss",
    "linear_cross_entropy",
    "linear_jsd_with_logits",
    "linear_sparse_cross_entropy",
    "linear_token_log_prob",
    "sparse_cross_entropy",
    "token_log_prob",
]


@public
def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int | None = None,
    label_smoothing: float = 0.0,
    options: Any = None,
    z_loss: float = 0.0,
    softcap: float | None = None,
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    memory: str | None = None,
) -> Tensor:
    r"""The cross entropy of ``logits = input @ linear_weight.T + linear_bias``, without the logits in memory.

    The same as ``cudaloss.cross_entropy(torch.nn.functional.linear(input, linear_weight, linear_bias), target, ...)``.
    The products are PyTorch's own (cuBLAS); our kernels read a block of logits where the product has left it, and write
    the gradient over it. Replaces :func:`torch.nn.functional.linear_cross_entropy` (torch 2.13), whose arguments come
    first. Source of the formula: Good, Rational Decisions, 1952; of the blocks: Wijmans et al., Cut Your Losses in
    Large-Vocabulary Language Models, 2024.

    Args:
        input (Tensor): hidden states, of shape ``(..., features)`` and a floating dtype.
        linear_weight (Tensor): of shape ``(classes, features)`` and input's dtype; or ``(classes, d1, ..., features)``
            for a loss at each of these positions.
        target (Tensor): class indices of an integer dtype, of input's shape without the features; or probabilities of a
            floating dtype, of the logits' shape. Probabilities, and a weight of more than two dimensions, need the
            whole logits.
        linear_bias (Tensor, optional): of linear_weight's shape without the features.
        weight (Tensor, optional): a factor for each class in the loss; of shape ``(classes,)`` and a floating dtype.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        ignore_index (int, optional): rows whose target is this index do not count, for any input. Default: -100.
        label_smoothing (float): how far the target moves towards equal shares of all classes, in [0, 1].
        options (torch.nn.LinearCrossEntropyOptions, optional): asks for less memory, as ``memory="least"`` does. Its
            sizes and its accumulation are not taken: sums are always in float32.
        z_loss (float): at least 0; adds this times ``logsumexp(logits)**2`` to each row's loss.
        softcap (float, optional): above 0; ``softcap * tanh(logits / softcap)`` replaces the logits.
        sample_weight (Tensor, optional): multiplies each row's loss; broadcasts to the rows' shape. ``"mean"`` divides
            by the sum of the weights that count. Differentiable.
        mask (Tensor, optional): bool, broadcasts to the rows' shape. ``False`` leaves a row out, even if it has NaN.
        normalizer (Tensor or float, optional): the loss is the sum divided by it; only with ``"mean"``.
        scale (float): a constant factor for the loss and its gradients.
        dtype (torch.dtype, optional): the result's dtype. Default: input's; under autocast at least float32.
        memory (str, optional): ``"fast"``, the default, takes three products; it has all logits at once, or chunks of
            4,096 rows and a gradient of the weight in float32 if there are more than twice as many rows as features.
            With chunks a softcap and fp16 go by ``"least"``, and so does every call inside hooks on saved tensors.
            ``"least"`` takes four products, with up to 256 MiB of logits at a time (or 1,024 classes, if these take
            more) and input's gradient in float32.

    Shape:
        The result is 0-d; for ``reduction="none"`` of input's shape without the features.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``reduction``, ``memory``, ``normalizer`` or the target's shape is wrong.
        RuntimeError: if shapes, dtypes or devices do not fit, or a number is out of its range; on a CPU also if a
            target is not a class. On a GPU the loss is then NaN.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.zeros(3, 8, requires_grad=True)
        >>> loss = cudaloss.linear_cross_entropy(input, torch.ones(4, 8), torch.tensor([1, 0, -100]))
        >>> loss.detach()  # log(4): all classes are equal
        tensor(1.3863)
    """
    if memory is None and options is not None:
        memory = "least"
    own = linear_bias, weight, reduction, ignore_index, label_smoothing, z_loss, softcap
    given = sample_weight, mask, normalizer, scale, dtype
    return calls.linear_cross_entropy(input, linear_weight, target, *own, *given, memory)


@public
def token_log_prob(
    input: Tensor,
    target: Tensor,
    *,
    temperature: float = 1.0,
    softcap: float | None = None,
    return_entropy: bool = False,
) -> Any:
    r"""The log-probability of each row's class, ``log_softmax(input / temperature)[target]``, in one reading of input.

    There is no float32 copy of the logits and no probability is stored. Trainers compute it for policy gradients,
    preferences and distillation. Source of the formulas: Shannon, A Mathematical Theory of Communication, 1948.

    Args:
        input (Tensor): logits, of shape ``(..., classes)`` and a floating dtype. Without a copy if the classes are
            contiguous and the other dimensions merge into two: also ``logits[:, :-1]``.
        target (Tensor): class indices, of an integer dtype and input's shape without the classes. Each must be a class:
            select the rows that count from the result.
        temperature (float): above 0; divides the logits, after the softcap.
        softcap (float, optional): above 0; ``softcap * tanh(input / softcap)`` replaces input.
        return_entropy (bool): also returns the entropy of each row's distribution, from the same reading.

    Returns:
        A tensor of target's shape, float32 for halves; with ``return_entropy`` a pair of such tensors. Both are
        differentiable.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if the target's shape is wrong.
        RuntimeError: if dtypes or devices do not fit, or a number is out of its range; on a CPU also if a target is not
            a class. On a GPU the result is then NaN.

    Example:
        >>> import torch, cudaloss
        >>> log_prob, entropy = cudaloss.token_log_prob(torch.zeros(2, 4), torch.tensor([0, 3]), return_entropy=True)
        >>> log_prob
        tensor([-1.3863, -1.3863])
        >>> entropy
        tensor([1.3863, 1.3863])
    """
    return calls.token_log_prob(input, target, temperature, softcap, return_entropy)


@public
def linear_token_log_prob(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    temperature: float = 1.0,
    softcap: float | None = None,
    return_entropy: bool = False,
    memory: str | None = None,
) -> Any:
    r""":func:`cudaloss.token_log_prob` of ``input @ linear_weight.T + linear_bias``, without these logits in memory.

    Args:
        input (Tensor): hidden states, of shape ``(..., features)`` and a floating dtype.
        linear_weight (Tensor): of shape ``(classes, features)`` and input's dtype.
        target (Tensor): class indices, of an integer dtype and input's shape without the features.
        linear_bias (Tensor, optional): of shape ``(classes,)``.
        temperature (float): above 0; divides the logits, after the softcap.
        softcap (float, optional): above 0; ``softcap * tanh(logits / softcap)`` replaces the logits.
        return_entropy (bool): also returns the entropy of each row's distribution.
        memory (str, optional): ``"least"``, the default, takes four products for a step, and up to 256 MiB of logits at
            a time; ``"fast"`` keeps the logits for the backward if there are at most twice as many rows as features.

    Returns:
        A tensor of target's shape, float32 for halves; with ``return_entropy`` a pair of such tensors. Both are
        differentiable.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``memory`` or the target's shape is wrong.
        RuntimeError: if shapes, dtypes or devices do not fit, or a number is out of its range; on a CPU also if a
            target is not a class. On a GPU the result is then NaN.

    Example:
        >>> import torch, cudaloss
        >>> cudaloss.linear_token_log_prob(torch.zeros(2, 8), torch.ones(4, 8), torch.tensor([0, 3]))
        tensor([-1.3863, -1.3863])
    """
    call = linear_bias, temperature, softcap, return_entropy, memory
    return calls.linear_token_log_prob(input, linear_weight, target, *call)


class LinearCrossEntropyLoss(torch.nn.Module):
    r"""A linear layer and the cross entropy of its result: the module of :func:`cudaloss.linear_cross_entropy`.

    Replaces :class:`torch.nn.LinearCrossEntropyLoss` (torch 2.13), with its names of parameters.

    Args:
        in_features (int): the size of input's last dimension.
        num_classes (int): how many classes there are.
        out_features (tuple of ints): further dimensions of the logits, for a loss at each of their positions.
        bias (bool): whether the layer has a bias.
        device (torch.device, optional): of the layer's parameters.
        dtype (torch.dtype, optional): of the layer's parameters.
        reduction, weight, ignore_index, label_smoothing, options, z_loss, softcap, scale, memory: as the function's.

    Keywords of a call:
        sample_weight, mask, normalizer: as the function's.

    Shape:
        input has the shape ``(..., in_features)``, target input's without the features, and ``out_features`` behind.

    Raises:
        RuntimeError: if ``weight`` is not of shape ``(num_classes,)``, or ``label_smoothing`` not in [0, 1]; when the
            module is called, as the function does.
        ValueError: when the module is called, as the function does.
        TypeError: likewise.

    Example:
        >>> import torch, cudaloss
        >>> head = cudaloss.LinearCrossEntropyLoss(8, 4)
        >>> head(torch.zeros(2, 8), torch.tensor([0, 3])).detach()
        tensor(1.3863)
    """

    weight: Tensor | None

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        *,
        out_features: tuple[int, ...] = (),
        bias: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        reduction: str = "mean",
        weight: Tensor | None = None,
        ignore_index: int | None = None,
        label_smoothing: float = 0.0,
        options: Any = None,
        z_loss: float = 0.0,
        softcap: float | None = None,
        scale: float = 1.0,
        memory: str | None = None,
    ) -> None:
        super().__init__()
        if weight is not None and weight.shape != (num_classes,):
            raise RuntimeError(f"expected weight shape to be {(num_classes,)}, got {tuple(weight.shape)}")
        if not 0 <= label_smoothing <= 1:
            raise RuntimeError(f"expected label_smoothing to be in range [0, 1], got {label_smoothing}")
        self.num_classes, self.out_features = num_classes, out_features
        self.register_buffer("weight", weight)
        self.reduction, self.ignore_index, self.label_smoothing = reduction, ignore_index, label_smoothing
        self.options, self.z_loss, self.softcap, self.scale, self.memory = options, z_loss, softcap, scale, memory
        of_all = math.prod(out_features, start=num_classes)
        self.linear = torch.nn.Linear(in_features, of_all, bias=bias, device=device, dtype=dtype)

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        sample_weight: Tensor | None = None,
        mask: Tensor | None = None,
        normalizer: Tensor | float | None = None,
    ) -> Tensor:
        layer, shape = self.linear, (self.num_classes, *self.out_features)
        return linear_cross_entropy(
            input,
            layer.weight.reshape(*shape, layer.in_features),
            target,
            linear_bias=None if layer.bias is None else layer.bias.reshape(shape),
            weight=self.weight,
            reduction=self.reduction,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            options=self.options,
            z_loss=self.z_loss,
            softcap=self.softcap,
            sample_weight=sample_weight,
            mask=mask,
            normalizer=normalizer,
            scale=self.scale,
            memory=self.memory,
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return (
            f"in_features={self.linear.in_features}, num_classes={self.num_classes}, out_features={self.out_features}, "
            f"bias={self.linear.bias is not None}, reduction={self.reduction!r}, ignore_index={self.ignore_index}, "
            f"label_smoothing={self.label_smoothing}, z_loss={self.z_loss}, softcap={self.softcap}, "
            f"scale={self.scale}, memory={self.memory!r}"
        )
