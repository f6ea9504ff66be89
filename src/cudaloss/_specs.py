"""One row a loss: its names, its own parameters and its formula in plain PyTorch.

Everything that is the same for all losses (ops, functions, modules, documentation, tests, benchmarks) is made from
these rows. A new pointwise loss is a row here and a functor in ``csrc/losses/<name>.h``.

A loss is either one of the difference ``d = input - target`` (:class:`OfDifference`) or one of both operands
(:class:`OfTwo`). Its first own parameter is its third operand: a number, or a tensor that broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
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
    targets: str = "real"  # or "in [0, 1]"
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
    def default(self) -> float:
        """The third operand's default; 1.0, which nothing reads, where the loss has none."""
        return self.parameter.number if self.parameter else 1.0

    @property
    def mode(self) -> int:
        """What a private op's mode says of the loss (``_modes.LOSS``)."""
        return self.id | self.mean_over_count << 8


def _sign(d: Tensor, _: Third = 0.0) -> Tensor:
    """The sign of d, NaN of NaN, where ``Tensor.sign`` is 0."""
    return torch.where(d.isnan(), d, d.sign())


def _distance(d: Tensor, _: Third = 0.0) -> Tensor:
    """|d|, whose gradient is NaN at NaN, where that of ``Tensor.abs`` is 0, also in a graph that was captured."""
    return d * _sign(d)


def _of_zero(loss: Callable[..., Tensor], d: Tensor, **parameter: float) -> Tensor:
    """PyTorch's own loss of single elements: one kernel, which compilers know too."""
    return loss(d, d.new_zeros(()).expand_as(d), reduction="none", **parameter)


class _Bent(NamedTuple):
    """Where d is quadratic, by a tensor that says where it turns; what autograd differentiates is finite on both
    sides, because 0 times the other side's infinity would be NaN."""

    inside: Tensor
    d: Tensor  # 0 outside
    turn: Tensor  # 1 outside
    distance: Tensor  # |d|, NaN where the turn is, with its slope

    @staticmethod
    def of(d: Tensor, turn: Tensor) -> _Bent:
        inside = d.abs() < turn
        slope = torch.where(turn.isnan(), turn, _sign(d))
        return _Bent(inside, torch.where(inside, d, 0), torch.where(inside, turn, 1), d * slope)


def _smooth_l1(d: Tensor, beta: Third) -> Tensor:
    if isinstance(beta, Tensor):
        bent = _Bent.of(d, beta)
        return torch.where(bent.inside, 0.5 * bent.d * bent.d / bent.turn, bent.distance - 0.5 * beta)
    return _distance(d) if beta == 0 else _of_zero(F.smooth_l1_loss, d, beta=beta)


def _smooth_l1_slope(d: Tensor, beta: Third) -> Tensor:
    if isinstance(beta, Tensor):
        bent = _Bent.of(d, beta)
        return torch.where(bent.inside, bent.d / bent.turn, torch.where(beta.isnan(), beta, _sign(d)))
    return _sign(d) if beta == 0 else d.clamp(-beta, beta) / beta


def _smooth_l1_curvature(d: Tensor, beta: Third) -> Tensor:
    return torch.zeros_like(d) if beta == 0 else (d.abs() < beta).to(d.dtype) / beta


def _huber(d: Tensor, delta: Third) -> Tensor:
    if isinstance(delta, Tensor):
        bent = _Bent.of(d, delta)
        return torch.where(bent.inside, 0.5 * bent.d * bent.d, delta * (bent.distance - 0.5 * delta))
    return _of_zero(F.huber_loss, d, delta=delta)


def _huber_slope(d: Tensor, delta: Third) -> Tensor:
    if isinstance(delta, Tensor):
        bent = _Bent.of(d, delta)
        return torch.where(bent.inside, bent.d, delta * _sign(d))
    return d.clamp(-delta, delta)


def _quantile_slope(d: Tensor, quantile: Third) -> Tensor:
    """0 at 0, NaN at NaN."""
    at_zero = torch.where(d.isnan(), d, 0 * quantile)
    return torch.where(d > 0, 1 - quantile, torch.where(d < 0, -quantile, at_zero))


# ---- binary cross entropy: with z = -|x|, softplus(x) = max(x, 0) + log1p(exp(z)), sigmoid(x) by exp(z) ----


def _folded(x: Tensor) -> Tensor:
    """-|x|, whose slope is 1 at 0: what is made of it is analytic on both sides, to any order."""
    return torch.where(x > 0, -x, x)


def _above(x: Tensor) -> Tensor:
    """max(x, 0), with the slope that goes with :func:`_folded`."""
    return torch.where(x > 0, x, 0)


def _below(x: Tensor) -> Tensor:
    """max(-x, 0)."""
    return torch.where(x > 0, 0, -x)


def _times(factor: Third, x: Tensor) -> Tensor:
    """The product with an x >= 0. Where the factor is 0 and x infinite it is 0, with an infinite slope: two finite
    numbers stand for x."""
    largest, at_limit = torch.finfo(x.dtype).max, (factor == 0) & x.isinf()
    return factor * torch.where(at_limit, largest, x) * torch.where(at_limit, largest, x.new_ones(()))


def _parts(t: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """1 - t and t, smoothed: 1 less a smoothed target, which has been rounded, would be 12 ulp off."""
    off, on = (y if smoothing == 0 else y * (1 - smoothing) + smoothing / 2 for y in (1 - t, t))
    return off, on


def _bce(x: Tensor, t: Tensor, pos_weight: Third, smoothing: float) -> Tensor:
    off, on = _parts(torch.where(t.isnan(), t * t, t), smoothing)  # whose slope is NaN at NaN
    tail = torch.log1p(_folded(x).exp())
    below = torch.where((pos_weight == 0) & x.isinf(), 0, _below(x))
    return _times(off, _above(x)) + _times(on, below) * pos_weight + (off + on * pos_weight) * tail


def _sigmoids(x: Tensor) -> tuple[Tensor, Tensor]:
    """Of x and of -x, both right in their tails."""
    e = _folded(x).exp()
    large = 1 / (1 + e)
    small = e * large
    return torch.where(x > 0, large, small), torch.where(x > 0, small, large)


def _bce_for_input(x: Tensor, t: Tensor, pos_weight: Third, smoothing: float) -> Tensor:
    (off, on), (ahead, behind) = _parts(t, smoothing), _sigmoids(x)
    return off * ahead - on * pos_weight * behind


def _bce_for_target(x: Tensor, t: Tensor, pos_weight: Third, smoothing: float) -> Tensor:
    tail = torch.log1p(_folded(x).exp())
    slope = _times(pos_weight, _below(x)) - _above(x) + (pos_weight - 1) * tail
    return torch.where(t.isnan(), t, slope * (1 - smoothing))


def _bce_for_third(x: Tensor, t: Tensor, _: Third, smoothing: float) -> Tensor:
    t = _parts(t, smoothing)[1]
    return _times(t, _below(x)) + t * torch.log1p(_folded(x).exp())


SPECS: tuple[LossSpec, ...] = (
    LossSpec(
        id=0,
        name="smooth_l1",
        module="SmoothL1Loss",
        parameters=(Parameter("beta", 1.0, "where the loss turns from quadratic to linear; 0 is L1", ">= 0"),),
        terms=OfDifference((_smooth_l1, _smooth_l1_slope, _smooth_l1_curvature)),
        formula="0.5 * d**2 / beta where |d| < beta, else |d| - 0.5 * beta",
        source="Girshick, Fast R-CNN, 2015, equation 3",
        legacy_arguments=True,
    ),
    LossSpec(
        id=1,
        name="mse",
        module="MSELoss",
        parameters=(),
        terms=OfDifference((lambda d, _: d * d, lambda d, _: 2 * d, lambda d, _: torch.full_like(d, 2))),
        formula="d**2",
        source="Legendre, Nouvelles méthodes pour la détermination des orbites des comètes, 1805",
        legacy_arguments=True,
    ),
    LossSpec(
        id=2,
        name="huber",
        module="HuberLoss",
        parameters=(Parameter("delta", 1.0, "where the loss turns from quadratic to linear", "> 0"),),
        terms=OfDifference((_huber, _huber_slope, lambda d, delta: (d.abs() < delta).to(d.dtype))),
        formula="0.5 * d**2 where |d| < delta, else delta * (|d| - 0.5 * delta)",
        source="Huber, Robust Estimation of a Location Parameter, 1964",
    ),
    LossSpec(
        id=3,
        name="l1",
        module="L1Loss",
        parameters=(),
        terms=OfDifference((_distance, _sign, lambda d, _: torch.zeros_like(d))),
        formula="|d|",
        source="Laplace, Sur quelques points du système du monde, 1793",
        legacy_arguments=True,
    ),
    LossSpec(
        id=4,
        name="binary_cross_entropy_with_logits",
        module="BCEWithLogitsLoss",
        parameters=(
            Parameter("pos_weight", None, "the weight of positive targets; None is 1", ">= 0"),
            Parameter("label_smoothing", 0.0, "how far targets are moved towards 1/2; 1 is all the way", "in [0, 1]"),
        ),
        terms=OfTwo(_bce, _bce_for_input, _bce_for_target, _bce_for_third),
        formula="(1 - target) * softplus(input) + pos_weight * target * softplus(-input)",
        source="Good, Rational Decisions, 1952",
        function="binary_cross_entropy_with_logits",
        ulps=2.0,
        inputs="logits",
        targets="in [0, 1]",
        legacy_arguments=True,
        weight_first=True,
        same_shape=True,
        mean_over_count=True,
    ),
    LossSpec(
        id=5,
        name="quantile",
        module="QuantileLoss",
        parameters=(Parameter("quantile", 0.5, "which quantile of the target the best input is", "in (0, 1)"),),
        terms=OfDifference(
            (lambda d, q: d * _quantile_slope(d, q), _quantile_slope, lambda d, _: torch.zeros_like(d)),
        ),
        formula="(1 - quantile) * |d| where d > 0, else quantile * |d|",
        source="Koenker and Bassett, Regression Quantiles, 1978",
        kernels="general",
    ),
)

BY_ID = {spec.id: spec for spec in SPECS}
