"""Numbers of more than float64, on any device: what an error of float64 results is counted against.

A number is the unevaluated sum of two float64 tensors (Dekker 1971). mpmath would take a minute for a million elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Pair",
    "abs",
    "exp",
    "expm1",
    "log",
    "log1p",
    "logaddexp",
    "pair",
    "sign",
    "sqrt",
    "where",
    "zeros_like",
]  # the functions that torch has under these names


@dataclass(frozen=True, eq=False)
class Pair:
    hi: Tensor
    lo: Tensor

    def of(self, other: Pair | float) -> Pair:
        return other if isinstance(other, Pair) else pair(torch.full_like(self.hi, other))

    def scaled(self, power_of_two: Tensor | float) -> Pair:
        return Pair(self.hi * power_of_two, self.lo * power_of_two)

    def __neg__(self) -> Pair:
        return self.scaled(-1.0)

    def __add__(self, other: Pair | float) -> Pair:
        other = self.of(other)
        total, error = _two_sum(self.hi, other.hi)
        return Pair(*_two_sum(total, error + (self.lo + other.lo)))

    def __sub__(self, other: Pair | float) -> Pair:
        return self + -self.of(other)

    def __mul__(self, other: Pair | float) -> Pair:
        other = self.of(other)
        product, error = _two_product(self.hi, other.hi)
        return Pair(*_two_sum(product, error + _finite(self.hi * other.lo + self.lo * other.hi)))

    def __truediv__(self, other: Pair | float) -> Pair:
        other = self.of(other)
        quotient = self.hi / other.hi
        product = pair(quotient) * other
        return Pair(*_two_sum(quotient, _finite(((self.hi - product.hi) - product.lo + self.lo) / other.hi)))

    def __rtruediv__(self, other: float) -> Pair:
        return self.of(other) / self

    __radd__, __rmul__ = __add__, __mul__

    def __lt__(self, other: Pair | float) -> Tensor:
        return (self - other).hi < 0

    def __gt__(self, other: Pair | float) -> Tensor:
        return (self - other).hi > 0

    def __eq__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert isinstance(other, Pair | int | float)
        other = self.of(other)
        return (self.hi == other.hi) & (self.lo == other.lo)

    def __ne__(self, other: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ~(self == other)


def pair(x: Tensor) -> Pair:
    return Pair(x, torch.zeros_like(x))


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    total = a + b
    added = total - a
    return total, _finite((a - (total - added)) + (b - added))


def _two_product(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    product, (a_hi, a_lo), (b_hi, b_lo) = a * b, _split(a), _split(b)
    return product, _finite(((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo)


def _finite(error: Tensor) -> Tensor:
    """Of an infinite result, or of a product above 2^996, the error is not known."""
    return torch.where(error.isfinite(), error, 0)


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """Splits into halves of 26 bits, whose products are exact."""
    scaled = a * (2.0**27 + 1)
    hi = scaled - (scaled - a)
    return hi, a - hi


def where(condition: Tensor, a: Pair | float, b: Pair | float) -> Pair:
    like = a if isinstance(a, Pair) else b
    assert isinstance(like, Pair)
    a, b = like.of(a), like.of(b)
    return Pair(torch.where(condition, a.hi, b.hi), torch.where(condition, a.lo, b.lo))


def zeros_like(x: Pair) -> Pair:
    return pair(torch.zeros_like(x.hi))


def sign(x: Pair) -> Pair:
    return pair(x.hi.sign())


def abs(x: Pair) -> Pair:
    return where(x.hi < 0, -x, x)


def sqrt(x: Pair) -> Pair:
    """float64's result, and one step of Newton's method."""
    start = x.hi.sqrt()
    beyond = x - pair(start) * pair(start)
    rest = torch.where(start > 0, _finite((beyond.hi + beyond.lo) / (2 * start)), 0)
    return Pair(*_two_sum(start, rest))


_LN2 = math.log(2), 2.3190468138462996e-17  # and its rounding error in float64
_HALVINGS = 5
_TAIL = [1.0 / math.factorial(n) for n in range(4, 14)]


def _expm1(r: Pair) -> Pair:
    """For |r| < 0.7: the Taylor series of r / 32; float64 suffices for the terms from the fourth on, because they are
    below 2^-24 of the first. Then expm1(2 s) = expm1(s) (2 + expm1(s))."""
    s = r.scaled(0.5**_HALVINGS)
    tail = torch.zeros_like(s.hi)
    for coefficient in reversed(_TAIL):
        tail = tail * s.hi + coefficient
    square = s * s
    found = s + square.scaled(0.5) + square * s / 6.0 + pair(tail * square.hi * square.hi)
    for _ in range(_HALVINGS):
        found = found.scaled(2.0) + found * found
    return found


def exp(x: Pair) -> Pair:
    """For |x| <= 600; for larger ones the lower part loses digits."""
    near = where(x.hi.abs() < 800, x, 0.0)
    k = (near.hi / _LN2[0]).round()
    ln2 = Pair(torch.full_like(k, _LN2[0]), torch.full_like(k, _LN2[1]))
    found = _expm1(near - pair(k) * ln2) + 1.0
    for part in (half := (k / 2).floor(), k - half):  # 2^k itself could leave the range
        found = found.scaled((part.long() + 1023 << 52).view(torch.float64))  # exact, which exp2 need not be
    ends = torch.where(x.hi.isnan(), x.hi, torch.where(x.hi < 0, 0.0, math.inf))
    return where(x.hi.abs() < 800, found, pair(ends))


def expm1(x: Pair) -> Pair:
    near = where(abs(x) < 0.5, x, 0.0)
    return where(abs(x) < 0.5, _expm1(near), exp(x) + -1.0)


def log(x: Pair) -> Pair:
    """float64's result, and one step of Newton's method."""
    start = torch.log(x.hi)
    is_finite = start.isfinite()
    known = torch.where(is_finite, start, 0)
    beyond = where(is_finite, x, 1.0) * exp(pair(-known)) + -1.0
    return Pair(*_two_sum(start, torch.where(is_finite, beyond.hi + beyond.lo, 0)))


def log1p(e: Pair) -> Pair:
    """The same for -1 <= e <= 1."""
    is_near = abs(e) < 0.5
    near = where(is_near, e, 0.0)
    start = torch.log1p(near.hi)
    beyond = _expm1(pair(start)) - near
    found = Pair(*_two_sum(start, -(beyond.hi + beyond.lo) / (1 + near.hi)))
    return where(is_near, found, log(e + 1.0))


def logaddexp(a: Pair, b: Pair) -> Pair:
    return where(a > b, a, b) + log1p(exp(-abs(a - b)))
