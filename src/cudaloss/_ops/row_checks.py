"""Errors for wrong arguments of a loss of rows, before any kernel runs."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from .._call.call import Call
from .._call.modes import INDICES
from .._call.shapes import class_dim, rows_shape
from .._losses.options import Options
from .._losses.table import LossSpec
from .checks import (
    _is_number,
    as_float,
    check_dense,
    check_dtype,
    check_floating,
    check_options,
    check_reduction,
    result_dtype,
)


def check_operands(spec: LossSpec, input: Any, target: Any) -> None:
    """Checks that input has classes, and target an index for each row, or a probability for each class if the loss
    takes probabilities. The messages contain PyTorch's if it has one."""
    check_dense("input", input)
    check_dense("target", target)
    for name, value in (("input", input), ("target", target)):
        if value.is_nested:
            raise RuntimeError(f"{name} must be a dense tensor, got a nested one; call {name}.to_padded_tensor(0)")
    check_floating("input", input)
    if input.dim() == 0:
        raise RuntimeError("input must have a dimension of classes, got a 0-d tensor")
    if input.shape[class_dim(input)] == 0:
        raise RuntimeError(f"input must have at least one class, got shape {tuple(input.shape)}")
    if input.device != target.device:
        raise RuntimeError(f"input and target must be on one device, got {input.device} and {target.device}")
    shape, found = rows_shape(input), tuple(target.shape)
    if target.dtype.is_floating_point and not spec.takes_indices_alone:
        if target.shape != input.shape:
            hint = "; of class indices expected target dtype to be Long or Byte: call target.long()"
            raise RuntimeError(
                f"target must have input's shape, {tuple(input.shape)}, because its floating dtype means "
                f"probabilities, got {found} of {target.dtype}{hint if target.shape == shape else ''}"
            )
        return
    if target.shape == input.shape and input.shape != shape and not spec.takes_indices_alone:
        raise RuntimeError(
            "Expected floating point type for target with class probabilities: target must have class indices of shape "
            f"{tuple(shape)}, or probabilities of a floating dtype, got {found} of {target.dtype}"
        )
    if target.dtype not in INDICES:
        also = "" if spec.takes_indices_alone else ", or a floating one of probabilities"
        has_indices = target.dtype == torch.bool or (target.dtype.is_floating_point and target.shape == shape)
        hint = "; call target.long()" if has_indices else ""
        raise RuntimeError(f"target must be an integer tensor of class indices{also}, got {target.dtype}{hint}")
    if target.shape == shape:
        return
    if input.dim() > 1 and target.dim() > 0 and target.shape[0] != shape[0]:
        raise ValueError(
            f"Expected input batch_size ({shape[0]}) to match target batch_size ({target.shape[0]}): target must be of "
            f"shape {tuple(shape)}, got {found}"
        )
    raise RuntimeError(
        f"Expected target size {list(shape)}, got {list(found)}: target must be of input's shape, "
        f"{tuple(input.shape)}, without its classes"
    )


def check_class_weight(weight: Any, input: Tensor) -> None:
    """Checks that there is one weight for each class."""
    check_dense("weight", weight)
    classes = input.shape[class_dim(input)]
    if weight.dim() != 1 or weight.shape[0] != classes:
        raise RuntimeError(
            f"weight tensor should be defined either for all {classes} classes or no classes: weight must be of shape "
            f"({classes},), got {tuple(weight.shape)}; a weight for each row is sample_weight"
        )
    check_floating("weight", weight)
    if weight.device != input.device:
        raise RuntimeError(f"weight must be on the data's device, {input.device}, got {weight.device}")


def _number(name: str, value: Any, accepts: str) -> Any:
    """A number as a float, also numpy's or a compiler's."""
    if not _is_number(value):
        raise TypeError(f"{name} must be a number {accepts}, got {type(value).__name__}")
    return as_float(name, value)


def check_numbers(target: Tensor, ignore_index: Any, z_loss: Any, softcap: Any) -> tuple[int, float, float]:
    """The three numbers as Python's own; a softcap of None as 0."""
    if not _is_number(ignore_index, numbers.Integral):
        raise TypeError(f"ignore_index must be an int, got {type(ignore_index).__name__}")
    if not -(2**63) <= ignore_index < 2**63:
        raise ValueError(f"ignore_index must fit in an int64, got {ignore_index}")
    if target.is_floating_point() and ignore_index >= 0:
        raise RuntimeError(
            "ignore_index is not supported for floating point target: it must be negative if target has "
            f"probabilities, got {ignore_index}"
        )
    ignore_index = ignore_index if isinstance(ignore_index, torch.SymInt) else int(ignore_index)
    z_loss = _number("z_loss", z_loss, ">= 0")
    if not (z_loss >= 0 and z_loss < float("inf")):
        raise RuntimeError(f"z_loss must be a finite number >= 0, got {z_loss}")
    if softcap is not None:
        softcap = _number("softcap", softcap, "> 0, or None")
        if not (softcap > 0 and softcap < float("inf")):
            raise RuntimeError(f"softcap must be a finite number > 0, or None, got {softcap}")
    return ignore_index, z_loss, 0.0 if softcap is None else softcap


def check_smoothing(value: Any) -> Any:
    """label_smoothing as a float."""
    value = _number("label_smoothing", value, "in [0, 1]")
    if not (value >= 0 and value <= 1):
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0, got {value}")
    return value


def check(
    spec: LossSpec, input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, options: Options
) -> Call:
    """Raises an error if something is wrong with a call; otherwise the call, with numbers as Python's own."""
    weight, ignore_index, smoothing, z_loss, softcap = own
    check_operands(spec, input, target)
    check_reduction(spec, reduction)
    if weight is not None:
        check_class_weight(weight, input)
    smoothing = check_smoothing(smoothing)
    ignore_index, z_loss, softcap = check_numbers(target, ignore_index, z_loss, softcap)
    check_dtype(dtype)
    options = check_options(options, input, rows_shape(input), reduction, "sample_weight")
    found = result_dtype(input, target if target.is_floating_point() else input, dtype)
    return Call(spec, input, target, reduction, found, options, weight, z_loss, smoothing, ignore_index, softcap)
