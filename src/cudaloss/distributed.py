"""One mean over many micro-batches and processes: what each part's sum is divided by, and the whole value for a log.

Under DistributedDataParallel, FSDP2, pipelines and gradient accumulation each call sees a part of the data. Where masks
or weights differ, the mean of the parts' means is not the mean. So count first, then divide each part's sum::

    counts = [distributed.in_play(y, mask=m) for _, y, m in micro_batches]
    normalizer = distributed.normalizer(*counts)
    losses = [cudaloss.mse_loss(model(x), y, mask=m, normalizer=normalizer) for x, y, m in micro_batches]

**The factor W.** W processes that *average* their gradients (DistributedDataParallel, FSDP2 by default) divide the
gradients' sum by W. :func:`normalizer` divides the count by W too, so that the whole sum over the whole count is left.
Where gradients are *summed* (an own all-reduce, FSDP2 with its averaging off) it takes the count as it is. A process's
loss is then W times its part, or its part; :func:`total` knows which. Give both functions the same ``gradients``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from . import _dispatch, reference
from ._checks import check_options
from ._options import Options

__all__ = ["in_play", "normalizer", "total"]

_GRADIENTS = ("averaged", "summed")


def in_play(
    target: Tensor, *, weight: Tensor | None = None, mask: Tensor | None = None, ignore_nan: bool = False
) -> Tensor:
    """What the mean of one call divides by: the sum of the weights in play, or the number of elements.

    Args:
        target: The call's target, of any shape and dtype. It has the shape of the loss; of a target that is broadcast
            give ``target.expand(...)``. Its values are looked at with ``ignore_nan`` alone. Of ``cross_entropy`` give
            the class indices, and ``mask=target != -100``.
        weight: The call's weight, floating, broadcast to the target. Leave it out for ``binary_cross_entropy`` and
            ``binary_cross_entropy_with_logits``, whose mean is over the number of elements, as PyTorch's is. Of
            ``cross_entropy`` it is ``sample_weight``, times the class weight of each row's class where there is one.
        mask: The call's mask, bool, broadcast to the target.
        ignore_nan: As in the call: elements with a NaN target do not count.

    Returns:
        A 0-d float64 tensor on the target's device, without a gradient. Nothing waits for it.

    Raises:
        RuntimeError: as in a loss: for a mask that is not bool, a weight that is not floating, either on another device
            or of a shape that does not broadcast to the target's.

    Example::

        >>> y = torch.zeros(2, 3)
        >>> distributed.in_play(y, mask=torch.tensor([True, False, True]))
        tensor(4., dtype=torch.float64)
    """
    options = check_options(Options(weight=weight, mask=mask, ignore_nan=ignore_nan), target, target, "mean")
    counted = _dispatch.in_play(target, target, None if weight is None else weight.detach(), options)
    if counted is None:
        return torch.full((), target.numel(), dtype=reference.widest(target.device), device=target.device)
    return counted


def normalizer(*counts: Tensor | float, group: dist.ProcessGroup | None = None, gradients: str = "averaged") -> Tensor:
    """The ``normalizer`` of every call of one optimizer step, on every process: one all-reduce of a number.

    Args:
        *counts: Those of all micro-batches of this process, 0-d tensors or numbers (:func:`in_play`).
        group: The processes whose gradients are put together; ``None``: all. Where ``torch.distributed`` is not
            initialized this process is all there is.
        gradients: ``"averaged"`` over these processes, or ``"summed"``.

    Returns:
        The sum of the counts of all processes, 1 where that is 0 (all losses are then 0), over the number of processes
        where gradients are averaged; a 0-d float64 tensor, on the device of the first tensor among the counts.

    Raises:
        ValueError: without a count; for another word than the two.

    Example::

        >>> distributed.normalizer(torch.tensor(3), torch.tensor(5))
        tensor(8., dtype=torch.float64)
    """
    count = _sum_over(counts, "counts", group, gradients)
    return torch.where(count == 0, 1.0, count) / _averaged_over(group, gradients)


def total(*losses: Tensor, group: dist.ProcessGroup | None = None, gradients: str = "averaged") -> Tensor:
    """The mean over everything, from the losses that had :func:`normalizer`'s number: for a log, without a gradient.

    Args:
        *losses: Those of all micro-batches of this process, 0-d tensors.
        group: As in :func:`normalizer`.
        gradients: As in :func:`normalizer`.

    Returns:
        A 0-d float64 tensor, the same on every process.

    Raises:
        ValueError: without a loss; for another word than the two.

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
    each = [torch.as_tensor(number, dtype=reference.widest(device), device=device).detach() for number in numbers]
    found = torch.stack(each).sum()
    if _is_distributed():
        dist.all_reduce(found, group=group)
    return found
