"""The row of a loss: its names, its own parameters and its formula in plain PyTorch.

A loss of elements is either one of the difference ``d = input - target`` (:class:`OfDifference`) or one of both
operands (:class:`OfTwo`). Its parameter is its third operand: a number, or a tensor that broadcasts. It can also have a
second number, and flags; each combination of flags is a variant of the row. A loss of rows tells what it reads.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

from .argument import Argument

REDUCTIONS = ("none", "mean", "sum")
BATCHMEAN = "batchmean"  # only of some losses: a mean whose normalizer is the first size of input

Third: TypeAlias = "float | Tensor"
Formula: TypeAlias = Callable[[Tensor, "float | Tensor"], Tensor]
# A function of the input, the target, the third operand and the second number.
OfOperands: TypeAlias = Callable[[Tensor, Tensor, "float | Tensor", float], Tensor]

# The arguments of a call that private code passes to a loss, in the order of the private call, with the values for a
# loss without them. For elements the flags follow.
OF_ELEMENTS: dict[str, object] = {"third": 1.0, "second": 0.0}
OF_CLASSES: dict[str, object] = {
    "weight": None,
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "z_loss": 0.0,
    "softcap": None,
}
OF_VECTORS: dict[str, object] = {
    "third": None,
    "margin": 0.0,
    "p": 2.0,
    "eps": 0.0,
    "swap": False,
    "dim": None,
    "temperature": 1.0,
    "beta": 0.0,
}


class OfDifference(NamedTuple):
    """Formulas of ``d`` and the third operand: the loss, its slope, and its curvature; and the derivatives of the first
    two in the third operand."""

    derivatives: tuple[Formula, Formula, Formula]
    for_third: tuple[Formula, ...] = ()


class OfTwo(NamedTuple):
    """Formulas of both operands, the third and the second number, which autograd can differentiate."""

    value: OfOperands
    for_input: OfOperands  # the derivatives
    for_target: OfOperands
    for_third: OfOperands | None = None


def _no_formula(d: Tensor, third: Third) -> Tensor:
    raise NotImplementedError


_NONE = OfDifference((_no_formula, _no_formula, _no_formula))  # for a loss of rows


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """A pointwise loss, or the part of a loss of rows that is the same."""

    id: int  # never changes: graphs that PyTorch keeps over an upgrade name the loss by it
    name: str  # of the op, of the functor and of its header in csrc/losses
    module: str
    arguments: tuple[Argument, ...] = ()  # its own, in the order of the private call
    by_flags: Callable[..., dict[str, Any]] | None = None  # from their values: the fields below that depend on them
    variant: int | None = None  # bit i: flag i; None: the flags' defaults
    terms: OfDifference | OfTwo = _NONE
    formula: str = ""  # for the documentation; the tests' oracle reads and differentiates it: bench/symbolic.py
    derivatives: tuple[str, ...] = ()  # for input and target, if the formula's own are not the intended ones
    source: str
    function: str = ""  # default: the name with _loss
    signature: str = ""  # PyTorch's arguments after input and target; default: the reduction and the loss's own
    reduction: str = "mean"  # the default of a call
    batchmean: bool = False  # it also has the reduction "batchmean", the sum over the first size
    kernels: str = "all"  # or "general": only those of the commonest calls; setup.py reads it
    ulps: float = 1.0  # the bound on an error of float32 and float64
    inputs: str = "real"  # or a domain of bench/domains.py: the numbers that tests and benchmarks draw
    targets: str = "real"
    same_shape: bool = False  # PyTorch's loss refuses operands that would have to broadcast
    reads: str = "element"  # or what a loss of rows reads (csrc/torch/call.h); names the engines' headers
    input_is: str = "logits"  # for the documentation of rows, like the next two
    about: str = ""  # what the formula means
    example: str = ""
    operands: tuple[str, ...] = ("input", "target")  # their names; a loss of vectors can have a third
    differentiable_third: bool = False  # for a loss of vectors: the third operand is a vector too, not a label
    mean_over_count: bool = False  # PyTorch's mean divides by the number of elements, for any weights
    weight_last: bool = False  # PyTorch's function has a weight behind the signature's arguments; its module has none

    def __post_init__(self) -> None:
        usual = sum(flag.default << bit for bit, flag in enumerate(self.flags))
        self._set(
            function=self.function or f"{self.name}_loss",
            variant=usual if self.variant is None else self.variant,
            signature=self.signature or " ".join(["reduction", *(row.name for row in self.arguments)]),
        )
        self._set(**(self.by_flags(**self.flag_values) if self.by_flags else {}))

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def of_role(self, role: str) -> Argument | None:
        return next((row for row in self.arguments if row.role == role), None)

    @functools.cached_property
    def parameter(self) -> Argument | None:
        """The third operand of a loss of elements."""
        return self.of_role("third")

    @functools.cached_property
    def second(self) -> Argument | None:
        """Its second number."""
        return self.of_role("second")

    @functools.cached_property
    def flags(self) -> tuple[Argument, ...]:
        return tuple(row for row in self.arguments if row.role == "flag")

    @property
    def of_rows(self) -> bool:
        return self.reads != "element"

    @property
    def of_vectors(self) -> bool:
        """Whether a row is a vector of each operand, as such, as a distribution's logits or as a box."""
        return self.reads in ("vectors", "distributions", "boxes")

    @property
    def of_classes(self) -> bool:
        return self.of_rows and not self.of_vectors

    @property
    def has_margin(self) -> bool:
        return "margin" in self.signature.split()

    @property
    def number(self) -> str:
        """For a loss of vectors: the name of the number that is the private ops' parameter."""
        return next((name for name in ("margin", "temperature") if name in self.signature.split()), "eps")

    @property
    def second_number(self) -> str | None:
        """For a loss of vectors: the name of the number that is the private ops' second number."""
        return "eps" if self.has_margin else "beta" if "beta" in self.signature.split() else None

    @property
    def takes_indices_alone(self) -> bool:
        """Whether the target must be a class index, not a probability for each class."""
        return self.reads == "index"

    @property
    def flag_values(self) -> dict[str, bool]:
        return {flag.name: bool(self.bits >> bit & 1) for bit, flag in enumerate(self.flags)}

    @property
    def bits(self) -> int:
        return self.variant or 0

    @property
    def needed(self) -> dict[str, float]:
        """The further arguments that every call of the function must give, with example values."""
        return {row.name: row.number for row in self.arguments if row.of_call}

    @functools.cached_property
    def variants(self) -> tuple[LossSpec, ...]:
        """The row with each combination of its flags."""
        return tuple(replace(self, variant=bits) for bits in range(1 << len(self.flags)))

    @functools.cached_property
    def given(self) -> dict[str, object]:
        """The arguments that private code passes to the loss, by their names in a call, with the defaults."""
        if self.of_classes:
            return OF_CLASSES
        third = self.parameter.name if self.parameter else self.operands[2] if len(self.operands) > 2 else "third"
        second = self.second.name if self.second else "second"
        places = OF_VECTORS if self.of_vectors else OF_ELEMENTS if self.arguments else {}
        own = {row.name: row.number if row.role == "third" else row.default for row in self.arguments}
        flags = {} if self.of_vectors else {flag.name: flag.default for flag in self.flags}
        names = {{"third": third, "second": second}.get(name, name): value for name, value in places.items()}
        return {name: own.get(name, value) for name, value in {**names, **flags}.items()}

    @functools.cached_property
    def places(self) -> tuple[tuple[int, str], ...]:
        """Which of :attr:`given` the function has, and where."""
        names = {*self.operands, *(row.name for row in self.arguments)}
        return tuple((place, name) for place, name in enumerate(self.given) if name in names)

    def own(self, third: Any, second: Any) -> dict[str, Any]:
        """The arguments of a loss of elements by their names, with the variant's flags."""
        given = third, second, *self.flag_values.values()
        return {name: given[place] for place, name in self.places}

    @property
    def has_third_gradient(self) -> bool:
        """Whether the kernels make the gradients of a third operand that is a tensor: if every call has one."""
        return self.differentiable_third or (self.parameter is not None and self.parameter.of_call)

    @property
    def reductions(self) -> tuple[str, ...]:
        return (*REDUCTIONS, BATCHMEAN) if self.batchmean else REDUCTIONS

    @property
    def weight_first(self) -> bool:
        """Whether PyTorch's loss has a weight among its arguments, and its module keeps it."""
        return "weight" in self.signature.split()

    @property
    def of_function(self) -> list[str]:
        """The function's positional arguments after its operands; a module has those of the signature."""
        return [*self.signature.split(), *(["weight"] if self.weight_last else [])]

    @property
    def legacy_arguments(self) -> bool:
        """Whether PyTorch's loss takes size_average and reduce."""
        return "reduce" in self.signature.split()

    @property
    def parameters(self) -> tuple[Argument, ...]:
        """The numbers of a loss of elements."""
        return tuple(row for row in (self.parameter, self.second) if row)

    @property
    def is_rational(self) -> bool:
        """Whether the loss consists only of differences and products. float64 then computes it exactly for operands
        that are multiples of 1/64; an oracle for other losses needs more digits."""
        return isinstance(self.terms, OfDifference) and not re.search(r"\w\(", self.formula)

    @property
    def second_default(self) -> float:
        """The second number's default; 0.0 if there is none."""
        return self.second.number if self.second else 0.0

    @property
    def default(self) -> float:
        """The third operand's default; 1.0, which nothing reads, if the loss has none."""
        return self.parameter.number if self.parameter else 1.0

    @property
    def mode(self) -> int:
        """The loss's part of a private op's mode (``LOSS`` in ``_call/modes.py``)."""
        return self.id | self.mean_over_count << 8 | self.bits << 9
