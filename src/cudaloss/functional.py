"""The losses as functions, which can replace PyTorch's by changing the import."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling  # noqa: F401  (used by the generated code)
from torch.nn._reduction import legacy_get_string  # noqa: F401  (likewise)
from torch.overrides import handle_torch_function, has_torch_function

from . import _checks
from ._dispatch import is_captured
from ._faces import define_function
from ._ops import KERNELS
from ._options import Options
from ._specs import SPECS, LossSpec

__all__ = [spec.function for spec in SPECS]  # pyright: ignore[reportUnsupportedDunderAll]


def _unusual(spec: LossSpec) -> Callable[..., Tensor]:
    """What the function of `spec` does with all but the commonest calls."""
    thorough, op = KERNELS[spec.name].thorough, getattr(torch.ops.cudaloss, spec.name)

    def call(input: Any, target: Any, reduction: Any, parameter: Any, dtype: Any, *options: Any) -> Any:
        own = {spec.parameter.name: parameter} if spec.parameter else {}
        keywords = {**own, "dtype": dtype, **Options(*options)._asdict()}
        tensors = input, target, *options[:3]
        if has_torch_function(tensors):  # a subclass, fx's Proxy, a mode
            public = globals()[spec.function]
            return handle_torch_function(public, tensors, input, target, reduction=reduction, **keywords)
        if torch.compiler.is_compiling() or is_captured():
            # A trace has the op in it, which takes tensors alone.
            normalizer = keywords["normalizer"]
            if normalizer is not None and not isinstance(normalizer, Tensor):
                normalizer = _checks.check_number_normalizer(normalizer, reduction)
                wide = torch.float32 if input.device.type == "mps" else torch.float64
                keywords["normalizer"] = input.new_full((), normalizer, dtype=wide)
            return op(input, target, reduction, **keywords)
        result = thorough(input, target, reduction, parameter, dtype, *options)
        if input.shape != target.shape:
            warnings.warn(
                f"Using a target size ({target.size()}) that is different to the input size ({input.size()}). This "
                "will likely lead to incorrect results due to broadcasting. Please ensure they have the same size.",
                stacklevel=3,
            )
        return result

    return call


for _spec in SPECS:
    globals()[f"_fused_{_spec.name}"] = KERNELS[_spec.name].fused
    globals()[f"_unusual_{_spec.name}"] = _unusual(_spec)
    define_function(_spec, globals())
