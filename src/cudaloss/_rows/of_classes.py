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
            Argument(
                "weight",
                "Tensor | None",
                "Tensor?",
                None,
                "one for each class, which multiplies its part of the loss; of shape ``(classes,)`` and a floating "
                "dtype",
            ),
            Argument(
                "ignore_index",
                "int",
                "int",
                -100,
                "rows whose target is this index do not count, whatever their logits are; a target of probabilities "
                "has none",
            ),
            Argument(
                "label_smoothing",
                "float",
                "float",
                0.0,
                "how far the target moves towards equal shares of all classes, in [0, 1] (Szegedy et al., Rethinking "
                "the Inception Architecture for Computer Vision, 2016)",
            ),
            Argument(
                "z_loss",
                "float",
                "float",
                0.0,
                "at least 0; this times ``logsumexp(input)**2`` is added to each row's loss and keeps logsumexp near 0 "
                "(Devlin et al., Fast and Robust Neural Network Joint Models, 2014; Chowdhery et al., PaLM, 2022)",
                only_keyword=True,
            ),
            Argument(
                "softcap",
                "float | None",
                "float?",
                None,
                "above 0; ``softcap * tanh(input / softcap)`` takes the place of input in the whole formula (Gemma "
                "Team, Gemma 2, 2024)",
                only_keyword=True,
            ),
        ),
        formula="logsumexp(input) - input[target]",
        source="Good, Rational Decisions, 1952",
        signature="weight size_average ignore_index reduce reduction label_smoothing",
        ulps=2.0,
    ),
)
