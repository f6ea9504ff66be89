"""Losses of rows of vectors, which can be logits of distributions or boxes, in plain PyTorch: the values, and the
derivatives in closed form.

The vectors are along the second dimension (a single vector along its only one). Rows that are left out have ones.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .._call.call import Call
from .._call.shapes import class_dim, rows_shape
from .._losses.closed_forms import Slopes, evaluate, savable
from .._losses.table import LossSpec
from . import boxes

_LEAST = 1e-12  # cosine_embedding adds it to a square, as in PyTorch


class Numbers(NamedTuple):
    """A call's numbers by their names."""

    margin: float = 0.0
    eps: float = 0.0
    temperature: float = 1.0
    beta: float = 0.0
    p: float = 2.0

    @classmethod
    def of_call(cls, call: Call) -> Numbers:
        of_second = {call.spec.second_number: call.second} if call.spec.second_number else {}
        return cls(**{call.spec.number: call.parameter}, **of_second, p=call.p)


@dataclass(frozen=True)
class Vectors:
    """A row's loss as a function of its vectors and, for some, of its label."""

    spec: LossSpec
    numbers: Numbers
    dim: int

    def row(self, operands: tuple[Tensor, ...]) -> VectorOperands:
        count = 3 if self.spec.differentiable_third else 2
        label = operands[count] if len(operands) > count else None
        return VectorOperands(self.spec, operands[:count], label, self.numbers, self.dim)

    def value(self, *operands: Tensor) -> Tensor:
        return _value(self.row(operands))

    def slopes(self, needed: Sequence[bool], *operands: Tensor) -> Slopes:
        row = self.row(operands)
        return *slopes(row, needed), *(() if row.label is None else (None,))


class VectorOperands(NamedTuple):
    """The values from which all rows are computed, in the dtype of the arithmetic."""

    spec: LossSpec
    vectors: tuple[Tensor, ...]
    label: Tensor | None
    numbers: Numbers
    dim: int

    def layout(self) -> tuple[torch.Size, torch.dtype, int]:
        """The losses' shape, the dtype of the arithmetic, and the operands' dimension that losses lack."""
        return rows_shape(self.vectors[0]), self.vectors[0].dtype, self.dim

    def over_classes(self, x: Tensor) -> Tensor:
        """Reshapes a number for each row so that it broadcasts to input."""
        return x.unsqueeze(self.dim)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return (a * b).sum(self.dim, keepdim=True)


def selected(call: Call) -> Tensor | None:
    """Which rows count, in their shape; None: all."""
    return None if call.options.mask is None else call.options.mask.expand(call.shape)


def counted_weight(call: Call, selected: Tensor | None) -> Tensor | None:
    """What each row adds to a mean's denominator; None: 1."""
    return call.options.weight


def operands(call: Call, selected: Tensor | None, compute: torch.dtype) -> VectorOperands:
    """The arguments of :func:`value` and :func:`slopes`."""
    spec, dim, third = call.spec, class_dim(call.input), call.third
    given = (call.input, call.target, third) if spec.differentiable_third else (call.input, call.target)
    vectors = tuple(savable(x, compute) for x in given if x is not None)
    if selected is not None:
        vectors = tuple(torch.where(selected.unsqueeze(dim), x, 1) for x in vectors)
    label = None if spec.differentiable_third else third
    return VectorOperands(spec, vectors, label, Numbers.of_call(call), dim)


def _inverse_norms(row: VectorOperands) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """For both vectors: the factor that turns a product into the cosine; and the same, but 0 if it does not vary with
    the vector."""
    found = []
    for x in row.vectors:
        if row.label is not None:
            inverse = torch.rsqrt(row.dot(x, x) + _LEAST)
            found.append((inverse, inverse))
            continue
        norm, eps = torch.linalg.vector_norm(x, dim=row.dim, keepdim=True), row.numbers.eps
        own = torch.where(norm < eps, 0, 1 / torch.where(norm < eps, 1, norm))
        found.append((torch.where(norm < eps, 1 / eps, own), own))
    return found[0], found[1]


def _differences(row: VectorOperands) -> list[Tensor]:
    """anchor - positive, anchor - negative and, with a swap, positive - negative, each with eps."""
    a, p, n = row.vectors
    pairs = ((a, p), (a, n), (p, n)) if row.spec.flag_values["swap"] else ((a, p), (a, n))
    return [x - y + row.numbers.eps for x, y in pairs]


def value(row: VectorOperands) -> Tensor:
    """The losses, of the rows' shape."""
    if row.numbers.p != 2 or row.vectors[0].shape[row.dim] == 0:  # slopes are of 2-norms; softmax of some classes
        return _value(row)
    label = () if row.label is None else (row.label,)
    return evaluate(Vectors(row.spec, row.numbers, row.dim), *row.vectors, *label)


def _value(row: VectorOperands) -> Tensor:
    margin, (x, t, *_) = row.numbers.margin, row.vectors
    if row.spec.reads == "boxes":
        return boxes.value(row.spec.name, (x, t), row.dim, row.numbers.eps)
    if row.spec.reads == "distributions":
        if row.spec.second_number != "beta":
            return _divergences(row)[0].squeeze(row.dim)
        of_q, of_p = (mean for *_, mean in _mixed(row))
        return ((of_q + of_p) * row.numbers.temperature**2).squeeze(row.dim)
    if not row.spec.differentiable_third:
        (of_x, _), (of_t, _) = _inverse_norms(row)
        cosine = (row.dot(x * of_x, t * of_t)).squeeze(row.dim)
        if row.label is None:
            return 1 - cosine
        repelled = torch.where(row.label == -1, (cosine - margin).clamp_min(0), 0)
        return torch.where(row.label == 1, 1 - cosine, repelled)
    near, *far = (torch.linalg.vector_norm(d, row.numbers.p, dim=row.dim) for d in _differences(row))
    return (near - functools.reduce(torch.minimum, far) + margin).clamp_min(0)


def slopes(row: VectorOperands, needed: Sequence[bool]) -> Slopes:
    """The derivatives of each row's loss for the vectors, in their shape, at least those needed; distances are
    2-norms."""
    if row.spec.reads == "boxes":
        return boxes.slopes(row.spec.name, (row.vectors[0], row.vectors[1]), row.dim, row.numbers.eps)
    if row.spec.reads == "distributions":
        return _mixed_slopes(row, needed) if row.spec.second_number == "beta" else _divergence_slopes(row, needed)
    return _triplet_slopes(row, needed) if row.spec.differentiable_third else _cosine_slopes(row)


def _scaled(row: VectorOperands) -> list[Tensor]:
    return [x / row.numbers.temperature for x in row.vectors]


def _divergences(row: VectorOperands) -> tuple[Tensor, Tensor, Tensor]:
    """T^2 KL of each row, with size 1 along the classes; p and log p - log q of each class, which is 0 if p is."""
    of_input, of_target = (torch.log_softmax(x, row.dim) for x in _scaled(row))
    p = of_target.exp()
    apart = torch.where(p == 0, 0, of_target - of_input)
    return row.dot(p, apart) * row.numbers.temperature**2, p, apart


def _divergence_slopes(row: VectorOperands, needed: Sequence[bool]) -> Slopes:
    temperature, for_input, for_target = row.numbers.temperature, None, None
    if needed[0]:  # of float64 the backward of log_softmax takes 5 times that of softmax
        q, p = (torch.softmax(x, row.dim) for x in _scaled(row))
        for_input = temperature * (q - p)
    if needed[1]:
        kl, p, apart = _divergences(row)
        nothing = torch.where(kl.isnan(), kl, 0)
        for_target = torch.where(p == 0, nothing, p * (temperature * apart - kl / temperature))
    return for_input, for_target


def _mixed(row: VectorOperands, needed: Sequence[bool] = (True, True)) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For q and p, if needed: the probabilities, the logarithms of their ratios to the mixture, times the divergence's
    weight, and the mean of these, with size 1 along the classes. Of a probability of 0 the logarithm is 0."""
    beta, logs = row.numbers.beta, [torch.log_softmax(x, row.dim) for x in _scaled(row)]
    q, p = (log.exp() for log in logs)
    mixture = beta * p + (1 - beta) * q  # its logarithm takes half of torch.logaddexp's time
    of_mixture, found = torch.where(mixture == 0, 1, mixture).log(), []
    for wanted, log, of, share in zip(needed, logs, (q, p), (1 - beta, beta), strict=False):
        if wanted:
            apart = share * torch.where(of == 0, 0, log - of_mixture)
            found.append((of, apart, row.dot(of, apart)))
    return found


def _mixed_slopes(row: VectorOperands, needed: Sequence[bool]) -> Slopes:
    found = (row.numbers.temperature * of * (apart - mean) for of, apart, mean in _mixed(row, needed))
    return tuple(next(found) if wanted else None for wanted in needed[:2])


def _cosine_slopes(row: VectorOperands) -> tuple[Tensor, ...]:
    (of_x, own_x), (of_t, own_t) = _inverse_norms(row)
    x, t = row.vectors
    both = of_x * of_t
    cosine = row.dot(x, t) * both
    for_input = both * t - cosine * own_x * own_x * x
    for_target = both * x - cosine * own_t * own_t * t
    if row.label is None:
        return -for_input, -for_target
    label = row.over_classes(row.label.expand(x.shape[: row.dim] + x.shape[row.dim + 1 :]))
    repels = (label == -1) & (cosine >= row.numbers.margin)
    sign = torch.where(label == 1, -1.0, torch.where(repels, 1.0, 0.0)).to(x.dtype)
    return sign * for_input, sign * for_target


def _triplet_slopes(row: VectorOperands, needed: Sequence[bool]) -> Slopes:
    differences = _differences(row)
    norms = [torch.linalg.vector_norm(d, dim=row.dim, keepdim=True) for d in differences]
    # A distance of 0 has a gradient of 0.
    near, far, *other = (d / torch.where(n == 0, torch.inf, n) for d, n in zip(differences, norms, strict=True))
    for_positive, for_negative, least = -near, far, norms[1]
    if other:  # if both distances are equal, each has half of the gradient
        least = torch.minimum(norms[1], norms[2])
        of_other = ((norms[2] <= norms[1]).to(least.dtype) + (norms[2] < norms[1]).to(least.dtype)) / 2
        far, of_other = far * (1 - of_other), other[0] * of_other
        for_positive, for_negative = -near - of_other, far + of_other
    apart = norms[0] - least
    active, nothing = ~(apart + row.numbers.margin < 0), torch.where(apart.isnan(), apart, 0)  # NaN stays NaN
    wanted = zip((near - far, for_positive, for_negative), needed, strict=True)
    return tuple(torch.where(active, slope + nothing, 0) if want else None for slope, want in wanted)
