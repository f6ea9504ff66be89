"""One row a loss: its names, its own parameter and its formula in plain PyTorch.

Everything that is the same for all losses (ops, functions, modules, documentation, tests, benchmarks) is made from
these rows. A new pointwise loss is a row here and a functor in ``csrc/losses/<name>.h``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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

    name: str  # of the op, of the functor and of its header in csrc/losses
    module: str
    parameter: Parameter | None
    value: Callable[[Tensor, float], Tensor]  # of d and the parameter
    formula: str
    source: str
    legacy_arguments: bool = False  # PyTorch's namesake takes size_average and reduce

    @property
    def function(self) -> str:
        return f"{self.name}_loss"

    @property
    def default(self) -> float:
        """The parameter's default; 1.0, which nothing reads, where the loss has none."""
        return self.parameter.default if self.parameter else 1.0


def _distance(d: Tensor) -> Tensor:
    """|d|, with a gradient of 0 at 0, and of NaN at NaN, where that of ``Tensor.abs`` is 0 and would hide the NaN."""
    is_nan = d.isnan()
    only_nan = torch.where(is_nan, d, torch.ones_like(d))
    return torch.where(is_nan, only_nan * only_nan, d.abs())


def _quadratic_below(threshold: float, d: Tensor, quadratic: Callable, linear: Callable) -> Tensor:
    """`quadratic(d)` where |d| < threshold, else `linear(|d|)`; no Inf or NaN leaks between their gradients."""
    distance = _distance(d)
    inside = distance < threshold
    return torch.where(inside, quadratic(torch.where(inside, d, torch.zeros_like(d))), linear(distance))


def _smooth_l1(d: Tensor, beta: float) -> Tensor:
    if beta == 0:
        return _distance(d)
    return _quadratic_below(beta, d, lambda x: 0.5 * x * x / beta, lambda z: z - 0.5 * beta)


def _huber(d: Tensor, delta: float) -> Tensor:
    return _quadratic_below(delta, d, lambda x: 0.5 * x * x, lambda z: delta * (z - 0.5 * delta))


SPECS: tuple[LossSpec, ...] = (
    LossSpec(
        name="smooth_l1",
        module="SmoothL1Loss",
        parameter=Parameter("beta", 1.0, "where the loss turns from quadratic to linear; 0 is L1", zero_allowed=True),
        value=_smooth_l1,
        formula="0.5 * d**2 / beta where |d| < beta, else |d| - 0.5 * beta",
        source="Girshick, Fast R-CNN, 2015, equation 3",
        legacy_arguments=True,
    ),
    LossSpec(
        name="mse",
        module="MSELoss",
        parameter=None,
        value=lambda d, _: d * d,
        formula="d**2",
        source="Legendre, Nouvelles méthodes pour la détermination des orbites des comètes, 1805",
        legacy_arguments=True,
    ),
    LossSpec(
        name="huber",
        module="HuberLoss",
        parameter=Parameter("delta", 1.0, "where the loss turns from quadratic to linear", zero_allowed=False),
        value=_huber,
        formula="0.5 * d**2 where |d| < delta, else delta * (|d| - 0.5 * delta)",
        source="Huber, Robust Estimation of a Location Parameter, 1964",
    ),
    LossSpec(
        name="l1",
        module="L1Loss",
        parameter=None,
        value=lambda d, _: _distance(d),
        formula="|d|",
        source="Laplace, Sur quelques points du système du monde, 1793",
        legacy_arguments=True,
    ),
)
