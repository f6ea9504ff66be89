"""Errors for wrong arguments of the losses of heads and tokens, before any kernel runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._call.modes import INDICES
from .._ops import checks as _checks
from .._ops import row_checks

PLANS = ("fast", "least")


def _dense(**tensors: Any) -> None:
    for name, value in tensors.items():
        _checks.check_beside_layout(name, value)
        if name != "target":
            _checks.check_floating(name, value)


def check_memory(memory: Any) -> None:
    if memory is not None and memory not in PLANS:
        raise ValueError(f"memory must be 'fast', 'least' or None, got {memory!r}")


def check_layer(input: Any, linear_weight: Any, linear_bias: Any, **beside: Any) -> None:
    """Checks the operands of the product, and that the tensors beside them are on their device; the messages contain
    PyTorch's if it has one."""
    _dense(input=input, linear_weight=linear_weight)
    for name, value in beside.items():
        _checks.check_beside_layout(name, value)
    if input.dim() < 1:
        raise RuntimeError("expected input with dimensionality 1 or 2 or more, got 0: its last dimension has features")
    if linear_weight.dim() < 2:
        raise RuntimeError(f"expected linear_weight with dimensionality at least 2, got {linear_weight.dim()}")
    if input.shape[-1] != linear_weight.shape[-1]:
        raise RuntimeError(
            "expected equal input and linear_weight last dimensions (in_features), got "
            f"{input.shape[-1]} and {linear_weight.shape[-1]}, respectively"
        )
    if linear_bias is not None:
        _dense(linear_bias=linear_bias)
        if linear_bias.shape != linear_weight.shape[:-1]:
            raise RuntimeError(
                f"expected linear_bias shape {tuple(linear_weight.shape[:-1])}, got {tuple(linear_bias.shape)}"
            )
    for name, value in {"linear_weight": linear_weight, **beside, "linear_bias": linear_bias}.items():
        if value is not None and value.device != input.device:
            raise RuntimeError(f"{name} must be on input's device, {input.device}, got {value.device}")
    if linear_weight.dim() == 2 and linear_weight.shape[0] == 0:
        raise RuntimeError(f"linear_weight must have at least one class, got shape {tuple(linear_weight.shape)}")


def check_matrix(linear_weight: Tensor, name: str = "linear_weight") -> None:
    if linear_weight.dim() != 2:
        raise RuntimeError(f"{name} must have two dimensions, got shape {tuple(linear_weight.shape)}")


def check_head(input: Any, linear_weight: Any, target: Any, linear_bias: Any, takes_probabilities: bool) -> None:
    check_layer(input, linear_weight, linear_bias, target=target)
    if linear_weight.dim() > 2:
        if input.dim() == 1:
            raise RuntimeError(
                f"K-dimensional loss defined by linear_weight shape {tuple(linear_weight.shape)} requires batched "
                f"input, (N, {input.shape[-1]}), got unbatched input with shape {tuple(input.shape)}"
            )
        if input.dim() > 2:
            raise RuntimeError(
                "expected input with dimensionality 1 or 2, because linear_weight has more than two dimensions, got "
                f"{input.dim()}"
            )
        return
    if takes_probabilities and target.is_floating_point():
        wanted = (*input.shape[:-1], linear_weight.shape[0])
        if target.shape != wanted:
            raise RuntimeError(
                f"target must be of shape {wanted}, because its floating dtype means probabilities, got "
                f"{tuple(target.shape)} of {target.dtype}"
            )
        return
    check_indices(target, input.shape[:-1])


def check_indices(target: Tensor, shape: torch.Size) -> None:
    if target.dtype not in INDICES:
        raise RuntimeError(f"target must be an integer tensor of class indices, got {target.dtype}; call target.long()")
    if target.shape != shape:
        raise ValueError(
            f"Expected target size {list(shape)}, got {list(target.shape)}: target must have an index for each row of "
            "input"
        )


def check_sparse(input: Tensor, indices: Any, probabilities: Any) -> None:
    """Checks a target of a few classes for each of input's rows, which are its dimensions but the last."""
    for name, value in {"indices": indices, "probabilities": probabilities}.items():
        _checks.check_beside_layout(name, value)
        if value.device != input.device:
            raise RuntimeError(f"{name} must be on input's device, {input.device}, got {value.device}")
    if indices.dtype not in INDICES:
        raise RuntimeError(
            f"indices must be an integer tensor of class indices, got {indices.dtype}; call indices.long()"
        )
    _checks.check_floating("probabilities", probabilities)
    rows = tuple(input.shape[:-1])
    if indices.dim() != input.dim() or tuple(indices.shape[:-1]) != rows or indices.shape[-1] == 0:
        wanted = ", ".join([*map(str, rows), "k"])
        raise ValueError(
            f"indices must be of shape ({wanted}{'' if rows else ','}), with at least one class for each row of input, "
            f"got {tuple(indices.shape)}"
        )
    if probabilities.shape != indices.shape:
        raise ValueError(
            f"probabilities must be of indices' shape, {tuple(indices.shape)}, got {tuple(probabilities.shape)}"
        )


def check_classes(input: Tensor) -> None:
    if input.dim() < 1 or input.shape[-1] == 0:
        raise RuntimeError(f"input must have at least one class in its last dimension, got shape {tuple(input.shape)}")


def check_temperature(value: Any) -> float:
    if not _checks._is_number(value):
        raise TypeError(f"temperature must be a number > 0, got {type(value).__name__}")
    value = _checks.as_float("temperature", value)
    if not (value > 0 and value < float("inf")):
        raise RuntimeError(f"temperature must be a finite number > 0, got {value}")
    return value


def check_beta(value: Any) -> float:
    if not _checks._is_number(value):
        raise TypeError(f"beta must be a number, got {type(value).__name__}")
    value = _checks.as_float("beta", value)
    if not (value >= 0 and value <= 1):
        raise RuntimeError(f"beta must be a number in [0, 1], got {value}")
    return value


def check_bend(target: Tensor, temperature: Any, softcap: Any) -> tuple[float, float]:
    """The temperature, and the softcap or 0."""
    _, _, softcap = row_checks.check_numbers(target, -100, 0.0, softcap)
    return check_temperature(temperature), softcap
