"""The public form of a function that is no row of the table of losses: a function in eager code, an op of the same
arguments in graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._call.varying import as_tensor
from .._ops import private
from .._ops.dispatch import is_captured

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


class _Form(NamedTuple):
    """How a function is called."""

    names: tuple[str, ...]
    positional: tuple[str, ...]
    defaults: dict[str, Any]
    annotations: dict[str, str]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Form:
        """From the function's own attributes: inspect's signatures take longer, and each import makes these."""
        code: Any = function.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        positional, given = names[: code.co_argcount], function.__defaults__ or ()
        defaults = dict(zip(positional[len(positional) - len(given) :], given, strict=True))
        return cls(names, positional, defaults | (function.__kwdefaults__ or {}), function.__annotations__)

    def _typed(self, names: tuple[str, ...]) -> list[str]:
        typed = []
        for name in names:
            kind, default = _TYPES.get(self.annotations[name]), self.defaults.get(name)
            text = f'"{default}"' if isinstance(default, str) else str(default)
            if kind is not None:
                typed.append(f"{kind} {name}" + (f"={text}" if name in self.defaults else ""))
        return typed

    def schema(self, name: str) -> str:
        """Of the op. That of a function that returns one tensor or several returns a list."""
        keywords = self._typed(self.names[len(self.positional) :])
        arguments = [*self._typed(self.positional), *(["*", *keywords] if keywords else [])]
        result = "Tensor" if self.annotations["return"] == "Tensor" else "Tensor[]"
        return f"{name}({', '.join(arguments)}) -> {result}"


def _bound(form: _Form, args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments by their names; None for a wrong call."""
    taken = form.positional[: len(args)]
    if len(args) > len(taken) or any(name in taken or name not in form.names for name in given):
        return None
    arguments = dict(zip(taken, args, strict=True)) | given
    return arguments if all(name in arguments or name in form.defaults for name in form.names) else None


def _in_graph(op: Any, form: _Form, given: dict[str, Any]) -> Any:
    if given.pop("options", None) is not None:  # of linear_cross_entropy
        given["memory"] = given.get("memory") or "least"
    if given.pop("group", None) is not None:
        raise RuntimeError("cudaloss: a call with a process group cannot be captured in a graph")
    like = given[form.positional[0]]
    for name, value in given.items():
        if isinstance(value, float | int) and form.annotations[name].startswith("Tensor | float"):
            given[name] = as_tensor(value, like)
    found = op(**given)
    return found if isinstance(found, Tensor) else found[0] if len(found) == 1 else tuple(found)


def public(function: _F) -> _F:
    """The function, with subclasses of tensors served, and its op, `torch.ops.cudaloss.<its name without _loss>`."""
    form, name = _Form.of(function), op_name(function.__name__)
    schema = form.schema(name)

    def kernel(*args: Any, **given: Any) -> Any:
        found = function(*args, **given)
        return found if schema.endswith("> Tensor") else list(found) if isinstance(found, tuple) else [found]

    private.define_composite(schema, kernel)
    op = getattr(private.OPS, name)

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
