"""Puts cudaloss's functions in the place of PyTorch's of the same name, and counts their calls.

``torch.nn``'s modules look their function up when they are called, so that they are swapped too. Swap before the client
is imported: it may import functions by name.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch.nn.functional

calls: Counter[str] = Counter()  # of the functions that were swapped


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **keywords)

    return call


def names(module: ModuleType) -> list[str]:
    """The losses that both have."""
    import cudaloss

    return [name for name in cudaloss.functional.__all__ if hasattr(module, name)]


def swap(*modules: ModuleType) -> None:
    """Swaps in these modules, beside ``torch.nn.functional``."""
    import cudaloss

    for module in (torch.nn.functional, *modules):
        for name in names(module):
            setattr(module, name, _counted(name, getattr(cudaloss, name)))
