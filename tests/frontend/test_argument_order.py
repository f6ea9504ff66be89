"""Where a loss's own parameters are, and what an error says to a caller who puts them elsewhere."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import cudaloss
from cudaloss._losses.table import PUBLIC, LossSpec

of_losses = pytest.mark.parametrize("loss", PUBLIC, ids=lambda loss: loss.name)
OF_TORCHVISION = {"sigmoid_focal_loss"}


def op(loss: LossSpec):
    return getattr(torch.ops.cudaloss, loss.name)


def operands(loss: LossSpec) -> list[torch.Tensor]:
    """For every loss: rows that are probabilities, and of logarithms too."""
    x = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    if loss.reads == "boxes":
        return [torch.cat((x, x + 1), 1)] * 2
    if loss.reads in ("classes", "index"):
        return [x, torch.tensor([0, 1])]
    rest = [] if len(loss.operands) < 3 else [x] if loss.differentiable_third else [torch.tensor([1, -1])]
    return [x, x, *rest, *(torch.ones(()) for _ in loss.needed)]


@of_losses
def test_reduction_comes_first(loss):
    """For a loss of no namesake: function, module and op have it behind the operands, and then the own parameters."""
    if hasattr(F, loss.function) or loss.function in OF_TORCHVISION:
        pytest.skip("the namesake has its own order")
    own = [row.name for row in loss.arguments if not row.only_keyword]
    expected = ["reduction", *own]
    faces = (getattr(cudaloss, loss.function), loss.operands), (getattr(cudaloss, loss.module), ())
    for face, before in faces:
        positions = [p.name for p in inspect.signature(face).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positions == [*before, *expected]
    schema = op(loss).default._schema
    assert [x.name for x in schema.arguments if not x.kwarg_only] == [*loss.operands, *expected]


# A number in the place of the reduction, and the own parameter behind it that was meant; of all losses that have one.
MISPLACED = {
    "smooth_l1": [(0.5, "beta")],
    "huber": [(0.5, "delta")],
    "binary_cross_entropy_with_logits": [(3.0, "pos_weight"), (-1.0, None)],
    "quantile": [(0.9, "quantile"), (np.float32(0.5), "quantile"), (2.0, None), (90, None)],
    "pseudo_huber": [(0.5, "delta"), (2, "delta"), (-1.0, None)],
    "charbonnier": [(1e-6, "eps")],
    "hinge": [(2.0, "margin")],
    "varifocal": [(0.5, "alpha"), (2, "alpha"), (-1.0, None)],
    "cross_entropy": [(0.1, "label_smoothing")],
    "cosine_similarity": [(-1, "dim"), (1e-8, "eps")],
    "kl_div_with_logits": [(2.0, "temperature"), (4, "temperature")],
    "jsd_with_logits": [(0.1, "beta"), (2.0, "temperature")],
    **{f"{name}_box_iou": [(1e-7, "eps")] for name in ("generalized", "distance", "complete")},
}
CASES = [(loss, *case) for loss in PUBLIC for case in MISPLACED.get(loss.name, [])]
of_cases = pytest.mark.parametrize(
    ("loss", "number", "meant"), [pytest.param(*case, id=f"{case[0].name}-{case[1]}") for case in CASES]
)


def test_every_loss_with_a_parameter_behind_the_reduction_is_here():
    for loss in PUBLIC:
        behind = loss.signature.partition("reduction")[2].split()
        own = {row.name for row in loss.arguments if row.role not in ("flag", "class_weight")}
        assert bool(own & {*behind}) == (loss.name in MISPLACED)


@of_cases
def test_a_number_as_the_reduction(loss, number, meant):
    given = operands(loss)
    message = f"reduction must be a str, got {type(number).__name__}"
    message += f"; did you mean {meant}={number}?" if meant else ""
    function, module = getattr(cudaloss, loss.function), getattr(cudaloss, loss.module)(reduction=number)
    calls = [
        lambda: function(*given, reduction=number),
        lambda: function(*given, reduction=number, normalizer=2.0),
        lambda: module(*given),
        lambda: torch.func.grad(lambda x: function(x, *given[1:], reduction=number))(given[0]),
        lambda: make_fx(lambda x: function(x, *given[1:], reduction=number))(given[0]),
    ]
    if loss.signature.startswith("reduction"):
        calls += [lambda: function(*given, number), lambda: getattr(cudaloss, loss.module)(number)(*given)]
    for call in calls:
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            call()
    with pytest.raises(RuntimeError, match="type 'str' for argument 'reduction'"):  # the dispatcher's, with the schema
        op(loss)(*given, reduction=number)
    if meant:
        assert function(*given, **{meant: number}).isfinite().all()


@of_losses
def test_other_wrong_reductions_have_no_hint(loss):
    numbers = () if loss.name in MISPLACED else (0.5, 1)
    for reduction in (True, None, ["mean"], torch.ones(()), *numbers):
        with pytest.raises(TypeError, match=r"^reduction must be a str, got [A-Za-z]+$"):
            getattr(cudaloss, loss.function)(*operands(loss), reduction=reduction)


@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@of_losses
def test_a_number_as_size_average(loss):
    """PyTorch takes it for True, so that smooth_l1_loss(x, t, 0.5) is a mean with a beta of 1."""
    if not loss.legacy_arguments:
        pytest.skip("it has no such argument")
    usual = [(1e-6, "eps")] if loss.name == "poisson_nll" else [(0.5, None)]
    number, meant = MISPLACED.get(loss.name, usual)[0]
    function, module, given = getattr(cudaloss, loss.function), getattr(cudaloss, loss.module), operands(loss)
    calls = [lambda: function(*given, size_average=number), lambda: module(size_average=number)(*given)]
    if loss.signature.startswith("size_average"):
        calls += [lambda: function(*given, number), lambda: module(number)(*given)]
    for call in calls:
        if meant is None:
            assert torch.equal(call(), function(*given))  # as in PyTorch
            continue
        message = f"size_average must be a bool or None, got float; did you mean {meant}={number}?"
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            call()
    assert torch.equal(function(*given, size_average=1), function(*given))
