"""The public form of a function of :mod:`cudaloss.heads`: a function in eager code, an op of the same arguments in
graphs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

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


class _Form(NamedTuple):
    """How a function is called."""

    names: tuple[str, ...]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    numbers: tuple[str, ...]  # may be numbers where the op takes tensors


def _form(function: Callable[..., Any]) -> _Form:
    parameters = inspect.signature(function).parameters.values()
    return _Form(
        tuple(x.name for x in parameters),
        tuple(x.name for x in parameters if x.kind is not x.KEYWORD_ONLY),
        tuple(x.name for x in parameters if x.default is x.empty),
        tuple(x.name for x in parameters if x.annotation.startswith("Tensor | float")),
    )


def _bound(form: _Form, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by their names; None for a wrong call."""
    taken = form.positional[: len(args)]
    if len(args) > len(taken) or any(name in taken or name not in form.names for name in given):
        return None
    arguments = dict(zip(taken, args, strict=True)) | given
    return arguments if all(name in arguments for name in form.required) else None


def _in_graph(op: Any, form: _Form, given: dict[str, Any]) -> Any:
    if given.pop("options", None) is not None:  # of linear_cross_entropy
        given["memory"] = given.get("memory") or "least"
    if given.pop("group", None) is not None:
        raise RuntimeError("cudaloss: a call with a process group cannot be captured in a graph")
    like = given[form.positional[0]]
    for name in form.numbers:
        if isinstance(given.get(name), float | int):
            given[name] = as_tensor(given[name], like)
    found = op(**given)
    return found if isinstance(found, Tensor) else found[0] if len(found) == 1 else tuple(found)


def public(function: _F) -> _F:
    """The function, with subclasses of tensors served, and its op, `torch.ops.cudaloss.<its name without _loss>`."""
    schema, form = _schema(function), _form(function)

    def kernel(*args: Any, **given: Any) -> Any:
        found = function(*args, **given)
        return found if schema.endswith("> Tensor") else list(found) if isinstance(found, tuple) else [found]

    _private.define_composite(schema, kernel)
    op = getattr(torch.ops.cudaloss, op_name(function.__name__))

    @functools.wraps(function)
    def called(*args: Any, **given: Any) -> Any:
        relevant = (*args, *given.values())
        if has_torch_function(relevant):
            return handle_torch_function(called, relevant, *args, **given)
        if torch.compiler.is_compiling() or is_captured():
            arguments = _bound(form, args, given)
            if arguments is not None:
                return _in_graph(op, form, arguments)
        return function(*args, **given)

    return cast("_F", called)
