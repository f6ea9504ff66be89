"""One mean over many micro-batches and processes: the divisor of each part's sum, and the whole value for a log.

Under DistributedDataParallel, FSDP2, pipelines and gradient accumulation each call sees a part of the data. If masks
or weights differ, the mean of the parts' means is not the mean. Count first, then divide each part's sum::

    counts = [distributed.in_play(y, mask=m) for _, y, m in micro_batches]
    normalizer = distributed.normalizer(*counts)
    losses = [cudaloss.mse_loss(model(x), y, mask=m, normalizer=normalizer) for x, y, m in micro_batches]

**The factor W.** W processes that *average* their gradients (DistributedDataParallel, FSDP2 by default) divide the
gradients' sum by W. :func:`normalizer` also divides the count by W, so that the result is the whole sum over the whole
count. If gradients are *summed* (your own all-reduce, FSDP2 without averaging), the count stays unchanged. A process's
loss is W times its part if gradients are averaged, and its part if they are summed. :func:`total` takes that into
account; give both functions the same ``gradients``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ._call.varying import widest
from ._losses.options import Options
from ._ops import dispatch
from ._ops.checks import check_options

__all__ = ["in_play", "normalizer", "total"]

_GRADIENTS = ("averaged", "summed")


def in_play(
    target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None, ignore_nan: bool = False
) -> Tensor:
    """The denominator of one call's mean: the sum of the weights that count, or the number of elements that count.

    Args:
        target: The call's target, of any shape and dtype. It must have the shape of the loss; if it is broadcast, give
            ``target.expand(...)``. Its values are read only with ``ignore_nan``. For ``cross_entropy`` give the class
            indices, and ``mask=target != -100``.
        weight: The call's weight, floating, broadcast to the target. Leave it out for ``huber_loss``,
            ``binary_cross_entropy`` and ``binary_cross_entropy_with_logits``, whose mean is over the number of
            elements, as in PyTorch. For ``cross_entropy`` it is ``sample_weight``, times the class weight of each row's
            class if there are class weights.
        mask: The call's mask, bool, broadcast to the target.
        ignore_nan: As in the call: elements with a NaN target do not count.

    Returns:
        A 0-d float64 tensor on the target's device, without a gradient. The call does not wait for the device.

    Raises:
        RuntimeError: as in a loss: a mask is not bool, a weight is not floating, or either is on another device or has
            a shape that does not broadcast to the target's.

    Example::

        >>> y = torch.zeros(2, 3)
        >>> distributed.in_play(y, mask=torch.tensor([True, False, True]))
        tensor(4., dtype=torch.float64)
    """
    options = check_options(Options(weight=weight, mask=mask, ignore_nan=ignore_nan), target, target.shape, "mean")
    counted = dispatch.in_play(target, target, None if weight is None else weight.detach(), options)
    if counted is None:
        return torch.full((), target.numel(), dtype=widest(target.device), device=target.device)
    return counted


def normalizer(*counts: Tensor | float, group: dist.ProcessGroup | None = None, gradients: str = "averaged") -> Tensor:
    """The ``normalizer`` of every call of one optimizer step, on every process: one all-reduce of a number.

    Args:
        *counts: The counts of all micro-batches of this process, 0-d tensors or numbers (:func:`in_play`). NCCL adds
            only what is on a GPU, so there the first tensor must be.
        group: The processes whose gradients are combined; ``None``: all. If ``torch.distributed`` is not initialized,
            there is only this process.
        gradients: ``"averaged"`` over these processes, or ``"summed"``.

    Returns:
        The sum of the counts of all processes, or 1 if that is 0 (all losses are then 0). If gradients are averaged, it
        is divided by the number of processes. A 0-d float64 tensor, on the device of the first tensor among the counts.

    Raises:
        ValueError: there is no count, or ``gradients`` is not one of the two words.

    Example::

        >>> distributed.normalizer(torch.tensor(3), torch.tensor(5))
        tensor(8., dtype=torch.float64)
    """
    count = _sum_over(counts, "counts", group, gradients)
    return torch.where(count == 0, 1.0, count) / _averaged_over(group, gradients)


def total(*losses: Tensor, group: dist.ProcessGroup | None = None, gradients: str = "averaged") -> Tensor:
    """The mean over all data, from losses that were divided by :func:`normalizer`: for a log, without a gradient.

    Args:
        *losses: The losses of all micro-batches of this process, 0-d tensors.
        group: As in :func:`normalizer`.
        gradients: As in :func:`normalizer`.

    Returns:
        A 0-d float64 tensor, the same on every process.

    Raises:
        ValueError: there is no loss, or ``gradients`` is not one of the two words.

    Example::

        >>> distributed.total(torch.tensor(0.5), torch.tensor(0.25))
        tensor(0.7500, dtype=torch.float64)
    """
    return _sum_over(losses, "losses", group, gradients) / _averaged_over(group, gradients)


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _averaged_over(group: dist.ProcessGroup | None, gradients: str) -> int:
    return dist.get_world_size(group) if gradients == "averaged" and _is_distributed() else 1


def _sum_over(
    numbers: tuple[Tensor | float, ...], name: str, group: dist.ProcessGroup | None, gradients: str
) -> Tensor:
    if gradients not in _GRADIENTS:
        raise ValueError(f"gradients must be 'averaged' or 'summed', got {gradients!r}")
    if not numbers:
        raise ValueError(f"{name} must be at least one: those of this process's micro-batches")
    device = next((number.device for number in numbers if isinstance(number, Tensor)), torch.get_default_device())
    each = [torch.as_tensor(number, dtype=widest(device), device=device).detach() for number in numbers]
    found = torch.stack(each).sum()
    if _is_distributed():
        dist.all_reduce(found, group=group)
    return found
