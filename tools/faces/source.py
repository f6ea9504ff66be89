"""The source of the public functions and modules, from the rows of ``_specs``.

It is text in the repository: people can search it, set breakpoints in it and see its changes in a review, and an import
compiles none. A loss's own parameter is a named argument in it (``beta``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from textwrap import indent
from typing import Any

from cudaloss._heads import FUNCTIONS, MODULES
from cudaloss._heads import PUBLIC as HEADS
from cudaloss._options import ROWS, Row
from cudaloss._specs import PUBLIC, LossSpec, RowSpec
from tools.faces import row_source
from tools.faces.docs import function_doc, module_doc


def _of_heads(kind: int) -> str:
    """The imports of the functions (0) or the modules (1) that are written by hand."""
    return "\n".join(f"from .{file} import {', '.join(names[kind])}" for file, names in HEADS.items() if names[kind])


_GENERATED = "# Generated from the rows in _rows: change these, and run `make faces`."
_FUNCTIONS_HEAD = f"""\
{_GENERATED}
\"\"\"The losses as functions, which can replace PyTorch's by changing the import.\"\"\"

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn._reduction import legacy_get_string

from ._calls import calls_of
from ._checks import check_size_average
{_of_heads(0)}
"""
_MODULES_HEAD = f"""\
{_GENERATED}
\"\"\"The losses as modules, which can replace ``torch.nn``'s by changing the import.\"\"\"

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn._reduction import legacy_get_string

from . import functional
from ._checks import check_size_average
from ._module_state import changed_options, keep, shown
{_of_heads(1)}
"""

_FUNCTION = """\
_fused_{name}, _unusual_{name} = calls_of("{name}")


def {function}(
    {operands},
    {options},
    *,
    {keywords},
) -> Tensor:
{doc}
"""

_FUNCTION_BODY = """\
    {legacy}if not is_dynamo_compiling():
        result = _fused_{name}{variant}(
            input, target, reduction, {own}, dtype,
            weight, mask, normalizer, scale, batch_dims, ignore_nan,
        )
        if result is not None:
            return result
    return _unusual_{name}{variant}(
        input, target, reduction, {own}, dtype,
        weight, mask, normalizer, scale, batch_dims, ignore_nan,
    )
"""

_MODULE = """\
class {module}(torch.nn.Module):
{doc}

    {typed}

    def __init__(
        self,
        {module_options},
        *,
        {module_keywords},
    ) -> None:"""

_MODULE_BODY = """
        super().__init__()
        {legacy}self.reduction = reduction
        {store}

    def forward(
        self,
        {operands},{call_arguments}
        *,
        {call_keywords},
    ) -> Tensor:
        return functional.{function}(
            {passed},
            {forward},
        )

    if TYPE_CHECKING:
        __call__ = forward

    def extra_repr(self) -> str:
        return f"reduction={{self.reduction!r}}{representation}{{changed_options(self)}}"
"""

_LEGACY = """\
if size_average is not None or reduce is not None:
{indent}    check_size_average("{function}", size_average)
{indent}    reduction = legacy_get_string(size_average, reduce)
{indent}"""


def _annotations(spec: LossSpec) -> dict[str, str]:
    """The types of the function's arguments after input and target."""
    found = {"weight": "Tensor | None", "size_average": "bool | None", "reduce": "bool | None", "reduction": "str"}
    if spec.parameter:
        found[spec.parameter.name] = "Tensor | float | None" if spec.parameter.is_optional else "Tensor | float"
    if spec.second:
        found[spec.second.name] = "float"
    return {**found, **{flag.name: "bool" for flag in spec.flags}}


def _defaults(spec: LossSpec) -> dict[str, Any]:
    own = {row.name: row.default for row in (*spec.parameters, *spec.flags)}
    return {"weight": None, "size_average": None, "reduce": None, "reduction": f'"{spec.reduction}"', **own}


def _of_call(spec: LossSpec) -> list[Row]:
    """The keywords of a module's call."""
    return [row for row in ROWS if not (row.of_module or (spec.weight_first and row.name == "weight"))]


def _legacy(spec: LossSpec) -> str:
    return _LEGACY.replace("{function}", spec.function) if spec.legacy_arguments else ""


def _fields(spec: LossSpec) -> dict[str, str]:
    if isinstance(spec, RowSpec):
        return row_source.fields(spec, _legacy(spec))
    annotations, defaults, third = _annotations(spec), _defaults(spec), spec.parameter
    of_call = list(spec.needed)
    names = spec.signature.split()
    given = {name: f"{name}: {annotations[name]}" for name in spec.of_function}
    given = {name: said if name in of_call else f"{said} = {defaults[name]}" for name, said in given.items()}
    own = [name for name in names if name in spec.own(None, None)]
    buffers = [name for name in names if name == "weight" or (third and name == third.name and name not in of_call)]
    kept = [(name, annotations[name]) for name in own if name not in (*buffers, *of_call)]
    kept += [(row.name, row.annotation) for row in ROWS if row.of_module]
    typed = [*((name, annotations[name]) for name in buffers), *kept]
    per_call = [*of_call, *(row.name for row in _of_call(spec))]
    forwarded = [f"{name}=self.{name}" for name in ["reduction", *(name for name, _ in typed)]]
    passed = [repr(spec.default), repr(spec.second_default)]
    for place, row in enumerate((third, spec.second)):
        if row:
            passed[place] = f"{row.number} if {row.name} is None else {row.name}" if row.is_optional else row.name
    bits = [f"{1 << bit} * bool({flag.name})" for bit, flag in enumerate(spec.flags)]
    stored = [f'keep(self, "{name}", {name})' for name in buffers] + [f"self.{name} = {name}" for name, _ in kept]
    return {
        "name": spec.name,
        "operands": ",\n{indent}".join(f"{name}: Tensor" for name in spec.operands),
        "passed": ",\n            ".join(spec.operands),
        "function": spec.function,
        "module": spec.module,
        "options": ",\n{indent}".join(given.values()),
        "module_options": ",\n{indent}".join(given[name] for name in names if name not in of_call),
        "keywords": _keywords(row for row in ROWS if row.name not in given),
        "module_keywords": _keywords(row for row in ROWS if row.of_module),
        "call_arguments": "".join(f"\n{{indent}}{given[name]}," for name in of_call),
        "call_keywords": _keywords(_of_call(spec)),
        "legacy": _legacy(spec),
        "variant": f"[{' + '.join(bits)}]" if bits else "",
        "own": ", ".join(passed),
        "store": "\n        ".join(stored),
        "typed": "\n    ".join(f"{name}: {annotations[name]}" for name in buffers),
        "forward": ",\n            ".join([*forwarded, *(f"{name}={name}" for name in per_call)]),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name in own if name not in of_call),
    }


def _keywords(rows: Iterable[Row]) -> str:
    return ",\n{indent}".join(f"{row.name}: {row.annotation} = {row.default}" for row in rows)


def _fill(template: str, spec: LossSpec, margin: str, doc: str = "") -> str:
    fields = {name: text.replace("{indent}", margin) for name, text in _fields(spec).items()}
    fields["doc"] = indent(f'r"""{doc}"""', "    ")
    return template.format(**fields)


def function(spec: LossSpec) -> str:
    body = row_source.FUNCTION_BODY if spec.of_rows else _FUNCTION_BODY
    return _fill(_FUNCTION, spec, "    ", function_doc(spec)) + _fill(body, spec, "    ")


def module(spec: LossSpec) -> str:
    return _fill(_MODULE, spec, "        ", module_doc(spec)) + _fill(_MODULE_BODY, spec, "        ")


def _file(head: str, names: list[str], parts: Iterable[str]) -> str:
    text = "\n\n".join([f"{head}\n__all__ = {names}\n", *parts])
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", "src/cudaloss/functional.py", "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def files() -> dict[str, str]:
    """The text of the generated files of ``src/cudaloss``, by name."""
    functions, modules = [spec.function for spec in PUBLIC], [spec.module for spec in PUBLIC]
    return {
        "functional.py": _file(_FUNCTIONS_HEAD, functions + FUNCTIONS, map(function, PUBLIC)),
        "modules.py": _file(_MODULES_HEAD, modules + MODULES, map(module, PUBLIC)),
    }
