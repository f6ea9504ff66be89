"""The source of the public functions and modules, and of their type stubs, from the rows of ``_specs``.

The code is written out as text, as ``dataclasses`` does, because a loss's own parameter is a named argument (``beta``)
and because the stubs must say what the code says.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from textwrap import indent
from typing import Any

import torch

from ._docs import function_doc, module_doc
from ._options import ROWS, Row
from ._specs import SPECS, LossSpec, Parameter

_FUNCTION = """\
def {function}(
    input: Tensor,
    target: Tensor,
    {options},
    *,
    {keywords},
) -> Tensor:
{doc}
"""

_FUNCTION_BODY = """\
    {legacy}if not is_dynamo_compiling():
        result = _fused_{name}(
            input, target, reduction, {own}, dtype,
            weight, mask, normalizer, scale, batch_dims, ignore_nan,
        )
        if result is not None:
            return result
    return _unusual_{name}(
        input, target, reduction, {own}, dtype,
        weight, mask, normalizer, scale, batch_dims, ignore_nan,
    )
"""

_MODULE = """\
class {module}(torch.nn.Module):
{doc}

    def __init__(
        self,
        {options},
        *,
        {module_keywords},
    ) -> None:"""

_MODULE_BODY = """
        super().__init__()
        {legacy}self.reduction = reduction
        {store}

    def forward(
        self,
        input: Tensor,
        target: Tensor,
        *,
        {call_keywords},
    ) -> Tensor:
        return functional.{function}(
            input,
            target,
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
        input: Tensor,
        target: Tensor,
        *,
        {call_keywords},
    ) -> Tensor: ...
    def __call__(
        self,
        input: Tensor,
        target: Tensor,
        *,
        {call_keywords},
    ) -> Tensor: ...
"""

_LEGACY = """\
if size_average is not None or reduce is not None:
{indent}    reduction = legacy_get_string(size_average, reduce)
{indent}"""

_STUB_HEAD = """\
# Generated from the rows of _specs.py when the package is built.
import torch
from torch import Tensor
"""


def keep(module: torch.nn.Module, name: str, value: Any) -> None:
    """Tensors as buffers, as PyTorch's modules keep weights; None too, where one may be given."""
    if value is None or isinstance(value, torch.Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def shown(value: Any) -> str:
    """A parameter as a module's repr has it."""
    return f"<tensor of shape {tuple(value.shape)}>" if isinstance(value, torch.Tensor) else repr(value)


def changed_options(module: torch.nn.Module) -> str:
    """A module's options that are not at their defaults, as its repr has them."""
    kept = [(row, getattr(module, row.name)) for row in ROWS if row.of_module]
    return "".join(f", {row.name}={value!r}" for row, value in kept if value != row.default)


def _annotation(spec: LossSpec, parameter: Parameter) -> str:
    if parameter is not spec.parameter:
        return "float"
    return "Tensor | float | None" if parameter.default is None else "Tensor | float"


def _of_call(spec: LossSpec) -> list[Row]:
    """The keywords of a module's call."""
    return [row for row in ROWS if not (row.of_module or (spec.weight_first and row.name == "weight"))]


def _fields(spec: LossSpec) -> dict[str, str]:
    arguments = ["weight: Tensor | None = None"] if spec.weight_first else []
    arguments += ["size_average: bool | None = None", "reduce: bool | None = None"] if spec.legacy_arguments else []
    own = [(row.name, _annotation(spec, row)) for row in spec.parameters]
    arguments.append('reduction: str = "mean"')
    arguments += [f"{row.name}: {_annotation(spec, row)} = {row.default}" for row in spec.parameters]
    buffers = [("weight", "Tensor | None")] if spec.weight_first else []
    buffers += own[:1]  # where they are tensors
    kept = [*own[1:], *((row.name, row.annotation) for row in ROWS if row.of_module)]
    per_call = [row.name for row in _of_call(spec)]
    forwarded = [f"{name}=self.{name}" for name in ["reduction", *(name for name, _ in (*buffers, *kept))]]
    passed = [
        name if row.default is not None else f"1.0 if {name} is None else {name}"
        for row, (name, _) in zip(spec.parameters, own, strict=True)
    ]
    passed += [repr(spec.default), "0.0"][len(passed) :]
    stored = [f'keep(self, "{name}", {name})' for name, _ in buffers] + [f"self.{name} = {name}" for name, _ in kept]
    return {
        "name": spec.name,
        "function": spec.function,
        "module": spec.module,
        "options": ",\n{indent}".join(arguments),
        "keywords": _keywords(row for row in ROWS if not (spec.weight_first and row.name == "weight")),
        "module_keywords": _keywords(row for row in ROWS if row.of_module),
        "call_keywords": _keywords(_of_call(spec)),
        "legacy": _LEGACY if spec.legacy_arguments else "",
        "own": ", ".join(passed),
        "store": "\n        ".join(stored),
        "store_stub": "\n        ".join(f"self.{name}: {annotation}" for name, annotation in (*buffers, *kept)),
        "forward": ",\n            ".join([*forwarded, *(f"{name}={name}" for name in per_call)]),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name, _ in own),
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
    """Adds the public function of `spec` to a module that has what its body names."""
    _define(spec.function, _function_head(spec) + _fill(_FUNCTION_BODY, spec, "    "), module_globals)


def define_module(spec: LossSpec, module_globals: dict[str, Any]) -> None:
    """Adds the public module of `spec` to a module that has ``functional`` and ``legacy_get_string``."""
    _define(spec.module, _module_head(spec) + _fill(_MODULE_BODY, spec, "        "), module_globals)


def stubs() -> dict[str, str]:
    """The type stubs of the public files, by file name."""
    functions = "".join(f"\n{_function_head(spec)}    ...\n" for spec in SPECS)
    modules = "".join(f"\n{_module_head(spec)}{_fill(_MODULE_STUB, spec, '')}" for spec in SPECS)
    return {
        "functional.pyi": f"{_STUB_HEAD}\n__all__ = {[spec.function for spec in SPECS]}\n{functions}",
        "modules.pyi": f"{_STUB_HEAD}\n__all__ = {[spec.module for spec in SPECS]}\n{modules}",
    }
