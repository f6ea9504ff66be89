"""Fills the pages of ``docs/losses``: each loss with its formula, its picture, its speed, its accuracy and its API.

``<!-- losses: of_difference -->`` in a page stands for the losses of ``cudaloss._losses.of_difference``, in the order
of that module, or of several, and ``<!-- losses -->`` for a table of all. So a loss that is added to a module is on the
page. The figures are of the committed report of the GPU check. ``<!-- heads: contrast -->`` stands for the reference of
``cudaloss.contrast``.
"""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import curves
import formulas
import readme
import torch.nn.functional as F
from sphinx.application import Sphinx

from cudaloss._heads import FUNCTIONS, MODULES
from cudaloss._heads import PUBLIC as OF_FILE
from cudaloss._heads.public import op_name
from cudaloss._losses.table import PUBLIC, LossSpec

ROOT = Path(__file__).resolve().parents[2]
# With the line below it, which is for those who read the source: the built page has what it names.
BELOW = r"(?:\n\nThe (?:formulas,|reference of) .*\n.*)?"
MARK = re.compile(rf"<!-- losses(?:: ([\w ]+))? -->{BELOW}")
HEADS = re.compile(rf"<!-- heads: ([\w ]+) -->{BELOW}")
OF = ("cudaloss", "torch")  # whose errors
# The kinds of errors that a report has: of the reduced loss, of the losses of single elements, of gradients.
ERRORS = {"mean": "value", "single losses": "single", "gradient": "gradient"}


def report() -> dict[str, Any]:
    """The newest with everything that the pages show."""
    found = (ROOT / "benchmarks" / "results").glob("gpu_check-*.json")
    reports = (json.loads(path.read_text()) for path in found)
    whole = (report for report in reports if {"bench", "rows", "accuracy"} <= report.keys())
    return max(whole, key=lambda report: report["environment"]["date"])


def of_modules(modules: str) -> list[LossSpec]:
    return [spec for module in modules.split() for spec in importlib.import_module(f"cudaloss._losses.{module}").ROWS]


def speed(spec: LossSpec, measured: dict[str, Any]) -> str:
    """The loss's rows of the tables in docs/performance.md."""
    if spec.of_rows:
        cases = [row for row in measured["rows"]["report"]["cases"] if readme.loss_of(row) == spec.function]
        found = cases and readme.cases_table("forward + backward, one gradient, unless said", cases)
    else:
        rows = [row for row in measured["bench"]["report"]["rows"] if "skipped" not in row]
        found = readme.speed_table(readme.select(rows, loss=spec.name))
    return found or "Not measured yet."


def _ulps(found: float) -> str:
    return f"{found:.2f}" if found < 1000 else f"{found:.1e}"


def accuracy(spec: LossSpec, measured: dict[str, Any]) -> str:
    """The largest errors that the report has of the loss, by dtype, PyTorch's in brackets."""
    rows = readme.select(measured["accuracy"]["report"], loss=spec.name)
    if not rows:
        return f"The tests hold value and gradient to {spec.ulps:g} ulp in float32 ([numerics](../numerics.md))."
    kinds = {title: kind for title, kind in ERRORS.items() if f"cudaloss_{kind}_ulp" in rows[0]}
    body = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        of_dtype = readme.select(rows, dtype=dtype)
        # PyTorch's error is missing where its way did not fit in the GPU's memory.
        largest = ([max(row.get(f"{of}_{kind}_ulp", 0.0) for row in of_dtype) for of in OF] for kind in kinds.values())
        body.append([dtype, *(f"{_ulps(ours)} ({_ulps(theirs)})" for ours, theirs in largest)])
    return readme.markdown(["largest error in ulp (PyTorch's)", *kinds], body)


def recipes(*names: str) -> str:
    """Links to the recipes that call a function or a module."""
    found = []
    for page in sorted((ROOT / "docs" / "recipes").glob("*.md")):
        text = page.read_text()
        if re.search(rf"cudaloss\.({'|'.join(names)})\b", text):
            found.append(f"[{text.splitlines()[0].removeprefix('# ')}](../recipes/{page.name})")
    return f"Recipes: {', '.join(found)}." if found else ""


def section(spec: LossSpec, picture: str, measured: dict[str, Any]) -> str:
    parts = [
        f"(loss-{spec.name})=\n## `{spec.function}`",
        f"```{{math}}\n{formulas.latex(spec.formula)}\n```",
        f"![{spec.function} and its gradient]({picture})",
        recipes(spec.function, spec.module),
        f"**Speed**\n\n{speed(spec, measured)}",
        f"**Accuracy**\n\n{accuracy(spec, measured)}",
        f"```{{eval-rst}}\n.. autofunction:: cudaloss.{spec.function}\n\n.. autoclass:: cudaloss.{spec.module}\n```",
    ]
    return "\n\n".join(part for part in parts if part)


def module_of(function: str) -> list[str]:
    """The module of a function that is no row of the table, if it has one."""
    name = op_name(function).replace("_", "")
    return [module for module in MODULES if module.lower() == f"{name}loss"]


def of_heads(files: str) -> str:
    parts = ["## Reference"]
    for function in (function for file in files.split() for function in OF_FILE[file][0]):
        modules = module_of(function)
        parts += [f"(loss-{function})=\n### `{function}`", recipes(function, *modules)]
        lines = [f".. autofunction:: cudaloss.{function}", *(f".. autoclass:: cudaloss.{module}" for module in modules)]
        parts += ["```{eval-rst}\n" + "\n\n".join(lines) + "\n```"]
    return "\n\n".join(part for part in parts if part)


def _row(function: str, label: str, *modules: str) -> list[str]:
    """With PyTorch's function of that name, and its page."""
    replaced = f"{{py:func}}`F.{function} <torch.nn.functional.{function}>`" if hasattr(F, function) else ""
    classes = "".join(f"{{py:class}}`~cudaloss.{module}`" for module in modules)
    return [f"[`{function}`](#loss-{label})", classes, replaced]


def everything() -> str:
    body = [_row(spec.function, spec.name, spec.module) for spec in PUBLIC]
    body += [_row(function, function, *module_of(function)) for function in FUNCTIONS]
    return readme.markdown(["function", "module", "replaces"], body)


def expand(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = HEADS.sub(lambda mark: of_heads(mark[1]), source[0])
    if not MARK.search(source[0]):
        return
    folder = Path(app.doctreedir) / "losses"
    of_page = Path(app.srcdir, page).parent
    measured = report()

    def text(mark: re.Match[str]) -> str:
        if mark[1] is None:
            return everything()
        sections = [
            section(spec, os.path.relpath(curves.draw(spec, folder), of_page), measured) for spec in of_modules(mark[1])
        ]
        return "\n\n".join([readme.caption(measured["environment"]), *sections])

    source[0] = MARK.sub(text, source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", expand)
    return {"parallel_read_safe": True}
