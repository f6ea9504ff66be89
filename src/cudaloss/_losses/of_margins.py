"""Losses with a margin, and soft margin: of a label of 1 or -1."""

from __future__ import annotations

import torch
from torch import Tensor

from .argument import Argument
from .of_logits import _below, _folded, _or_nan, _sigmoid, _zero_times
from .spec import LossSpec, OfTwo, Third

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
)
