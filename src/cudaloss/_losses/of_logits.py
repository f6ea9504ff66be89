"""Losses of a logit and a target: binary cross entropy and its focal kin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .argument import Argument
from .closed_forms import Slopes, evaluate
from .spec import LossSpec, OfTwo, Third


def _zero_times(slope: Tensor, x: Tensor) -> Tensor:
    """slope * x; 0 if the slope is 0 and x infinite."""
    return slope * torch.where((slope == 0) & x.isinf(), 0, x)


# ---- binary cross entropy: with z = -|x|, softplus(x) = max(x, 0) + log1p(exp(z)) ----

# On a CPU torch.where takes 20 times a product's time if its condition is as good as random, and a comparison 3 times.


def _folded(x: Tensor) -> Tensor:
    """-|x|, whose slope is 1 at 0: functions of it are analytic on both sides, to any order."""
    return -F.leaky_relu(x, -1.0)


def _above(x: Tensor) -> Tensor:
    """max(x, 0), with the slope that goes with :func:`_folded`."""
    return x.relu()


def _below(x: Tensor) -> Tensor:
    """max(-x, 0), with that slope too: -1 at 0, where ``clamp`` has 0 since torch 2.15."""
    return torch.where(x > 0, 0, -x)


class _Sigmoid:
    """The sigmoid, with a slope that is precise in both tails, as that of ``Tensor.sigmoid`` is not."""

    dim = None
    value = staticmethod(torch.sigmoid)

    def slopes(self, _: Sequence[bool], x: Tensor) -> Slopes:
        return (_sigmoid(x) * _sigmoid(-x),)


_SIGMOID = _Sigmoid()


def _sigmoid(x: Tensor) -> Tensor:
    return evaluate(_SIGMOID, x)


def _times(factor: Third, x: Tensor) -> Tensor:
    """factor * x for x >= 0. If the factor is 0 and x infinite, the product is 0, with an infinite slope: two finite
    numbers replace x."""
    if not isinstance(factor, Tensor) and factor != 0:
        return x if factor == 1 else factor * x
    largest, at_limit = torch.finfo(x.dtype).max, (factor == 0) & x.isinf()
    return factor * torch.where(at_limit, largest, x) * torch.where(at_limit, largest, x.new_ones(()))


def _is_one(factor: Third) -> bool:
    return not isinstance(factor, Tensor) and factor == 1


def _parts(t: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """1 - t and t, smoothed. 1 minus the smoothed target would be 12 ulp off, because that has been rounded."""
    off, on = (y if smoothing == 0 else y * (1 - smoothing) + smoothing / 2 for y in (1 - t, t))
    return off, on


def _bce(x: Tensor, t: Tensor, pos_weight: Third, smoothing: float) -> Tensor:
    off, on = _parts(torch.where(t.isnan(), t * t, t), smoothing)  # t * t has a NaN slope at NaN
    tail, below = torch.log1p(_folded(x).exp()), _below(x)
    if _is_one(pos_weight):  # off + on is 1
        return _times(off, _above(x)) + _times(on, below) + tail
    below = torch.where((pos_weight == 0) & x.isinf(), 0, below)
    return _times(off, _above(x)) + _times(on, below) * pos_weight + (off + on * pos_weight) * tail


def _bce_for_input(x: Tensor, t: Tensor, pos_weight: Third, smoothing: float) -> Tensor:
    off, on = _parts(t, smoothing)
    return evaluate(_BCE_SLOPE, x, off, on if _is_one(pos_weight) else on * pos_weight)


class _BCESlope:
    """off * sigmoid(x) - on * sigmoid(-x), with one curvature for both."""

    dim = None

    def value(self, x: Tensor, off: Tensor, on: Tensor) -> Tensor:
        return off * torch.sigmoid(x) - on * torch.sigmoid(-x)

    def slopes(self, needed: Sequence[bool], x: Tensor, off: Tensor, on: Tensor) -> Slopes:
        ahead, behind = _sigmoid(x), _sigmoid(-x)
        return (off + on) * (ahead * behind) if needed[0] else None, ahead, -behind if needed[2] else None


_BCE_SLOPE = _BCESlope()


def _bce_for_target(x: Tensor, t: Tensor, pos_weight: Third, smoothing: float) -> Tensor:
    if _is_one(pos_weight):
        slope = -x
    else:
        tail = torch.log1p(_folded(x).exp())
        slope = _times(pos_weight, _below(x)) - _above(x) + (pos_weight - 1) * tail
    return torch.where(t.isnan(), t, slope * (1 - smoothing))


def _bce_for_third(x: Tensor, t: Tensor, _: Third, smoothing: float) -> Tensor:
    t = _parts(t, smoothing)[1]
    return _times(t, _below(x)) + t * torch.log1p(_folded(x).exp())


# ---- focal: binary cross entropy times q^gamma, q is the distance of the probability from the target ----


_A = "(alpha * target + (1 - alpha) * (1 - target))"
_Q = "(target * sigmoid(-input) + (1 - target) * sigmoid(input))"
_BCE = "(target * softplus(-input) + (1 - target) * softplus(input))"


def _alpha(t: Tensor, alpha: Third) -> tuple[Tensor, Third]:
    """The weight of the target, and its slope. A negative alpha means no weight."""
    if isinstance(alpha, Tensor):
        return torch.where(alpha < 0, 1, alpha * t + (1 - alpha) * (1 - t)), torch.where(alpha < 0, 0, 2 * alpha - 1)
    return (torch.ones_like(t), 0.0) if alpha < 0 else (alpha * t + (1 - alpha) * (1 - t), 2 * alpha - 1)


class _Sides(NamedTuple):
    """With s = sigmoid(-|input|): q = wrong + tilt s. `wrong` is the target's share on the other side of 0. Where it is
    0, q is s, which can be below the normal numbers: its logarithm and its quotients are then not computed from it."""

    s: Tensor
    wrong: Tensor
    tilt: Tensor
    loss: Tensor  # the cross entropy, wrong |input| + log1p(exp(-|input|))
    power: Tensor  # q^gamma
    q: Tensor  # 1 where wrong is 0
    e: Tensor  # exp(-|input|)
    tail: Tensor  # log1p(e)
    sign: Tensor  # 1 for an input above 0, otherwise -1

    @classmethod
    def of(cls, x: Tensor, t: Tensor, gamma: float) -> _Sides:
        above = x.detach().sign().relu()
        z, wrong = -_folded(x), above * (1 - t) + (1 - above) * t  # one of the two
        e = (-z).exp()
        s, tail, tilt = e / (1 + e), torch.log1p(e), 1 - 2 * wrong
        far = wrong == 0
        q = torch.where(far, 1, wrong + tilt * s)
        log = torch.where(far, -z - tail, q.log())
        power = (gamma * log).exp() if gamma != 0 else 1 + 0 * torch.where(x.isnan() | t.isnan(), x + t, 0)
        return cls(s, wrong, tilt, torch.where(far, 0, wrong * z) + tail, power, q, e, tail, 2 * above - 1)

    def over_q(self, x: Tensor, limit: Tensor) -> Tensor:
        """x / q, for an x that is `limit` times q where `wrong` is 0."""
        return torch.where(self.wrong == 0, limit, x / self.q)


def _focal(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    of = _Sides.of(x, t, gamma)
    return _alpha(t, alpha)[0] * _zero_times(of.power, of.loss)


def _focal_for_input(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    of = _Sides.of(x, t, gamma)
    ratio = of.over_q(of.s, torch.ones_like(x))
    size = of.wrong - of.s - gamma * of.tilt * (1 - of.s) * _zero_times(ratio, of.loss)
    return _alpha(t, alpha)[0] * of.power * (of.sign * size)


def _focal_for_target(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    of, (factor, of_alpha) = _Sides.of(x, t, gamma), _alpha(t, alpha)
    tail_over_s = torch.where(of.e == 0, 1, of.tail / torch.where(of.e == 0, 1, of.e)) * (1 + of.e)
    turn = of.sign * (1 - 2 * of.s)
    steep = gamma * turn * of.over_q(of.loss, tail_over_s) if gamma != 0 else 0.0
    return torch.where(of.power == 0, 0, of.power * (of_alpha * of.loss - factor * (x + steep)))


def _focal_for_third(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    of = _Sides.of(x, t, gamma)
    slope = (2 * t - 1) * _zero_times(of.power, of.loss)
    return torch.where(alpha < 0, 0, slope) if isinstance(alpha, Tensor) else slope


def _or_nan(x: Tensor, t: Tensor, found: Tensor | float) -> Tensor:
    """NaN if one of the operands is."""
    return torch.where(x.isnan(), x, torch.where(t.isnan(), t, found))


# ---- varifocal: target times binary cross entropy for a target above 0, otherwise the focal loss of a target of 0 ----


def _by_target(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where the target is above 0, and the operands there; and the input elsewhere. Finite numbers replace what belongs
    to the other side, whose slope could be infinite."""
    on = t > 0
    return on, torch.where(on, x, 0), torch.where(on, t, 1), torch.where(on, 0, x)


def _varifocal(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    on, above, score, below = _by_target(x, t)
    negative = _times(alpha, _focal(below, torch.zeros_like(t), -1.0, gamma))
    return _or_nan(x, t, torch.where(on, score * _bce(above, score, 1.0, 0.0), negative))


def _varifocal_for_input(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    on, above, score, below = _by_target(x, t)
    negative = alpha * _focal_for_input(below, torch.zeros_like(t), -1.0, gamma)
    return _or_nan(x, t, torch.where(on, score * _bce_for_input(above, score, 1.0, 0.0), negative))


def _varifocal_for_target(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    """loss - target * input for a target above 0: (1 - 2 target) * input + log1p(exp(-input)), or for an input below 0
    the same of 1 - target and -input."""
    on, above, score, _ = _by_target(x, t)
    linear = _times(torch.where(above <= 0, 2 * score, 1 - 2 * score), -_folded(above))  # at 0 as _folded
    return _or_nan(x, t, torch.where(on, linear + torch.log1p(_folded(above).exp()), 0))


def _varifocal_for_third(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    on, _, _, below = _by_target(x, t)
    return _or_nan(x, t, torch.where(on, 0, _focal(below, torch.zeros_like(t), -1.0, gamma)))


ROWS = (
    LossSpec(
        id=4,
        name="binary_cross_entropy_with_logits",
        module="BCEWithLogitsLoss",
        arguments=(
            Argument("pos_weight", "third", None, "the weight of positive targets; None is 1", ">= 0"),
            Argument(
                "label_smoothing", "second", 0.0, "how far targets move towards 1/2; 1 moves them to 1/2", "in [0, 1]"
            ),
        ),
        terms=OfTwo(_bce, _bce_for_input, _bce_for_target, _bce_for_third),
        formula="(1 - target) * softplus(input) + pos_weight * target * softplus(-input)",
        source="Good, Rational Decisions, 1952",
        function="binary_cross_entropy_with_logits",
        ulps=2.0,
        inputs="logits",
        targets="in [0, 1]",
        signature="weight size_average reduce reduction pos_weight label_smoothing",
        same_shape=True,
        mean_over_count=True,
    ),
    LossSpec(
        id=15,
        name="sigmoid_focal",
        module="SigmoidFocalLoss",
        arguments=(
            Argument("alpha", "third", 0.25, "the weight of positive targets; negative ones have 1 - alpha", "<= 1"),
            Argument("gamma", "second", 2.0, "how much easy elements count less; 0 is binary cross entropy", ">= 0"),
        ),
        terms=OfTwo(_focal, _focal_for_input, _focal_for_target, _focal_for_third),
        formula=f"{_A} * {_Q}**gamma * {_BCE}",
        derivatives=(
            f"{_A} * {_Q}**gamma * (1 - target) * sigmoid(input) - {_A} * {_Q}**gamma * target * sigmoid(-input)"
            f" + {_A} * gamma * {_Q}**(gamma - 1) * (1 - 2 * target) * sigmoid(input) * sigmoid(-input) * {_BCE}",
            f"(2 * alpha - 1) * {_Q}**gamma * {_BCE} - {_A} * {_Q}**gamma * input"
            f" + {_A} * gamma * {_Q}**(gamma - 1) * sigmoid(-input) * {_BCE}"
            f" - {_A} * gamma * {_Q}**(gamma - 1) * sigmoid(input) * {_BCE}",
        ),
        source="Lin et al., Focal Loss for Dense Object Detection, 2017",
        signature="alpha gamma reduction",
        reduction="none",
        kernels="general",
        ulps=10.0,
        inputs="logits",
        targets="in [0, 1]",
    ),
    LossSpec(
        id=18,
        name="varifocal",
        module="VarifocalLoss",
        arguments=(
            Argument("alpha", "third", 0.75, "the weight of negatives, whose target is 0", ">= 0"),
            Argument("gamma", "second", 2.0, "how much easy negatives count less; 0 is binary cross entropy", ">= 0"),
        ),
        terms=OfTwo(_varifocal, _varifocal_for_input, _varifocal_for_target, _varifocal_for_third),
        formula=f"target * {_BCE} where target > 0, else alpha * sigmoid(input)**gamma * softplus(input)",
        derivatives=(
            "target * (1 - target) * sigmoid(input) - target**2 * sigmoid(-input) where target > 0, "
            "else alpha * sigmoid(input)**gamma * (sigmoid(input) + gamma * sigmoid(-input) * softplus(input))",
            "(1 - 2 * target) * softplus(input) + 2 * target * softplus(-input) where target > 0, else 0",
        ),
        source="Zhang et al., VarifocalNet: An IoU-Aware Dense Object Detector, 2021",
        kernels="general",
        ulps=2.0,
        inputs="logits",
        targets="in [0, 1]",
    ),
)
