"""A row's formula as it is written, and its derivatives by SymPy, over numbers of any width: what the tests and the
accuracy table count errors against.

A module `m` says what numbers are: ``numpy`` for arrays of double-doubles, ``torch`` for float64 tensors,
``double_double`` for pairs of these.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import sympy

from .._losses.table import LossSpec, OfDifference

Number = Any  # of a module's type, or a float
Expression = Any  # SymPy's; its stubs hardly fit

LOSS, INPUT_SLOPE, TARGET_SLOPE = WHICH = range(3)


class Term(NamedTuple):
    """The value for each element: a number, and the larger of its terms of opposite sign."""

    number: Number
    size: Number


class sigmoid(sympy.Function):
    def fdiff(self, argindex: int = 1) -> Expression:
        x: Expression = self.args[0]
        of: Any = sigmoid
        return of(x) * of(-x)


class softplus(sympy.Function):
    def fdiff(self, argindex: int = 1) -> Expression:
        return sigmoid(self.args[0])


class log1p(sympy.Function):
    def fdiff(self, argindex: int = 1) -> Expression:
        x: Expression = self.args[0]
        return 1 / (1 + x)


class stirling(sympy.Function):
    """t log(t) - t + log(2 pi t) / 2 for t above 1, otherwise 0."""

    def fdiff(self, argindex: int = 1) -> Expression:
        return stirling_slope(self.args[0])


class stirling_slope(sympy.Function):
    pass


class log_2_pi(sympy.Function):
    """The constant, for any argument."""

    def fdiff(self, argindex: int = 1) -> Expression:
        return sympy.Integer(0)


class log_cosh(sympy.Function):
    def fdiff(self, argindex: int = 1) -> Expression:
        return sympy.tanh(self.args[0])


def _sigmoid(m: Any, x: Number) -> Number:
    e = m.exp(-m.where(x > 0, x, -x))  # its slope is not 0 at 0
    return m.where(x > 0, 1.0, e) / (e + 1.0)


def _log_cosh(m: Any, x: Number) -> Number:
    """log1p(cosh(z) - 1) for a small z = |x|, with cosh(z) - 1 = (1 - e)^2 / (2 e) and e = exp(-z)."""
    z = m.where(x < 0.0, -x, x)  # its slope is not 0 at 0
    few = m.where(z > 100.0, 100.0, z)  # for larger z only z changes
    less = -m.expm1(-few)
    near = m.where(z < 1.0, less * less / (less * -2.0 + 2.0), 1.0)
    far = z + m.log1p(m.exp(few * -2.0)) + -m.log1p(m.exp(m.zeros_like(z)))
    return m.where(z < 1.0, m.log1p(near), far)


def _tanh(m: Any, x: Number) -> Number:
    z = m.abs(x)
    less = -m.expm1(m.where(z > 100.0, 100.0, z) * -2.0)
    return m.sign(x) * less / (less * -1.0 + 2.0)


_LOG_2_PI = 1.8378770664093456, -7.756588316134483e-17  # and its rounding error in float64


def _log_2_pi(m: Any, x: Number) -> Number:
    return m.zeros_like(x) + _LOG_2_PI[0] + _LOG_2_PI[1]


def _stirling(m: Any, t: Number) -> Number:
    above = m.where(t > 1.0, t, 1.0)
    log = m.log(above)
    return m.where(t > 1.0, above * log - above + (log + _log_2_pi(m, above)) * 0.5, 0.0)


def _stirling_slope(m: Any, t: Number) -> Number:
    above = m.where(t > 1.0, t, 1.0)
    return m.where(t > 1.0, m.log(above) + 0.5 / above, 0.0)


def _largest(m: Any, a: Number, b: Number) -> Number:
    """NaN for NaN. At a number b the slope is that of a, as of PyTorch's clamp."""
    if isinstance(a, float):
        a, b = b, a
    if isinstance(a, float):
        return max(a, b)
    return m.where(a != a, a, m.where(a < b, b, a))


def _step(m: Any, x: Number, _: Number) -> Number:
    """The slope of Max(x, 0): 1 at 0."""
    return m.where(x < 0.0, m.zeros_like(x), m.zeros_like(x) + 1.0)


FUNCTIONS: dict[type, Callable[..., Number]] = {
    sympy.Abs: lambda m, x: m.abs(x),
    sympy.sign: lambda m, x: m.where(x != x, x, m.sign(x)),  # PyTorch's sign gives 0 for NaN
    softplus: lambda m, x: m.logaddexp(x, m.zeros_like(x)),
    sigmoid: _sigmoid,
    log_cosh: _log_cosh,
    sympy.tanh: _tanh,
    sympy.exp: lambda m, x: m.exp(x),
    sympy.log: lambda m, x: math.log(x) if isinstance(x, float) else m.log(x),
    sympy.Max: _largest,
    sympy.Heaviside: _step,
    log1p: lambda m, x: m.log1p(x),
    stirling: _stirling,
    stirling_slope: _stirling_slope,
    log_2_pi: _log_2_pi,
}
_FAR = 1e75  # of which float64 can represent the fourth power
# How a loss with label_smoothing moves its targets.
_SMOOTHED = "target * (1 - label_smoothing) + label_smoothing / 2"


def _parsed(text: str, names: dict[str, Any]) -> Expression:
    """Parses ``X where C, else Y``, with ``|d|`` for an absolute value. Y can have cases in turn, and C be ``d == 1``,
    which Python would compare at once."""
    value, _, rest = text.partition(" where ")
    if rest:
        condition, _, other = rest.partition(", else ")
        return sympy.Piecewise((_parsed(value, names), _parsed(condition, names)), (_parsed(other, names), sympy.true))
    sympify: Any = sympy.sympify
    value = re.sub(r"(\w+) == (\S+)", r"Eq(\1, \2)", re.sub(r"\|(\w+)\|", r"Abs(\1)", value))
    return sympify(value, names)


def _as_log_cosh(e: Expression) -> Expression:
    return log_cosh(e.args[0].args[0])


@functools.cache
def _expressions(spec: LossSpec) -> tuple[Expression, ...]:
    """The loss, and its derivatives for both operands."""
    names = [*spec.operands, "d", *(parameter.name for parameter in spec.parameters)]
    symbols = {name: sympy.Symbol(name, real=True) for name in names}
    functions = (softplus, sigmoid, log1p, stirling, log_2_pi)
    known = {**symbols, **{function.__name__: function for function in functions}}
    loss = _parsed(spec.formula, known)
    loss = loss.replace(lambda e: e.func == sympy.log and e.args[0].func == sympy.cosh, _as_log_cosh)
    if isinstance(spec.terms, OfDifference):
        slope = loss.diff(symbols["d"])
        return loss, slope, -slope
    if "label_smoothing" in symbols:
        loss = loss.subs(symbols["target"], _parsed(_SMOOTHED, known))
    if spec.derivatives:
        return loss, *(_parsed(text, known) for text in spec.derivatives)
    return loss, *(loss.diff(symbols[name]) for name in spec.operands)


def _product(m: Any, factors: list[Number]) -> Number:
    """0 if one factor is 0 and another infinite: a term without weight does not count. Not for operands alone."""
    product = math.prod(factors[1:], start=factors[0])
    if all(isinstance(factor, float) for factor in factors):
        return product
    is_zero = functools.reduce(operator.or_, (factor == 0 for factor in factors))
    is_nan = functools.reduce(operator.or_, (factor != factor for factor in factors))
    return m.where(is_zero & (product != product) & (is_nan == 0), 0.0, product)


def _evaluated(m: Any, e: Expression, of: dict[Any, Number]) -> Number:
    if e.is_Symbol:
        return of[e.name]
    if e.is_Number:
        return float(e)
    if e.is_Piecewise:
        (value, condition), (other, _) = e.args
        found = m.where(*(_evaluated(m, part, of) for part in (condition, value, other)))
        compared = (_evaluated(m, part, of) for part in condition.args)
        for side in (side for side in compared if not isinstance(side, float)):
            found = m.where(side == side, found, side)
        return found
    arguments = [_evaluated(m, argument, of) for argument in e.args]
    if e.is_Add:
        return sum(arguments[1:], start=arguments[0])
    if e.is_Mul:
        is_term = any(not (argument.is_Symbol or argument.is_Number) for argument in e.args)
        return _product(m, arguments) if is_term else math.prod(arguments[1:], start=arguments[0])
    if isinstance(e, sympy.Equality):
        return arguments[0] == arguments[1]
    if isinstance(e, sympy.GreaterThan | sympy.LessThan):
        a, b = arguments if isinstance(e, sympy.GreaterThan) else reversed(arguments)
        return (a < b) == 0
    if isinstance(e, sympy.StrictGreaterThan | sympy.StrictLessThan):
        return arguments[0] > arguments[1] if isinstance(e, sympy.StrictGreaterThan) else arguments[0] < arguments[1]
    if e.is_Pow and not e.exp.is_Number and float(arguments[1]) % 0.5 != 0:
        return m.exp(m.log(arguments[0]) * arguments[1])
    if e.is_Pow:
        # For whole exponents, and for halves of odd ones.
        base, exponent = arguments[0], float(arguments[1])
        if exponent == 0:
            return m.zeros_like(base) + 1.0
        base, exponent = (base, int(exponent)) if exponent % 1 == 0 else (m.sqrt(base), int(2 * exponent))
        power = math.prod([base] * (abs(exponent) - 1), start=base)
        return power if exponent > 0 else 1.0 / power
    if e not in of:  # a slope's terms share the expensive parts
        of[e] = FUNCTIONS[type(e)](m, *arguments)
    return of[e]


def term(spec: LossSpec, which: int, m: Any, x: Number, t: Number, third: Number, second: Number = None) -> Term:
    """The single losses (``LOSS``), or their derivatives (``INPUT_SLOPE``, ``TARGET_SLOPE``). A loss of the difference
    is judged by its own size."""
    second = spec.second_default if second is None else second
    of: dict[Any, Number] = {**dict(zip(spec.operands, (x, t), strict=True)), **spec.own(third, second)}
    far = None
    if isinstance(spec.terms, OfDifference):
        d = of["d"] = x - t
        if not spec.is_rational:  # its formulas are Inf / Inf at infinity: use the limits
            far = m.abs(d) == math.inf
            of["d"] = m.where(far, m.sign(d) * _FAR, d)
    e = _expressions(spec)[which]
    inner = e.args[0][0] if e.is_Piecewise else e  # its other branch is a single number
    summed = () if isinstance(spec.terms, OfDifference) else inner.args if inner.is_Add else (inner,)
    parts = [_evaluated(m, part, of) for part in summed]
    number = sum(parts[1:], start=parts[0]) if parts and inner is e else _evaluated(m, e, of)
    if far is not None and which == LOSS:
        number = m.where(far, math.inf, number)
    number = m.where(x == x, m.where(t == t, number, t), x)  # NaN for NaN, also in a derivative that would not show it
    size = m.abs(number)
    for part in (abs(part) if isinstance(part, float) else m.abs(part) for part in parts):
        size = m.where(part > size, part, size)
    return Term(number, size)
