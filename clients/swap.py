"""Puts cudaloss's functions in the place of PyTorch's of the same name, and counts their calls.

``torch.nn``'s modules look their function up when they are called, so that they are swapped too. Swap before the client
is imported: it may import functions by name.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch.nn.functional

calls: Counter[str] = Counter()  # of the functions that were swapped


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **keywords)

    return call


def swap() -> None:
    import cudaloss

    for name in cudaloss.functional.__all__:
        if hasattr(torch.nn.functional, name):
            setattr(torch.nn.functional, name, _counted(name, getattr(cudaloss, name)))
