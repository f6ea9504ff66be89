"""What a loss's module keeps of its arguments, and how it shows them."""

from __future__ import annotations

from typing import Any

import torch

from ._losses.options import ROWS


def keep(module: torch.nn.Module, name: str, value: Any) -> None:
    """Keeps a tensor as a buffer, like the weights of PyTorch's modules; also None, where a tensor is possible. A
    Parameter becomes a parameter of the module, which an optimizer finds."""
    if value is None or (isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def shown(value: Any) -> str:
    """A parameter in a module's repr."""
    return f"<tensor of shape {tuple(value.shape)}>" if isinstance(value, torch.Tensor) else repr(value)


def changed_options(module: torch.nn.Module) -> str:
    """A module's options that are not at their defaults, in its repr."""
    kept = [(row, getattr(module, row.name, row.default)) for row in ROWS if row.of_module]
    return "".join(f", {row.name}={value!r}" for row, value in kept if value != row.default)
