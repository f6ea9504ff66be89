"""Losses of input and target with logarithms: for probabilities, and negative log likelihoods."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .argument import Argument
from .closed_forms import Slopes, evaluate
from .spec import LossSpec, OfTwo, Third

# ---- the Kullback-Leibler divergence: target * (log(target) - log(input)) ----


# Below this logarithm a probability counts as 0, as in the kernels (csrc/core/exp_log.h).
_LEAST_LOG = {torch.float32: -115.0, torch.float64: -777.0}


def _probability(log: Tensor) -> tuple[Tensor, Tensor]:
    """exp(log) as a product of two, which keeps its digits where exp(log) itself is below the normal numbers."""
    least = _LEAST_LOG[log.dtype]
    apart = log < least / 2
    half = torch.where(apart, 0.5 * log, log).exp()
    half = torch.where(log < least, 0, half)
    return half, torch.where(apart, half, 1)


def _kl_div(log_target: bool, log_input: bool) -> dict[str, Any]:
    """If the target's probability is 0, all results are 0 for any input: finite numbers replace both there."""

    def masses(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor | float]:
        mass, rest = _probability(t) if log_target else (t, 1.0)
        return torch.where(x.isnan(), x, mass), rest

    def parts(x: Tensor, t: Tensor) -> tuple[Any, ...]:
        mass, rest = masses(x, t)
        without = mass == 0
        x, t = torch.where(without, 1, x), torch.where(without, 1, t)
        return mass, rest, without, x, (t if log_target else t.log()) - (x if log_input else x.log())

    def value(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
        mass, rest, _, _, above = parts(x, t)
        return mass * (rest * above)

    def for_input(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
        mass, rest = masses(x, t)
        return -mass * rest if log_input else -(mass / torch.where(mass == 0, 1, x)) * rest

    def for_target(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
        mass, rest, without, _, above = parts(x, t)
        return mass * (rest * (above + 1)) if log_target else torch.where(without, 0, above + 1)

    mass, log = ("exp(target)", "target") if log_target else ("target", "log(target)")
    of_input = "input" if log_input else "log(input)"
    slope = (
        f"{mass} * {log} - {mass} * {of_input} + {mass}"
        if log_target
        else f"{log} - {of_input} + 1 where target > 0, else 0"
    )
    return {
        "terms": OfTwo(value, for_input, for_target),
        "formula": f"{mass} * {log} - {mass} * {of_input}",
        "derivatives": (f"-{mass}" if log_input else f"-{mass} / input", slope),
        "inputs": "log probabilities" if log_input else "in (0, 1)",
        "targets": "log probabilities" if log_target else "in (0, 1]",
    }


# ---- binary cross entropy of probabilities, whose logarithms are at least -100 ----


def _logs(x: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithms of x and of 1 - x."""
    x = torch.where((x < 0) | (x > 1), math.nan, x)
    return x.log().clamp(min=-100), torch.log1p(-x).clamp(min=-100)


def _bce(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
    on, off = _logs(x)
    return -(t * on + (1 - t) * off)


def _over_product(top: Tensor, x: Tensor) -> Tensor:
    """top / (x (1 - x)), where a product below 1e-12 counts as 1e-12."""
    inside = torch.where((x < 0) | (x > 1), math.nan, x * (1 - x))
    return top / inside.clamp(min=1e-12)


def _bce_for_input(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
    return evaluate(_BCE_SLOPE, x, t)


class _BCESlope:
    """(input - target) / (input (1 - input)), as the sum of (1 - target) / (1 - input) and -target / input, of which
    only the one that is large at an end of the interval has a least denominator: the other's derivative stays finite
    there, as that of the loss."""

    dim = None

    def value(self, x: Tensor, t: Tensor) -> Tensor:
        return _over_product(x - t, x)

    def slopes(self, needed: Sequence[bool], x: Tensor, t: Tensor) -> Slopes:
        on, off = (1 / torch.where((x < 0) | (x > 1), math.nan, y) for y in (x, 1 - x))
        is_least = x * (1 - x) < 1e-12
        on, off = (torch.where(is_least & (y < 0.5), 1e12, z * z) for y, z in ((x, on), (1 - x, off)))
        return t * on + (1 - t) * off, -_over_product(torch.ones_like(x), x)


_BCE_SLOPE = _BCESlope()


def _bce_for_target(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
    on, off = _logs(x)
    return torch.where(t.isnan(), t, off - on)


# ---- Poisson: exp(input) - target * input, or for an input that is not a logarithm ----

_LOG_2_PI = math.log(2 * math.pi)


def _product(t: Tensor, log: Tensor, rate: Tensor) -> Tensor:
    """t * log; 0 if the logarithm is infinite and t is 0, or if the rate is infinite, which grows faster."""
    return t * torch.where(((t == 0) & log.isinf()) | (rate == math.inf), 0, log)


def _poisson(log_input: bool, full: bool) -> dict[str, Any]:
    def log_of(x: Tensor, eps: float) -> Tensor:
        return x if log_input else (x + eps).log()

    def value(x: Tensor, t: Tensor, _: Third, eps: float) -> Tensor:
        rate = x.exp() if log_input else x
        above = torch.where(t > 1, t, 1)
        stirling = above * above.log() - above + 0.5 * (above.log() + _LOG_2_PI)
        found = rate - _product(t, log_of(x, eps), rate)
        return found + torch.where(t > 1, stirling, 0) if full else found

    def for_input(x: Tensor, t: Tensor, _: Third, eps: float) -> Tensor:
        if log_input:
            return x.exp() - t
        share = t / torch.where((t == 0) & (x + eps == 0), 1, x + eps)
        return 1 - share

    def for_target(x: Tensor, t: Tensor, _: Third, eps: float) -> Tensor:
        above = torch.where(t > 1, t, 1)
        found = -log_of(x, eps) + (t - t)
        return found + torch.where(t > 1, above.log() + 0.5 / above, 0) if full else found

    formula = "exp(input) - target * input" if log_input else "input - target * log(input + eps)"
    return {
        "terms": OfTwo(value, for_input, for_target),
        "formula": formula + (" + stirling(target)" if full else ""),
        "inputs": "logarithms" if log_input else "> 0",
    }


# ---- Gauss: (log(var) + d^2 / var) / 2 ----


def _clamped(x: Tensor, var: Third, eps: float) -> Tensor:
    """The variance, at least eps, with a slope of 1; NaN for a negative one."""
    var = var if isinstance(var, Tensor) else x.new_full((), var)
    lacks = (eps - var.detach()).clamp(min=0)
    return var + torch.where(var < 0, math.nan, lacks)


def _gaussian(full: bool) -> dict[str, Any]:
    def value(x: Tensor, t: Tensor, var: Third, eps: float) -> Tensor:
        var = _clamped(x, var, eps)
        square = _square(x, t, var)
        found = 0.5 * torch.where(square == math.inf, square, var.log() + square)
        return found + 0.5 * _LOG_2_PI if full else found

    terms = OfTwo(
        value, _gaussian_for_input, lambda x, t, v, eps: -_gaussian_for_input(x, t, v, eps), _gaussian_for_var
    )
    formula = "0.5 * log(Max(var, eps)) + 0.5 * (input - target)**2 / Max(var, eps)"
    return {"terms": terms, "formula": formula + (" + 0.5 * log_2_pi(var)" if full else "")}


def _square(x: Tensor, t: Tensor, var: Tensor) -> Tensor:
    """d^2 / var; d^2 alone could leave the range."""
    return (x - t) / var * (x - t)


def _gaussian_for_input(x: Tensor, t: Tensor, var: Third, eps: float) -> Tensor:
    return (x - t) / _clamped(x, var, eps)


def _gaussian_for_var(x: Tensor, t: Tensor, var: Third, eps: float) -> Tensor:
    var = _clamped(x, var, eps)
    return 0.5 * (1 - _square(x, t, var)) / var


ROWS = (
    LossSpec(
        id=11,
        name="kl_div",
        module="KLDivLoss",
        function="kl_div",
        arguments=(
            Argument("log_target", "flag", False, "whether target is a logarithm"),
            Argument(
                "log_input", "flag", True, "whether input is a logarithm; otherwise the same pass takes the logarithm"
            ),
        ),
        by_flags=_kl_div,
        source="Kullback and Leibler, On Information and Sufficiency, 1951",
        signature="size_average reduce reduction log_target log_input",
        batchmean=True,
        kernels="general",
        ulps=2.0,
    ),
    LossSpec(
        id=12,
        name="binary_cross_entropy",
        module="BCELoss",
        function="binary_cross_entropy",
        terms=OfTwo(_bce, _bce_for_input, _bce_for_target),
        formula="-(target * Max(log(input), -100) + (1 - target) * Max(log1p(-input), -100))",
        derivatives=(
            "(input - target) / Max(input * (1 - input), 1e-12)",
            "Max(log1p(-input), -100) - Max(log(input), -100)",
        ),
        source="Good, Rational Decisions, 1952",
        signature="weight size_average reduce reduction",
        kernels="general",
        ulps=2.0,
        inputs="in (0, 1)",
        targets="in [0, 1]",
        same_shape=True,
        mean_over_count=True,
    ),
    LossSpec(
        id=13,
        name="poisson_nll",
        module="PoissonNLLLoss",
        arguments=(
            Argument("eps", "second", 1e-8, "added to an input that is not a logarithm", ">= 0"),
            Argument("log_input", "flag", True, "whether input is the logarithm of the rate"),
            Argument("full", "flag", False, "whether Stirling's term is added for targets above 1"),
        ),
        by_flags=_poisson,
        source="Nelder and Wedderburn, Generalized Linear Models, 1972",
        signature="log_input full size_average eps reduce reduction",
        kernels="general",
        ulps=2.0,
        targets=">= 0",
    ),
    LossSpec(
        id=14,
        name="gaussian_nll",
        module="GaussianNLLLoss",
        arguments=(
            Argument("var", "third", None, "the variance", ">= 0", of_call=True, may_lack_last=True),
            Argument("eps", "second", 1e-6, "the least variance; a smaller one counts as this", ">= 0"),
            Argument("full", "flag", False, "whether the constant log(2 pi) / 2 is added"),
        ),
        by_flags=_gaussian,
        source="Nix and Weigend, Estimating the Mean and Variance of the Target Probability Distribution, 1994",
        signature="var full eps reduction",
        kernels="general",
        ulps=2.0,
    ),
)
