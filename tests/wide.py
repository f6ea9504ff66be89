"""Arrays of double-doubles (106 bits). NumPy's long double is float64 on Apple silicon and software on aarch64, so the
oracles use these: they are written with NumPy's functions, and the arithmetic is the package's own. Beside float32 and
halves float64 has digits enough, and takes a fiftieth of the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cudaloss.bench import double_double as dd
from cudaloss.bench.double_double import Pair

Numbers = Any  # Wide or np.ndarray


def numbers(*tensors: torch.Tensor | None) -> Callable[[Any], Numbers]:
    """What makes the numbers of an oracle of these operands from tensors, arrays and numbers."""
    is_wide = any(x is not None and x.dtype == torch.float64 for x in tensors)

    def made(x: Any) -> Numbers:
        x = x.detach().cpu().double().numpy() if isinstance(x, torch.Tensor) else x
        return Wide.of(x) if is_wide else np.asarray(x, np.float64)

    return made


def _tensor(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.require(x, requirements=("C", "W")))


def _pair(x: Any) -> Pair:
    x = Wide.of(x)
    return Pair(_tensor(x.hi), _tensor(x.lo))


def _tanh(x: Pair) -> Pair:
    less = -dd.expm1(dd.abs(x).scaled(-2.0))
    return dd.where(x.hi < 0, -less, less) / (less.scaled(-1.0) + 2.0)


def _larger(a: Pair, b: Pair) -> Pair:
    """NaN for NaN, as np.maximum."""
    is_first = (a.hi != a.hi) | (a.hi > b.hi) | ((a.hi == b.hi) & (a.lo >= b.lo))
    return Pair(torch.where(is_first, a.hi, b.hi), torch.where(is_first, a.lo, b.lo))


_FUNCTIONS: dict[Any, Callable[..., Pair]] = {
    np.add: lambda a, b: a + b,
    np.subtract: lambda a, b: a - b,
    np.multiply: lambda a, b: a * b,
    np.true_divide: lambda a, b: a / b,
    np.negative: lambda a: -a,
    np.positive: lambda a: a,
    np.absolute: dd.abs,
    np.sign: dd.sign,
    np.sqrt: dd.sqrt,
    np.exp: dd.exp,
    np.expm1: dd.expm1,
    np.log: dd.log,
    np.log1p: dd.log1p,
    np.logaddexp: dd.logaddexp,
    np.tanh: _tanh,
    np.maximum: _larger,
}
# Of the upper parts, and of the lower ones where the upper are equal.
_COMPARED = {
    np.less: (np.less, np.less),
    np.less_equal: (np.less, np.less_equal),
    np.greater: (np.greater, np.greater),
    np.greater_equal: (np.greater, np.greater_equal),
    np.equal: (lambda a, b: np.zeros(np.broadcast(a, b).shape, bool), np.equal),
    np.not_equal: (np.not_equal, np.not_equal),
}
_OF_UPPER = {np.isnan, np.isfinite, np.isinf}


class Wide(np.lib.mixins.NDArrayOperatorsMixin):
    """The unevaluated sums of two float64 arrays of one shape."""

    def __init__(self, hi: Any, lo: Any = None) -> None:
        self.hi = np.asarray(hi, np.float64)
        self.lo = np.zeros_like(self.hi) if lo is None else np.asarray(lo, np.float64)

    @classmethod
    def of(cls, x: Any) -> Wide:
        return x if isinstance(x, Wide) else cls(x)

    @classmethod
    def pair(cls, x: Pair) -> Wide:
        return cls(x.hi.numpy(), x.lo.numpy())

    def each(self, function: Callable[..., Any], *rest: Any, **named: Any) -> Wide:
        """Of a function that only moves numbers."""
        return Wide(function(self.hi, *rest, **named), function(self.lo, *rest, **named))

    # ---- NumPy's functions ----

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **named: Any) -> Any:
        out = named.pop("out", (None,))[0]
        if method == "reduce" and ufunc is np.maximum:
            found = Wide.of(inputs[0][0])
            for x in inputs[0][1:]:
                found = np.maximum(found, x)
            return found
        if method != "__call__":
            return NotImplemented
        if ufunc in _OF_UPPER:
            return ufunc(inputs[0].hi)
        if ufunc in _COMPARED:
            a, b = map(Wide.of, inputs)
            upper, lower = _COMPARED[ufunc]
            return upper(a.hi, b.hi) | ((a.hi == b.hi) & lower(a.lo, b.lo))
        if ufunc is np.power:
            found = Wide.of(1.0)
            for _ in range(abs(int(inputs[1]))):
                found = found * inputs[0]
            found = 1.0 / found if inputs[1] < 0 else found
        elif ufunc in _FUNCTIONS:
            found = Wide.pair(_FUNCTIONS[ufunc](*map(_pair, inputs)))
        else:
            return NotImplemented
        if out is not None:
            out.hi, out.lo = found.hi, found.lo
            return out
        return found

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        if function is np.where:
            condition, a, b = args
            a, b = Wide.of(a), Wide.of(b)
            return Wide(np.where(condition, a.hi, b.hi), np.where(condition, a.lo, b.lo))
        if function in (np.zeros_like, np.ones_like, np.full_like):
            return Wide(function(args[0].hi, *args[1:], **named))
        if function is np.broadcast_arrays:
            shape = np.broadcast_shapes(*(x.shape for x in args))
            return [np.broadcast_to(Wide.of(x), shape) for x in args]
        if function in (np.broadcast_to, np.moveaxis, np.expand_dims, np.take_along_axis, np.delete):
            return args[0].each(function, *args[1:], **named)
        if function is np.put_along_axis:
            x, places, values, axis = args
            values = Wide.of(values)
            np.put_along_axis(x.hi, places, values.hi, axis)
            np.put_along_axis(x.lo, places, values.lo, axis)
            return None
        return NotImplemented

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return np.asarray(self.hi + self.lo, dtype or np.float64)

    # ---- an array's methods ----

    @property
    def shape(self) -> tuple[int, ...]:
        return self.hi.shape

    @property
    def ndim(self) -> int:
        return self.hi.ndim

    @property
    def size(self) -> int:
        return self.hi.size

    def __len__(self) -> int:
        return len(self.hi)

    def __float__(self) -> float:
        return float(self.hi + self.lo)

    def __getitem__(self, places: Any) -> Wide:
        return Wide(self.hi[places], self.lo[places])

    def __setitem__(self, places: Any, values: Any) -> None:
        values = Wide.of(values)
        self.hi[places], self.lo[places] = values.hi, values.lo

    def copy(self) -> Wide:
        return self.each(np.copy)

    def reshape(self, *shape: Any) -> Wide:
        return self.each(lambda x: x.reshape(*shape))

    def astype(self, dtype: Any) -> np.ndarray:
        return np.asarray(self, dtype)

    def squeeze(self, axis: Any) -> Wide:
        return self.each(np.squeeze, axis)

    def argmax(self, axis: int | None = None) -> Any:
        return self.hi.argmax(axis)

    def max(self, axis: int | None = None, keepdims: bool = False) -> Wide:
        """NaN if one is NaN."""
        if axis is None:
            return self.reshape(-1).max(0)
        places = np.expand_dims(self.hi.argmax(axis), axis)
        found = np.take_along_axis(self, places, axis)
        return found if keepdims else found.squeeze(axis)

    def sum(self, axis: Any = None, keepdims: bool = False) -> Wide:
        axes = tuple(range(self.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        found = self
        for dim in (a % self.ndim for a in axes):
            found = np.moveaxis(found, dim, 0)
            while len(found) > 1:  # by halves, all of one level at once
                odd, half = found[2 * (len(found) // 2) :], len(found) // 2
                summed = found[:half] + found[half : 2 * half]
                found = Wide(np.concatenate([summed.hi, odd.hi]), np.concatenate([summed.lo, odd.lo]))
            found = np.moveaxis(found if len(found) else Wide(np.zeros((1, *found.shape[1:]))), 0, dim)
        return found if keepdims else found.squeeze(axes)
