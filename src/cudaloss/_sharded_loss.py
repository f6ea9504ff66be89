"""Losses of DTensors: each process runs the fused pass over its shards, and the mean is the global one."""

from __future__ import annotations

from torch import Tensor

from . import _sharded_eager, _sharded_nodes
from ._call import Call


def loss(call: Call) -> Tensor:
    """The loss of a call that has been checked, with a DTensor among its tensors."""
    value = _sharded_eager.loss(call)
    if value is not None:
        return value
    _sharded_nodes.check_alike(call)
    kept = call.rank if call.reduction == "none" else call.options.batch_dims
    return _sharded_nodes.composed(call, _sharded_nodes.planned(call, kept), kept)
