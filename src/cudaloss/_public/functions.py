"""What the public functions call."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from .._call.varying import as_tensor
from .._losses.options import options_of
from .._losses.table import PUBLIC, Argument, LossSpec
from .._ops import checks
from .._ops.dispatch import is_captured
from .._ops.private import OPS, PACKAGE, compiled_name
from .ops import KERNELS

BY_NAME = {spec.name: spec for spec in PUBLIC}


def _public(spec: LossSpec) -> Callable[..., Tensor]:
    """The function of `spec`, whose module imports this one."""
    return getattr(sys.modules[f"{PACKAGE}.functional"], spec.function)


def _for_op(third: Argument, input: Tensor, own: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the form for the op. Its third operand has one name for a float and another for a tensor, or is
    always a tensor."""
    value = own.pop(third.name)
    if third.default is not None:
        return {**own, f"{third.name}_tensor" if isinstance(value, Tensor) else third.name: value}
    if value is not None and not isinstance(value, Tensor):
        value = checks.check_number(third, value, f"{third.accepts} or a tensor")
        value = None if not third.of_call and type(value) is float and value == third.number else value
        value = None if value is None else as_tensor(value, input)
    return {**own, third.name: value}


def _is_compiled() -> bool:
    """Whether torch.compile captures the call. An exported graph has the public op. Reads the flag of is_exporting()
    itself: in torch 2.11 a trace of that function is always True, and each number would be compiled anew."""
    return torch.compiler.is_compiling() and not torch.compiler._is_exporting_flag


def _as_tensor(normalizer: Any, input: Tensor, reduction: Any) -> Tensor:
    if isinstance(normalizer, Tensor):
        return normalizer
    return as_tensor(checks.check_number_normalizer(normalizer, reduction), input)


def _unusual(spec: LossSpec) -> Callable[..., Tensor]:
    """What the function of `spec` calls except in the commonest cases. A compiler guards each attribute that it reads
    in a call, and checks the guards in each step; so the spec's are read here."""
    thorough, beside = KERNELS[spec.name].thorough, tuple(row.name for row in options_of(spec) if row.name != "dtype")
    op, compiled = (getattr(OPS, name) for name in (spec.name, compiled_name(spec.name)))
    places, further, reductions = spec.places, spec.operands[2:], spec.reductions
    third, of_rows, needs_same_shape = spec.parameter, spec.of_rows, spec.same_shape
    first, second = spec.operands[:2]

    def call(input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, *options: Any) -> Any:
        named = {name: own[place] for place, name in places}
        named = {**named, "dtype": dtype, **dict(zip(beside, options, strict=True))}
        operands = input, target, *(named.pop(name) for name in further)
        tensors = *operands, *own[:1], *options[:3]
        if has_torch_function(tensors):  # a subclass, fx's Proxy, a mode
            return handle_torch_function(_public(spec), tensors, *operands, reduction=reduction, **named)
        if needs_same_shape:
            checks.check_same_shape(input, target)
        if torch.compiler.is_compiling() or is_captured():
            # A trace contains the op, which takes only tensors.
            if reduction not in reductions:
                checks.check_reduction(spec, reduction)
            if named["normalizer"] is not None:
                named["normalizer"] = _as_tensor(named["normalizer"], input, reduction)
            if third is not None:
                named = _for_op(third, input, named)
            return (compiled if _is_compiled() else op)(*operands, reduction=reduction, **named)
        result = thorough(input, target, reduction, own, dtype, *options)
        if not of_rows and input.shape != target.shape:
            warnings.warn(
                f"Using a {second} size ({target.size()}) that is different to the {first} size ({input.size()}). This "
                "will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
                stacklevel=3,
            )
        return result

    return call


def calls_of(name: str) -> tuple[Callable[..., Tensor | None], Callable[..., Tensor]]:
    """What a function calls: first the fused call, which gives None except in the commonest cases, then the other."""
    return KERNELS[name].fused, _unusual(BY_NAME[name])
