"""Errors for wrong arguments, before any kernel runs: the argument, its value, and what is accepted."""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor

from .._call.call import Call
from .._call.shapes import broadcast, joint_shape
from .._call.varying import is_symbolic
from .._install.build import DEVICES
from .._losses.options import Options
from .._losses.spec import BATCHMEAN
from .._losses.table import PUBLIC, Argument, LossSpec
from .._reference import definition


def _meant(spec: LossSpec, place: str, number: Any) -> str:
    """The end of an error's message, if the loss has a number of its own behind the argument at `place`, and takes
    this one: quantile_loss(x, t, 0.9)."""
    own = {row.name: row.takes for row in spec.arguments}
    positions = spec.signature.split()
    for name in positions[positions.index(place) :] if _is_number(number) else ():
        if name in own and own[name](number):
            return f"; did you mean {name}={number}?"
    return ""


def check_reduction(spec: LossSpec, reduction: Any) -> None:
    if not isinstance(reduction, str):
        hint = _meant(spec, "reduction", reduction)
        raise TypeError(f"reduction must be a str, got {type(reduction).__name__}{hint}")
    if reduction not in spec.reductions:
        *rest, last = map(repr, spec.reductions)
        raise ValueError(f"reduction must be {', '.join(rest)} or {last}, got {reduction!r}")


def check_size_average(function: str, value: Any) -> None:
    """PyTorch takes any value for a bool, also smooth_l1_loss(x, t, 0.5), where 0.5 is meant as beta."""
    if isinstance(value, float):
        (spec,) = (spec for spec in PUBLIC if spec.function == function)
        if hint := _meant(spec, "size_average", value):
            raise TypeError(f"size_average must be a bool or None, got {type(value).__name__}{hint}")


def _is_number(value: Any, kind: type = numbers.Real) -> bool:
    """Whether it is a number of that kind, also numpy's or a compiler's, but not a bool, array or tensor."""
    if isinstance(value, bool):
        return False
    if isinstance(value, int) or (isinstance(value, float) and kind is numbers.Real) or is_symbolic(value):
        return True  # checked first: Dynamo knows nothing else about its symbols
    return isinstance(value, kind)


def is_traced() -> bool:
    """Whether a compiler or a trace is active, for which tensors have no values."""
    return torch.compiler.is_compiling() or torch._C._is_tracing() or bool(torch._C._len_torch_dispatch_stack())


def as_float(name: str, value: Any) -> Any:
    """The number as Python's float; a compiler's stays unchanged, because float() would add a guard on it."""
    if is_symbolic(value):
        return value
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} must be a number that a float can hold, got {value}") from None


def check_number(parameter: Argument, value: Any, accepts: str) -> Any:
    """A loss's own parameter that is not a tensor, as a float."""
    if not _is_number(value):
        raise TypeError(f"{parameter.name} must be {accepts}, got {type(value).__name__}")
    number = as_float(parameter.name, value)
    if not parameter.is_within(number):
        raise RuntimeError(f"{parameter.name} must be {parameter.accepts}, got {value}")
    return number


def _is_elsewhere(value: Tensor, input: Tensor) -> bool:
    """Whether it is a number on the CPU for data on another device; reading it waits for nothing."""
    return value.is_cpu and value.device != input.device and value.numel() == 1 and not value.is_complex()


def check_third(spec: LossSpec, value: Any, input: Tensor, target: Tensor) -> Any:
    """The loss's third operand: a number, also numpy's, or a tensor that broadcasts; a tensor's values are not checked.
    A tensor of one value on the CPU counts as a number for data on another device."""
    parameter = spec.parameter
    if parameter is None:
        return value
    name, accepts = parameter.name, f"{parameter.accepts} or a tensor"
    if parameter.may_lack_last and isinstance(value, Tensor) and not (input.is_nested or target.is_nested):
        shape = joint_shape(input, target)
        value = value.unsqueeze(-1) if value.shape == shape[:-1] != shape else value
    if not isinstance(value, Tensor):
        return check_number(parameter, 1.0 if value is None and parameter.is_optional else value, accepts)
    if input.is_nested or target.is_nested:
        raise RuntimeError(f"{name} must be a number if input is a nested tensor")
    if _is_elsewhere(value, input) and not (value.requires_grad or is_traced()):
        return check_number(parameter, value.item(), accepts)
    if not (_is_elsewhere(value, input) and value.dim() == 0):
        check_beside(name, value, input, joint_shape(input, target))
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise RuntimeError(f"{name} must be a floating-point or integer tensor, got {value.dtype}")
    return value


def check_second(spec: LossSpec, value: Any) -> Any:
    return value if spec.second is None else check_number(spec.second, value, spec.second.accepts)


def check_dtype(dtype: Any) -> None:
    if dtype is None:
        return
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype must be a floating torch.dtype or None, got {type(dtype).__name__}")
    if not dtype.is_floating_point:
        raise RuntimeError(f"dtype must be a floating torch.dtype or None, got {dtype}")


def check_dense(name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
    if value.is_quantized:
        raise RuntimeError(f"{name} must be a floating-point tensor, got a quantized one; call {name}.dequantize()")
    if value.layout not in (torch.strided, torch.jagged):
        raise RuntimeError(f"{name} must be a dense tensor, got layout {value.layout}; call {name}.to_dense()")


def check_floating(name: str, value: Tensor) -> None:
    if not value.dtype.is_floating_point:
        hint = "losses of complex numbers are not defined" if value.dtype.is_complex else f"call {name}.float()"
        raise RuntimeError(f"{name} must be a floating-point tensor, got {value.dtype}; {hint}")


def check_operands(spec: LossSpec, input: Any, target: Any) -> None:
    first, second = spec.operands
    check_dense(first, input)
    check_dense(second, target)
    check_floating(first, input)
    if target.dtype.is_complex:
        raise RuntimeError(
            f"{second} must be a real tensor, got {target.dtype}; losses of complex numbers are not defined"
        )
    if input.device != target.device:
        raise RuntimeError(f"{first} and {second} must be on one device, got {input.device} and {target.device}")
    if input.is_nested or target.is_nested:
        return  # PyTorch compares ragged shapes itself
    if input.shape == target.shape:
        return
    try:
        broadcast(input.shape, target.shape)
    except RuntimeError:
        raise RuntimeError(
            f"{first} and {second} must have shapes that broadcast together, got {tuple(input.shape)} "
            f"and {tuple(target.shape)}"
        ) from None


def _broadcasts_to(tensor: Tensor, shape: torch.Size) -> bool:
    if tensor.dim() > len(shape):
        return False
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return all(size == wanted or size == 1 for size, wanted in sizes)


def check_beside_layout(name: str, value: Any) -> None:
    check_dense(name, value)
    if value.is_nested and value.layout is torch.strided:
        raise RuntimeError(f"{name} must be a dense tensor, got a nested one; call {name}.to_padded_tensor(0)")


def check_beside(name: str, value: Any, input: Tensor, shape: torch.Size) -> None:
    """Checks that the weight, mask or third operand `value` is on the data's device and broadcasts to the loss's
    `shape`."""
    check_beside_layout(name, value)
    if value.device != input.device:
        raise RuntimeError(f"{name} must be on the data's device, {input.device}, got {value.device}")
    if not _broadcasts_to(value, shape):
        raise RuntimeError(f"{name} must have a shape that broadcasts to {tuple(shape)}, got {tuple(value.shape)}")


def check_only_with_mean(reduction: Any) -> None:
    if reduction != "mean":
        raise ValueError(f"normalizer must be None if reduction is {reduction!r}: only 'mean' divides by it")


def check_number_normalizer(value: Any, reduction: Any) -> Any:
    """For a function, which also takes a number; returns it as Python's float."""
    check_only_with_mean(reduction)
    if not _is_number(value):
        raise TypeError(f"normalizer must be a 0-d tensor or a number, got {type(value).__name__}")
    if value == 0:
        raise ValueError("normalizer must be a 0-d tensor or a number other than 0, got 0")
    return as_float("normalizer", value)


def check_normalizer(value: Tensor, input: Tensor, reduction: str) -> None:
    check_only_with_mean(reduction)
    check_beside_layout("normalizer", value)
    if value.dtype.is_complex or value.dtype == torch.bool:
        raise RuntimeError(f"normalizer must be a floating-point or integer tensor, got {value.dtype}")
    if value.dim() != 0:
        raise RuntimeError(f"normalizer must be a 0-d tensor, got shape {tuple(value.shape)}")
    if value.device != input.device:
        raise RuntimeError(f"normalizer must be on the data's device, {input.device}, got {value.device}")


def check_scale(value: Any) -> None:
    if not _is_number(value):
        raise TypeError(f"scale must be a number, got {type(value).__name__}; multiply the loss by a tensor instead")


def check_batch_dims(value: Any, shape: torch.Size) -> None:
    if not _is_number(value, numbers.Integral):
        raise TypeError(f"batch_dims must be an int, got {type(value).__name__}")
    if not 0 <= value <= len(shape):
        raise ValueError(f"batch_dims must be at least 0 and at most {len(shape)}, the rank of the loss, got {value}")


def check_options(
    options: Options, input: Tensor, shape: torch.Size, reduction: str, weight: str = "weight"
) -> Options:
    """The options of a loss of that `shape`, with the weight under the name `weight` and numbers as Python's own."""
    if options.weight is not None:
        check_beside(weight, options.weight, input, shape)
        if options.weight.dtype == torch.bool:
            raise RuntimeError(f"{weight} must be a floating-point tensor, got torch.bool; give it as mask=")
        check_floating(weight, options.weight)
    if options.mask is not None:
        check_beside("mask", options.mask, input, shape)
        if options.mask.dtype != torch.bool:
            raise RuntimeError(f"mask must be a bool tensor, got {options.mask.dtype}; call mask.bool()")
    normalizer = options.normalizer
    if isinstance(normalizer, Tensor):
        check_normalizer(normalizer, input, reduction)
    elif normalizer is not None:
        normalizer = check_number_normalizer(normalizer, reduction)
    check_scale(options.scale)
    check_batch_dims(options.batch_dims, shape)
    if not isinstance(options.ignore_nan, bool):
        raise TypeError(f"ignore_nan must be a bool, got {type(options.ignore_nan).__name__}")
    return options._replace(scale=as_float("scale", options.scale), normalizer=normalizer)


def check_same_shape(input: Any, target: Any) -> None:
    """For a loss whose PyTorch version requires equal shapes, with PyTorch's message."""
    check_dense("input", input)
    check_dense("target", target)
    if not (input.is_nested or target.is_nested) and target.size() != input.size():
        raise ValueError(f"Target size ({target.size()}) must be the same as input size ({input.size()})")


def is_autocast(device: str) -> bool:
    if device in DEVICES or torch.amp.is_autocast_available(device):
        return torch.is_autocast_enabled(device)
    return False  # for example meta, for which PyTorch raises


def result_dtype(input: Tensor, target: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of the loss, under autocast too."""
    return definition.result_dtype(input, target, dtype, is_autocast(input.device.type))


def over_batch(input: Any) -> tuple[str, Any]:
    """The reduction and the normalizer for ``batchmean``."""
    return ("mean", torch.sym_float(input.shape[0])) if input.dim() else ("sum", None)  # as in PyTorch


def check(
    spec: LossSpec, input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, options: Options
) -> Call:
    """Raises an error if something is wrong with a call of a loss of elements; otherwise the call, with numbers as
    Python's own."""
    third, second, *flags = own or (spec.default, spec.second_default)
    check_operands(spec, input, target)
    check_reduction(spec, reduction)
    third, second = check_third(spec, third, input, target), check_second(spec, second)
    check_dtype(dtype)
    if not options.are_default():
        if input.is_nested or target.is_nested:
            raise RuntimeError(
                "weight, mask, normalizer, scale, batch_dims and ignore_nan must keep their defaults if input is "
                "a nested tensor"
            )
        options = check_options(options, input, joint_shape(input, target), reduction)
    if reduction == BATCHMEAN:
        reduction, normalizer = over_batch(input)
        options = options._replace(normalizer=normalizer)
    variant = spec.variants[sum(bool(flag) << bit for bit, flag in enumerate(flags))]
    return Call.of(variant, input, target, reduction, third, result_dtype(input, target, dtype), options, second)
