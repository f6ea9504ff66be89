"""A loss's own argument: of its function, its module, its public op and its private call."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_INTERVALS: dict[str | None, Callable[[float], bool]] = {
    None: lambda number: number == number,  # any but NaN
    ">= 0": lambda number: number >= 0,
    "<= 1": lambda number: number <= 1,
    "> 0": lambda number: number > 0,
    "in (0, 1)": lambda number: number > 0 and number < 1,  # a compiler's symbolic numbers cannot chain comparisons
    "in [0, 1]": lambda number: number >= 0 and number <= 1,
    "that is 1 or 2": lambda number: number == 1 or number == 2,
}
# By role: the argument's type in the function, and in the op's schema.
_TYPES = {
    "third": ("Tensor | float", "float"),  # the third operand of a loss of elements: a number, or a tensor
    "second": ("float", "float"),  # its second number
    "flag": ("bool", "bool"),
    "class_weight": ("Tensor | None", "Tensor?"),
    "number": ("float", "float"),  # of a loss of rows
    "optional": ("float | None", "float?"),
    "int": ("int", "int"),
}


@dataclass(frozen=True)
class Argument:
    name: str
    role: str  # which place it has in a call: one of those above
    default: Any  # a third operand with None is always a tensor in the op's schema; without it the kernels get 1.0
    meaning: str
    interval: str | None = None  # the allowed numbers; the values of a tensor are not checked
    of_call: bool = False  # each call must give it, and a module does not keep it
    may_lack_last: bool = False  # a tensor without the loss's last dimension has one number for all of it
    only_keyword: bool = False  # PyTorch's loss of this name lacks it

    @property
    def annotation(self) -> str:
        return _TYPES[self.role][0] + (" | None" if self.role == "third" and self.is_optional else "")

    @property
    def of_schema(self) -> str:
        """Its text in the op's schema."""
        if self.role == "third" and self.of_call:
            return f"Tensor {self.name}"
        kind = "Tensor?" if self.role == "third" and self.is_optional else _TYPES[self.role][1]
        return f"{kind} {self.name}={self.default}"

    @property
    def accepts(self) -> str:
        return f"a number {self.interval}" if self.interval else "a number"

    @property
    def is_optional(self) -> bool:
        return self.default is None and not self.of_call

    @property
    def is_within(self) -> Callable[[float], bool]:
        return _INTERVALS[self.interval]

    def takes(self, number: Any) -> bool:
        """Whether a number's type is the argument's, and the number is in the interval."""
        is_real = self.role in ("third", "second", "number")
        return self.is_within(number) and (is_real or (self.role == "int" and isinstance(number, numbers.Integral)))

    @property
    def largest(self) -> float:
        """The largest allowed number."""
        return {"in (0, 1)": math.nextafter(1.0, 0.0), "<= 1": 1.0}.get(self.interval or "", math.inf)

    @property
    def number(self) -> float:
        """The number that the kernels get if the call gives none."""
        return 1.0 if self.default is None else self.default
