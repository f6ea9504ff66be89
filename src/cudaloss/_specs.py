"""One row a loss, of which everything that is the same for all losses is made: ops, functions, modules, documentation,
tests, benchmarks. A new pointwise loss is a row in ``_rows`` and a functor in ``csrc/losses/<name>.h``."""

from __future__ import annotations

from ._rows import of_difference, of_likelihoods, of_operands
from ._spec import Flag, LossSpec, OfDifference, OfOperands, OfTwo, Parameter, Third

__all__ = ["BY_MODE", "SPECS", "Flag", "LossSpec", "OfDifference", "OfOperands", "OfTwo", "Parameter", "Third"]

SPECS: tuple[LossSpec, ...] = tuple(
    sorted((*of_difference.ROWS, *of_operands.ROWS, *of_likelihoods.ROWS), key=lambda spec: spec.id)
)

BY_MODE = {variant.mode: variant for spec in SPECS for variant in spec.variants}
