"""One row a loss: its names, its own parameter and its formula in plain PyTorch.

Everything that is the same for all losses (ops, functions, modules, documentation, tests, benchmarks) is made from
these rows. A new pointwise loss is a row here and a functor in ``csrc/losses/<name>.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Formula = Callable[[Tensor, float], Tensor]


@dataclass(frozen=True)
class Parameter:
    """A loss's own number, as the function, the module and the op take it."""

    name: str
    default: float
    meaning: str
    zero_allowed: bool

    @property
    def accepts(self) -> str:
        return "a number >= 0" if self.zero_allowed else "a number > 0"


@dataclass(frozen=True)
class LossSpec:
    """A pointwise loss: a function of the difference ``d = input - target`` of two elements."""

    id: int  # for ever: graphs that PyTorch keeps over an upgrade name the loss by it
    name: str  # of the op, of the functor and of its header in csrc/losses
    module: str
    parameter: Parameter | None
    derivatives: tuple[Formula, ...]  # of d and the parameter: the loss, its slope, and what follows in closed form
    formula: str
    source: str
    legacy_arguments: bool = False  # PyTorch's namesake takes size_average and reduce

    @property
    def function(self) -> str:
        return f"{self.name}_loss"

    @property
    def value(self) -> Formula:
        return self.derivatives[0]

    @property
    def default(self) -> float:
        """The parameter's default; 1.0, which nothing reads, where the loss has none."""
        return self.parameter.default if self.parameter else 1.0


def _sign(d: Tensor, _: float = 0.0) -> Tensor:
    """The sign of d, NaN of NaN, where ``Tensor.sign`` is 0."""
    return torch.where(d.isnan(), d, d.sign())


def _distance(d: Tensor, _: float = 0.0) -> Tensor:
    """|d|, whose gradient is NaN at NaN, where that of ``Tensor.abs`` is 0, also in a graph that was captured."""
    return d * _sign(d)


def _of_zero(loss: Callable[..., Tensor], d: Tensor, **parameter: float) -> Tensor:
    """PyTorch's own loss of single elements: one kernel, which compilers know too."""
    return loss(d, d.new_zeros(()).expand_as(d), reduction="none", **parameter)


def _smooth_l1(d: Tensor, beta: float) -> Tensor:
    return _distance(d) if beta == 0 else _of_zero(F.smooth_l1_loss, d, beta=beta)


def _smooth_l1_slope(d: Tensor, beta: float) -> Tensor:
    return _sign(d) if beta == 0 else d.clamp(-beta, beta) / beta


def _smooth_l1_curvature(d: Tensor, beta: float) -> Tensor:
    return torch.zeros_like(d) if beta == 0 else (d.abs() < beta).to(d.dtype) / beta


SPECS: tuple[LossSpec, ...] = (
    LossSpec(
        id=0,
        name="smooth_l1",
        module="SmoothL1Loss",
        parameter=Parameter("beta", 1.0, "where the loss turns from quadratic to linear; 0 is L1", zero_allowed=True),
        derivatives=(_smooth_l1, _smooth_l1_slope, _smooth_l1_curvature),
        formula="0.5 * d**2 / beta where |d| < beta, else |d| - 0.5 * beta",
        source="Girshick, Fast R-CNN, 2015, equation 3",
        legacy_arguments=True,
    ),
    LossSpec(
        id=1,
        name="mse",
        module="MSELoss",
        parameter=None,
        derivatives=(lambda d, _: d * d, lambda d, _: 2 * d, lambda d, _: torch.full_like(d, 2)),
        formula="d**2",
        source="Legendre, Nouvelles méthodes pour la détermination des orbites des comètes, 1805",
        legacy_arguments=True,
    ),
    LossSpec(
        id=2,
        name="huber",
        module="HuberLoss",
        parameter=Parameter("delta", 1.0, "where the loss turns from quadratic to linear", zero_allowed=False),
        derivatives=(
            lambda d, delta: _of_zero(F.huber_loss, d, delta=delta),
            lambda d, delta: d.clamp(-delta, delta),
            lambda d, delta: (d.abs() < delta).to(d.dtype),
        ),
        formula="0.5 * d**2 where |d| < delta, else delta * (|d| - 0.5 * delta)",
        source="Huber, Robust Estimation of a Location Parameter, 1964",
    ),
    LossSpec(
        id=3,
        name="l1",
        module="L1Loss",
        parameter=None,
        derivatives=(_distance, _sign, lambda d, _: torch.zeros_like(d)),
        formula="|d|",
        source="Laplace, Sur quelques points du système du monde, 1793",
        legacy_arguments=True,
    ),
)

BY_ID = {spec.id: spec for spec in SPECS}
