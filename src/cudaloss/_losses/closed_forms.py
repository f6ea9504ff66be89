"""Functions with derivatives in closed form, under autograd and every transform.

Autograd would follow each step of a formula: that costs more kernels, and gives NaN where a step has an infinite slope
and the next a slope of 0 (a probability of 0, a logit of -inf). So each definition of a loss brings its slopes, which
are right there too. Autograd differentiates only the slopes, for the second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

Slopes = Sequence["Tensor | None"]


class Definition(Protocol):
    """A function of tensors. With `dim`, the values lack that dimension of the operands, as a row's loss does."""

    @property
    def dim(self) -> int | None: ...

    @property
    def value(self) -> Callable[..., Tensor]:
        """Of the operands."""
        ...

    @property
    def slopes(self) -> Callable[..., Slopes]:
        """Of which operands need one, and the operands: the derivatives, in the operands' shape; at least the needed
        ones."""
        ...


def savable(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in `dtype`; of a tensor of inference mode a copy, because autograd refuses to save it."""
    x = x.to(dtype)
    if torch.compiler.is_dynamo_compiling():  # which cannot ask; what it traces is never in inference mode
        return x
    return x.clone() if x.is_inference() and not torch.is_inference_mode_enabled() else x


# PyTorch's own stubs give the static methods other parameters than its documentation does.
# pyright: reportIncompatibleMethodOverride=false
class _Function(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(definition: Definition, *operands: Tensor) -> Tensor:
        return definition.value(*operands)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.definition, *operands = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        definition, needed = ctx.definition, ctx.needs_input_grad[1:]
        slopes = definition.slopes(needed, *ctx.saved_tensors)
        grad_output = grad_output if definition.dim is None else grad_output.unsqueeze(definition.dim)
        pairs = zip(slopes, needed, strict=True)
        return None, *(grad_output * slope if wanted and slope is not None else None for slope, wanted in pairs)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Tensor | None:
        definition, found = ctx.definition, None
        slopes = definition.slopes([tangent is not None for tangent in tangents], *ctx.saved_tensors)
        for slope, tangent in zip(slopes, tangents, strict=True):
            if tangent is not None and slope is not None:
                # 0 for a tangent of 0, also if the slope is not finite: another class's can be so.
                part = tangent * torch.where((tangent == 0) & ~slope.isfinite(), 0, slope)
                part = part if definition.dim is None else part.sum(definition.dim)
                found = part if found is None else found + part
        return found


def _composes() -> bool:
    """Whether to use plain ops, because a Function is not possible: under Dynamo, and under ``functionalize``."""
    if torch.compiler.is_dynamo_compiling():
        return True
    if not torch._C._are_functorch_transforms_active():
        return False
    layers = _functorch.get_interpreter_stack() or ()
    return any(layer.key() == _functorch.TransformType.Functionalize for layer in layers)


def evaluate(definition: Definition, *operands: Tensor | None) -> Tensor:
    """The definition's value, whose derivatives are its slopes."""
    value: Any = definition.value(*operands) if _composes() else _Function.apply(definition, *operands)
    return value
