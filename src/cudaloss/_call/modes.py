"""How a private op works, packed into one int; ``csrc/torch/call.h`` unpacks it.

It is one int, because the dispatcher takes 0.5 us longer for a ``torch.dtype`` and 0.25 us for each further int.
"""

from __future__ import annotations

import torch

from .._losses.spec import REDUCTIONS

# The dtypes that the compiled kernels read, in any pair, and write.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# The further dtypes that the compiled kernels read in a target.
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
INDICES = INTEGERS[1:]  # and as a row's class
MAX_DIMS = 6  # of the result: kMaxDims in csrc/core/pass.h

# The bits from the lowest, after two for the reduction and two for the result's dtype.
FOR_INPUT = 1 << 4  # make the input's gradient
FOR_TARGET = 1 << 5  # make the target's gradient
IGNORE_NAN = 1 << 6
MAY_DECLINE = 1 << 7  # nobody has checked the operands: an op that does not serve them returns None, or False
BATCH_DIMS = 8  # where their number begins, with 7 bits
BELOW_AUTOGRAD = 1 << 15  # the caller is the op's autograd, or knows that nothing requires a gradient
LOSS = 16  # where the loss begins (LossSpec.mode), with 8 bits of its id
FIRST_OF_ROWS = 64  # the ids of losses of rows begin here
MEAN_OVER_COUNT = 1 << 24  # a mean divides by the number of elements that count, not by the sum of their weights
# 4 bits of the loss's flags
FOR_THIRD = 1 << 29  # make the third operand's gradient: a vector's in the same pass, an element's in its own
NORMALIZER_IS_COUNT = 1 << 30  # of all processes: a count of 0 gives gradients of 0, and divides no sum
EXPECTS = 1 << 31  # a forward may make its gradients for the grad_output that it expects, with a record of it


def pack(reduction: str, dtype: torch.dtype, loss: int = 0, batch_dims: int = 0) -> int:
    """The mode for a loss (``LossSpec.mode``) and a reduction, with a result of `dtype`; the flags above can be added
    to it."""
    return REDUCTIONS.index(reduction) | DTYPES.index(dtype) << 2 | batch_dims << BATCH_DIMS | loss << LOSS


def reduction_of(mode: int) -> str:
    return REDUCTIONS[mode & 3]


def dtype_of(mode: int) -> torch.dtype:
    return DTYPES[mode >> 2 & 3]


def batch_dims_of(mode: int) -> int:
    return mode >> BATCH_DIMS & 0x7F


def is_of_rows(mode: int) -> bool:
    return mode >> LOSS & 0xFF >= FIRST_OF_ROWS


def loss_of(mode: int) -> int:
    return mode >> LOSS & 0x1FFF


def of_forward(mode: int) -> int:
    """The mode without gradients that a forward does not make: that of a third operand of elements."""
    return mode if is_of_rows(mode) else mode & ~FOR_THIRD
