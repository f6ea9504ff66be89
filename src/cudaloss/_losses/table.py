"""A row for each loss. Everything that works alike for all losses is made from the rows: ops, functions, modules,
documentation, tests, benchmarks. A new pointwise loss is a row here and a functor in ``csrc/losses/<name>.h``; a loss
of rows has its functor in ``csrc/losses/rows/<name>.h`` and its formulas in ``_reference/classes.py`` or
``_reference/vectors.py``."""

from __future__ import annotations

from . import of_boxes, of_classes, of_difference, of_likelihoods, of_logits, of_margins, of_vectors
from .argument import Argument
from .spec import LossSpec, OfDifference, OfOperands, OfTwo, Third

__all__ = [
    "OF_ROWS",
    "PUBLIC",
    "SPECS",
    "VARIANTS",
    "Argument",
    "LossSpec",
    "OfDifference",
    "OfOperands",
    "OfTwo",
    "Third",
]

# Pointwise losses: of one element at a time.
SPECS: tuple[LossSpec, ...] = tuple(
    sorted((*of_difference.ROWS, *of_logits.ROWS, *of_margins.ROWS, *of_likelihoods.ROWS), key=lambda spec: spec.id)
)

# Losses of rows: one number for all classes of a row, or for a vector of each operand.
OF_ROWS: tuple[LossSpec, ...] = (*of_classes.ROWS, *of_vectors.ROWS, *of_boxes.ROWS)

# Every loss.
PUBLIC: tuple[LossSpec, ...] = (*SPECS, *OF_ROWS)

# With each combination of their flags.
VARIANTS: tuple[LossSpec, ...] = tuple(variant for spec in PUBLIC for variant in spec.variants)
