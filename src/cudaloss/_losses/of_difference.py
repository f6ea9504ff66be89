"""Losses of the difference ``d = input - target``."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import huber_loss, smooth_l1_loss  # by name: cudaloss.patch leaves these

from .argument import Argument
from .spec import LossSpec, OfDifference, Third


def _sign(d: Tensor, _: Third = 0.0) -> Tensor:
    """The sign of d; NaN for NaN, unlike ``Tensor.sign``, which gives 0."""
    return torch.where(d.isnan(), d, d.sign())


def _distance(d: Tensor, _: Third = 0.0) -> Tensor:
    """|d|, whose gradient is NaN at NaN, also in a captured graph; the gradient of ``Tensor.abs`` is 0 there."""
    return d * _sign(d)


def _of_zero(loss: Callable[..., Tensor], d: Tensor, **parameter: float) -> Tensor:
    """PyTorch's own loss without reduction: one kernel, which compilers also know."""
    return loss(d, d.new_zeros(()).expand_as(d), reduction="none", **parameter)


def _smooth_l1(d: Tensor, beta: Third) -> Tensor:
    if isinstance(beta, Tensor):
        return torch.where(d.abs() < beta, 0.5 * d * d / beta, _beside(beta, d.abs() - 0.5 * beta))
    return _distance(d) if beta == 0 else _of_zero(smooth_l1_loss, d, beta=beta)


def _smooth_l1_slope(d: Tensor, beta: Third) -> Tensor:
    if isinstance(beta, Tensor):
        return torch.where(d.abs() < beta, d / beta, _beside(beta, _sign(d)))
    return _sign(d) if beta == 0 else d.clamp(-beta, beta) / beta


def _smooth_l1_curvature(d: Tensor, beta: Third) -> Tensor:
    if isinstance(beta, Tensor):
        return torch.where(d.abs() < beta, 1 / torch.where(beta == 0, 1, beta), 0)
    return torch.zeros_like(d) if beta == 0 else (d.abs() < beta).to(d.dtype) / beta


def _smooth_l1_for_third(d: Tensor, beta: Third) -> Tensor:
    share = torch.where(d.abs() < beta, d / beta, 1)
    return _beside(d, _beside(beta + d, -0.5 * share * share))


def _smooth_l1_slope_for_third(d: Tensor, beta: Third) -> Tensor:
    return torch.where(d.abs() < beta, -(d / beta) / beta, 0)


def _beside(x: Tensor, found: Tensor | float) -> Tensor:
    """`found`; NaN where x is NaN, which no comparison shows."""
    return torch.where(x.isnan(), x, found)


def _huber(d: Tensor, delta: Third) -> Tensor:
    if isinstance(delta, Tensor):
        return torch.where(d.abs() < delta, 0.5 * d * d, delta * (d.abs() - 0.5 * delta))
    return _of_zero(huber_loss, d, delta=delta)


def _huber_slope(d: Tensor, delta: Third) -> Tensor:
    if isinstance(delta, Tensor):
        return torch.where(d.abs() < delta, d, delta * _sign(d))
    return d.clamp(-delta, delta)


def _huber_for_third(d: Tensor, delta: Third) -> Tensor:
    return torch.where(d.abs() < delta, 0, d.abs() - delta)


def _huber_slope_for_third(d: Tensor, delta: Third) -> Tensor:
    return torch.where(d.abs() < delta, 0, _sign(d))


def _quantile_slope(d: Tensor, quantile: Third) -> Tensor:
    """0 at 0, NaN at NaN."""
    at_zero = torch.where(d.isnan(), d, 0 * quantile)
    return torch.where(d > 0, 1 - quantile, torch.where(d < 0, -quantile, at_zero))


# ---- losses of the root of a sum of squares, which neither overflows nor cancels ----


def _root(d: Tensor, bend: Third) -> Tensor:
    """sqrt(d^2 + bend^2)."""
    return torch.hypot(d, bend if isinstance(bend, Tensor) else d.new_full((), bend))


def _share(d: Tensor, of: Tensor) -> Tensor:
    """d / of; if d and so `of` are infinite, their limit."""
    return torch.where(d.isinf(), _sign(d), d / of)


def _pseudo_huber(d: Tensor, delta: Third) -> Tensor:
    return delta * (_share(d, _root(d, delta) + delta) * d)


def _pseudo_huber_for_third(d: Tensor, delta: Third) -> Tensor:
    """delta (r - 1)^2 / r with r = root / delta, and r - 1 without cancellation."""
    r = _root(d, delta) / delta
    above = _share(d, _root(d, delta) + delta) * (d / delta)
    return above * (_share(above, r) * delta)


def _charbonnier_curvature(d: Tensor, eps: Third) -> Tensor:
    root = _root(d, eps)
    return (eps / root) ** 2 / root


def _log_cosh(d: Tensor, _: Third = 0.0) -> Tensor:
    """With log1p where log(cosh(d)) would cancel; the d used there is finite also on the other side."""
    near, far = torch.where(d.abs() < 1, d, 0), _distance(d)
    small = 0.5 * torch.log1p(torch.sinh(near).square())
    return torch.where(near == d, small, far + torch.log1p(torch.exp(-2 * far)) - math.log(2))


ROWS = (
    LossSpec(
        id=0,
        name="smooth_l1",
        module="SmoothL1Loss",
        arguments=(Argument("beta", "third", 1.0, "where the loss turns from quadratic to linear; 0 is L1", ">= 0"),),
        terms=OfDifference(
            (_smooth_l1, _smooth_l1_slope, _smooth_l1_curvature), (_smooth_l1_for_third, _smooth_l1_slope_for_third)
        ),
        formula="0.5 * d**2 / beta where |d| < beta, else |d| - 0.5 * beta",
        source="Girshick, Fast R-CNN, 2015, equation 3",
        signature="size_average reduce reduction beta",
    ),
    LossSpec(
        id=1,
        name="mse",
        module="MSELoss",
        terms=OfDifference((lambda d, _: d * d, lambda d, _: 2 * d, lambda d, _: torch.full_like(d, 2))),
        formula="d**2",
        source="Legendre, Nouvelles méthodes pour la détermination des orbites des comètes, 1805",
        signature="size_average reduce reduction",
        weight_last=True,
    ),
    LossSpec(
        id=2,
        name="huber",
        module="HuberLoss",
        arguments=(Argument("delta", "third", 1.0, "where the loss turns from quadratic to linear", "> 0"),),
        terms=OfDifference(
            (_huber, _huber_slope, lambda d, delta: (d.abs() < delta).to(d.dtype)),
            (_huber_for_third, _huber_slope_for_third),
        ),
        formula="0.5 * d**2 where |d| < delta, else delta * (|d| - 0.5 * delta)",
        source="Huber, Robust Estimation of a Location Parameter, 1964",
        weight_last=True,
        mean_over_count=True,
    ),
    LossSpec(
        id=3,
        name="l1",
        module="L1Loss",
        terms=OfDifference((_distance, _sign, lambda d, _: torch.zeros_like(d))),
        formula="|d|",
        source="Laplace, Sur quelques points du système du monde, 1793",
        signature="size_average reduce reduction",
        weight_last=True,
    ),
    LossSpec(
        id=5,
        name="quantile",
        module="QuantileLoss",
        arguments=(
            Argument("quantile", "third", 0.5, "the quantile of the target that the best input is", "in (0, 1)"),
        ),
        terms=OfDifference(
            (lambda d, q: d * _quantile_slope(d, q), _quantile_slope, lambda d, _: torch.zeros_like(d)),
            (lambda d, q: _beside(q, -d), lambda d, q: -_sign(d).abs()),
        ),
        formula="(1 - quantile) * |d| where d > 0, else quantile * |d|",
        source="Koenker and Bassett, Regression Quantiles, 1978",
        kernels="general",
    ),
    LossSpec(
        id=6,
        name="pseudo_huber",
        module="PseudoHuberLoss",
        arguments=(Argument("delta", "third", 1.0, "where the loss turns smoothly from quadratic to linear", "> 0"),),
        terms=OfDifference(
            (
                _pseudo_huber,
                lambda d, delta: delta * _share(d, _root(d, delta)),
                lambda d, delta: (delta / _root(d, delta)) ** 3,
            ),
            (_pseudo_huber_for_third, lambda d, delta: _share(d, _root(d, delta)) ** 3),
        ),
        formula="d**2 / (sqrt(1 + (d / delta)**2) + 1)",
        source="Charbonnier et al., Deterministic Edge-Preserving Regularization in Computed Imaging, 1997",
        kernels="general",
    ),
    LossSpec(
        id=7,
        name="charbonnier",
        module="CharbonnierLoss",
        arguments=(
            Argument(
                "eps", "third", 1e-3, "the loss at 0, below which ``|d|`` has a quadratic loss; not squared", "> 0"
            ),
        ),
        terms=OfDifference(
            (_root, lambda d, eps: _share(d, _root(d, eps)), _charbonnier_curvature),
            (lambda d, eps: eps / _root(d, eps), lambda d, eps: -_share(d, _root(d, eps)) * eps / _root(d, eps) ** 2),
        ),
        formula="sqrt(d**2 + eps**2)",
        source="Charbonnier et al., Two Deterministic Half-Quadratic Regularization Algorithms, 1994",
        kernels="general",
    ),
    LossSpec(
        id=8,
        name="log_cosh",
        module="LogCoshLoss",
        terms=OfDifference((_log_cosh, lambda d, _: torch.tanh(d), lambda d, _: 1 / torch.cosh(d).square())),
        formula="log(cosh(d))",
        source="Green, Bayesian Reconstructions from Emission Tomography Data Using a Modified EM Algorithm, 1990",
        kernels="general",
        ulps=2.0,
    ),
)
