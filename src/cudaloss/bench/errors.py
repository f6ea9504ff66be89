"""Errors against float64, counted in units of the last place: for the tests, the accuracy table and the examples."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype` at float64 `value`."""
    info = torch.finfo(dtype)
    exponent = torch.frexp(value.abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(value, info.eps), exponent)


def largest_error(
    found: Tensor, exact: Tensor, dtype: torch.dtype, size: Tensor | None = None, rest: Tensor | None = None
) -> float:
    """The largest error of `found` in ulp of `dtype`; none where both are one NaN or Inf, Inf where only one is.

    The ulp is that of `exact`, or of `size`: of a sum whose terms cancel, the sum of their magnitudes. `rest` is what
    float64 could not hold of `exact`.
    """
    found, exact = found.detach().double(), exact.detach().double()
    if found.shape != exact.shape:
        raise ValueError(f"found and exact must have one shape, got {tuple(found.shape)} and {tuple(exact.shape)}")
    if found.numel() == 0:
        return 0.0
    rounded = exact.to(dtype).double()  # may overflow to Inf
    same = (found == rounded) | (found.isnan() & rounded.isnan())
    # A NaN difference comes from a NaN or Inf on one side only, or from the same Inf, which `same` excuses.
    spacing = ulp(exact if size is None else size, dtype)
    difference = found - exact if rest is None else (found - exact) - rest
    differences = (difference.abs() / spacing).nan_to_num(nan=math.inf, posinf=math.inf)
    excused = same & ~differences.isfinite()
    return torch.where(excused, torch.zeros_like(differences), differences).max().item()


def sum_and_error(terms: Tensor) -> tuple[float, float]:
    """The sum of float64 `terms`, added as a tree, and the sum of the rounding errors of the additions."""
    terms, errors = terms.flatten(), 0.0
    while terms.numel() > 1:
        terms = F.pad(terms, (0, terms.numel() % 2))
        a, b = terms.view(2, -1)
        sums = a + b
        added = sums - a
        errors += ((a - (sums - added)) + (b - added)).sum().item()
        terms = sums
    return terms.sum().item(), errors


def compensated_sum(terms: Tensor) -> float:
    """The sum of float64 `terms` to twice that precision, rounded."""
    return sum(sum_and_error(terms))
