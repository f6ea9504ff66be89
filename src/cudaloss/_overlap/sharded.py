"""Losses of overlap of DTensors: each process sums over its own voxels, and a collective joins the sums. No voxel moves
if the operands are sharded alike, over samples or space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from .._sharded.nodes import _Border, _Joined, _Shard, check_tensors_alike
from .._sharded.plan import Placements, Plan, strides_of


def _everywhere(mesh: DeviceMesh) -> Placements:
    return (Replicate(),) * mesh.ndim


def _border(mesh: DeviceMesh, like: Tensor, whole: Placements, shards: Placements, gradients: Placements) -> _Border:
    """Of a DTensor with the shape and strides of `like`."""
    plan = Plan(mesh, like.shape, shards, (), None)
    return _Border(plan, shards, gradients, (whole, like.shape, like.stride()))


def _own(x: Any, where: Placements) -> Tensor:
    """The part that this process computes on; it makes the gradient of that part."""
    return _Shard.apply(x, _border(x.device_mesh, x, x.placements, where, where))  # pyright: ignore[reportReturnType]


def whole(x: Any) -> Any:
    """A tensor that each process has whole; each makes the same gradient of it."""
    return _own(x, _everywhere(x.device_mesh)) if isinstance(x, DTensor) else x


def of_dtensors(function: Callable[..., Tensor], input: Any, target: Any, *own: Any) -> Tensor:
    """The loss of a function of plain tensors as a DTensor, which each process has whole."""
    *beside, options = own
    tensors = {"input": input, "target": target, "mask": options.mask, "weight": options.weight}
    check_tensors_alike({name: x for name, x in tensors.items() if isinstance(x, Tensor)}, ("input", "target"))
    value = function(input, target, *beside, options._replace(weight=whole(options.weight)))
    everywhere = _everywhere(input.device_mesh)
    border = _border(input.device_mesh, value, everywhere, everywhere, everywhere)
    return _Joined.apply(value, border)  # pyright: ignore[reportReturnType]


def joined(
    sums: Callable[..., Tensor], input: DTensor, target: DTensor, mask: DTensor | None, how: tuple[Any, ...]
) -> Tensor:
    """The sums over the voxels of all processes, which each of them has, by a function of plain tensors. Sharded
    classes are gathered before."""

    def is_over_voxels(place: Placement) -> bool:
        return type(place) is Shard and place.dim != 1  # a strided one can be FSDP's own order

    mesh, pairs = input.device_mesh, zip(input.placements, target.placements, strict=True)
    where = tuple(next(filter(is_over_voxels, pair), Replicate()) for pair in pairs)
    found = sums(_own(input, where), _own(target, where), None if mask is None else _own(mask, where), how)
    # Parts of the sums over space; the gradient of a part is the whole's.
    of_space = [isinstance(place, Shard) and place.dim > 1 for place in where]
    parts = tuple(Partial() if is_part else place for place, is_part in zip(where, of_space, strict=True))
    of_parts = tuple(Replicate() if is_part else place for place, is_part in zip(where, of_space, strict=True))
    shape = torch.Size((*input.shape[:2], found.shape[2]))
    plan = Plan(mesh, shape, where, (), None)
    border = _Border(plan, of_parts, parts, (_everywhere(mesh), shape, strides_of(shape)))
    return whole(_Joined.apply(found, border))
