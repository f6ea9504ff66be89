"""What the public functions call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from . import _checks
from ._dispatch import is_captured
from ._ops import KERNELS
from ._options import Options
from ._private import compiled_name
from ._row_ops import KERNELS as ROW_KERNELS
from ._row_options import options_of
from ._specs import PUBLIC, LossSpec, RowSpec
from ._varying import as_tensor

BY_NAME = {spec.name: spec for spec in PUBLIC}


def _public(spec: LossSpec) -> Callable[..., Tensor]:
    """The function of `spec`, whose module imports this one."""
    return getattr(sys.modules[f"{__package__}.functional"], spec.function)


def _for_op(spec: LossSpec, input: Tensor, own: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the form for the op. Its third operand has one name for a float and another for a tensor, or is
    always a tensor."""
    third = spec.parameter
    if third is None:
        return own
    value = own.pop(third.name)
    if third.default is not None:
        return {**own, f"{third.name}_tensor" if isinstance(value, Tensor) else third.name: value}
    if value is not None and not isinstance(value, Tensor):
        value = _checks.check_number(third, value, f"{third.accepts} or a tensor")
        value = None if not third.of_call and type(value) is float and value == third.number else value
        value = None if value is None else as_tensor(value, input)
    return {**own, third.name: value}


def _ops_of(spec: LossSpec) -> tuple[Any, Any]:
    """The public op, and the one of a compiled call."""
    return getattr(torch.ops.cudaloss, spec.name), getattr(torch.ops.cudaloss, compiled_name(spec.name))


def _is_compiled() -> bool:
    """Whether torch.compile captures the call. An exported graph has the public op."""
    return torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def _as_tensor(normalizer: Any, input: Tensor, reduction: Any) -> Tensor | None:
    if normalizer is None or isinstance(normalizer, Tensor):
        return normalizer
    return as_tensor(_checks.check_number_normalizer(normalizer, reduction), input)


def _unusual(spec: LossSpec, thorough: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What the function of `spec` calls except in the commonest cases."""
    op, compiled = _ops_of(spec)

    def call(input: Any, target: Any, reduction: Any, parameter: Any, second: Any, dtype: Any, *options: Any) -> Any:
        own = spec.own(parameter, second)
        keywords = {"dtype": dtype, **Options(*options)._asdict()}
        tensors = input, target, *options[:3], parameter
        if has_torch_function(tensors):  # a subclass, fx's Proxy, a mode
            return handle_torch_function(_public(spec), tensors, input, target, reduction=reduction, **own, **keywords)
        if spec.same_shape:
            _checks.check_same_shape(input, target)
        if torch.compiler.is_compiling() or is_captured():
            # A trace contains the op, which takes only tensors.
            _checks.check_reduction(spec, reduction)
            keywords["normalizer"] = _as_tensor(keywords["normalizer"], input, reduction)
            traced = compiled if _is_compiled() else op
            return traced(input, target, reduction=reduction, **_for_op(spec, input, own), **keywords)
        result = thorough(input, target, reduction, parameter, second, dtype, *options)
        if input.shape != target.shape:
            warnings.warn(
                f"Using a target size ({target.size()}) that is different to the input size ({input.size()}). This "
                "will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
                stacklevel=3,
            )
        return result

    return call


def _unusual_of_rows(spec: RowSpec, thorough: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same for a loss of rows."""
    (op, compiled), beside = _ops_of(spec), [row.name for row in options_of(spec)][:-1]

    def call(input: Any, target: Any, reduction: Any, own: Any, dtype: Any, *options: Any) -> Any:
        given = {**spec.named(own), "dtype": dtype, **dict(zip(beside, options, strict=True))}
        operands = input, target, *(given.pop(name) for name in spec.operands[2:])
        tensors = *operands, *own[:1], *options[:3]
        if has_torch_function(tensors):
            return handle_torch_function(_public(spec), tensors, *operands, reduction=reduction, **given)
        if torch.compiler.is_compiling() or is_captured():
            _checks.check_reduction(spec, reduction)
            given["normalizer"] = _as_tensor(given["normalizer"], input, reduction)
            traced = compiled if _is_compiled() else op
            return traced(*operands, reduction=reduction, **given)
        return thorough(input, target, reduction, own, dtype, *options)

    return call


def calls_of(name: str) -> tuple[Any, Any]:
    """What a function calls: first the fused call, which gives None except in the commonest cases, then the other. Of a
    loss with flags one of each for every variant."""
    spec = BY_NAME[name]
    if isinstance(spec, RowSpec):
        kernel = ROW_KERNELS[name]
        return kernel.fused, _unusual_of_rows(spec, kernel.thorough)
    kernels = KERNELS[name]
    fused = tuple(kernel.fused for kernel in kernels)
    unusual = tuple(_unusual(of, kernel.thorough) for of, kernel in zip(spec.variants, kernels, strict=True))
    return (fused, unusual) if spec.flags else (fused[0], unusual[0])
