"""How a private op is to work, packed into one int, as ``csrc/torch/mode.h`` unpacks it.

One int, because the dispatcher takes 0.5 us longer over a ``torch.dtype`` and 0.25 us over each int more.
"""

from __future__ import annotations

import torch

REDUCTIONS = ("none", "mean", "sum")
# What the compiled kernels read, in any pair, and what they write.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# What the compiled kernels read in a target besides.
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MAX_DIMS = 6  # of the result: kMaxDims of csrc/core/pass.h

FOR_TARGET = 1 << 4  # the target's gradient is wanted; of a plain op's two: instead of the input's
MAY_DECLINE = 1 << 5  # nobody has looked at the operands: an op that does not serve them answers None
FOR_INPUT = 1 << 6  # the input's gradient is wanted: of a general op, a plain one takes it for granted
IGNORE_NAN = 1 << 7


def pack(reduction: str, dtype: torch.dtype) -> int:
    """The mode of `reduction` with a loss of `dtype`, to which the flags below may be added."""
    return REDUCTIONS.index(reduction) | DTYPES.index(dtype) << 2


def reduction_of(mode: int) -> str:
    return REDUCTIONS[mode & 3]


def dtype_of(mode: int) -> torch.dtype:
    return DTYPES[mode >> 2 & 3]
