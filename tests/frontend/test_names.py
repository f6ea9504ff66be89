"""The names under which the package is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss import of_torch
from cudaloss._heads import FUNCTIONS, MODULES
from cudaloss._losses.table import PUBLIC
from processes import printed_by

# What a program imports, and an expression of it that is the module HuberLoss or the function huber_loss.
IMPORTS = {
    "import cudaloss": "cudaloss.nn.HuberLoss",
    "from cudaloss import nn": "nn.HuberLoss",
    "import cudaloss.nn as nn": "nn.HuberLoss",
    "import cudaloss.nn": "cudaloss.nn.functional.huber_loss",
    "import cudaloss.nn.functional as F": "F.huber_loss",
    "from cudaloss.nn import functional as F": "F.huber_loss",
    "from cudaloss.nn import HuberLoss": "HuberLoss",
    "import cudaloss.functional as F": "F.huber_loss",
    "from cudaloss.functional import huber_loss": "huber_loss",
}


@pytest.mark.parametrize("statement", IMPORTS)
def test_a_fresh_program_finds_a_loss(statement):
    found = IMPORTS[statement]
    same = f"found is getattr(cudaloss, {found!r}.split('.')[-1])"
    assert printed_by(f"{statement}\nfound = {found}\nimport cudaloss\nprint({same})") == "True\n"


def test_nn_has_every_loss():
    for names, kind in ((cudaloss.nn, "module"), (cudaloss.nn.functional, "function")):
        for spec in PUBLIC:
            name = getattr(spec, kind)
            assert getattr(names, name) is getattr(cudaloss, name) and name in names.__all__
    own = {*(spec.module for spec in PUBLIC), *MODULES, *of_torch.__all__}
    assert {*cudaloss.nn.__all__} == {"functional", *own}
    assert all(getattr(cudaloss.nn.functional, name) is getattr(cudaloss, name) for name in FUNCTIONS)


def test_nn_has_every_loss_of_torch():
    """By name; of two namesakes ours is there."""
    losses = {name for name in dir(F) if name.endswith("_loss") and not name.startswith("_")}
    losses |= {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "kl_div"}
    losses |= {"linear_cross_entropy"} & {*dir(F)}
    assert losses <= {*cudaloss.nn.functional.__all__}
    modules = {name for name in dir(torch.nn) if name.endswith("Loss")} - {"NLLLoss2d"}  # which is deprecated
    assert modules <= {*cudaloss.nn.__all__}
    for name in losses | modules:
        is_torchs = name in of_torch.__all__ and "multilabel_soft" not in name and "MultiLabelSoft" not in name
        of, theirs = (cudaloss.nn, torch.nn) if name in modules else (cudaloss.nn.functional, F)
        assert (getattr(of, name) is getattr(theirs, name, None)) == is_torchs


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("shape", [(5,), (4, 3), (2, 4, 3)])
def test_multilabel_soft_margin(reduction, shape):
    input, target = torch.randn(shape), torch.rand(shape).round()
    for weight in (None, torch.rand(shape[-1])):
        pairs = [(of.multilabel_soft_margin_loss, input.clone().requires_grad_()) for of in (cudaloss, F)]
        values = [f(x, target, weight, reduction=reduction) for f, x in pairs]
        torch.testing.assert_close(*values)
        for value in values:
            value.sum().backward()
        torch.testing.assert_close(pairs[0][1].grad, pairs[1][1].grad)
        module = cudaloss.MultiLabelSoftMarginLoss(weight, reduction=reduction)
        assert torch.equal(module(input, target), values[0])
        assert module.state_dict().keys() == torch.nn.MultiLabelSoftMarginLoss(weight).state_dict().keys()
    with pytest.warns(UserWarning, match="size_average"):
        assert cudaloss.MultiLabelSoftMarginLoss(size_average=False).reduction == "sum"


def test_an_import_does_not_import_what_few_need():
    code = (
        "import sys, torch\n"
        "before = {*sys.modules}\n"
        "import cudaloss\n"
        "assert all(name.partition('.')[0] == 'cudaloss' for name in {*sys.modules} - before)\n"
        "later = {'cudaloss.distributed', 'cudaloss.nn'}\n"
        "assert not later & {*sys.modules}\n"
        "assert {'distributed', 'nn'} <= {*dir(cudaloss)}\n"
        "assert not later & {*sys.modules}\n"
        "assert cudaloss.distributed.in_play(torch.zeros(3)) == 3\n"
        "assert sys.modules['cudaloss.distributed'] is cudaloss.distributed\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_type_checker_sees_the_late_names_and_no_others():
    """They are imported for it, and __getattr__, with which any name is one, is behind the else."""
    body = ast.parse(Path(cudaloss.__file__).read_text()).body
    (branch,) = [x for x in body if isinstance(x, ast.If) and ast.unparse(x.test) == "_typing.TYPE_CHECKING"]
    assert [x.names[0].asname for x in branch.body if isinstance(x, ast.ImportFrom)] == [*cudaloss._LATER]
    assert [x.name for x in branch.orelse if isinstance(x, ast.FunctionDef)] == ["__getattr__"]


def test_an_unknown_name_is_an_error():
    with pytest.raises(AttributeError, match="module 'cudaloss' has no attribute 'reference'"):
        _ = cudaloss.reference
    with pytest.raises(ImportError, match="cannot import name 'reference'"):
        from cudaloss import reference  # noqa: F401
