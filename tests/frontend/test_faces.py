"""The functions and modules: replacements for PyTorch's, documented, typed, and all made from the registry."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._call.modes import FIRST_OF_ROWS
from cudaloss._heads import FUNCTIONS
from cudaloss._heads.public import op_name
from cudaloss._install.build import INFO
from cudaloss._losses.table import OF_ROWS, PUBLIC, SPECS
from cudaloss._ops import private
from cudaloss._ops.private import compiled_name
from oracle import operands, torch_op

PACKAGE = Path(cudaloss.__file__).parent


def test_every_loss_is_compiled_and_public():
    assert sorted(spec.name for spec in PUBLIC) == sorted(INFO["losses"])
    for spec in PUBLIC:
        assert {spec.function, spec.module} <= set(cudaloss.__all__)


def test_ids_are_for_ever():
    """Graphs that PyTorch keeps over an upgrade name a loss by its id: a new one gets the next."""
    assert {spec.name: spec.id for spec in OF_ROWS} == {
        "cross_entropy": 64,
        "nll": 65,
        "cosine_similarity": 66,
        "cosine_embedding": 67,
        "triplet_margin": 68,
        "kl_div_with_logits": 69,
        "jsd_with_logits": 70,
        "generalized_box_iou": 71,
        "distance_box_iou": 72,
        "complete_box_iou": 73,
    }
    assert [spec.id for spec in OF_ROWS] == list(range(FIRST_OF_ROWS, FIRST_OF_ROWS + len(OF_ROWS)))
    assert len(SPECS) <= FIRST_OF_ROWS
    assert {spec.name: spec.id for spec in SPECS} == {
        "smooth_l1": 0,
        "mse": 1,
        "huber": 2,
        "l1": 3,
        "binary_cross_entropy_with_logits": 4,
        "quantile": 5,
        "pseudo_huber": 6,
        "charbonnier": 7,
        "log_cosh": 8,
        "soft_margin": 9,
        "hinge": 10,
        "kl_div": 11,
        "binary_cross_entropy": 12,
        "poisson_nll": 13,
        "gaussian_nll": 14,
        "sigmoid_focal": 15,
        "hinge_embedding": 16,
        "margin_ranking": 17,
        "varifocal": 18,
    }
    assert [spec.id for spec in SPECS] == list(range(len(SPECS)))


def test_private_ops_are_few():
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("cudaloss::")]
    public = {f"cudaloss::{name}" for spec in PUBLIC for name in (spec.name, compiled_name(spec.name))}
    shared = {f"cudaloss::_pointwise_{kind}" for kind in private._SCHEMAS}  # by all losses
    kinds = ["class_sums_", "class_numbers", "class_gradients_", "token_values", "token_gradients", "scaled_gradient_"]
    kinds += ["head_numbers", "head_gradients", "head_step", "head_divergence", "logits_numbers", "logits_gradient"]
    kinds += ["column_logs", "pair_gradients_", "pair_logistic_", "pair_logistic"]
    kinds += ["pair_softmax_numbers", "pair_softmax_gradients", "pair_scaled", "partial_dots"]
    kinds += ["overlap_sums", "overlap_loss", "overlap_gradient_", "overlap_gradient"]
    of_heads = {f"cudaloss::{op_name(name)}" for name in FUNCTIONS} | {f"cudaloss::_{kind}" for kind in kinds}
    assert public < set(names) and set(names) - public - of_heads <= shared and len(shared) <= 16
    assert of_heads <= set(names)


def accepts(ours: inspect.Signature, theirs: inspect.Signature) -> None:
    """Every call that PyTorch's signature takes means the same to ours."""
    names = [*theirs.parameters]
    assert list(ours.parameters)[: len(names)] == names
    for name in names:
        for of in ("default", "kind"):
            assert getattr(ours.parameters[name], of) == getattr(theirs.parameters[name], of)


@pytest.mark.any_numbers
@pytest.mark.rows_too
def test_signatures_are_pytorchs(spec):
    if not hasattr(F, spec.function):
        pytest.skip("PyTorch has no such loss")
    for ours, theirs in (
        (getattr(cudaloss, spec.function), getattr(F, spec.function)),
        (getattr(cudaloss, spec.module), getattr(torch.nn, spec.module)),
    ):
        accepts(inspect.signature(ours), inspect.signature(theirs))


def drawn(spec, shape, dtype, device="cpu"):
    shape = (*shape[:-1], 4) if spec.reads == "boxes" else shape
    input, target = operands(shape, (dtype,) * 2, device)
    if spec.takes_indices_alone:
        target = torch.randint(shape[1], shape[:1], device=device)
    third = ()
    if len(spec.operands) > 2:
        third = (
            torch.randn(shape, device=device).to(dtype)
            if spec.differentiable_third
            else torch.ones(shape[0]).to(input),
        )
    return input, target, *third


@pytest.mark.any_numbers
@pytest.mark.rows_too
@pytest.mark.parametrize("options", [{}, {"reduction": "sum"}, {"reduction": "none"}])
def test_function_and_module_are_pytorchs(spec, device, options):
    if not hasattr(F, spec.function):
        pytest.skip("PyTorch has no such loss")
    if spec.parameter:
        options = {**options, spec.parameter.name: 0.4}
    given = drawn(spec, (5, 9), torch.float32, device)
    if spec.of_rows:
        expected = getattr(F, spec.function)(*given, **options)
    else:
        expected = torch_op(spec)(*given, options.get("reduction", "mean"), 0.4)
    torch.testing.assert_close(getattr(cudaloss, spec.function)(*given, **options), expected)
    module = getattr(cudaloss, spec.module)(**options)
    torch.testing.assert_close(module(*given), expected)
    for name, value in options.items():
        assert getattr(module, name) == value
        assert f"{name}={value!r}" in repr(module)


@pytest.mark.any_numbers
@pytest.mark.rows_too
@pytest.mark.filterwarnings("ignore:size_average and reduce args will be deprecated")
@pytest.mark.parametrize(
    ("size_average", "reduce", "reduction"), [(None, False, "none"), (False, None, "sum"), (True, True, "mean")]
)
def test_legacy_arguments(spec, size_average, reduce, reduction):
    if not spec.legacy_arguments:
        pytest.skip("PyTorch's takes none either")
    operands = drawn(spec, (2, 6), torch.float32)
    function = getattr(cudaloss, spec.function)
    given = {"size_average": size_average, "reduce": reduce}
    assert torch.equal(function(*operands, **given), function(*operands, reduction=reduction))
    assert getattr(cudaloss, spec.module)(**given).reduction == reduction


@pytest.mark.any_numbers
@pytest.mark.rows_too
def test_dtype_option(spec):
    given = drawn(spec, (2, 6), torch.bfloat16)
    assert getattr(cudaloss, spec.function)(*given, dtype=torch.float32).dtype == torch.float32
    assert getattr(cudaloss, spec.module)(dtype=torch.float32)(*given).dtype == torch.float32


@pytest.mark.any_numbers
@pytest.mark.rows_too
def test_docstrings_are_whole_and_their_examples_run(spec):
    for face in (getattr(cudaloss, spec.function), getattr(cudaloss, spec.module)):
        doc = inspect.getdoc(face)
        for part in ("Args:", "Raises:", "Example:", spec.formula, spec.source):
            assert part in doc
        assert "{" not in doc
        test = doctest.DocTestParser().get_doctest(doc, {}, face.__name__, None, None)
        assert len(test.examples) >= 3
        runner = doctest.DocTestRunner()
        runner.run(test)
        assert runner.failures == 0


def test_generated_files_are_those_of_the_rows():
    pytest.importorskip("ruff")
    from tools.faces import source

    for name, text in source.files().items():
        assert (PACKAGE / name).read_text() == text, f"{name} is older than the rows: make faces"
    assert (PACKAGE / "py.typed").exists()
