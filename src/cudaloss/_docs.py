"""The docstrings of the public functions and modules, from a loss's row."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import indent

from ._options import ROWS, Row
from ._specs import LossSpec

_FUNCTION = """``{formula}``, with ``d = input - target``, in one pass over memory.

Replaces :func:`torch.nn.functional.{function}`. Source of the formula: {source}.

Args:
    input (Tensor): predictions, of any shape and strides; float32, float64, float16 or bfloat16 for the fused kernels
        (other floating dtypes, and devices other than CPU and CUDA, are served by plain PyTorch).
    target (Tensor): ground truth, of a shape that broadcasts with ``input``'s (unequal shapes warn) and any real
        dtype, integers and bools included, read as it is.
{options}

Returns:
    Tensor: in the unit of the formula; for ``"mean"`` and ``"sum"`` of the shape of the first ``batch_dims``
    dimensions (0-d for 0), for ``"none"`` of the broadcast shape. A mean of nothing is NaN, a sum of nothing 0, the
    gradients of both 0. Differentiable in input, target, weight and normalizer, any number of times. A NaN difference
    that is not selected out gives a NaN loss and a NaN gradient.

Raises:
    TypeError: an argument has the wrong type, a list for a tensor, say.
    ValueError: ``reduction`` is unknown; ``normalizer`` is the number 0, or comes with another reduction than
        ``"mean"``; ``batch_dims`` is negative or beyond the rank.
    RuntimeError: the shapes do not broadcast; the devices differ; a tensor has a dtype that is not taken, or is sparse
        or quantized; {parameter_error}``dtype`` is not a floating one.

Example:
    >>> import torch, cudaloss
    >>> input = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    >>> loss = cudaloss.{function}(input, torch.zeros(3))
    >>> loss.backward()
    >>> input.grad.shape
    torch.Size([3])
"""

_MODULE = """``{formula}``, with ``d = input - target``: the module of :func:`cudaloss.{function}`.

Replaces :class:`torch.nn.{module}`. Source of the formula: {source}.

Args:
{options}

Keywords of a call:
{of_call}

Shape:
    input and target have any shapes that broadcast together. The result has that of the first ``batch_dims``
    dimensions, 0-d for 0; for ``reduction="none"`` the broadcast shape.

Raises:
    TypeError: when the module is called, as the function does.
    ValueError: likewise.
    RuntimeError: likewise.

Example:
    >>> import torch, cudaloss
    >>> criterion = cudaloss.{module}(reduction="none")
    >>> criterion(torch.ones(2, 3), torch.ones(2, 3)).shape
    torch.Size([2, 3])
"""

_LEGACY = "size_average, reduce (bool, optional): deprecated, as in PyTorch; where given, they set ``reduction``."
_REDUCTION = 'reduction (str): ``"mean"`` over all elements, ``"sum"``, or ``"none"`` for one loss an element.'


def _options(spec: LossSpec, rows: Iterable[Row]) -> str:
    lines = [_LEGACY] if spec.legacy_arguments else []
    lines.append(_REDUCTION)
    if spec.parameter:
        lines.append(f"{spec.parameter.name} (float): {spec.parameter.meaning}; {spec.parameter.accepts}.")
    return indent("\n".join([*lines, *_lines(rows)]), "    ")


def _lines(rows: Iterable[Row]) -> list[str]:
    return [f"{row.name} {row.meaning}" for row in rows]


def _fill(template: str, spec: LossSpec, rows: Iterable[Row]) -> str:
    parameter_error = f"``{spec.parameter.name}`` is not {spec.parameter.accepts}; " if spec.parameter else ""
    return template.format(
        formula=spec.formula,
        source=spec.source,
        function=spec.function,
        module=spec.module,
        options=_options(spec, rows),
        of_call=indent("\n".join(_lines(row for row in ROWS if not row.of_module)), "    "),
        parameter_error=parameter_error,
    )


def function_doc(spec: LossSpec) -> str:
    return _fill(_FUNCTION, spec, ROWS)


def module_doc(spec: LossSpec) -> str:
    return _fill(_MODULE, spec, (row for row in ROWS if row.of_module))
