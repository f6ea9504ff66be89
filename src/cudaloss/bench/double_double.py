"""Binary cross entropy to 73 bits, on any device: what an error of float64 results is counted against.

Numbers are unevaluated sums of two float64 tensors (Dekker 1971). mpmath would take a minute for a million elements.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Pair(NamedTuple):
    hi: Tensor
    lo: Tensor


def pair(x: Tensor) -> Pair:
    return Pair(x, torch.zeros_like(x))


def _two_sum(a: Tensor, b: Tensor) -> Pair:
    total = a + b
    added = total - a
    return Pair(total, (a - (total - added)) + (b - added))


def _two_product(a: Tensor, b: Tensor) -> Pair:
    product, (a_hi, a_lo), (b_hi, b_lo) = a * b, _split(a), _split(b)
    return Pair(product, ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo)


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """Halves of 26 bits, whose products are exact."""
    scaled = a * (2.0**27 + 1)
    hi = scaled - (scaled - a)
    return hi, a - hi


def add(a: Pair, b: Pair) -> Pair:
    total, error = _two_sum(a.hi, b.hi)
    return _two_sum(total, error + (a.lo + b.lo))


def times(a: Pair, b: Pair) -> Pair:
    product, error = _two_product(a.hi, b.hi)
    return _two_sum(product, error + (a.hi * b.lo + a.lo * b.hi))


def scaled(a: Pair, power_of_two: Tensor | float) -> Pair:
    return Pair(a.hi * power_of_two, a.lo * power_of_two)


def over(a: Pair, b: Pair) -> Pair:
    quotient = a.hi / b.hi
    product = times(pair(quotient), b)
    return _two_sum(quotient, ((a.hi - product.hi) - product.lo + a.lo) / b.hi)


def where(condition: Tensor, a: Pair, b: Pair) -> Pair:
    return Pair(torch.where(condition, a.hi, b.hi), torch.where(condition, a.lo, b.lo))


def one_minus(x: Tensor) -> Pair:
    return _two_sum(torch.ones_like(x), -x)


_LN2 = math.log(2), 2.3190468138462996e-17  # and what its float64 lacks
_HALVINGS = 5
_TAIL = [1.0 / math.factorial(n) for n in range(4, 14)]


def _expm1(r: Pair) -> Pair:
    """For |r| < 0.7: the Taylor series of r / 32, of which terms from the fourth on are below 2^-24 of the first, so
    that float64 suffices for them; then expm1(2 s) = expm1(s) (2 + expm1(s))."""
    s = scaled(r, 0.5**_HALVINGS)
    tail = torch.zeros_like(s.hi)
    for coefficient in reversed(_TAIL):
        tail = tail * s.hi + coefficient
    square = times(s, s)
    third = torch.full_like(s.hi, 3.0)
    cube = over(times(square, s), Pair(2 * third, torch.zeros_like(third)))
    found = add(s, add(scaled(square, 0.5), add(cube, pair(tail * square.hi * square.hi))))
    for _ in range(_HALVINGS):
        found = add(scaled(found, 2.0), times(found, found))
    return found


def _exp_of_minus(z: Tensor) -> Pair:
    """For 0 <= z <= 600, below which the lower part loses digits."""
    k = (z / -_LN2[0]).round()
    ln2 = Pair(torch.full_like(z, _LN2[0]), torch.full_like(z, _LN2[1]))
    rest = add(pair(-z), times(pair(-k), ln2))
    power = (k.long() + 1023 << 52).view(torch.float64)  # exactly, as exp2 need not be
    return scaled(add(pair(torch.ones_like(z)), _expm1(rest)), power)


def _log1p(e: Pair) -> Pair:
    """For 0 <= e <= 1: float64's, and one step of Newton's method."""
    start = torch.log1p(e.hi)
    beyond = add(_expm1(pair(start)), Pair(-e.hi, -e.lo))
    return _two_sum(start, -(beyond.hi + beyond.lo) / (1 + e.hi))


class CrossEntropy(NamedTuple):
    """The loss and its slope in x, with the larger of the slope's two terms, which have unlike signs."""

    value: Pair
    slope: Pair
    larger_term: Tensor


def binary_cross_entropy_with_logits(x: Tensor, t: Tensor) -> CrossEntropy:
    """Of float64 x within +-600 and t in [0, 1]: (1 - t) softplus(x) + t softplus(-x)."""
    z, is_positive = x.abs(), x > 0
    e = _exp_of_minus(z)
    off, on = one_minus(t), pair(t)
    value = add(times(where(is_positive, off, on), pair(z)), _log1p(e))
    of_x, of_minus_x = where(is_positive, pair(torch.ones_like(x)), e), where(is_positive, e, pair(torch.ones_like(x)))
    first, second = times(off, of_x), times(on, of_minus_x)
    whole = add(pair(torch.ones_like(x)), e)
    slope = over(add(first, Pair(-second.hi, -second.lo)), whole)
    return CrossEntropy(value, slope, torch.maximum(first.hi, second.hi) / whole.hi)
