"""Losses of rows: of all classes of a row at once."""

from __future__ import annotations

from .._spec import Argument, RowSpec

ROWS = (
    RowSpec(
        id=64,
        name="cross_entropy",
        module="CrossEntropyLoss",
        function="cross_entropy",
        arguments=(
            Argument("weight", "Tensor | None", "Tensor?", None, "one weight for each class, of a floating dtype"),
            Argument("ignore_index", "int", "int", -100, "rows whose target is this index do not count"),
            Argument("label_smoothing", "float", "float", 0.0, "how far targets move towards equal shares, in [0, 1]"),
            Argument(
                "z_loss",
                "float",
                "float",
                0.0,
                "how much of the square of each row's logsumexp is added, at least 0",
                only_keyword=True,
            ),
            Argument(
                "softcap",
                "float | None",
                "float?",
                None,
                "above 0: ``softcap * tanh(input / softcap)`` takes the place of input",
                only_keyword=True,
            ),
        ),
        formula="logsumexp(input) - input[target]",
        source="Good, Rational Decisions, 1952",
        signature="weight size_average ignore_index reduce reduction label_smoothing",
        ulps=2.0,
    ),
)
