"""The losses with all their keywords, from the text of the rows' formulas and boolean indexing, in double-doubles; for
float32 and halves in float64. It does not use the reference, which it judges too."""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from cudaloss._losses.options import NONE, Options
from cudaloss._losses.table import LossSpec
from cudaloss.bench import symbolic
from cudaloss.bench.symbolic import Term
from wide import Wide

Numbers = Wide | np.ndarray


def _needs_wide(spec: LossSpec, *tensors: object) -> bool:
    """Whether float64 has too few digits: it is judged itself, or a root cancels in the formula for a small difference.
    Otherwise float64 saves most of the time."""
    return "sqrt" in spec.formula or any(isinstance(x, Tensor) and x.dtype == torch.float64 for x in tensors)


def _rounded(x: Numbers) -> Tensor:
    return torch.from_numpy(np.array(x, dtype=np.float64))


def _sum_to(x: Numbers, shape: torch.Size) -> Numbers:
    """The sum over the dimensions in which an operand of `shape` was broadcast."""
    missing = x.ndim - len(shape)
    stretched = tuple(i for i in range(x.ndim) if i < missing or (shape[i - missing] == 1 and x.shape[i] != 1))
    return x.sum(axis=stretched, keepdims=True).reshape(shape)


class Exact:
    """A loss and its gradients, each with its size, the magnitudes of the summed terms; or of the result if nothing
    cancels. Roundings of the terms are proportional to it."""

    def __init__(
        self,
        spec: LossSpec,
        input: Tensor,
        target: Tensor,
        reduction: str,
        parameter: float | Tensor,
        options: Options = NONE,
        second: float | None = None,
        of_float64: bool = False,
    ) -> None:
        """`of_float64`: float64 results of narrower operands are judged, too."""
        is_wide = of_float64 or _needs_wide(spec, input, target, parameter, options.weight, options.normalizer)
        self._numbers = Wide if is_wide else np.asarray
        self.shape = torch.broadcast_shapes(input.shape, target.shape)
        self.operand_shapes = input.shape, target.shape

        def whole(x: Tensor) -> Tensor:
            return x.detach().cpu().expand(self.shape).reshape(-1)

        selected = torch.ones(self.shape, dtype=torch.bool).view(-1)
        if options.mask is not None:
            selected &= whole(options.mask)
        if options.ignore_nan:
            selected &= ~whole(target).isnan()
        chosen = selected.nonzero()[:, 0]
        weight = torch.ones(()) if options.weight is None else whole(options.weight)[chosen]
        x, t = (self._read(whole(operand)[chosen]) for operand in (input, target))
        is_tensor = isinstance(parameter, Tensor)
        third = self._read(whole(parameter)[chosen]) if is_tensor else float(parameter)
        second = spec.second_default if second is None else second
        weight = self._read(weight)

        def placed(values: Numbers) -> Numbers:
            everywhere = self._numbers(np.zeros(selected.numel()))
            everywhere[chosen.numpy()] = values
            return everywhere

        @functools.cache
        def terms(which: int) -> Term:
            with np.errstate(all="ignore"):
                term = symbolic.term(spec, which, np, x, t, third, float(second))
                return Term(placed(term.number * weight), placed(term.size * abs(weight)))

        self._terms = terms
        losses = terms(symbolic.LOSS)
        kept = len(self.shape) if reduction == "none" else options.batch_dims
        self.lead = self.shape[:kept]
        self._denominators(reduction, placed(1.0 if spec.mean_over_count else weight), options)
        factor = self._numbers(float(options.scale))
        with np.errstate(all="ignore"):
            self.factors = factor / self.denominators
            value = self._totals(losses.number) * self.factors
            size = self._rows(losses.size).sum(1) * abs(self.factors) * self.condition
        self.value, self.size = _rounded(value).view(self.lead), _rounded(size).view(self.lead)

    def _read(self, x: Tensor) -> Numbers:
        return self._numbers(x.detach().cpu().double().numpy())

    def _totals(self, x: Numbers) -> Numbers:
        """Of each row."""
        return self._rows(x).sum(1)

    def _rows(self, x: Numbers) -> Numbers:
        return x.reshape(math.prod(self.lead), math.prod(self.shape[len(self.lead) :]))

    def _denominators(self, reduction: str, weights: Numbers, options: Options) -> None:
        """The divisor of each sum, and the factor by which cancelling weights magnify its error."""
        if reduction == "mean" and options.normalizer is None:
            self.denominators, sizes = self._totals(weights), self._rows(abs(weights)).sum(1)
            self.empty = self.denominators == 0
            self.condition = sizes / abs(np.where(self.empty, 1, self.denominators))
            self.condition[self.empty] = 1
            self.ill_posed = bool((self.empty & (sizes != 0)).any())  # weights that sum to 0, but are not 0
        else:
            divisor = 1.0 if options.normalizer is None else options.normalizer.item()
            self.denominators = self._numbers(np.full(math.prod(self.lead), float(divisor)))
            self.empty = np.zeros(self.denominators.shape, dtype=bool)
            self.condition = np.ones_like(self.denominators)
            self.ill_posed = False

    def gradient(self, operand: int, grad_output: Tensor) -> tuple[Tensor, Tensor]:
        """Of input (0) or of target (1), with its size."""
        incoming = self._read(grad_output.reshape(-1))
        slope, shape = self._terms((symbolic.INPUT_SLOPE, symbolic.TARGET_SLOPE)[operand]), self.operand_shapes[operand]
        with np.errstate(all="ignore"):
            factors = np.where(self.empty, 0, incoming * self.factors)
            terms = self._rows(slope.number) * factors[:, None]
            sizes = self._rows(slope.size) * abs(factors)[:, None] * self.condition[:, None]
            terms, sizes = (_sum_to(x.reshape(self.shape), shape) for x in (terms, sizes))
            return _rounded(terms), _rounded(sizes)
