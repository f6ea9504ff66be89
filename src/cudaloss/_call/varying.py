"""Numbers that vary between the calls of a compiled step. The private ops take Python's own numbers, for each of which
a compiler would compile anew; so such a number becomes a tensor, or the compiler's kernels compute the call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .call import Call

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


def vary(call: Call) -> bool:
    """Whether a number of the call is symbolic."""
    own = call.parameter, call.second, call.ignore_index, call.softcap, call.p
    return any(map(is_symbolic, (call.options.scale, call.options.normalizer, *own)))


def fixed(call: Call) -> Call:
    """The call without the symbolic numbers that a tensor can replace: all but the scale, and those of formulas."""
    options = call.options
    if is_symbolic(options.normalizer):
        options = options._replace(normalizer=as_tensor(options.normalizer, call.input))
    if is_symbolic(call.ignore_index):
        counts = call.target != call.ignore_index
        options = options._replace(mask=counts if options.mask is None else counts & options.mask)
        call = call._replace(ignore_index=NO_INDEX)
    if not call.spec.of_rows and is_symbolic(call.parameter):
        call = call._replace(third=as_tensor(call.parameter, call.input), parameter=call.spec.default)
    return call._replace(options=options)
