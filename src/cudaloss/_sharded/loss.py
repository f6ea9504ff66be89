"""Losses of DTensors: each process runs the fused pass over its shards, and the mean is the global one."""

from __future__ import annotations

from torch import Tensor

from .._call.call import Call
from . import eager, nodes


def loss(call: Call) -> Tensor:
    """The loss of a call that has been checked, with a DTensor among its tensors."""
    value = eager.loss(call)
    if value is not None:
        return value
    nodes.check_alike(call)
    kept = call.rank if call.reduction == "none" else call.options.batch_dims
    return nodes.composed(call, nodes.planned(call, kept), kept)
