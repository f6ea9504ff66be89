"""Puts cudaloss's functions in the place of PyTorch's and torchvision's of the same name, and counts their calls.

``torch.nn``'s modules look their function up when they are called, so that they are swapped too. Swap before the client
is imported: it may import functions by name.

A client whose own modules compute losses that we have too, under other names, has a file ``forwards_of_<client>.py``.
Its ``FORWARDS`` are put in the place of these modules' ``forward``.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

HOMES = ("torch.nn.functional", "torchvision.ops")
calls: Counter[str] = Counter()  # of the functions that were swapped


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **keywords)

    return call


def _replace(name: str, theirs: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """In all modules: torchvision's detectors import a loss by name, and are imported before it can be swapped."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is theirs:
            setattr(module, name, ours)


def swap(client: str) -> None:
    import cudaloss

    for home in HOMES:
        if not importlib.util.find_spec(home.partition(".")[0]):
            continue  # not installed
        functions = vars(importlib.import_module(home))
        for name in cudaloss.functional.__all__:
            if name in functions:
                _replace(name, functions[name], counted(name, getattr(cudaloss, name)))
    if importlib.util.find_spec(forwards := f"forwards_of_{client}"):
        for kind, forward in importlib.import_module(forwards).FORWARDS.items():
            kind.forward = forward
