"""The public form of a function of :mod:`cudaloss.heads`: a function in eager code, an op of the same arguments in
graphs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .. import _private
from .._dispatch import is_captured
from .._varying import as_tensor

# What an op's schema calls an argument's type. It has no arguments of other types.
_TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "Tensor | float | None": "Tensor?",
    "Tensor | float": "Tensor",
    "float": "float",
    "float | None": "float?",
    "int | None": "int?",
    "bool": "bool",
    "str": "str",
    "str | None": "str?",
    "torch.dtype | None": "ScalarType?",
}
_F = TypeVar("_F", bound=Callable[..., Any])


def op_name(function: str) -> str:
    return function.removesuffix("_loss")


def _schema(function: Callable[..., Any]) -> str:
    written, behind_star = [], False
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.annotation not in _TYPES:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not behind_star:
            behind_star = True
            written.append("*")
        default = parameter.default
        text = f'"{default}"' if isinstance(default, str) else str(default)
        is_given = default is not parameter.empty
        written.append(f"{_TYPES[parameter.annotation]} {name}" + (f"={text}" if is_given else ""))
    # A function that returns one tensor or several has an op that returns a list.
    result = "Tensor" if inspect.signature(function).return_annotation == "Tensor" else "Tensor[]"
    return f"{op_name(function.__name__)}({', '.join(written)}) -> {result}"


def _in_graph(op: Any, parameters: Mapping[str, inspect.Parameter], given: dict[str, Any]) -> Any:
    if given.pop("options", None) is not None:  # of linear_cross_entropy
        given["memory"] = given.get("memory") or "least"
    if given.pop("group", None) is not None:
        raise RuntimeError("cudaloss: a call with a process group cannot be captured in a graph")
    like = next(iter(given.values()))
    for name, value in given.items():
        if isinstance(value, float | int) and parameters[name].annotation.startswith("Tensor | float"):
            given[name] = as_tensor(value, like)
    found = op(**given)
    return found if isinstance(found, Tensor) else found[0] if len(found) == 1 else tuple(found)


def public(function: _F) -> _F:
    """The function, with subclasses of tensors served, and its op, `torch.ops.cudaloss.<its name without _loss>`."""
    schema, parameters = _schema(function), inspect.signature(function).parameters

    def kernel(*args: Any, **given: Any) -> Any:
        found = function(*args, **given)
        return found if schema.endswith("> Tensor") else list(found) if isinstance(found, tuple) else [found]

    _private.define_composite(schema, kernel)
    op = getattr(torch.ops.cudaloss, op_name(function.__name__))

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        tensors = [x for x in (*args, *given.values()) if isinstance(x, Tensor)]
        if has_torch_function(tensors):
            return handle_torch_function(called, tensors, *args, **given)
        if torch.compiler.is_compiling() or is_captured():
            return _in_graph(op, parameters, dict(zip(parameters, args, strict=False)) | given)
        return function(*args, **given)

    return cast("_F", called)
