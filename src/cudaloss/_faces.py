"""The source of the public functions and modules, and of their type stubs, from the rows of ``_specs``.

The code is written out as text, as ``dataclasses`` does, because a loss's own parameter is a named argument (``beta``)
and because the stubs must agree with the code.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from textwrap import indent
from typing import Any

import torch

from . import _row_faces
from ._docs import function_doc, module_doc
from ._options import ROWS, Row
from ._specs import PUBLIC, LossSpec, RowSpec

_FUNCTION = """\
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

    def extra_repr(self) -> str:
        return f"reduction={{self.reduction!r}}{representation}{{changed_options(self)}}"
"""

_MODULE_STUB = """
        self.reduction: str
        {store_stub}
    def forward(
        self,
        {operands},{call_arguments}
        *,
        {call_keywords},
    ) -> Tensor: ...
    def __call__(
        self,
        {operands},{call_arguments}
        *,
        {call_keywords},
    ) -> Tensor: ...
"""

_LEGACY = """\
if size_average is not None or reduce is not None:
{indent}    check_size_average("{function}", size_average)
{indent}    reduction = legacy_get_string(size_average, reduce)
{indent}"""

_STUB_HEAD = """\
# Generated from the rows of _specs.py when the package is built.
import torch
from torch import Tensor
"""


def keep(module: torch.nn.Module, name: str, value: Any) -> None:
    """Keeps a tensor as a buffer, like the weights of PyTorch's modules; also None, where a tensor is possible. A
    Parameter becomes a parameter of the module, which an optimizer finds."""
    if value is None or (isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def shown(value: Any) -> str:
    """A parameter in a module's repr."""
    return f"<tensor of shape {tuple(value.shape)}>" if isinstance(value, torch.Tensor) else repr(value)


def changed_options(module: torch.nn.Module) -> str:
    """A module's options that are not at their defaults, in its repr."""
    kept = [(row, getattr(module, row.name, row.default)) for row in ROWS if row.of_module]
    return "".join(f", {row.name}={value!r}" for row, value in kept if value != row.default)


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
        return _row_faces.fields(spec, _legacy(spec))
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
        "store_stub": "\n        ".join(f"self.{name}: {annotation}" for name, annotation in typed),
        "forward": ",\n            ".join([*forwarded, *(f"{name}={name}" for name in per_call)]),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name in own if name not in of_call),
    }


def _keywords(rows: Iterable[Row]) -> str:
    return ",\n{indent}".join(f"{row.name}: {row.annotation} = {row.default}" for row in rows)


def _fill(template: str, spec: LossSpec, margin: str, doc: str = "") -> str:
    fields = {name: text.replace("{indent}", margin) for name, text in _fields(spec).items()}
    fields["doc"] = indent(f'r"""{doc}"""', "    ")
    return template.format(**fields)


def _function_head(spec: LossSpec) -> str:
    return _fill(_FUNCTION, spec, "    ", function_doc(spec))


def _module_head(spec: LossSpec) -> str:
    return _fill(_MODULE, spec, "        ", module_doc(spec))


def _define(name: str, source: str, module_globals: dict[str, Any]) -> None:
    """Runs `source` as part of a module; tracebacks and ``inspect.getsource`` find its text."""
    filename = f"<cudaloss {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), module_globals)


def define_function(spec: LossSpec, module_globals: dict[str, Any]) -> None:
    """Adds the public function of `spec` to a module that has the names in its body."""
    body = _row_faces.FUNCTION_BODY if spec.of_rows else _FUNCTION_BODY
    _define(spec.function, _function_head(spec) + _fill(body, spec, "    "), module_globals)


def define_module(spec: LossSpec, module_globals: dict[str, Any]) -> None:
    """Adds the public module of `spec` to a module that has the names in its body."""
    _define(spec.module, _module_head(spec) + _fill(_MODULE_BODY, spec, "        "), module_globals)


def stubs() -> dict[str, str]:
    """The type stubs of the public files, by file name."""
    functions = "".join(f"\n{_function_head(spec)}    ...\n" for spec in PUBLIC)
    modules = "".join(f"\n{_module_head(spec)}{_fill(_MODULE_STUB, spec, '')}" for spec in PUBLIC)
    return {
        "functional.pyi": f"{_STUB_HEAD}\n__all__ = {[spec.function for spec in PUBLIC]}\n{functions}",
        "modules.pyi": f"{_STUB_HEAD}\n__all__ = {[spec.module for spec in PUBLIC]}\n{modules}",
    }
