"""The rows' formulas as LaTeX, for the losses' pages."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

pytest.importorskip("latexify")
pytest.importorskip("latex2mathml")
pytest.importorskip("sphinx")

_EXT = Path(__file__).resolve().parents[2] / "docs" / "_ext"


@pytest.fixture
def formulas(monkeypatch):
    monkeypatch.syspath_prepend(str(_EXT))
    return importlib.import_module("formulas")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("log1p(exp(input))", r"\log \left( 1 + \exp x \right)"),
        ("log1p(-target)", r"\log \left( 1 - t \right)"),
        ("|d| - delta / 2", r"\left| d \right| - \frac{\delta}{2}"),
        ("Max(0, margin - eps)", r"\mathrm{max} \left( 0, \mathrm{margin} - \epsilon \right)"),
        (
            "d**2 where |d| < beta, else |d|",
            r"\begin{cases} d^{2} & \text{if } \left| d \right| < \beta \\ "
            r"\left| d \right| & \text{otherwise} \end{cases}",
        ),
        (
            "input where target == 1, else 0 where target == -1, else margin",
            r"\begin{cases} x & \text{if } t = 1 \\ 0 & \text{if } t = -1 \\ "
            r"\mathrm{margin} & \text{otherwise} \end{cases}",
        ),
    ],
)
def test_a_formula_as_latex(formulas, text, wanted):
    assert formulas.latex(text) == wanted
