"""Heads whose weight is a DTensor, sharded over the classes. Each process makes the numbers of its own classes; one
all-gather of four numbers a row joins them, and one all-reduce adds up input's gradient. No logit moves. Input is
gathered first if it is sharded: as a rule over the sequence.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from .._sharded.plan import collectives
from .blocks import LOG_SUM, MEAN, NUMBERS, OWN, SHARES


class Part(NamedTuple):
    """The classes of this process."""

    mesh: DeviceMesh
    first: int
    all_classes: int

    @property
    def group(self) -> str:
        return self.mesh.get_group().group_name


class Local(NamedTuple):
    """What this process has of a head's call."""

    part: Part
    operands: tuple[Tensor, Tensor, Tensor | None]  # input, weight, bias
    beside: tuple[Any, ...]
    is_wrapped: bool  # whether the result is a DTensor, as input is


def _whole(x: Any) -> Any:
    """A tensor that each process has whole."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def local_of(operands: tuple[Any, ...], beside: tuple[Any, ...]) -> Local | None:
    """The call on this process's classes; None if the weight is not sharded over them alone."""
    input, weight, bias = operands
    if not isinstance(weight, DTensor) or weight.dim() != 2:
        return None
    mesh, over_classes = weight.device_mesh, (Shard(0),)
    if mesh.ndim != 1 or weight.placements != over_classes:
        return None
    if any(isinstance(x, DTensor) and x.device_mesh != mesh for x in (input, bias, *beside)):
        return None
    if bias is not None and not (isinstance(bias, DTensor) and bias.placements == over_classes):
        return None
    classes = weight.shape[0]
    first = min(classes, -(-classes // mesh.size()) * mesh.get_local_rank())
    local = weight.to_local()
    if local.shape[0] == 0:  # PyTorch's products of no classes, which the kernels lack
        return None
    wrapped = isinstance(input, DTensor)
    if wrapped:
        input = input.redistribute(placements=[Replicate()]).to_local(grad_placements=[Replicate()])
    of_bias = None if bias is None else bias.to_local()
    return Local(Part(mesh, first, classes), (input, local, of_bias), tuple(map(_whole, beside)), wrapped)


def joined(numbers: Tensor, part: Part) -> Tensor:
    """The numbers of all classes, from those of each process's."""
    gathered = collectives.all_gather_into_tensor(numbers, part.mesh.size(), part.group)
    of_all = collectives.wait_tensor(gathered).view(-1, NUMBERS, numbers.shape[1])
    log_sums, means = of_all[:, LOG_SUM], of_all[:, MEAN]
    log_sum = log_sums.logsumexp(0)
    share = (log_sums - torch.where(log_sum == -torch.inf, 0, log_sum)).exp()
    return torch.stack([log_sum, of_all[:, OWN].amax(0), (share * means).sum(0), of_all[:, SHARES].sum(0)])


def added(gradient: Tensor, part: Part) -> Tensor:
    """The sum of the processes' gradients."""
    return collectives.wait_tensor(collectives.all_reduce(gradient, "sum", part.group))


def wrapped(found: Any, local: Local) -> Any:
    """The result in the form of the call's input."""
    if not local.is_wrapped:
        return found
    if isinstance(found, tuple):
        return tuple(wrapped(x, local) for x in found)
    return DTensor.from_local(found, local.part.mesh, [Replicate()], run_check=False)
