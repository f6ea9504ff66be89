"""How a private op is to work, packed into one int, as ``csrc/torch/mode.h`` unpacks it.

One int, because the dispatcher takes 0.5 us longer over a ``torch.dtype`` and 0.25 us over each int more.
"""

from __future__ import annotations

import torch

REDUCTIONS = ("none", "mean", "sum")
# What the compiled kernels read, in any pair, and what they write.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

FOR_TARGET = 1 << 4  # the one gradient wanted is the target's
MAY_DECLINE = 1 << 5  # nobody has looked at the operands: an op that does not serve them answers None


def pack(reduction: str, dtype: torch.dtype) -> int:
    """The mode of `reduction` with a loss of `dtype`, to which FOR_TARGET and MAY_DECLINE may be added."""
    return REDUCTIONS.index(reduction) | DTYPES.index(dtype) << 2


def reduction_of(mode: int) -> str:
    return REDUCTIONS[mode & 3]


def dtype_of(mode: int) -> torch.dtype:
    return DTYPES[mode >> 2 & 3]
