"""The names under which the package is imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cudaloss
from cudaloss._heads import FUNCTIONS, MODULES
from cudaloss._losses.table import PUBLIC

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


def run(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("statement", IMPORTS)
def test_a_fresh_program_finds_a_loss(statement):
    found = IMPORTS[statement]
    run(f"{statement}\nfound = {found}\nimport cudaloss\nassert found is getattr(cudaloss, {found!r}.split('.')[-1])")


def test_nn_has_every_loss():
    for names, kind in ((cudaloss.nn, "module"), (cudaloss.nn.functional, "function")):
        for spec in PUBLIC:
            name = getattr(spec, kind)
            assert getattr(names, name) is getattr(cudaloss, name) and name in names.__all__
    assert {*cudaloss.nn.__all__} == {"functional", *(spec.module for spec in PUBLIC), *MODULES}
    assert all(getattr(cudaloss.nn.functional, name) is getattr(cudaloss, name) for name in FUNCTIONS)


def test_an_import_does_not_import_what_few_need():
    run(
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
