"""Where the elements of a loss of DTensors are, and where its operands, gradients and result must be.

Each dimension of the mesh has one placement: the input's shard, otherwise the target's shard, otherwise replicated.
Dimensions are those of the losses; for rows, without the classes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .._call.shapes import class_dim, joint_shape, rows_shape

collectives = torch.ops._c10d_functional
Placements = tuple[Placement, ...]
USUAL = (Shard, Replicate, Partial)  # otherwise FSDP2's own order of a tensor-parallel parameter's rows


class Plan(NamedTuple):
    """Where the elements of a loss of `shape` are. `reduced`: the mesh's dimensions that the reduction sums over."""

    mesh: DeviceMesh
    shape: torch.Size
    placements: Placements
    reduced: tuple[int, ...]
    classes: int | None  # the dimension of the classes in operands that have one dimension more than the losses
    vocabulary: int | None = None  # the mesh's dimension along which the input's classes stay sharded

    def of_operand(self, operand: Tensor, is_of_classes: bool = False) -> Placements:
        """Where an operand must be. It is replicated along a sharded dimension that it lacks or repeats, and whole if
        it has only a number for each class."""

        def place(placement: Placement) -> Placement:
            if is_of_classes or not isinstance(placement, Shard):
                return Replicate()
            own = _own_dim(operand, placement.dim, self.shape, self.classes)
            return Replicate() if own is None else Shard(own)

        found = tuple(map(place, self.placements))
        if self.vocabulary is None or operand.dim() <= len(self.shape):
            return found
        assert self.classes is not None
        return (*found[: self.vocabulary], Shard(self.classes), *found[self.vocabulary + 1 :])

    def of_gradient(self, operand: Tensor, is_of_classes: bool = False) -> Placements:
        """Where the shards leave its gradient: a part of a sum if each process had the whole operand."""
        pairs = zip(self.placements, self.of_operand(operand, is_of_classes), strict=True)
        return tuple(
            Partial() if isinstance(whole, Shard) and not isinstance(own, Shard) else own for whole, own in pairs
        )

    def of_result(self) -> tuple[Placements, Placements]:
        """Where the loss is, and where its shares are before they are summed."""

        def but_reduced(instead: Placement) -> Placements:
            return tuple(instead if i in self.reduced else found for i, found in enumerate(self.placements))

        return but_reduced(Replicate()), but_reduced(Partial())

    def groups(self) -> list[ProcessGroup]:
        """The groups of processes that sum their shares; none for a process outside the mesh."""
        if self.mesh.get_coordinate() is None:
            return []
        return [self.mesh.get_group(mesh_dim) for mesh_dim in self.reduced if self.mesh.size(mesh_dim) > 1]


def _own_dim(operand: Tensor, dim: int, shape: torch.Size, classes: int | None) -> int | None:
    """The operand's dimension that is the losses' `dim`: shapes broadcast from the right, or have the classes between.
    None if the operand lacks or repeats that dimension."""
    own = dim - (len(shape) - operand.dim())
    if classes is not None and operand.dim() > len(shape):
        own = dim + (dim >= classes)
    return own if own >= 0 and operand.shape[own] == shape[dim] else None


def plan_of(input: DTensor, target: DTensor, kept: int, is_of_rows: bool, keeps_vocabulary: bool = False) -> Plan:
    """`kept`: the number of leading dimensions of the losses over which nothing is summed."""
    shape, classes = (rows_shape(input), class_dim(input)) if is_of_rows else (joint_shape(input, target), None)

    def shard(operand: DTensor, mesh_dim: int) -> Shard | None:
        placement = operand.placements[mesh_dim]
        if type(placement) is not Shard:  # a strided one can be FSDP's own order
            return None
        dims = (dim for dim in range(len(shape)) if _own_dim(operand, dim, shape, classes) == placement.dim)
        return next((Shard(dim) for dim in dims), None)

    mesh = input.device_mesh
    placements = tuple(shard(input, i) or shard(target, i) or Replicate() for i in range(mesh.ndim))
    vocabulary = None
    if keeps_vocabulary:
        vocabulary = input.placements.index(Shard(classes))
        placements = (*placements[:vocabulary], Replicate(), *placements[vocabulary + 1 :])
    reduced = tuple(i for i, found in enumerate(placements) if isinstance(found, Shard) and found.dim >= kept)
    return Plan(mesh, shape, placements, reduced, classes, vocabulary)


def strides_of(shape: torch.Size, *operands: Tensor) -> tuple[int, ...]:
    """The strides of a dense tensor of that shape, in the dimension order of the first operand that has the shape
    too."""
    order = list(range(len(shape)))
    like = next((operand.stride() for operand in operands if operand.shape == shape), None)
    if like is not None:
        order.sort(key=lambda dim: -like[dim])
    strides, stride = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim], stride = stride, stride * max(shape[dim], 1)
    return tuple(strides)


def as_dtensor(local: Tensor, plan: Plan, placements: Placements, shape: Any, strides: Any) -> DTensor:
    """A DTensor of a shard, for a forward of autograd's: no derivative passes it."""
    if torch.compiler.is_compiling():  # costs the host 50 us, the class itself 6
        return DTensor.from_local(local, plan.mesh, placements, run_check=False, shape=shape, stride=strides)
    meta = TensorMeta(shape, strides, local.dtype)
    return DTensor(local.detach(), DTensorSpec(plan.mesh, placements, meta), requires_grad=False)


def moved(x: DTensor, plan: Plan, placements: Placements) -> DTensor:
    return x if x.placements == placements else x.redistribute(plan.mesh, placements)
