"""A loss's call, with its arguments checked: the one form in which all code off the hot path passes it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._losses.options import NONE, Options
from .._losses.table import VARIANTS, LossSpec, Third
from .modes import (
    IGNORE_NAN,
    LOSS,
    MEAN_OVER_COUNT,
    NORMALIZER_IS_COUNT,
    batch_dims_of,
    dtype_of,
    loss_of,
    pack,
    reduction_of,
)
from .shapes import joint_shape, rows_shape


def are_distributed(*tensors: Any) -> bool:
    """Whether one is a DTensor. There are none if their module has not been imported."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(x, module.DTensor) for x in tensors)


class _ByMode(dict[int, LossSpec]):
    """The rows, and on request a row with the other denominator of a mean: graphs that PyTorch has kept since a row
    gave another one have it in their mode, and keep its meaning."""

    def __missing__(self, mode: int) -> LossSpec:
        found = self.get(mode ^ MEAN_OVER_COUNT >> LOSS)
        if found is None:
            raise KeyError(mode)
        return replace(found, mean_over_count=not found.mean_over_count)


BY_MODE = _ByMode({variant.mode: variant for variant in VARIANTS})


class Call(NamedTuple):
    """The numbers have the places that they have in the private ops. For a loss of classes `parameter` is z_loss,
    `second` label_smoothing, and `third` the class weights."""

    spec: LossSpec
    input: Tensor
    target: Tensor
    reduction: str
    dtype: torch.dtype  # of the result
    options: Options = NONE
    third: Tensor | None = None
    parameter: float = 1.0  # the loss's third operand, if that is one number
    second: float = 0.0
    ignore_index: int = -100
    softcap: float = 0.0  # 0: none
    p: float = 2.0  # of a triplet's distances; the kernels take only 2

    @classmethod
    def of(
        cls,
        spec: LossSpec,
        input: Tensor,
        target: Tensor,
        reduction: str,
        third: Third | None,
        dtype: torch.dtype,
        options: Options = NONE,
        second: float = 0.0,
    ) -> Call:
        """With a third operand that is a number, a tensor or None."""
        own, number = (third, spec.default) if isinstance(third, Tensor) or third is None else (None, third)
        return cls(spec, input, target, reduction, dtype, options, own, number, second)

    @classmethod
    def usual(
        cls,
        spec: LossSpec,
        input: Tensor,
        target: Tensor,
        reduction: str,
        dtype: torch.dtype,
        options: Options = NONE,
        third: Tensor | None = None,
    ) -> Call:
        """With the loss's own numbers at their defaults."""
        numbers: Any = spec.default, spec.second_default
        if spec.of_vectors:
            numbers = (spec.given.get(name or "", 0.0) for name in (spec.number, spec.second_number))
        elif spec.of_rows:
            numbers = 0.0, 0.0
        return cls(spec, input, target, reduction, dtype, options, third, *numbers)

    @property
    def shape(self) -> torch.Size:
        """Of the single losses."""
        return rows_shape(self.input) if self.spec.of_rows else joint_shape(self.input, self.target)

    @property
    def rank(self) -> int:
        return self.input.dim() - 1 if self.spec.of_rows else max(self.input.dim(), self.target.dim())

    @property
    def operand(self) -> Third:
        """The third operand of a loss of elements, a number or a tensor."""
        return self.parameter if self.third is None else self.third

    def with_options(self, **options: Any) -> Call:
        return self._replace(options=self.options._replace(**options))

    def packed(self, flags: int = 0) -> tuple[Any, ...]:
        """The private ops' arguments. Those at their defaults at the end are left out."""
        weight, mask, normalizer, scale, batch_dims, ignore_nan = self.options
        how = pack(self.reduction, self.dtype, self.spec.mode, batch_dims) | (IGNORE_NAN if ignore_nan else 0) | flags
        divisor = None if normalizer is None or isinstance(normalizer, Tensor) else normalizer
        normalizer = normalizer if divisor is None else None
        call = self.input, self.target, how, self.parameter, scale, weight, mask, normalizer, divisor
        if self.ignore_index != -100 or self.softcap != 0:
            return *call, self.third, self.second, self.ignore_index, self.softcap
        return call if self.third is None and self.second == 0 else (*call, self.third, self.second)


class Arguments(NamedTuple):
    """The arguments of a private op, as its schema names them (``_CALL`` in ``_ops/private.py``)."""

    input: Tensor
    target: Tensor
    how: int
    parameter: float
    scale: float = 1.0
    weight: Tensor | None = None
    mask: Tensor | None = None
    normalizer: Tensor | None = None
    divisor: float | None = None
    third: Tensor | None = None
    second: float = 0.0
    ignore_index: int = -100
    softcap: float = 0.0


def unpacked(*arguments: Any) -> Call:
    """The call of a private op."""
    call = Arguments(*arguments)
    how, normalizer = call.how, call.normalizer if call.divisor is None else call.divisor
    if how & NORMALIZER_IS_COUNT and call.normalizer is not None:  # only gradients need it
        normalizer = torch.where(call.normalizer == 0, torch.inf, call.normalizer)
    mask = None if call.mask is None else call.mask.to(torch.bool)  # hooks on saved tensors may have changed it
    options = Options(call.weight, mask, normalizer, call.scale, batch_dims_of(how), bool(how & IGNORE_NAN))
    operands = BY_MODE[loss_of(how)], call.input, call.target, reduction_of(how), dtype_of(how), options
    return Call(*operands, call.third, call.parameter, call.second, call.ignore_index, call.softcap)
