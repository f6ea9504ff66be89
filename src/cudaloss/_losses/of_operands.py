"""Losses of input and target."""

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
    """max(-x, 0)."""
    return (-x).clamp(min=0)


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
    linear = _times(torch.where(above < 0, 2 * score, 1 - 2 * score), -_folded(above))
    return _or_nan(x, t, torch.where(on, linear + torch.log1p(_folded(above).exp()), 0))


def _varifocal_for_third(x: Tensor, t: Tensor, alpha: Third, gamma: float) -> Tensor:
    on, _, _, below = _by_target(x, t)
    return _or_nan(x, t, torch.where(on, 0, _focal(below, torch.zeros_like(t), -1.0, gamma)))


# ---- losses with a margin, of w = target * input ----


def _soft_margin(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
    w = t * x
    return _below(w) + torch.log1p(_folded(w).exp())


def _soft_margin_for_input(x: Tensor, t: Tensor, _: Third, __: float) -> Tensor:
    return _zero_times(-_sigmoid(-(t * x)), t)


def _behind(x: Tensor, t: Tensor, margin: Third) -> Tensor:
    """How far w is below the margin; 0, with a slope of 0, if it is not, also for an infinite w."""
    gap = margin - t * x
    return torch.where(gap <= 0, 0, gap)


def _hinge(x: Tensor, t: Tensor, margin: Third, power: float) -> Tensor:
    behind = _behind(x, t, margin)
    return behind * behind if power == 2 else behind


def _hinge_for_third(x: Tensor, t: Tensor, margin: Third, power: float) -> Tensor:
    behind = _behind(x, t, margin)
    return 2 * behind if power == 2 else torch.where(behind.isnan(), behind, (behind > 0).to(behind.dtype))


def _hinge_for_input(x: Tensor, t: Tensor, margin: Third, power: float) -> Tensor:
    return _zero_times(-_hinge_for_third(x, t, margin, power), t)


# ---- hinge embedding: input for a target of 1, max(0, margin - input) for -1, for any other target both ----


def _or_nan(x: Tensor, t: Tensor, found: Tensor | float) -> Tensor:
    """NaN if one of the operands is."""
    return torch.where(x.isnan(), x, torch.where(t.isnan(), t, found))


def _hinge_embedding(x: Tensor, t: Tensor, margin: Third, _: float) -> Tensor:
    behind = torch.where(t == 1, 0, (margin - x).clamp(min=0))
    return _or_nan(x, t, behind + torch.where(t == -1, 0, x))


def _is_behind(x: Tensor, t: Tensor, margin: Third) -> Tensor:
    """The slope of the second part, which it has at the margin too, with the other sign."""
    return torch.where(t == 1, 0, (margin - x >= 0).to(x.dtype))


def _hinge_embedding_for_input(x: Tensor, t: Tensor, margin: Third, _: float) -> Tensor:
    return _or_nan(x, t, (t != -1).to(x.dtype) - _is_behind(x, t, margin))


def _hinge_embedding_for_third(x: Tensor, t: Tensor, margin: Third, _: float) -> Tensor:
    return _or_nan(x, t, _is_behind(x, t, margin))


# ---- margin ranking, of d = input1 - input2: max(0, margin - target * d) ----


def _ranking(x: Tensor, y: Tensor, t: Third, margin: float) -> Tensor:
    return (margin - t * (x - y)).clamp(min=0)


def _ranking_slope(x: Tensor, y: Tensor, t: Third, margin: float) -> Tensor:
    """1 where the loss is above 0, and at the margin."""
    gap = margin - t * (x - y)
    return torch.where(gap.isnan(), gap, (gap >= 0).to(x.dtype))


def _ranking_for_input(x: Tensor, y: Tensor, t: Third, margin: float) -> Tensor:
    return _ranking_slope(x, y, t, margin) * -t


def _ranking_for_third(x: Tensor, y: Tensor, t: Third, margin: float) -> Tensor:
    return _zero_times(_ranking_slope(x, y, t, margin), y - x)


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
        id=9,
        name="soft_margin",
        module="SoftMarginLoss",
        terms=OfTwo(_soft_margin, _soft_margin_for_input, lambda x, t, p, s: _soft_margin_for_input(t, x, p, s)),
        formula="softplus(-(target * input))",
        targets="1 or -1",
        source="Cox, The Regression Analysis of Binary Sequences, 1958",
        kernels="general",
        ulps=2.0,
        signature="size_average reduce reduction",
    ),
    LossSpec(
        id=10,
        name="hinge",
        module="HingeLoss",
        arguments=(
            Argument("margin", "third", 1.0, "target * input has a loss below this", ">= 0"),
            Argument("power", "second", 1.0, "1, or 2 for the squared hinge loss", "that is 1 or 2"),
        ),
        terms=OfTwo(_hinge, _hinge_for_input, lambda x, t, p, s: _hinge_for_input(t, x, p, s), _hinge_for_third),
        formula="(margin - target * input)**power where target * input < margin, else 0",
        targets="1 or -1",
        source="Rosasco et al., Are Loss Functions All the Same?, 2004",
        kernels="general",
    ),
    LossSpec(
        id=16,
        name="hinge_embedding",
        module="HingeEmbeddingLoss",
        arguments=(Argument("margin", "third", 1.0, "an input of target -1 has a loss below this"),),
        terms=OfTwo(
            _hinge_embedding,
            _hinge_embedding_for_input,
            lambda x, t, p, s: _or_nan(x, t, 0.0),
            _hinge_embedding_for_third,
        ),
        formula="input where target == 1, else Max(margin - input, 0) where target == -1, "
        "else input + Max(margin - input, 0)",
        targets="1 or -1",
        source="Hadsell et al., Dimensionality Reduction by Learning an Invariant Mapping, 2006",
        kernels="general",
        signature="margin size_average reduce reduction",
    ),
    LossSpec(
        id=17,
        name="margin_ranking",
        module="MarginRankingLoss",
        operands=("input1", "input2"),
        arguments=(
            Argument(
                "target", "third", None, "1 if input1 should be the larger one, -1 if input2 should", of_call=True
            ),
            Argument("margin", "second", 0.0, "how much larger it should be"),
        ),
        terms=OfTwo(
            _ranking, _ranking_for_input, lambda x, y, t, m: -_ranking_for_input(x, y, t, m), _ranking_for_third
        ),
        formula="margin - target * (input1 - input2) where target * (input1 - input2) <= margin, else 0",
        source="Herbrich et al., Support Vector Learning for Ordinal Regression, 1999",
        kernels="general",
        signature="target margin size_average reduce reduction",
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
