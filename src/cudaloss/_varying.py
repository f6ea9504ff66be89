"""Numbers that vary between the calls of a compiled step. The private ops take Python's own numbers, for each of which
a compiler would compile anew; so such a number becomes a tensor, or the compiler's kernels compute the call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._options import Options
from ._specs import RowNumbers, Third, VectorNumbers

NO_INDEX = -(2**63)  # ignores no row: nothing reads it as a class


def is_symbolic(value: Any) -> bool:
    """Whether it is a symbolic number of a compiler's trace; float() would add a guard on it."""
    return isinstance(value, (torch.SymFloat, torch.SymInt))


def widest(device: torch.device) -> torch.dtype:
    """float64, except on Apple's GPUs, which do not have it."""
    return torch.float32 if device.type == "mps" else torch.float64


def as_tensor(number: Any, like: Tensor) -> Tensor:
    """The number on the device of `like`. A product, because ``new_full`` would add a guard on a symbolic number."""
    return like.new_ones((), dtype=widest(like.device)) * number


def vary(options: Options, parameter: Any, second: Any, rows: RowNumbers | VectorNumbers | None) -> bool:
    """Whether a number of the call is symbolic."""
    return any(map(is_symbolic, (options.scale, options.normalizer, parameter, second, *(rows or ()))))


def fixed(
    input: Tensor, target: Tensor, options: Options, parameter: Third | None, rows: RowNumbers | VectorNumbers | None
) -> tuple[Options, Third | None, RowNumbers | VectorNumbers | None]:
    """The call without the symbolic numbers that a tensor can replace: all but the scale, and those of formulas."""
    if is_symbolic(options.normalizer):
        options = options._replace(normalizer=as_tensor(options.normalizer, input))
    if isinstance(rows, RowNumbers) and is_symbolic(rows.ignore_index):
        counts = target != rows.ignore_index
        options = options._replace(mask=counts if options.mask is None else counts & options.mask)
        rows = rows._replace(ignore_index=NO_INDEX)
    if rows is None and is_symbolic(parameter):
        parameter = as_tensor(parameter, input)
    return options, parameter, rows
