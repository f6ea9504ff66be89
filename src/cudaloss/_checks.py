"""Bad arguments, said clearly before any kernel runs: the argument, what it was, what is accepted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._modes import REDUCTIONS
from ._specs import LossSpec


def check_reduction(reduction: Any) -> None:
    if not isinstance(reduction, str):
        raise TypeError(f"reduction must be a str, got {type(reduction).__name__}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction must be 'none', 'mean' or 'sum', got {reduction!r}")


def check_parameter(spec: LossSpec, value: Any) -> Any:
    """The loss's own parameter as a number; numpy's scalars are taken, and tensors that hold one on the CPU."""
    parameter = spec.parameter
    if parameter is None:
        return value
    if isinstance(value, Tensor) and (value.numel() != 1 or value.requires_grad or not value.is_cpu):
        raise TypeError(f"{parameter.name} must be {parameter.accepts}, got a tensor that is not one number on the CPU")
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{parameter.name} must be {parameter.accepts}, got {type(value).__name__}")
    symbolic = isinstance(value, (torch.SymFloat, torch.SymInt))  # of a compiler's trace, which float() would guard on
    number = value if symbolic else float(value)
    if not (number >= 0 if parameter.zero_allowed else number > 0):
        raise RuntimeError(f"{parameter.name} must be {parameter.accepts}, got {value}")
    return number


def check_dtype(dtype: Any) -> None:
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a floating torch.dtype or None, got {type(dtype).__name__}")
    if not dtype.is_floating_point:
        raise RuntimeError(f"dtype must be a floating torch.dtype or None, got {dtype}")


def check_tensor(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.is_quantized:
        raise RuntimeError(f"{name} must be a floating-point tensor, got a quantized one; call {name}.dequantize()")
    if value.layout not in (torch.strided, torch.jagged):
        raise RuntimeError(f"{name} must be a dense tensor, got layout {value.layout}; call {name}.to_dense()")
    if not value.dtype.is_floating_point:
        hint = "losses of complex numbers are not defined" if value.dtype.is_complex else f"call {name}.float()"
        raise RuntimeError(f"{name} must be a floating-point tensor, got {value.dtype}; {hint}")


def check_operands(input: Any, target: Any) -> None:
    check_tensor("input", input)
    check_tensor("target", target)
    if input.device != target.device:
        raise RuntimeError(f"input and target must be on one device, got {input.device} and {target.device}")
    if input.is_nested or target.is_nested:
        return  # ragged shapes compare inside PyTorch
    try:
        torch.broadcast_shapes(input.shape, target.shape)
    except RuntimeError:
        raise RuntimeError(
            f"input and target must have shapes that broadcast together, got {tuple(input.shape)} "
            f"and {tuple(target.shape)}"
        ) from None


def check(spec: LossSpec, input: Any, target: Any, reduction: Any, parameter: Any, dtype: Any) -> Any:
    """Raises what is wrong with a call of `spec`'s loss, if anything; returns its own parameter as a number."""
    check_operands(input, target)
    check_reduction(reduction)
    number = check_parameter(spec, parameter)
    check_dtype(dtype)
    return number
