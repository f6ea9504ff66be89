"""A few classes of each row: their z, from blocks of classes, and their gradients, over those of a block.

The indices are (rows, k), of all classes. One that is no class has a NaN. There is no wait for a GPU in it: an index
that a block lacks reads and writes a place of its row that stays as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._call.varying import widest
from .blocks import LOG_SUM, Block, bent

SCHEMA = "Tensor? indices, Tensor? z, Tensor? of_z"


def _in_block(indices: Tensor, first: int, classes: int) -> tuple[Tensor, Tensor]:
    """The indices in the block, and which of them it has."""
    local = indices - first
    return local, (local >= 0) & (local < classes)


def check_indices(indices: Tensor, classes: int) -> None:
    """Raises an error for an index that is no class, where this waits for nothing. There is no negative one."""
    if indices.is_cpu and bool((wrong := indices >= classes).any()):
        raise RuntimeError(
            f"indices must be class indices below {classes}, or negative for padding, got {indices[wrong][0].item()}"
        )


class Places:
    """The z of a few classes of each row. Each block of the row's classes is added."""

    def __init__(self, indices: Tensor, block: Block) -> None:
        self.indices, self.block = indices, block
        self.found = torch.zeros(indices.shape, dtype=widest(indices.device), device=indices.device)

    def add(self, logits: Tensor, block: Block) -> None:
        """Adds a block, (rows, classes) or (outer, inner, classes)."""
        local, inside = _in_block(self.indices, block.first_class, logits.shape[-1])
        local = torch.where(inside, local, 0).view(*logits.shape[:-1], self.indices.shape[1])
        x = logits.gather(-1, local).view(self.indices.shape)
        self.found = torch.where(inside, x.to(self.found.dtype), self.found)

    def z(self) -> Tensor:
        """0 for rows that do not count, and for classes that no block had."""
        found = bent(self.found, self.block.softcap, self.block.temperature)
        found = torch.where(self.indices >= self.block.all_classes, torch.nan, found)
        return found if self.block.counts is None else torch.where(self.block.counts.unsqueeze(1), found, 0)


def _sums_of_equal(indices: Tensor, values: Tensor) -> Tensor:
    """Of each row, whose indices ascend: for each index the sum of all values that have it, with the same bits for
    equal ones."""
    step, k = 1, indices.shape[1]
    while step < k:  # a value has then the sum of the last `step` ones that have its index, itself among them
        is_same = indices[:, step:] == indices[:, :-step]
        added = values[:, step:] + torch.where(is_same, values[:, :-step], 0)
        values, step = torch.cat([values[:, :step], added], 1), 2 * step
    return values.gather(1, torch.searchsorted(indices, indices, right=True) - 1)


class Written(NamedTuple):
    """The logits' gradients at the classes of `indices`, which ascend; the same for equal ones."""

    indices: Tensor
    gradients: Tensor

    def write(self, gradient: Tensor, first: int) -> None:
        """Writes those of a block's classes over the block's gradient, (rows, classes) or (outer, inner, classes). An
        index that the block lacks writes what another of its row does; without another, what is there."""
        local, inside = _in_block(self.indices, first, gradient.shape[-1])
        at, has_any = inside.byte().argmax(1, keepdim=True), inside.any(1, keepdim=True)
        instead = torch.where(has_any, local.gather(1, at), 0)
        values, local = self.gradients.to(gradient.dtype), torch.where(inside, local, instead)
        there = torch.where(has_any, values.gather(1, at), gradient[..., :1].reshape(-1, 1))
        values, shape = torch.where(inside, values, there), (*gradient.shape[:-1], local.shape[1])
        gradient.scatter_(-1, local.view(shape), values.view(shape))


class OfPlaces(NamedTuple):
    """What the gradients at a few classes come from; all None if there are none."""

    indices: Tensor | None
    z: Tensor | None
    of_z: Tensor | None  # the gradients of z

    def gradients(self, grads: Tensor, numbers: Tensor, block: Block) -> Written | None:
        """From the gradients of the numbers too. They are made in float64, and rounded when they are written. The
        number of the target's z must have no gradient: it is the z at its index that has one."""
        if self.indices is None or self.z is None or self.of_z is None:
            return None
        indices, order = self.indices.sort(dim=1, stable=True)
        z, log_sum = self.z.gather(1, order), numbers[LOG_SUM].unsqueeze(1)
        is_other = (indices != block.target.unsqueeze(1)) & (log_sum != -torch.inf)
        of_log_sum = torch.where(is_other, (z - log_sum).exp() * grads[LOG_SUM].unsqueeze(1), 0)
        found = of_log_sum + _sums_of_equal(indices, self.of_z.gather(1, order))
        if block.softcap != 0:
            bend = z * (block.temperature / block.softcap)
            found = found * ((1 - bend) * (1 + bend))
        found = found / block.temperature
        return Written(indices, found if block.counts is None else torch.where(block.counts.unsqueeze(1), found, 0))
