"""The source of the public functions and modules, from the rows of ``_losses.table``.

It is text in the repository: people can search it, set breakpoints in it and see its changes in a review, and an import
compiles none. A loss's own parameter is a named argument in it (``beta``).
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from textwrap import indent

from cudaloss._heads import FUNCTIONS, MODULES
from cudaloss._heads import PUBLIC as HEADS
from cudaloss._losses.options import Row, options_of
from cudaloss._losses.table import PUBLIC, Argument, LossSpec
from tools.faces.docs import function_doc, module_doc


def _of_heads(kind: int) -> str:
    """The imports of the functions (0) or the modules (1) that are written by hand."""
    return "\n".join(f"from .{file} import {', '.join(names[kind])}" for file, names in HEADS.items() if names[kind])


_GENERATED = "# Generated from the rows in _losses: change these, and run `make faces`."
_FUNCTIONS_HEAD = f"""\
{_GENERATED}
\"\"\"The losses as functions, which can replace PyTorch's by changing the import.\"\"\"

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.nn._reduction import legacy_get_string

from ._ops.checks import check_size_average
from ._public.functions import calls_of
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
from ._module_state import changed_options, keep, shown
from ._ops.checks import check_size_average
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
    {legacy}own = {own}
    if not is_dynamo_compiling():
        result = _fused_{name}({first_two}, reduction, own, dtype, {options_of})
        if result is not None:
            return result
    return _unusual_{name}({first_two}, reduction, own, dtype, {options_of})
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


def _legacy(spec: LossSpec) -> str:
    return _LEGACY.replace("{function}", spec.function) if spec.legacy_arguments else ""


def _parts(spec: LossSpec) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """The positional arguments after the operands, with the types and defaults of all that can be one."""
    types = {"weight": "Tensor | None", "size_average": "bool | None", "reduce": "bool | None", "reduction": "str"}
    defaults = {"weight": "None", "size_average": "None", "reduce": "None", "reduction": f'"{spec.reduction}"'}
    types |= {row.name: row.annotation for row in spec.arguments}
    defaults |= {row.name: str(row.default) for row in spec.arguments}
    return spec.of_function, types, defaults


def _passed(spec: LossSpec, name: str, default: object) -> str:
    """The text of one of ``spec.given`` in a function."""
    row = next((row for row in spec.arguments if row.name == name), None)
    if row is None:
        return name if name in spec.operands else repr(default)
    if row.role == "third" and row.is_optional:
        return f"{row.number} if {name} is None else {name}"
    return f"bool({name})" if row.role == "flag" and not spec.of_rows else name


def _own(spec: LossSpec) -> str:
    passed = [_passed(spec, name, default) for name, default in spec.given.items()]
    return ", ".join(passed) if passed else "()"


def _fields(spec: LossSpec) -> dict[str, str]:
    names, types, defaults = _parts(spec)
    options, of_call, between = options_of(spec), list(spec.needed), ",\n{indent}"
    given = {name: f"{name}: {types[name]}" for name in names}
    given = {name: said if name in of_call else f"{said} = {defaults[name]}" for name, said in given.items()}
    behind = [row for row in spec.arguments if row.only_keyword]
    per_call = [row for row in options if not row.of_module and not (spec.weight_first and row.name == "weight")]
    per_module = [row for row in options if row.of_module]
    order = [row.name for row in spec.arguments] if spec.of_rows else spec.signature.split()
    own = [name for name in order if name not in of_call and any(row.name == name for row in spec.arguments)]
    buffers = [name for name in order if types[name].startswith("Tensor") and name not in of_call]
    kept = [(name, types[name]) for name in own if spec.of_rows or name not in buffers]
    kept += [(row.name, row.annotation) for row in per_module]
    kept = kept if spec.of_rows else [*((name, types[name]) for name in buffers), *kept]
    forwarded = [f"{name}=self.{name}" for name in ["reduction", *(name for name, _ in kept)]]
    forwarded += [f"{name}={name}" for name in [*of_call, *(row.name for row in per_call)]]
    stored = [f'keep(self, "{name}", {name})' if name in buffers else f"self.{name} = {name}" for name, _ in kept]
    return {
        "name": spec.name,
        "operands": between.join(f"{name}: Tensor" for name in spec.operands),
        "passed": ",\n            ".join(spec.operands),
        "first_two": ", ".join(spec.operands[:2]),
        "options_of": ", ".join(row.name for row in options if row.name != "dtype"),
        "function": spec.function,
        "module": spec.module,
        "options": between.join(given.values()),
        "module_options": between.join(given[name] for name in spec.signature.split() if name not in of_call),
        "keywords": between.join(_keyword(row) for row in (*behind, *options) if row.name not in given),
        "module_keywords": between.join(map(_keyword, (*behind, *per_module))),
        "call_arguments": "".join(f"\n{{indent}}{given[name]}," for name in of_call),
        "call_keywords": between.join(map(_keyword, per_call)),
        "legacy": _legacy(spec),
        "own": _own(spec),
        "store": "\n        ".join(stored),
        "typed": "\n    ".join(f"{name}: {types[name]}" for name in buffers),
        "forward": ",\n            ".join(forwarded),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name in own),
    }


def _keyword(row: Row | Argument) -> str:
    return f"{row.name}: {row.annotation} = {row.default}"


def _fill(template: str, spec: LossSpec, margin: str, doc: str = "") -> str:
    fields = {name: text.replace("{indent}", margin) for name, text in _fields(spec).items()}
    fields["doc"] = indent(f'r"""{doc}"""', "    ")
    return template.format(**fields)


def function(spec: LossSpec) -> str:
    return _fill(_FUNCTION, spec, "    ", function_doc(spec)) + _fill(_FUNCTION_BODY, spec, "    ")


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
