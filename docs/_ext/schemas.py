"""``loss-ops``: the schema of every public op, as torch has it registered."""

from __future__ import annotations

import textwrap

import torch
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cudaloss._heads import FUNCTIONS
from cudaloss._heads.public import op_name
from cudaloss._losses.table import PUBLIC

WIDTH = 88  # characters of a literal block that a page shows without scrolling


def schema(name: str) -> str:
    op = getattr(torch.ops.cudaloss, name)
    (overload,) = op.overloads()
    text = str(getattr(op, overload)._schema)
    return textwrap.fill(text, WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)


class Ops(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        text = "\n\n".join(map(schema, [*(spec.name for spec in PUBLIC), *map(op_name, FUNCTIONS)]))
        return [nodes.literal_block(text, text, language="text")]


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("loss-ops", Ops)
    return {"parallel_read_safe": True}
