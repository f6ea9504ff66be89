"""PyTorch's losses replaced by ours, in a program that is not changed: :func:`patch`."""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

from . import functional as _functional

__all__ = ["Patch", "patch"]

_in_effect: list[Patch] = []  # at most one


class Patch:
    """What :func:`cudaloss.patch` returns. It is in effect until :meth:`restore`, or to the end of a ``with`` block.

    Attributes:
        calls: how often each function was called, by its name. In a compiled function a call
            counts when it is traced, if at all.
    """

    def __init__(self, homes: tuple[ModuleType, ...]) -> None:
        self.calls: Counter[str] = Counter()
        self._pairs = [(theirs, self._counted(name, theirs)) for home in homes for name, theirs in _namesakes(home)]

    def _counted(self, name: str, theirs: Callable[..., Any]) -> Callable[..., Any]:
        ours = getattr(_functional, name)

        @functools.wraps(theirs)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not is_dynamo_compiling():
                self.calls[name] += 1
            return ours(*arguments, **keywords)

        return call

    def restore(self) -> None:
        """Puts PyTorch's functions back. A second call does nothing."""
        if self in _in_effect:
            _in_effect.remove(self)
            _replace((ours, theirs) for theirs, ours in self._pairs)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()


def _namesakes(home: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A module's functions that have the name of one of ours."""
    found = ((name, getattr(home, name, None)) for name in _functional.__all__)
    return ((name, theirs) for name, theirs in found if callable(theirs) and theirs is not getattr(_functional, name))


def _replace(pairs: Iterable[tuple[Callable[..., Any], Callable[..., Any]]]) -> None:
    """In all modules, because many import functions by name; except in ours, where PyTorch's are the reference."""
    other = {id(old): (old, new) for old, new in pairs}
    for title, module in list(sys.modules.items()):
        if title.partition(".")[0] == __package__ or not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            old, new = other.get(id(value), (None, None))
            if old is value and new is not None:
                vars(module)[name] = new


def patch(*homes: ModuleType) -> Patch:
    """Replaces the losses of ``torch.nn.functional`` by ours of the same name, at once and for the whole process: in
    all modules that are loaded, also where they were imported by name. ``torch.nn``'s modules call these functions, so
    that they compute by ours too.

    A function that another object keeps (a default argument, a ``functools.partial``, a compiled graph) stays what it
    was. So patch before you build a model, a trainer or a compiled function. Other threads see the change too. Scripts
    of ``torch.jit`` that call a loss must be made before.

    Args:
        homes: further modules with functions of the same names, for example ``torchvision.ops``.

    Returns:
        Patch: a context manager that puts PyTorch's functions back at its end; without ``with`` call its ``restore()``.
        Its ``calls`` counts the calls by name.

    Raises:
        RuntimeError: if a patch is in effect already.
        TypeError: if one of `homes` is not a module.

    Example:
        >>> import torch, cudaloss
        >>> criterion = torch.nn.SmoothL1Loss()
        >>> with cudaloss.patch() as patched:
        ...     loss = criterion(torch.zeros(4), torch.ones(4))
        >>> loss, patched.calls
        (tensor(0.5000), Counter({'smooth_l1_loss': 1}))
    """
    for home in homes:
        if not isinstance(home, ModuleType):
            raise TypeError(f"homes must be modules, got {type(home).__name__}")
    if _in_effect:
        raise RuntimeError("cudaloss.patch is in effect already; call restore() of what it returned first")
    found = Patch((torch.nn.functional, *homes))
    _in_effect.append(found)
    _replace(found._pairs)
    return found
