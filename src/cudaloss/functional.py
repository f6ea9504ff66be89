"""The losses as functions, which can replace PyTorch's by changing the import."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from . import _checks
from ._faces import define_function, legacy_reduction  # noqa: F401  (used by the generated code)
from ._ops import KERNELS, PLAIN_TENSORS
from ._specs import SPECS, LossSpec

__all__ = [spec.function for spec in SPECS]  # pyright: ignore[reportUnsupportedDunderAll]


def _caller(spec: LossSpec) -> Callable[..., Tensor]:
    """What the function of `spec` does with its arguments."""
    quick, thorough = KERNELS[spec.name]
    op = getattr(torch.ops.cudaloss, spec.name)

    def as_op(input, target, reduction, parameter, dtype):
        own = (parameter,) if spec.parameter else ()
        return op(input, target, reduction, *own, dtype=dtype)

    def call(input, target, reduction, parameter, dtype):
        if torch.compiler.is_compiling():
            return as_op(input, target, reduction, parameter, dtype)
        result = quick(input, target, reduction, parameter, dtype)
        if result is not None:
            return result
        if type(input) not in PLAIN_TENSORS or type(target) not in PLAIN_TENSORS:
            parameter = _checks.check(spec, input, target, reduction, parameter, dtype)
            result = as_op(input, target, reduction, parameter, dtype)  # a subclass sees the op
        else:
            # The dispatcher would only lead back here.
            result = thorough(input, target, reduction, parameter, dtype)
        if input.shape != target.shape:
            warnings.warn(
                f"target has shape {tuple(target.shape)}, input {tuple(input.shape)}: the loss is of the two broadcast "
                "together, which is seldom what is meant. Give them the same shape.",
                stacklevel=3,
            )
        return result

    return call


for _spec in SPECS:
    globals()[f"_{_spec.function}"] = _caller(_spec)
    define_function(_spec, globals())
