"""Puts cudaloss's functions in the place of PyTorch's and torchvision's of the same name, by ``cudaloss.patch``, and
counts their calls.

A client whose own modules compute losses that we have too, under other names, has a file ``forwards_of_<client>.py``.
Its ``FORWARDS`` are put in the place of these modules' ``forward``, and of the ``apply`` of a function of autograd.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.autograd import Function

calls: Counter[str] = Counter()  # of the functions that were swapped


def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        calls[name] += 1
        return function(*arguments, **keywords)

    return call


def swap(client: str) -> None:
    import cudaloss

    homes = [importlib.import_module("torchvision.ops")] if importlib.util.find_spec("torchvision") else []
    cudaloss.patch(*homes).calls = calls
    if importlib.util.find_spec(forwards := f"forwards_of_{client}"):
        for kind, forward in importlib.import_module(forwards).FORWARDS.items():
            if issubclass(kind, Function):
                kind.apply = forward
            else:
                kind.forward = forward
