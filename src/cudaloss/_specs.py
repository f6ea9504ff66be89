"""One row a loss, of which everything that is the same for all losses is made: ops, functions, modules, documentation,
tests, benchmarks. A new pointwise loss is a row in ``_rows`` and a functor in ``csrc/losses/<name>.h``."""

from __future__ import annotations

from ._rows import of_classes, of_difference, of_likelihoods, of_operands
from ._spec import Argument, Flag, LossSpec, OfDifference, OfOperands, OfTwo, Parameter, RowNumbers, RowSpec, Third

__all__ = [
    "BY_MODE",
    "OF_ROWS",
    "SPECS",
    "Argument",
    "Flag",
    "LossSpec",
    "OfDifference",
    "OfOperands",
    "OfTwo",
    "Parameter",
    "RowNumbers",
    "RowSpec",
    "Third",
]

SPECS: tuple[LossSpec, ...] = tuple(
    sorted((*of_difference.ROWS, *of_operands.ROWS, *of_likelihoods.ROWS), key=lambda spec: spec.id)
)

# Losses of rows: of all classes of a row at once.
OF_ROWS: tuple[RowSpec, ...] = of_classes.ROWS

BY_MODE: dict[int, LossSpec] = {variant.mode: variant for spec in (*SPECS, *OF_ROWS) for variant in spec.variants}
