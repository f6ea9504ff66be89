"""The arguments, documentation and source of the public functions and modules of losses of rows."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import indent

from ._options import ROWS, Row
from ._specs import Argument, RowSpec

_WEIGHT = Row(
    "sample_weight",
    "Tensor?",
    "Tensor | None",
    None,
    False,
    """(Tensor, optional): multiplies each row's loss; of a floating dtype and a shape that broadcasts to the rows',
    input's without its classes. ``"mean"`` divides by the sum of the weights in play. Differentiable.""",
)
_MASK = Row(
    "mask",
    "Tensor?",
    "Tensor | None",
    None,
    False,
    """(Tensor, optional): bool, of a shape that broadcasts to the rows'. ``False`` selects a row out: it adds nothing
    to the loss, to a gradient or to the count, even where its logits are NaN or Inf.""",
)
_OTHERS = {row.name: row for row in ROWS}
OPTIONS: tuple[Row, ...] = (
    _WEIGHT,
    _MASK,
    *(_OTHERS[name] for name in ("normalizer", "scale", "batch_dims", "dtype")),
)

FUNCTION_BODY = """\
    {legacy}own = {own}
    if not is_dynamo_compiling():
        result = _fused_{name}(
            input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_{name}(input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims)
"""

_FUNCTION_DOC = """``{formula}`` of each row of classes, in one pass over memory.

{replaces}Source of the formula: {source}. With s for label_smoothing, w for the class weights and q for a target's
probabilities, ``q' = (1 - s) * q + s / classes``, a row's loss is ``-sum(w * q' * log_softmax(input)) + z_loss *
logsumexp(input)**2``; of an index, q is 1 for it. The logits are never written to.

Args:
    input (Tensor): logits of shape ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)`` and any strides;
        float32, float64, float16 or bfloat16 for the fused kernels (other floating dtypes, devices other than CPU and
        CUDA, and DTensors are served by plain PyTorch).
    target (Tensor): the index of each row's class, of input's shape without its classes and of an integer dtype, uint8
        to int64; or probabilities, of input's shape and a floating dtype.
{options}

Returns:
    Tensor: in the unit of the formula; for ``"mean"`` and ``"sum"`` of the shape of the first ``batch_dims``
    dimensions of the rows (0-d for 0), for ``"none"`` one loss a row. ``"mean"`` divides by the sum of the weights of
    the rows in play: ``sample_weight`` times, of an index, its class's weight. A mean of nothing is NaN, with gradients
    of 0. Differentiable in input, probabilities, weight, sample_weight and normalizer, any number of times. On the GPU
    a row whose index is out of range is NaN.

Raises:
    TypeError: an argument has the wrong type, a list for a tensor, say.
    ValueError: ``reduction`` is unknown; target has another first size than input; ``normalizer`` is the number 0, or
        comes with another reduction than ``"mean"``; ``batch_dims`` is negative or beyond the rank of the rows.
    RuntimeError: another shape or dtype does not fit, or a number is out of its range; the devices differ; on the CPU
        an index is out of range.

Example:
    >>> import torch, cudaloss
    >>> input = torch.randn(4, 10, requires_grad=True)
    >>> loss = cudaloss.{function}(input, torch.tensor([1, 0, -100, 9]))
    >>> loss.backward()
    >>> input.grad[2].count_nonzero()
    tensor(0)
"""

_MODULE_DOC = """``{formula}`` of each row of classes: the module of :func:`cudaloss.{function}`.

{replaces}Source of the formula: {source}.

Args:
{options}

Keywords of a call:
{of_call}

Shape:
    input is ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)``; target has its shape, or that without the
    classes. The result has the shape of the first ``batch_dims`` dimensions of the rows, 0-d for 0; for
    ``reduction="none"`` that of the rows.

Raises:
    TypeError: when the module is called, as the function does.
    ValueError: likewise.
    RuntimeError: likewise.

Example:
    >>> import torch, cudaloss
    >>> criterion = cudaloss.{module}(reduction="none")
    >>> criterion(torch.zeros(2, 4), torch.tensor([0, 3])).shape
    torch.Size([2])
"""

_LEGACY = "size_average, reduce (bool, optional): deprecated, as in PyTorch; where given, they set ``reduction``."
_REDUCTION = 'reduction (str): ``"mean"`` over all rows, ``"sum"``, or ``"none"`` for one loss a row.'


def _line(argument: Argument) -> str:
    kind = argument.annotation.replace(" | None", ", optional")
    return f"{argument.name} ({kind}): {argument.meaning}."


def _lines(spec: RowSpec, rows: Iterable[Row]) -> str:
    own = {row.name: _line(row) for row in spec.arguments}
    known = {"size_average": _LEGACY, "reduction": _REDUCTION, **own}
    first = [known.pop(name) for name in spec.signature.split() if name in known]
    behind = [own[row.name] for row in spec.arguments if row.only_keyword]
    return indent("\n".join([*first, *behind, *(f"{row.name} {row.meaning}" for row in rows)]), "    ")


def _fill(template: str, spec: RowSpec, replaces: str, options: str, of_call: str = "") -> str:
    return template.format(
        formula=spec.formula,
        source=spec.source,
        function=spec.function,
        module=spec.module,
        replaces=replaces,
        options=options,
        of_call=of_call,
    )


def function_doc(spec: RowSpec, replaces: str) -> str:
    return _fill(_FUNCTION_DOC, spec, replaces, _lines(spec, OPTIONS))


def module_doc(spec: RowSpec, replaces: str) -> str:
    of_call = indent("\n".join(f"{row.name} {row.meaning}" for row in OPTIONS if not row.of_module), "    ")
    return _fill(_MODULE_DOC, spec, replaces, _lines(spec, (row for row in OPTIONS if row.of_module)), of_call)


def _keywords(rows: Iterable[Row]) -> list[str]:
    return [f"{row.name}: {row.annotation} = {row.default}" for row in rows]


def fields(spec: RowSpec, legacy: str) -> dict[str, str]:
    """What the templates of ``_faces`` are filled with."""
    own = {row.name: row for row in spec.arguments}
    annotations = {"size_average": "bool | None", "reduce": "bool | None", "reduction": "str"}
    annotations |= {name: row.annotation for name, row in own.items()}
    defaults = {"size_average": None, "reduce": None, "reduction": f'"{spec.reduction}"'}
    defaults |= {name: row.default for name, row in own.items()}
    between = ",\n{indent}"
    given = between.join(f"{name}: {annotations[name]} = {defaults[name]}" for name in spec.signature.split())
    behind = [f"{row.name}: {row.annotation} = {row.default}" for row in spec.arguments if row.only_keyword]
    of_module = [row for row in OPTIONS if row.of_module]
    of_call = [row for row in OPTIONS if not row.of_module]
    kept = [*((name, row.annotation) for name, row in own.items()), *((row.name, row.annotation) for row in of_module)]
    forwarded = [f"{name}=self.{name}" for name in ["reduction", *(name for name, _ in kept)]]
    return {
        "name": spec.name,
        "function": spec.function,
        "module": spec.module,
        "options": given,
        "module_options": given,
        "keywords": between.join([*behind, *_keywords(OPTIONS)]),
        "module_keywords": between.join([*behind, *_keywords(of_module)]),
        "call_arguments": "",
        "call_keywords": between.join(_keywords(of_call)),
        "legacy": legacy,
        "own": ", ".join(own),
        "store": "\n        ".join(
            f'keep(self, "{name}", {name})' if annotation.startswith("Tensor") else f"self.{name} = {name}"
            for name, annotation in kept
        ),
        "store_stub": "\n        ".join(f"self.{name}: {annotation}" for name, annotation in kept),
        "forward": ",\n            ".join([*forwarded, *(f"{row.name}={row.name}" for row in of_call)]),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name in own),
    }
