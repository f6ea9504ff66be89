"""Numbers from a loss's domain: made from those that layouts draw, from [0, 1), for the operands that its row
describes."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

LARGEST_LOGIT = 8  # covers both tails
LARGEST_COUNT = 2


def _inside(x: Tensor) -> Tensor:
    """Within (0, 1), where logarithms and their slopes are finite, also for halves."""
    return x.mul_(0.98).add_(0.01)


def _boxes(x: Tensor) -> Tensor:
    """(x1, y1, x2, y2) with x1 < x2 and y1 < y2, from numbers above 0."""
    x[..., 2:] += x[..., :2]
    return x


# In place, which keeps the layout.
_SUITED: dict[str, Callable[[Tensor], Tensor]] = {
    "real": lambda x: x,
    "logits": lambda x: x.mul_(2 * LARGEST_LOGIT).sub_(LARGEST_LOGIT),
    "in [0, 1]": _inside,
    "in (0, 1)": _inside,
    "in (0, 1]": _inside,
    "> 0": lambda x: x.add_(0.01),
    "logarithms": lambda x: x,
    "log probabilities": lambda x: _inside(x).log_(),
    "1 or -1": lambda x: x.round_().mul_(2).sub_(1),
    "boxes": _boxes,
    ">= 0": lambda x: x.mul_(LARGEST_COUNT + 1).floor_(),
}


def suited(x: Tensor, numbers: str) -> Tensor:
    """Integers, which are 0 and 1, stay unchanged."""
    return _SUITED[numbers](x) if x.is_floating_point() else x
