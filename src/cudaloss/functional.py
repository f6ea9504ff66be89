"""The losses as functions, which can replace PyTorch's by changing the import."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from . import _checks
from ._faces import define_function, legacy_reduction  # noqa: F401  (used by the generated code)
from ._ops import KERNELS
from ._options import NONE, Options
from ._quick import PLAIN_TENSORS
from ._specs import SPECS, LossSpec

__all__ = [spec.function for spec in SPECS]  # pyright: ignore[reportUnsupportedDunderAll]


def _divided(reduction: Any, scale: Any, normalizer: Any) -> tuple[str, float, None]:
    """The reduction and the scale that a mean with a number for a normalizer comes down to."""
    _checks.check_number_normalizer(normalizer, reduction)
    _checks.check_scale(scale)
    return "sum", _checks.as_float("scale", scale) / _checks.as_float("normalizer", normalizer), None


def _caller(spec: LossSpec) -> Callable[..., Tensor]:
    """What the function of `spec` does with its arguments."""
    quick, quick_general, thorough = KERNELS[spec.name]
    op = getattr(torch.ops.cudaloss, spec.name)

    def as_op(input, target, reduction, parameter, dtype, options):
        own = (parameter,) if spec.parameter else ()
        return op(input, target, reduction, *own, dtype=dtype, **options._asdict())

    def call(input, target, reduction, parameter, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan):
        options = NONE
        if (
            weight is not None
            or mask is not None
            or normalizer is not None
            or type(scale) is not float  # a tensor, say, which must not be compared: on a GPU that waits
            or scale != 1.0
            or type(batch_dims) is not int
            or batch_dims != 0
            or ignore_nan is not False
        ):
            if normalizer is not None and not isinstance(normalizer, Tensor):
                reduction, scale, normalizer = _divided(reduction, scale, normalizer)
            options = Options(weight, mask, normalizer, scale, batch_dims, ignore_nan)
        if torch.compiler.is_compiling():
            return as_op(input, target, reduction, parameter, dtype, options)
        if options is NONE:
            result = quick(input, target, reduction, parameter, dtype)
        else:
            result = quick_general(input, target, reduction, parameter, dtype, options)
        if result is not None:
            return result
        if type(input) not in PLAIN_TENSORS or type(target) not in PLAIN_TENSORS:
            parameter = _checks.check(spec, input, target, reduction, parameter, dtype, options)
            result = as_op(input, target, reduction, parameter, dtype, options)  # a subclass sees the op
        else:
            # The dispatcher would only lead back here.
            result = thorough(input, target, reduction, parameter, dtype, options)
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
