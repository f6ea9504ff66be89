"""Losses of rows of classes, with a class index for each row."""

from __future__ import annotations

from dataclasses import replace

from .argument import Argument
from .spec import LossSpec

_ABOUT_CROSS_ENTROPY = """\
No softmax and no copy of the logits is stored. A row is all classes at one index of the other dimensions. With the
class weights ``w``, the label smoothing ``s`` and the target's probabilities ``q`` (for a class index: 1 for its class,
0 for the others), its loss is ``-sum(w * q' * log_softmax(input)) + z_loss * logsumexp(input)**2``, where
``q' = (1 - s) * q + s / classes``."""
_ABOUT_NLL = """\
input has log-probabilities, as ``log_softmax`` gives them; for logits :func:`cudaloss.cross_entropy` does the same in
one pass. A row is all classes at one index of the other dimensions. Its loss depends only on the target's class, times
the ``weight`` of that class. The other classes change nothing, even NaN and Inf; their gradients are 0."""
_OF_CROSS_ENTROPY = """\
>>> import torch, cudaloss
>>> input = torch.zeros(3, 4, requires_grad=True)
>>> loss = cudaloss.cross_entropy(input, torch.tensor([1, 0, -100]))
>>> loss.backward()
>>> loss.detach()  # log(4), the mean over the first two rows
tensor(1.3863)
>>> input.grad
tensor([[ 0.1250, -0.3750,  0.1250,  0.1250],
        [-0.3750,  0.1250,  0.1250,  0.1250],
        [ 0.0000,  0.0000,  0.0000,  0.0000]])"""
_OF_NLL = """\
>>> import torch, cudaloss
>>> input = torch.tensor([[0.5, 0.5], [0.75, 0.25], [0.1, 0.9]]).log().requires_grad_()
>>> loss = cudaloss.nll_loss(input, torch.tensor([1, 0, -100]))
>>> loss.backward()
>>> loss.detach()  # (log(2) + log(4 / 3)) / 2, the mean over the first two rows
tensor(0.4904)
>>> input.grad
tensor([[ 0.0000, -0.5000],
        [-0.5000,  0.0000],
        [ 0.0000,  0.0000]])"""

_WEIGHT = Argument(
    "weight",
    "class_weight",
    None,
    "a factor for each class in the loss; of shape ``(classes,)`` and a floating dtype",
)
_IGNORE_INDEX = Argument("ignore_index", "int", -100, "rows whose target is this index do not count, for any input")

ROWS = (
    LossSpec(
        id=64,
        name="cross_entropy",
        module="CrossEntropyLoss",
        function="cross_entropy",
        reads="classes",
        arguments=(
            _WEIGHT,
            replace(_IGNORE_INDEX, meaning=f"{_IGNORE_INDEX.meaning}; not for a target of probabilities"),
            Argument(
                "label_smoothing",
                "number",
                0.0,
                "how far the target moves towards equal shares of all classes, in [0, 1] (Szegedy et al., Rethinking "
                "the Inception Architecture for Computer Vision, 2016)",
            ),
            Argument(
                "z_loss",
                "number",
                0.0,
                "at least 0; adds this times ``logsumexp(input)**2`` to each row's loss, which keeps logsumexp near 0 "
                "(Devlin et al., Fast and Robust Neural Network Joint Models, 2014; Chowdhery et al., PaLM, 2022)",
                only_keyword=True,
            ),
            Argument(
                "softcap",
                "optional",
                None,
                "above 0; ``softcap * tanh(input / softcap)`` replaces input in the whole formula (Gemma Team, Gemma "
                "2, 2024)",
                only_keyword=True,
            ),
        ),
        formula="logsumexp(input) - input[target]",
        about=_ABOUT_CROSS_ENTROPY,
        example=_OF_CROSS_ENTROPY,
        source="Good, Rational Decisions, 1952",
        signature="weight size_average ignore_index reduce reduction label_smoothing",
        ulps=2.0,
    ),
    LossSpec(
        id=65,
        name="nll",
        module="NLLLoss",
        function="nll_loss",
        arguments=(_WEIGHT, _IGNORE_INDEX),
        reads="index",
        formula="-input[target]",
        input_is="log-probabilities",
        about=_ABOUT_NLL,
        example=_OF_NLL,
        source="Fisher, On the Mathematical Foundations of Theoretical Statistics, 1922",
        signature="weight size_average ignore_index reduce reduction",
    ),
)
