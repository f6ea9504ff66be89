"""A row's formula as mathematics: text becomes LaTeX, and LaTeX becomes MathML, which browsers draw without a script.

In a formula x is ``input`` and t is ``target``; all other names are the call's own arguments.
"""

from __future__ import annotations

import ast
import re

from docutils import nodes
from latex2mathml import converter
from latexify.codegen import ExpressionCodegen
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

_SYMBOLS = {"input": "x", "target": "t", "eps": "epsilon", "Max": "max"}


class _Symbols(ast.NodeTransformer):
    """Short names, and log(1 + x) for log1p(x)."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(_SYMBOLS.get(node.id, node.id), node.ctx)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id != "log1p":
            return node
        (added,) = node.args
        negated = isinstance(added, ast.UnaryOp) and isinstance(added.op, ast.USub)
        one = ast.Constant(1)
        sum_ = ast.BinOp(one, ast.Sub(), added.operand) if negated else ast.BinOp(one, ast.Add(), added)
        return ast.Call(ast.Name("log", ast.Load()), [sum_], [])


def _expression(text: str) -> str:
    tree = ast.parse(re.sub(r"\|(\w+)\|", r"abs(\1)", text.strip()), mode="eval")
    found = ExpressionCodegen(use_math_symbols=True).visit(_Symbols().visit(tree.body))
    return re.sub(r"\\math(open|close)\{\}", "", found)


def latex(formula: str) -> str:
    """Of ``X where C, else Y`` the cases; Y can have cases in turn."""
    *cases, other = formula.split(", else ")
    if not cases:
        return _expression(formula)
    pairs = [case.split(" where ") for case in cases]
    lines = [rf"{_expression(value)} & \text{{if }} {_expression(condition)} \\ " for value, condition in pairs]
    return rf"\begin{{cases}} {''.join(lines)}{_expression(other)} & \text{{otherwise}} \end{{cases}}"


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(converter.convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{converter.convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
