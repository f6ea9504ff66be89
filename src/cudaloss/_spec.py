"""What a loss's row says: its names, its own parameters and its formula in plain PyTorch.

A loss is either one of the difference ``d = input - target`` (:class:`OfDifference`) or one of both operands
(:class:`OfTwo`). Its first own parameter is its third operand: a number, or a tensor that broadcasts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor

Third: TypeAlias = "float | Tensor"
Formula: TypeAlias = Callable[[Tensor, "float | Tensor"], Tensor]
# Of the input, the target, the third operand and the second number.
OfOperands: TypeAlias = Callable[[Tensor, Tensor, "float | Tensor", float], Tensor]

_INTERVALS: dict[str, Callable[[float], bool]] = {
    ">= 0": lambda number: number >= 0,
    "> 0": lambda number: number > 0,
    "in (0, 1)": lambda number: number > 0 and number < 1,  # a compiler's numbers know no chain of comparisons
    "in [0, 1]": lambda number: number >= 0 and number <= 1,
    "that is 1 or 2": lambda number: number == 1 or number == 2,
}


@dataclass(frozen=True)
class Parameter:
    """A loss's own number, as the function, the module and the op take it."""

    name: str
    default: float | None  # None: an optional tensor in the op's schema; without it the kernels are given 1.0
    meaning: str
    interval: str  # where a number must lie; a tensor's are never looked at

    @property
    def accepts(self) -> str:
        return f"a number {self.interval}"

    @property
    def takes(self) -> Callable[[float], bool]:
        return _INTERVALS[self.interval]

    @property
    def largest(self) -> float:
        """The largest number that may be given."""
        return math.nextafter(1.0, 0.0) if self.interval == "in (0, 1)" else math.inf

    @property
    def number(self) -> float:
        """What the kernels are given where nothing is."""
        return 1.0 if self.default is None else self.default


class OfDifference(NamedTuple):
    """Formulas of ``d`` and the third operand: the loss, its slope, and what follows in closed form."""

    derivatives: tuple[Formula, ...]


class OfTwo(NamedTuple):
    """Formulas of both operands, the third and the second number, which autograd can differentiate."""

    value: OfOperands
    for_input: OfOperands  # the derivatives
    for_target: OfOperands
    for_third: OfOperands | None = None


@dataclass(frozen=True)
class LossSpec:
    """A pointwise loss."""

    id: int  # for ever: graphs that PyTorch keeps over an upgrade name the loss by it
    name: str  # of the op, of the functor and of its header in csrc/losses
    module: str
    parameters: tuple[Parameter, ...]  # its third operand, and a number
    terms: OfDifference | OfTwo
    formula: str  # of the documentation; the tests' oracle reads and differentiates it: bench/symbolic.py
    source: str
    function: str = ""  # its name with _loss, where nothing is said
    kernels: str = "all"  # or "general": the pass over any layout alone; setup.py reads it
    ulps: float = 1.0  # the bound on an error of float32 and float64
    inputs: str = "real"  # or "logits": what tests and benchmarks draw
    targets: str = "real"  # or "in [0, 1]", or "1 or -1"
    legacy_arguments: bool = False  # PyTorch's namesake takes size_average and reduce
    weight_first: bool = False  # the namesake takes a weight before all others, and its module keeps it
    same_shape: bool = False  # the namesake refuses operands that would have to broadcast
    mean_over_count: bool = False  # the namesake's mean divides by the number of elements, whatever their weights

    def __post_init__(self) -> None:
        if not self.function:
            object.__setattr__(self, "function", f"{self.name}_loss")

    @property
    def parameter(self) -> Parameter | None:
        """The third operand."""
        return self.parameters[0] if self.parameters else None

    @property
    def second(self) -> Parameter | None:
        return self.parameters[1] if len(self.parameters) > 1 else None

    @property
    def is_rational(self) -> bool:
        """Whether the loss is made of differences and products alone, which float64 shows exactly where its operands
        are multiples of 1/64: an oracle of other losses needs more digits."""
        return isinstance(self.terms, OfDifference) and not re.search(r"\w\(", self.formula)

    @property
    def second_default(self) -> float:
        """The second number's default, which does what 0.0 does in formulas and kernels; 0.0 where there is none."""
        return self.second.number if self.second else 0.0

    @property
    def default(self) -> float:
        """The third operand's default; 1.0, which nothing reads, where the loss has none."""
        return self.parameter.number if self.parameter else 1.0

    @property
    def mode(self) -> int:
        """What a private op's mode says of the loss (``_modes.LOSS``)."""
        return self.id | self.mean_over_count << 8
