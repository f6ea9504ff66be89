"""Losses that learn from a teacher, for logits and for heads."""

from __future__ import annotations

import torch
from torch import Tensor

from ._heads import divergence, sparse
from ._heads.public import public

__all__ = ["linear_jsd_with_logits", "linear_sparse_cross_entropy", "sparse_cross_entropy"]


@public
def sparse_cross_entropy(
    input: Tensor,
    indices: Tensor,
    probabilities: Tensor,
    *,
    reduction: str = "mean",
    temperature: float = 1.0,
    softcap: float | None = None,
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""The cross entropy with a few classes of each row, whose probabilities are given: a teacher's stored top k.

    A row's loss is ``-(probabilities * log_softmax(input / temperature)[indices]).sum()``. The probabilities need not
    sum to 1. Equal indices of a row add up, and a negative one, as of padding, has no effect. The logits are read once
    in each direction, and are not copied. Source of the formula: Hinton et al., Distilling the Knowledge in a Neural
    Network, 2015, with the classes that the teacher finds likely.

    Args:
        input (Tensor): logits, of shape ``(..., classes)`` and a floating dtype.
        indices (Tensor): classes, of shape ``(..., k)`` and an integer dtype; in any order. Below 0: padding.
        probabilities (Tensor): of indices' shape and a floating dtype. Differentiable.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        temperature (float): above 0; divides the logits, after the softcap. The loss is not multiplied by its square.
        softcap (float, optional): above 0; ``softcap * tanh(input / softcap)`` replaces input.
        sample_weight (Tensor, optional): multiplies each row's loss; broadcasts to the rows' shape. ``"mean"`` divides
            by the sum of the weights that count. Differentiable.
        mask (Tensor, optional): bool, broadcasts to the rows' shape. ``False`` leaves a row out, whatever it has. A
            row of padding alone counts, with a loss of 0: leave it out here.
        normalizer (Tensor or float, optional): the loss is the sum divided by it; only with ``"mean"``.
        scale (float): a constant factor for the loss and its gradients.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and probabilities promote to;
            under autocast at least float32.

    Shape:
        The result is 0-d; for ``reduction="none"`` of input's shape without the classes.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``reduction``, ``normalizer`` or the shape of ``indices`` or ``probabilities`` is wrong.
        RuntimeError: if dtypes or devices do not fit, or a number is out of its range; on a CPU also if an index is
            not below the number of classes. On a GPU the loss is then NaN.

    Example:
        >>> import torch, cudaloss
        >>> logits = torch.zeros(2, 4, requires_grad=True)
        >>> indices, probabilities = torch.tensor([[1, 3], [0, -1]]), torch.tensor([[0.75, 0.25], [0.5, 0.0]])
        >>> loss = cudaloss.sparse_cross_entropy(logits, indices, probabilities)
        >>> loss.detach()  # log(4) times 1 and 0.5
        tensor(1.0397)
        >>> loss.backward()
        >>> logits.grad
        tensor([[ 0.1250, -0.2500,  0.1250,  0.0000],
                [-0.1875,  0.0625,  0.0625,  0.0625]])
    """
    own = reduction, temperature, softcap, sample_weight, mask, normalizer, scale, dtype
    return sparse.sparse_cross_entropy(input, indices, probabilities, *own)


@public
def linear_sparse_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    indices: Tensor,
    probabilities: Tensor,
    *,
    linear_bias: Tensor | None = None,
    reduction: str = "mean",
    temperature: float = 1.0,
    softcap: float | None = None,
    sample_weight: Tensor | None = None,
    mask: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    memory: str | None = None,
) -> Tensor:
    r""":func:`cudaloss.sparse_cross_entropy` of ``input @ linear_weight.T + linear_bias``, by blocks of these logits.

    Source of the formula: Hinton et al., Distilling the Knowledge in a Neural Network, 2015, with the classes that the
    teacher finds likely.

    Args:
        input (Tensor): hidden states, of shape ``(..., features)`` and a floating dtype.
        linear_weight (Tensor): of shape ``(classes, features)`` and input's dtype.
        indices (Tensor): classes, of shape ``(..., k)`` and an integer dtype; in any order. Below 0: padding.
        probabilities (Tensor): of indices' shape and a floating dtype. Differentiable.
        linear_bias (Tensor, optional): of shape ``(classes,)``.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        temperature (float): above 0; divides the logits, after the softcap. The loss is not multiplied by its square.
        softcap (float, optional): above 0; ``softcap * tanh(logits / softcap)`` replaces the logits.
        sample_weight (Tensor, optional): multiplies each row's loss; broadcasts to the rows' shape. ``"mean"`` divides
            by the sum of the weights that count. Differentiable.
        mask (Tensor, optional): bool, broadcasts to the rows' shape. ``False`` leaves a row out, whatever it has. A
            row of padding alone counts, with a loss of 0: leave it out here.
        normalizer (Tensor or float, optional): the loss is the sum divided by it; only with ``"mean"``.
        scale (float): a constant factor for the loss and its gradients.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and probabilities promote to;
            under autocast at least float32.
        memory (str, optional): ``"fast"``, the default, keeps the logits for the backward if there are at most twice
            as many rows as features, or they take up to 64 MiB: three products for a step. ``"least"``, and
            ``"fast"`` otherwise, takes four, and up to 256 MiB of logits at a time.

    Shape:
        The result is 0-d; for ``reduction="none"`` of input's shape without the features.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``reduction``, ``memory``, ``normalizer`` or the shape of ``indices`` or ``probabilities`` is
            wrong.
        RuntimeError: if shapes, dtypes or devices do not fit, or a number is out of its range; on a CPU also if an
            index is not below the number of classes. On a GPU the loss is then NaN.

    Example:
        >>> import torch, cudaloss
        >>> hidden, weight = torch.zeros(2, 8, requires_grad=True), torch.ones(4, 8)
        >>> indices, probabilities = torch.tensor([[1, 3], [0, -1]]), torch.tensor([[0.75, 0.25], [0.5, 0.0]])
        >>> cudaloss.linear_sparse_cross_entropy(hidden, weight, indices, probabilities).detach()
        tensor(1.0397)
    """
    own = linear_bias, reduction, temperature, softcap, sample_weight, mask, normalizer, scale, dtype, memory
    return sparse.linear_sparse_cross_entropy(input, linear_weight, indices, probabilities, *own)


@public
def linear_jsd_with_logits(
    input: Tensor,
    linear_weight: Tensor,
    target_input: Tensor,
    target_weight: Tensor,
    *,
    beta: float = 0.5,
    temperature: float = 1.0,
    linear_bias: Tensor | None = None,
    target_bias: Tensor | None = None,
    reduction: str = "mean",
    mask: Tensor | None = None,
    sample_weight: Tensor | None = None,
    normalizer: Tensor | float | None = None,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""The divergence of a student's head from a frozen teacher's, from hidden states, without the logits in memory.

    The same as ``cudaloss.jsd_with_logits(input @ linear_weight.T + linear_bias, target_input @ target_weight.T +
    target_bias, ...)``. With ``p`` the teacher's and ``q`` the student's ``softmax(logits / temperature)``, and ``m =
    beta * p + (1 - beta) * q``, a row's loss is ``temperature**2 * (beta * KL(p, m) + (1 - beta) * KL(q, m))``; for
    ``beta=0`` it is ``temperature**2 * KL(p, q)``, and for ``beta=1`` ``temperature**2 * KL(q, p)``. Both logits are
    made for a chunk of rows at a time, with the student's gradients: four products for a step. Source of the formula:
    Agarwal et al., On-Policy Distillation of Language Models, 2024.

    Args:
        input (Tensor): the student's hidden states, of shape ``(..., features)`` and a floating dtype.
        linear_weight (Tensor): of shape ``(classes, features)`` and input's dtype.
        target_input (Tensor): the teacher's hidden states, of input's shape but for the features, and a floating dtype.
        target_weight (Tensor): of shape ``(classes, features)``, with target_input's features and dtype. No operand of
            the teacher may require a gradient: detach them.
        beta (float): in [0, 1]; the teacher's share of the mixture.
        temperature (float): above 0; divides both logits.
        linear_bias, target_bias (Tensor, optional): of shape ``(classes,)``.
        reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.
        mask (Tensor, optional): bool, broadcasts to the rows' shape. ``False`` leaves a row out.
        sample_weight (Tensor, optional): multiplies each row's loss; broadcasts to the rows' shape. ``"mean"`` divides
            by the sum of the weights that count. Differentiable.
        normalizer (Tensor or float, optional): the loss is the sum divided by it; only with ``"mean"``.
        scale (float): a constant factor for the loss and its gradients.
        dtype (torch.dtype, optional): the result's dtype. Default: the dtype that input and target_input promote to;
            under autocast at least float32.

    Shape:
        The result is 0-d; for ``reduction="none"`` of input's shape without the features.

    Raises:
        TypeError: if an argument is of the wrong type.
        ValueError: if ``reduction`` or ``normalizer`` is wrong.
        RuntimeError: if shapes, dtypes or devices do not fit, a number is out of its range, or an operand of the
            teacher requires a gradient.

    Example:
        >>> import torch, cudaloss
        >>> student, teacher = torch.nn.Linear(8, 4, bias=False), torch.nn.Linear(16, 4, bias=False)
        >>> of_student, of_teacher = torch.zeros(3, 8), torch.zeros(3, 16)  # all classes are equal for both
        >>> loss = cudaloss.linear_jsd_with_logits(of_student, student.weight, of_teacher, teacher.weight.detach())
        >>> loss.detach()
        tensor(0.)
    """
    own = beta, temperature, linear_bias, target_bias, reduction, mask, sample_weight, normalizer, scale, dtype
    return divergence.linear_jsd_with_logits(input, linear_weight, target_input, target_weight, *own)
