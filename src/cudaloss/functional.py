# Generated from the rows in _losses: change these, and run `make faces`.
"""The losses as functions, which can replace PyTorch's by changing the import."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn._reduction import legacy_get_string

from ._ops.checks import check_size_average
from ._public.functions import calls_of
from .contrast import clip_loss, info_nce_loss, siglip_loss
from .distillation import linear_jsd_with_logits, linear_sparse_cross_entropy, sparse_cross_entropy
from .heads import linear_cross_entropy, linear_token_log_prob, token_log_prob
from .overlap import dice_bce_loss, dice_ce_loss, dice_loss, tversky_loss

__all__ = [
    "smooth_l1_loss",
    "mse_loss",
    "huber_loss",
    "l1_loss",
    "binary_cross_entropy_with_logits",
    "quantile_loss",
    "pseudo_huber_loss",
    "charbonnier_loss",
    "log_cosh_loss",
    "soft_margin_loss",
    "hinge_loss",
    "kl_div",
    "binary_cross_entropy",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "sigmoid_focal_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "varifocal_loss",
    "cross_entropy",
    "nll_loss",
    "cosine_similarity_loss",
    "cosine_embedding_loss",
    "triplet_margin_loss",
    "kl_div_with_logits",
    "jsd_with_logits",
    "generalized_box_iou_loss",
    "distance_box_iou_loss",
    "complete_box_iou_loss",
    "clip_loss",
    "dice_bce_loss",
    "dice_ce_loss",
    "dice_loss",
    "info_nce_loss",
    "linear_cross_entropy",
    "linear_jsd_with_logits",
    "linear_sparse_cross_entropy",
    "linear_token_log_prob",
    "siglip_loss",
    "sparse_cross_entropy",
    "token_log_prob",
    "tversky_loss",
]


_fused_smooth_l1, _unusual_smooth_l1 = calls_of("smooth_l1")


def smooth_l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    beta: Tensor | float = 1.0,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``0.5 * d**2 / beta where |d| < beta, else |d| - 0.5 * beta``, with ``d = input - target``, in one pass over memory.

    Replaces :func:`torch.nn.functional.smooth_l1_loss`. Source of the formula: Girshick, Fast R-CNN, 2015, equation 3.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        beta (float or Tensor): where the loss turns from quadratic to linear; 0 is L1; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, beta and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``beta`` is not a number >= 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.smooth_l1_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("smooth_l1_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = beta, 0.0
    if not is_dynamo_compiling():
        result = _fused_smooth_l1(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_smooth_l1(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_mse, _unusual_mse = calls_of("mse")


def mse_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``d**2``, with ``d = input - target``, in one pass over memory.

    Replaces :func:`torch.nn.functional.mse_loss`. Source of the formula: Legendre, Nouvelles méthodes pour la détermination des orbites des comètes, 1805.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.mse_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("mse_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = ()
    if not is_dynamo_compiling():
        result = _fused_mse(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_mse(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan)


_fused_huber, _unusual_huber = calls_of("huber")


def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: Tensor | float = 1.0,
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``0.5 * d**2 where |d| < delta, else delta * (|d| - 0.5 * delta)``, with ``d = input - target``, in one pass over memory.

    Replaces :func:`torch.nn.functional.huber_loss`. Source of the formula: Huber, Robust Estimation of a Location Parameter, 1964.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        delta (float or Tensor): where the loss turns from quadratic to linear; a number > 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the number of elements that count, as in PyTorch.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, delta and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``delta`` is not a number > 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.huber_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = delta, 0.0
    if not is_dynamo_compiling():
        result = _fused_huber(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_huber(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan)


_fused_l1, _unusual_l1 = calls_of("l1")


def l1_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``|d|``, with ``d = input - target``, in one pass over memory.

    Replaces :func:`torch.nn.functional.l1_loss`. Source of the formula: Laplace, Sur quelques points du système du monde, 1793.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.l1_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("l1_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = ()
    if not is_dynamo_compiling():
        result = _fused_l1(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_l1(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan)


_fused_binary_cross_entropy_with_logits, _unusual_binary_cross_entropy_with_logits = calls_of(
    "binary_cross_entropy_with_logits"
)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | float | None = None,
    label_smoothing: float = 0.0,
    *,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``(1 - target) * softplus(input) + pos_weight * target * softplus(-input)``, in one pass over memory.

    Replaces :func:`torch.nn.functional.binary_cross_entropy_with_logits`. Source of the formula: Good, Rational Decisions, 1952.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with ``input``'s shape and any real
            dtype, integers and bools included; it is read without a conversion.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the number of elements that count, as in PyTorch.
            Differentiable.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        pos_weight (float or Tensor, optional): the weight of positive targets; None is 1; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        label_smoothing (float): how far targets move towards 1/2; 1 moves them to 1/2; a number in [0, 1].
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, pos_weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank; input and target differ in shape.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``pos_weight`` is not a number >= 0; ``label_smoothing`` is not a number in [0, 1]; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.binary_cross_entropy_with_logits(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("binary_cross_entropy_with_logits", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = 1.0 if pos_weight is None else pos_weight, label_smoothing
    if not is_dynamo_compiling():
        result = _fused_binary_cross_entropy_with_logits(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_binary_cross_entropy_with_logits(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_quantile, _unusual_quantile = calls_of("quantile")


def quantile_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    quantile: Tensor | float = 0.5,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``(1 - quantile) * |d| where d > 0, else quantile * |d|``, with ``d = input - target``, in one pass over memory.

    Source of the formula: Koenker and Bassett, Regression Quantiles, 1978.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        quantile (float or Tensor): the quantile of the target that the best input is; a number in (0, 1),
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, quantile and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``quantile`` is not a number in (0, 1); ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.quantile_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = quantile, 0.0
    if not is_dynamo_compiling():
        result = _fused_quantile(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_quantile(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_pseudo_huber, _unusual_pseudo_huber = calls_of("pseudo_huber")


def pseudo_huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: Tensor | float = 1.0,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``d**2 / (sqrt(1 + (d / delta)**2) + 1)``, with ``d = input - target``, in one pass over memory.

    Source of the formula: Charbonnier et al., Deterministic Edge-Preserving Regularization in Computed Imaging, 1997.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        delta (float or Tensor): where the loss turns smoothly from quadratic to linear; a number > 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, delta and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``delta`` is not a number > 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.pseudo_huber_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = delta, 0.0
    if not is_dynamo_compiling():
        result = _fused_pseudo_huber(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_pseudo_huber(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_charbonnier, _unusual_charbonnier = calls_of("charbonnier")


def charbonnier_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    eps: Tensor | float = 0.001,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``sqrt(d**2 + eps**2)``, with ``d = input - target``, in one pass over memory.

    Source of the formula: Charbonnier et al., Two Deterministic Half-Quadratic Regularization Algorithms, 1994.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        eps (float or Tensor): the loss at 0, below which ``|d|`` has a quadratic loss; not squared; a number > 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, eps and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``eps`` is not a number > 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.charbonnier_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = eps, 0.0
    if not is_dynamo_compiling():
        result = _fused_charbonnier(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_charbonnier(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_log_cosh, _unusual_log_cosh = calls_of("log_cosh")


def log_cosh_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``log(cosh(d))``, with ``d = input - target``, in one pass over memory.

    Source of the formula: Green, Bayesian Reconstructions from Emission Tomography Data Using a Modified EM Algorithm, 1990.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.log_cosh_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = ()
    if not is_dynamo_compiling():
        result = _fused_log_cosh(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_log_cosh(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_soft_margin, _unusual_soft_margin = calls_of("soft_margin")


def soft_margin_loss(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``softplus(-(target * input))``, in one pass over memory.

    Replaces :func:`torch.nn.functional.soft_margin_loss`. Source of the formula: Cox, The Regression Analysis of Binary Sequences, 1958.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.soft_margin_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("soft_margin_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = ()
    if not is_dynamo_compiling():
        result = _fused_soft_margin(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_soft_margin(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_hinge, _unusual_hinge = calls_of("hinge")


def hinge_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    margin: Tensor | float = 1.0,
    power: float = 1.0,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``(margin - target * input)**power where target * input < margin, else 0``, in one pass over memory.

    Source of the formula: Rosasco et al., Are Loss Functions All the Same?, 2004.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        margin (float or Tensor): target * input has a loss below this; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        power (float): 1, or 2 for the squared hinge loss; a number that is 1 or 2.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, margin and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``margin`` is not a number >= 0; ``power`` is not a number that is 1 or 2; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.hinge_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = margin, power
    if not is_dynamo_compiling():
        result = _fused_hinge(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_hinge(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan)


_fused_kl_div, _unusual_kl_div = calls_of("kl_div")


def kl_div(
    input: Tensor,
    target: Tensor,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    log_target: bool = False,
    log_input: bool = True,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``target * log(target) - target * input``, in one pass over memory.

    Replaces :func:`torch.nn.functional.kl_div`. Source of the formula: Kullback and Leibler, On Information and Sufficiency, 1951.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element. ``"batchmean"`` divides the sum by the first size of input.
        log_target (bool): whether target is a logarithm.
        log_input (bool): whether input is a logarithm; otherwise the same pass takes the logarithm.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.kl_div(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("kl_div", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = 1.0, 0.0, bool(log_target), bool(log_input)
    if not is_dynamo_compiling():
        result = _fused_kl_div(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_kl_div(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_binary_cross_entropy, _unusual_binary_cross_entropy = calls_of("binary_cross_entropy")


def binary_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``-(target * Max(log(input), -100) + (1 - target) * Max(log1p(-input), -100))``, in one pass over memory.

    Replaces :func:`torch.nn.functional.binary_cross_entropy`. Source of the formula: Good, Rational Decisions, 1952.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with ``input``'s shape and any real
            dtype, integers and bools included; it is read without a conversion.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the number of elements that count, as in PyTorch.
            Differentiable.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank; input and target differ in shape.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.binary_cross_entropy(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("binary_cross_entropy", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = ()
    if not is_dynamo_compiling():
        result = _fused_binary_cross_entropy(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_binary_cross_entropy(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_poisson_nll, _unusual_poisson_nll = calls_of("poisson_nll")


def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    size_average: bool | None = None,
    eps: float = 1e-08,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``exp(input) - target * input``, in one pass over memory.

    Replaces :func:`torch.nn.functional.poisson_nll_loss`. Source of the formula: Nelder and Wedderburn, Generalized Linear Models, 1972.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        log_input (bool): whether input is the logarithm of the rate.
        full (bool): whether Stirling's term is added for targets above 1.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        eps (float): added to an input that is not a logarithm; a number >= 0.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``eps`` is not a number >= 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.poisson_nll_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("poisson_nll_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = 1.0, eps, bool(log_input), bool(full)
    if not is_dynamo_compiling():
        result = _fused_poisson_nll(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_poisson_nll(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_gaussian_nll, _unusual_gaussian_nll = calls_of("gaussian_nll")


def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-06,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``0.5 * log(Max(var, eps)) + 0.5 * (input - target)**2 / Max(var, eps)``, in one pass over memory.

    Replaces :func:`torch.nn.functional.gaussian_nll_loss`. Source of the formula: Nix and Weigend, Estimating the Mean and Variance of the Target Probability Distribution, 1994.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        var (float or Tensor): the variance; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked; if it has that shape without the last dimension, each of its numbers is for all of that dimension.
        full (bool): whether the constant log(2 pi) / 2 is added.
        eps (float): the least variance; a smaller one counts as this; a number >= 0.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, var and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``var`` is not a number >= 0; ``eps`` is not a number >= 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.gaussian_nll_loss(input, torch.zeros(3), torch.ones(()))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = var, eps, bool(full)
    if not is_dynamo_compiling():
        result = _fused_gaussian_nll(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_gaussian_nll(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_sigmoid_focal, _unusual_sigmoid_focal = calls_of("sigmoid_focal")


def sigmoid_focal_loss(
    input: Tensor,
    target: Tensor,
    alpha: Tensor | float = 0.25,
    gamma: float = 2.0,
    reduction: str = "none",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``(alpha * target + (1 - alpha) * (1 - target)) * (target * sigmoid(-input) + (1 - target) * sigmoid(input))**gamma * (target * softplus(-input) + (1 - target) * softplus(input))``, in one pass over memory.

    Source of the formula: Lin et al., Focal Loss for Dense Object Detection, 2017.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        alpha (float or Tensor): the weight of positive targets; negative ones have 1 - alpha; a number <= 1,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        gamma (float): how much easy elements count less; 0 is binary cross entropy; a number >= 0.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, alpha and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``alpha`` is not a number <= 1; ``gamma`` is not a number >= 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.sigmoid_focal_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = alpha, gamma
    if not is_dynamo_compiling():
        result = _fused_sigmoid_focal(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_sigmoid_focal(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_hinge_embedding, _unusual_hinge_embedding = calls_of("hinge_embedding")


def hinge_embedding_loss(
    input: Tensor,
    target: Tensor,
    margin: Tensor | float = 1.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``input where target == 1, else Max(margin - input, 0) where target == -1, else input + Max(margin - input, 0)``, in one pass over memory.

    Replaces :func:`torch.nn.functional.hinge_embedding_loss`. Source of the formula: Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, 2006.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        margin (float or Tensor): an input of target -1 has a loss below this; a number,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, margin and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``margin`` is not a number; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.hinge_embedding_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("hinge_embedding_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = margin, 0.0
    if not is_dynamo_compiling():
        result = _fused_hinge_embedding(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_hinge_embedding(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_margin_ranking, _unusual_margin_ranking = calls_of("margin_ranking")


def margin_ranking_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor | float,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``margin - target * (input1 - input2) where target * (input1 - input2) <= margin, else 0``, in one pass over memory.

    Replaces :func:`torch.nn.functional.margin_ranking_loss`. Source of the formula: Herbrich et al., Support Vector Learning for Ordinal Regression, 1999.

    Args:
        input1 (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        input2 (Tensor): the other predictions, with a shape that broadcasts with ``input1``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        target (float or Tensor): 1 if input1 should be the larger one, -1 if input2 should; a number,
            or a tensor of a floating dtype that broadcasts to the joint shape of input1 and input2; its values are not checked.
        margin (float): how much larger it should be; a number.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input1 and input2; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input1 and input2. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose input2 is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input1 and input2 promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input1, input2, weight, target and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``target`` is not a number; ``margin`` is not a number; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input1 = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.margin_ranking_loss(input1, torch.zeros(3), torch.ones(()))
        >>> loss.backward()
        >>> input1.grad.shape
        torch.Size([3])
    """
    if size_average is not None or reduce is not None:
        check_size_average("margin_ranking_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = target, margin
    if not is_dynamo_compiling():
        result = _fused_margin_ranking(
            input1, input2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_margin_ranking(
        input1, input2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_varifocal, _unusual_varifocal = calls_of("varifocal")


def varifocal_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    alpha: Tensor | float = 0.75,
    gamma: float = 2.0,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    ignore_nan: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``target * (target * softplus(-input) + (1 - target) * softplus(input)) where target > 0, else alpha * sigmoid(input)**gamma * softplus(input)``, in one pass over memory.

    Source of the formula: Zhang et al., VarifocalNet: An IoU-Aware Dense Object Detector, 2021.

    Args:
        input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
            (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
        target (Tensor): ground truth, with a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
            dtype, integers and bools included; it is read without a conversion.
        reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.
        alpha (float or Tensor): the weight of negatives, whose target is 0; a number >= 0,
            or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked.
        gamma (float): how much easy negatives count less; 0 is binary cross entropy; a number >= 0.
        weight (Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
            the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
            leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        ignore_nan (bool): elements whose target is NaN are left out, as with ``mask``.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
        gradients of both are 0. Differentiable in input, target, weight, alpha and normalizer, any number of
        times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank.
        RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
            quantized; ``alpha`` is not a number >= 0; ``gamma`` is not a number >= 0; ``dtype`` is not a floating one.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
        >>> loss = cudaloss.varifocal_loss(input, torch.zeros(3))
        >>> loss.backward()
        >>> input.grad.shape
        torch.Size([3])
    """
    own = alpha, gamma
    if not is_dynamo_compiling():
        result = _fused_varifocal(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
        )
        if result is not None:
            return result
    return _unusual_varifocal(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    )


_fused_cross_entropy, _unusual_cross_entropy = calls_of("cross_entropy")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    z_loss: float = 0.0,
    softcap: float | None = None,
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``logsumexp(input) - input[target]`` of each row of classes, fused.

    Replaces :func:`torch.nn.functional.cross_entropy`. Source of the formula: Good, Rational Decisions, 1952.

    No softmax and no copy of the logits is stored. A row is all classes at one index of the other dimensions. With the
    class weights ``w``, the label smoothing ``s`` and the target's probabilities ``q`` (for a class index: 1 for its class,
    0 for the others), its loss is ``-sum(w * q' * log_softmax(input)) + z_loss * logsumexp(input)**2``, where
    ``q' = (1 - s) * q + s / classes``.

    Args:
        input (Tensor): logits of shape ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)`` and any strides; they
            are never written to. float32, float64, float16 or bfloat16 for the fused kernels (plain PyTorch serves other
            floating dtypes, and devices other than CPU and CUDA). Of DTensors each process computes its own shard.
        target (Tensor): the class index of each row, with input's shape without the classes and an integer dtype, uint8
            to int64; or probabilities, with input's shape and a floating dtype. They need not sum to 1.
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
        sample_weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts to the
            rows' shape (input's without the classes). ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row out, as
            ``ignore_index`` does: it adds nothing to the loss, to a gradient or to the count, even if its logits are NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: input's dtype; with a target of probabilities the one
            that both promote to; under autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that does not count.
        ``"mean"`` divides by a sum over the rows that count: each adds its ``sample_weight`` times the ``weight`` of its
        class (with a target of probabilities only its ``sample_weight``); a missing one is 1.
        The mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input,
        probabilities, weight, sample_weight and normalizer, any number of times. On the GPU a row whose index is out of
        range has NaN as its loss and gradients.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; target's first size is not input's; ``normalizer`` is the number 0, or
            ``reduction`` is not ``"mean"`` beside it; ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: target or weight has the wrong shape, or sample_weight or mask does not broadcast to the rows; the
            devices differ; a tensor has an unsupported dtype, or is sparse, quantized or nested; input has no classes;
            a number is out of its range; ``ignore_index`` is not negative and target has probabilities; ``dtype`` is not a floating one; on the CPU, a class index is out of range.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.zeros(3, 4, requires_grad=True)
        >>> loss = cudaloss.cross_entropy(input, torch.tensor([1, 0, -100]))
        >>> loss.backward()
        >>> loss.detach()  # log(4), the mean over the first two rows
        tensor(1.3863)
        >>> input.grad
        tensor([[ 0.1250, -0.3750,  0.1250,  0.1250],
                [-0.3750,  0.1250,  0.1250,  0.1250],
                [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    if size_average is not None or reduce is not None:
        check_size_average("cross_entropy", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = weight, ignore_index, label_smoothing, z_loss, softcap
    if not is_dynamo_compiling():
        result = _fused_cross_entropy(
            input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_cross_entropy(
        input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims
    )


_fused_nll, _unusual_nll = calls_of("nll")


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``-input[target]`` of each row of classes, fused.

    Replaces :func:`torch.nn.functional.nll_loss`. Source of the formula: Fisher, On the Mathematical Foundations of Theoretical Statistics, 1922.

    input has log-probabilities, as ``log_softmax`` gives them; for logits :func:`cudaloss.cross_entropy` does the same in
    one pass. A row is all classes at one index of the other dimensions. Its loss depends only on the target's class, times
    the ``weight`` of that class. The other classes change nothing, even NaN and Inf; their gradients are 0.

    Args:
        input (Tensor): log-probabilities of shape ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)`` and any strides; they
            are never written to. float32, float64, float16 or bfloat16 for the fused kernels (plain PyTorch serves other
            floating dtypes, and devices other than CPU and CUDA). Of DTensors each process computes its own shard.
        target (Tensor): the class index of each row, with input's shape without the classes and an integer dtype, uint8
            to int64.
        weight (Tensor, optional): a factor for each class in the loss; of shape ``(classes,)`` and a floating dtype.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        ignore_index (int): rows whose target is this index do not count, for any input.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        sample_weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts to the
            rows' shape (input's without the classes). ``"mean"`` divides by the sum of the weights that count.
            Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row out, as
            ``ignore_index`` does: it adds nothing to the loss, to a gradient or to the count, even if its logits are NaN or
            Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: input's dtype; with a target of probabilities the one
            that both promote to; under autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that does not count.
        ``"mean"`` divides by a sum over the rows that count: each adds its ``sample_weight`` times the ``weight`` of its
        class; a missing one is 1.
        The mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input,
        weight, sample_weight and normalizer, any number of times. On the GPU a row whose index is out of
        range has NaN as its loss and gradients.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; target's first size is not input's; ``normalizer`` is the number 0, or
            ``reduction`` is not ``"mean"`` beside it; ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: target or weight has the wrong shape, or sample_weight or mask does not broadcast to the rows; the
            devices differ; a tensor has an unsupported dtype, or is sparse, quantized or nested; input has no classes;
            ``dtype`` is not a floating one; on the CPU, a class index is out of range.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.1, 0.9]]).log().requires_grad_()
        >>> loss = cudaloss.nll_loss(input, torch.tensor([1, 0, -100]))
        >>> loss.backward()
        >>> loss.detach()  # (log(2) + log(4 / 3)) / 2, the mean over the first two rows
        tensor(0.4904)
        >>> input.grad
        tensor([[ 0.0000, -0.5000],
                [-0.5000,  0.0000],
                [ 0.0000,  0.0000]])
    """
    if size_average is not None or reduce is not None:
        check_size_average("nll_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = weight, ignore_index, 0.0, 0.0, None
    if not is_dynamo_compiling():
        result = _fused_nll(input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims)
        if result is not None:
            return result
    return _unusual_nll(input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims)


_fused_cosine_similarity, _unusual_cosine_similarity = calls_of("cosine_similarity")


def cosine_similarity_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    dim: int = 1,
    eps: float = 1e-08,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - cosine_similarity(input, target)`` of each row, fused.

    Source of the formula: Salton, Wong and Yang, A Vector Space Model for Automatic Indexing, 1975.

    A row is a vector along ``dim`` of each operand. Its loss is 1 minus the cosine of the two, between 0 (same direction)
    and 2. A norm below ``eps`` counts as ``eps``, and then has no gradient.

    Args:
        input (Tensor): vectors, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        target (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        dim (int): the vectors' dimension, as in :func:`torch.nn.functional.cosine_similarity`.
        eps (float): above 0; the least norm in the denominator.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input, target, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one; ``eps`` is not above 0.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([[3.0, 4.0], [1.0, 0.0]], requires_grad=True)
        >>> loss = cudaloss.cosine_similarity_loss(input, torch.tensor([[0.0, 2.0], [5.0, 0.0]]))
        >>> loss.backward()
        >>> loss.detach()  # the mean of 1 - 4 / 5 and 0
        tensor(0.1000)
    """
    own = None, 0.0, 2.0, eps, False, dim, 1.0, 0.0
    if not is_dynamo_compiling():
        result = _fused_cosine_similarity(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_cosine_similarity(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims)


_fused_cosine_embedding, _unusual_cosine_embedding = calls_of("cosine_embedding")


def cosine_embedding_loss(
    input1: Tensor,
    input2: Tensor,
    target: Tensor,
    margin: float = 0.0,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - cos where target == 1, else max(0, cos - margin)`` of each row, fused.

    Replaces :func:`torch.nn.functional.cosine_embedding_loss`. Source of the formula: Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, 2006.

    A row is a vector of input1 and a vector of input2. ``cos`` is their product over ``sqrt((input1**2 + 1e-12) *
    (input2**2 + 1e-12))``, with the squares summed over the row. The loss is ``1 - cos`` if target is 1,
    ``max(0, cos - margin)`` if it is -1, and 0 for any other target.

    Args:
        input1 (Tensor): vectors, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        input2 (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        target (Tensor): 1 or -1 for each row, with any real dtype; of shape ``(N,)`` if the vectors are ``(N, D)``, or
            ``()`` if they are ``(D,)``.
        margin (float): dissimilar rows have a loss above this cosine.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input1, input2, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> input = torch.tensor([[3.0, 4.0], [1.0, 0.0]], requires_grad=True)
        >>> other = torch.tensor([[0.0, 2.0], [5.0, 0.0]])
        >>> loss = cudaloss.cosine_embedding_loss(input, other, torch.tensor([1, -1]), margin=0.5)
        >>> loss.backward()
        >>> loss.detach()  # the mean of 1 - 4 / 5 and 1 - 1 / 2
        tensor(0.3500)
    """
    if size_average is not None or reduce is not None:
        check_size_average("cosine_embedding_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = target, margin, 2.0, 0.0, False, None, 1.0, 0.0
    if not is_dynamo_compiling():
        result = _fused_cosine_embedding(
            input1, input2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_cosine_embedding(input1, input2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims)


_fused_triplet_margin, _unusual_triplet_margin = calls_of("triplet_margin")


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-06,
    swap: bool = False,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)`` of each row, fused.

    Replaces :func:`torch.nn.functional.triplet_margin_loss`. Source of the formula: Balntas et al., Learning Shallow Convolutional Feature Descriptors with Triplet Losses, 2016.

    A row is a vector along the last dimension of each operand. ``distance(a, b)`` is the p-norm of ``a - b + eps``. With
    ``swap`` the smaller of ``distance(anchor, negative)`` and ``distance(positive, negative)`` is subtracted. p = 2 is one
    pass; plain PyTorch computes any other norm.

    Args:
        anchor (Tensor): vectors, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        positive (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        negative (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        margin (float): above 0; how much farther the negative should be.
        p (float): the norm of a distance.
        eps (float): added to each difference.
        swap (bool): whether to use the distance swap.
        size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in anchor, positive, negative, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows; ``margin`` is not above 0.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> anchor = torch.zeros(1, 2, requires_grad=True)
        >>> loss = cudaloss.triplet_margin_loss(anchor, torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 5.5]]), eps=0.0)
        >>> loss.backward()
        >>> loss.detach()  # 5 - 5.5 + 1
        tensor(0.5000)
    """
    if size_average is not None or reduce is not None:
        check_size_average("triplet_margin_loss", size_average)
        reduction = legacy_get_string(size_average, reduce)
    own = negative, margin, p, eps, swap, None, 1.0, 0.0
    if not is_dynamo_compiling():
        result = _fused_triplet_margin(
            anchor, positive, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_triplet_margin(anchor, positive, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims)


_fused_kl_div_with_logits, _unusual_kl_div_with_logits = calls_of("kl_div_with_logits")


def kl_div_with_logits(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    temperature: float = 1.0,
    *,
    dim: int = 1,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``temperature**2 * KL(softmax(target / temperature), softmax(input / temperature))`` of each row, fused.

    Source of the formula: Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015.

    A row is a distribution of each operand, ``p = softmax(target / temperature)`` of the teacher's logits and ``q =
    softmax(input / temperature)`` of the student's, along ``dim``. Its loss is the divergence of q from p, ``sum(p *
    (log p - log q))``, times ``temperature**2``, which keeps the size of the gradients for any temperature. It equals
    ``F.kl_div(log_softmax(input / T, 1), log_softmax(target / T, 1), reduction="batchmean", log_target=True) * T**2`` for
    2-D operands. A class that is -inf in both operands adds 0, not NaN. The teacher gets a gradient too if it requires
    one.

    Args:
        input (Tensor): logits, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        target (Tensor): logits, with a floating dtype and a shape that broadcasts with the first operand's.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        temperature (float): above 0; both operands' logits are divided by it.
        dim (int): the dimension of the classes; 1 also for 1-D operands.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input, target, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one; ``temperature`` is not above 0.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> student = torch.tensor([[0.0, 0.0]], requires_grad=True)
        >>> teacher = torch.tensor([[1.0, 3.0]]).log()  # 1/4 and 3/4
        >>> loss = cudaloss.kl_div_with_logits(student, teacher)
        >>> loss.backward()
        >>> loss.detach()  # 1/4 log(1/2) + 3/4 log(3/2)
        tensor(0.1308)
        >>> student.grad  # 1/2 - 1/4 and 1/2 - 3/4
        tensor([[ 0.2500, -0.2500]])
    """
    own = None, 0.0, 2.0, 0.0, False, dim, temperature, 0.0
    if not is_dynamo_compiling():
        result = _fused_kl_div_with_logits(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_kl_div_with_logits(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
    )


_fused_jsd_with_logits, _unusual_jsd_with_logits = calls_of("jsd_with_logits")


def jsd_with_logits(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    beta: float = 0.5,
    temperature: float = 1.0,
    *,
    dim: int = 1,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``temperature**2 * (beta * KL(p, m) + (1 - beta) * KL(q, m))`` of each row, fused.

    Source of the formula: Agarwal et al., On-Policy Distillation of Language Models, 2024.

    A row is a distribution of each operand, ``p = softmax(target / temperature)`` of the teacher's logits and ``q =
    softmax(input / temperature)`` of the student's, along ``dim``. Their mixture is ``m = beta * p + (1 - beta) * q``. The
    loss is the generalised Jensen-Shannon divergence, ``beta * KL(p, m) + (1 - beta) * KL(q, m)``, times
    ``temperature**2``. The ends are by convention the divergences of q and p from each other: ``beta=0`` is ``KL(p, q)``,
    which is :func:`kl_div_with_logits`, and ``beta=1`` the reverse one, ``KL(q, p)``. Between the ends the loss is never
    infinite. A class that is -inf in both operands adds 0, not NaN. The teacher gets a gradient too if it requires one.

    Args:
        input (Tensor): logits, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        target (Tensor): logits, with a floating dtype and a shape that broadcasts with the first operand's.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        beta (float): in [0, 1]; the teacher's share of m.
        temperature (float): above 0; both operands' logits are divided by it.
        dim (int): the dimension of the classes; 1 also for 1-D operands.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input, target, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one; ``temperature`` is not above 0; ``beta`` is not in [0, 1].
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> student = torch.tensor([[0.0, 0.0]], requires_grad=True)
        >>> teacher = torch.tensor([[1.0, 3.0]]).log()  # 1/4 and 3/4; the mixture is 3/8 and 5/8
        >>> loss = cudaloss.jsd_with_logits(student, teacher)
        >>> loss.backward()
        >>> loss.detach()  # half of 1/4 log(2/3) + 3/4 log(6/5), and half of 1/2 log(4/3) + 1/2 log(4/5)
        tensor(0.0338)
        >>> student.grad
        tensor([[ 0.0639, -0.0639]])
    """
    own = None, 0.0, 2.0, 0.0, False, dim, temperature, beta
    if not is_dynamo_compiling():
        result = _fused_jsd_with_logits(
            input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_jsd_with_logits(input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims)


_fused_generalized_box_iou, _unusual_generalized_box_iou = calls_of("generalized_box_iou")


def generalized_box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    reduction: str = "none",
    eps: float = 1e-07,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - IoU + (C - U) / C`` of each row, fused.

    Source of the formula: Rezatofighi et al., Generalized Intersection over Union, 2019.

    A box is ``(x1, y1, x2, y2)`` along the last dimension, with ``x1 <= x2`` and ``y1 <= y2``. ``IoU`` is the area of the
    intersection over that of the union. ``eps`` is added to each denominator, so that boxes without area have finite
    losses and gradients. Values, gradients and arguments are torchvision's, but for a mean over no boxes, which is NaN. The
    arithmetic is float64's, for boxes of any dtype, and the result has the boxes' dtype. ``C`` is the area of the smallest box around both boxes, and ``U`` that of their union.

    Args:
        boxes1 (Tensor): vectors, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        boxes2 (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        eps (float): above 0; added to each denominator.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in boxes1, boxes2, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one; ``eps`` is not above 0.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0]], requires_grad=True)
        >>> loss = cudaloss.generalized_box_iou_loss(boxes, torch.tensor([[1.0, 0.0, 3.0, 2.0]]), reduction="mean")
        >>> loss.backward()
        >>> loss.detach()  # 1 - 2 / 6 + (6 - 6) / 6
        tensor(0.6667)
    """
    own = None, 0.0, 2.0, eps, False, None, 1.0, 0.0
    if not is_dynamo_compiling():
        result = _fused_generalized_box_iou(
            boxes1, boxes2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_generalized_box_iou(
        boxes1, boxes2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
    )


_fused_distance_box_iou, _unusual_distance_box_iou = calls_of("distance_box_iou")


def distance_box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    reduction: str = "none",
    eps: float = 1e-07,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - IoU + r**2 / c**2`` of each row, fused.

    Source of the formula: Zheng et al., Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression, 2020.

    A box is ``(x1, y1, x2, y2)`` along the last dimension, with ``x1 <= x2`` and ``y1 <= y2``. ``IoU`` is the area of the
    intersection over that of the union. ``eps`` is added to each denominator, so that boxes without area have finite
    losses and gradients. Values, gradients and arguments are torchvision's, but for a mean over no boxes, which is NaN. The
    arithmetic is float64's, for boxes of any dtype, and the result has the boxes' dtype. ``r`` is the distance of the boxes' centres, and ``c`` the diagonal of the smallest box around both.

    Args:
        boxes1 (Tensor): vectors, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        boxes2 (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        eps (float): above 0; added to each denominator.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in boxes1, boxes2, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one; ``eps`` is not above 0.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0]], requires_grad=True)
        >>> loss = cudaloss.distance_box_iou_loss(boxes, torch.tensor([[1.0, 0.0, 3.0, 2.0]]), reduction="mean")
        >>> loss.backward()
        >>> loss.detach()  # 1 - 2 / 6 + 1 / 13
        tensor(0.7436)
    """
    own = None, 0.0, 2.0, eps, False, None, 1.0, 0.0
    if not is_dynamo_compiling():
        result = _fused_distance_box_iou(
            boxes1, boxes2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_distance_box_iou(boxes1, boxes2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims)


_fused_complete_box_iou, _unusual_complete_box_iou = calls_of("complete_box_iou")


def complete_box_iou_loss(
    boxes1: Tensor,
    boxes2: Tensor,
    reduction: str = "none",
    eps: float = 1e-07,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    batch_dims: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""``1 - IoU + r**2 / c**2 + a * v`` of each row, fused.

    Source of the formula: Zheng et al., Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression, 2020.

    A box is ``(x1, y1, x2, y2)`` along the last dimension, with ``x1 <= x2`` and ``y1 <= y2``. ``IoU`` is the area of the
    intersection over that of the union. ``eps`` is added to each denominator, so that boxes without area have finite
    losses and gradients. Values, gradients and arguments are torchvision's, but for a mean over no boxes, which is NaN. The
    arithmetic is float64's, for boxes of any dtype, and the result has the boxes' dtype. The loss is :func:`distance_box_iou_loss` plus ``a * v``, with ``v = 4 / pi**2 *
    (atan(w1 / h1) - atan(w2 / h2))**2`` of the widths and heights, and ``a = v / (1 - IoU + v)``, which has no gradient.
    For a box without height ``atan(w / h)`` is pi / 2; beside a point ``v`` is 0. torchvision then has NaN gradients. It
    adds ``eps`` only to the denominator of ``a``, and 1e-7 to the others.

    Args:
        boxes1 (Tensor): vectors, of any shape and strides; float32, float64, float16 or bfloat16 for the fused
            kernels (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA). Of DTensors each process
            computes its own shard.
        boxes2 (Tensor): vectors, with a floating dtype and a shape that broadcasts with the first operand's.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        eps (float): above 0; added to each denominator.
        weight (Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
            to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
            that count. Differentiable.
        mask (Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
            out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.
        normalizer (Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
            device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.
        scale (float): a constant factor for the loss and its gradients, applied in the same pass.
        batch_dims (int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
            one loss for each sample.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
            autocast at least float32.

    Returns:
        Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
        dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that is masked out. The
        mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in boxes1, boxes2, weight and
        normalizer, any number of times.

    Raises:
        TypeError: an argument has the wrong type, for example a list instead of a tensor.
        ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
            ``batch_dims`` is negative or above the rank of the rows.
        RuntimeError: the shapes do not fit; the devices differ; a tensor has an unsupported dtype, or is sparse, quantized
            or nested; ``dtype`` is not a floating one; ``eps`` is not above 0.
        IndexError: the operands have no dimension of vectors.

    Example:
        >>> import torch, cudaloss
        >>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0]], requires_grad=True)
        >>> loss = cudaloss.complete_box_iou_loss(boxes, torch.tensor([[1.0, 0.0, 3.0, 2.0]]), reduction="mean")
        >>> loss.backward()
        >>> loss.detach()  # 1 - 2 / 6 + 1 / 13, and both are square
        tensor(0.7436)
    """
    own = None, 0.0, 2.0, eps, False, None, 1.0, 0.0
    if not is_dynamo_compiling():
        result = _fused_complete_box_iou(
            boxes1, boxes2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_complete_box_iou(boxes1, boxes2, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims)
