"""The source of the public functions and modules, and of their type stubs, from the rows of ``_specs``.

The code is written out as text, as ``dataclasses`` does, because a loss's own parameter is a named argument (``beta``)
and because the stubs must say what the code says.
"""

from __future__ import annotations

import linecache
from textwrap import indent
from typing import Any

from torch.nn._reduction import legacy_get_string

from ._docs import function_doc, module_doc
from ._specs import SPECS, LossSpec

_FUNCTION = """\
def {function}(
    input: Tensor,
    target: Tensor,
    {options},
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
{doc}
"""

_FUNCTION_BODY = """\
    {legacy}return _{function}(input, target, reduction, {parameter}, dtype)
"""

_MODULE = """\
class {module}(torch.nn.Module):
{doc}

    def __init__(
        self,
        {options},
        *,
        dtype: torch.dtype | None = None,
    ) -> None:"""

_MODULE_BODY = """
        super().__init__()
        {legacy}self.reduction = reduction
        {store}self.dtype = dtype

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        return functional.{function}(input, target, reduction=self.reduction, {forward}dtype=self.dtype)

    def extra_repr(self) -> str:
        return f"reduction={{self.reduction!r}}{representation}"
"""

_MODULE_STUB = """
        self.reduction: str
        {store_stub}self.dtype: torch.dtype | None
    def forward(self, input: Tensor, target: Tensor) -> Tensor: ...
    def __call__(self, input: Tensor, target: Tensor) -> Tensor: ...
"""

_STUB_HEAD = """\
# Generated from the rows of _specs.py when the package is built.
import torch
from torch import Tensor
"""


def legacy_reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """The reduction that PyTorch's deprecated arguments stand for, where one of them is given."""
    if size_average is None and reduce is None:
        return reduction
    return legacy_get_string(size_average, reduce)


def _fields(spec: LossSpec) -> dict[str, str]:
    arguments = ["size_average: bool | None = None", "reduce: bool | None = None"] if spec.legacy_arguments else []
    own_name = spec.parameter.name if spec.parameter else ""
    arguments += ['reduction: str = "mean"', *([f"{own_name}: float = {spec.default}"] if own_name else [])]
    return {
        "function": spec.function,
        "module": spec.module,
        "options": ",\n{indent}".join(arguments),
        "legacy": "reduction = legacy_reduction(size_average, reduce, reduction)\n{indent}"
        if spec.legacy_arguments
        else "",
        "parameter": own_name or repr(spec.default),
        "store": f"self.{own_name} = {own_name}\n        " if own_name else "",
        "store_stub": f"self.{own_name}: float\n        " if own_name else "",
        "forward": f"{own_name}=self.{own_name}, " if own_name else "",
        "representation": f", {own_name}={{self.{own_name}}}" if own_name else "",
    }


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
    """Adds the public function of `spec` to a module that has its ``_<function>`` and ``legacy_reduction``."""
    _define(spec.function, _function_head(spec) + _fill(_FUNCTION_BODY, spec, "    "), module_globals)


def define_module(spec: LossSpec, module_globals: dict[str, Any]) -> None:
    """Adds the public module of `spec` to a module that has ``functional`` and ``legacy_reduction``."""
    _define(spec.module, _module_head(spec) + _fill(_MODULE_BODY, spec, "        "), module_globals)


def stubs() -> dict[str, str]:
    """The type stubs of the public files, by file name."""
    functions = "".join(f"\n{_function_head(spec)}    ...\n" for spec in SPECS)
    modules = "".join(f"\n{_module_head(spec)}{_fill(_MODULE_STUB, spec, '')}" for spec in SPECS)
    return {
        "functional.pyi": f"{_STUB_HEAD}\n__all__ = {[spec.function for spec in SPECS]}\n{functions}",
        "modules.pyi": f"{_STUB_HEAD}\n__all__ = {[spec.module for spec in SPECS]}\n{modules}",
    }
