"""The docstrings of the public functions and modules, made from a loss's row."""

from __future__ import annotations

import re
from collections.abc import Iterable
from textwrap import indent
from types import ModuleType

import torch

from cudaloss._losses.options import ROWS, Row
from cudaloss._losses.table import Argument, LossSpec, OfDifference
from tools.faces import row_docs

_FUNCTION = """``{formula}``, {of}in one pass over memory.

{replaces_function}Source of the formula: {source}.

Args:
    input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
        (plain PyTorch serves other floating dtypes, and devices other than CPU and CUDA).
    target (Tensor): {target_is}, with {target_shape} and any real
        dtype, integers and bools included; it is read without a conversion.
{options}

Returns:
    Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
    dimensions (0-d for 0), for ``"none"`` the broadcast shape. The mean over no elements is NaN, the sum is 0, and the
    gradients of both are 0. Differentiable in input, target, weight{differentiable} and normalizer, any number of
    times. A NaN that ``mask`` or ``ignore_nan`` does not leave out gives a NaN loss and a NaN gradient.

Raises:
    TypeError: an argument has the wrong type, for example a list instead of a tensor.
    ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or ``reduction`` is not ``"mean"`` beside it;
        ``batch_dims`` is negative or above the rank{shape_error}.
    RuntimeError: the shapes do not broadcast; the devices differ; a tensor has an unsupported dtype, or is sparse or
        quantized; {parameter_error}``dtype`` is not a floating one.

Example:
    >>> import torch, cudaloss
    >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    >>> loss = cudaloss.{function}(input, torch.zeros(3){given})
    >>> loss.backward()
    >>> input.grad.shape
    torch.Size([3])
"""

_MODULE = """``{formula}``{of_module}: the module of :func:`cudaloss.{function}`.

{replaces_module}Source of the formula: {source}.

Args:
{options}

Keywords of a call:
{of_call}

Shape:
    input and target have any shapes that broadcast together. The result has the shape of the first ``batch_dims``
    dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

Raises:
    TypeError: when the module is called, as the function does.
    ValueError: likewise.
    RuntimeError: likewise.

Example:
    >>> import torch, cudaloss
    >>> criterion = cudaloss.{module}(reduction="none")
    >>> criterion(torch.ones(2, 3), torch.ones(2, 3){given}).shape
    torch.Size([2, 3])
"""

_REDUCTION = 'reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss for each element.'


_BATCHMEAN = """ ``"batchmean"`` divides the sum by the first size of input."""
_MAY_LACK_LAST = "if it has that shape without the last dimension, each of its numbers is for all of that dimension"
_COUNT = """``"mean"`` divides by the sum of the weights that count."""
_OVER_COUNT = """``"mean"`` divides by the number of elements that count, as in PyTorch."""
_TENSOR = (
    "or a tensor of a floating dtype that broadcasts to the joint shape of input and target; its values are not checked"
)


def _named(spec: LossSpec, text: str) -> str:
    """What is said of input and target, with the operands' own names."""
    names: dict[str, str] = dict(zip(("input", "target"), spec.operands, strict=True))
    return re.sub(r"\b(input|target)\b", lambda found: names[found[1]], text)


def _of_third(spec: LossSpec, third: Argument) -> str:
    optional = ", optional" if third.is_optional else ""
    lacking = f"; {_MAY_LACK_LAST}" if third.may_lack_last else ""
    tensor = _named(spec, _TENSOR)
    return f"{third.name} (float or Tensor{optional}): {third.meaning}; {third.accepts},\n    {tensor}{lacking}."


def _own(spec: LossSpec) -> dict[str, str]:
    """The lines of the arguments after the operands."""
    found = {"size_average": row_docs.LEGACY, "reduction": _REDUCTION + (_BATCHMEAN if spec.batchmean else "")}
    if "weight" in spec.of_function:
        found["weight"] = _lines(spec, ROWS[:1])[0]
    if spec.parameter:
        found[spec.parameter.name] = _of_third(spec, spec.parameter)
    if spec.second:
        found[spec.second.name] = f"{spec.second.name} (float): {spec.second.meaning}; {spec.second.accepts}."
    return {**found, **{flag.name: f"{flag.name} (bool): {flag.meaning}." for flag in spec.flags}}


def _options(spec: LossSpec, rows: Iterable[Row], of_call: bool) -> str:
    own = _own(spec)
    names = [name for name in (spec.of_function if of_call else spec.signature.split()) if name in own]
    if not of_call and spec.parameter and spec.parameter.of_call:
        names.remove(spec.parameter.name)
    rows = [row for row in rows if row.name not in names]
    return indent("\n".join([*(own[name] for name in names), *_lines(spec, rows)]), "    ")


def _lines(spec: LossSpec, rows: Iterable[Row]) -> list[str]:
    count = _OVER_COUNT if spec.mean_over_count else _COUNT
    return [f"{row.name} {_named(spec, row.meaning)}".replace(_COUNT, count) for row in rows]


def _fill(template: str, spec: LossSpec, rows: Iterable[Row], of_call: bool = False) -> str:
    errors = (f"``{parameter.name}`` is not {parameter.accepts}; " for parameter in spec.parameters)
    of = "with ``d = input - target``" if isinstance(spec.terms, OfDifference) else ""
    third = spec.parameter
    of_each = [_of_third(spec, third)] if third and third.of_call else []
    per_call = [row for row in ROWS if not (row.of_module or (spec.weight_first and row.name == "weight"))]
    return _named(spec, template).format(
        formula=spec.formula,
        of=of and f"{of}, ",
        of_module=of and f", {of}",
        source=spec.source,
        function=spec.function,
        module=spec.module,
        replaces_function=_replaces("func:`torch.nn.functional", torch.nn.functional, spec.function),
        replaces_module=_replaces("class:`torch.nn", torch.nn, spec.module),
        target_is="ground truth" if spec.operands[1] == "target" else "the other predictions",
        target_shape=_named(
            spec,
            "``input``'s shape"
            if spec.same_shape
            else "a shape that broadcasts with ``input``'s (unequal shapes warn)",
        ),
        given=", torch.ones(())" * len(spec.needed),
        shape_error="; input and target differ in shape" if spec.same_shape else "",
        differentiable=f", {spec.parameter.name}" if spec.parameter else "",
        options=_options(spec, rows, of_call),
        of_call=indent("\n".join([*of_each, *_lines(spec, per_call)]), "    "),
        parameter_error="".join(errors),
    )


def _replaces(role: str, module: ModuleType, name: str) -> str:
    return f"Replaces :{role}.{name}`. " if hasattr(module, name) else ""


def function_doc(spec: LossSpec) -> str:
    if spec.of_rows:
        return row_docs.function_doc(spec, _replaces("func:`torch.nn.functional", torch.nn.functional, spec.function))
    return _fill(_FUNCTION, spec, ROWS, of_call=True)


def module_doc(spec: LossSpec) -> str:
    if spec.of_rows:
        return row_docs.module_doc(spec, _replaces("class:`torch.nn", torch.nn, spec.module))
    return _fill(_MODULE, spec, (row for row in ROWS if row.of_module))
