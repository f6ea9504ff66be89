"""The arguments, documentation and source of the public functions and modules of losses of rows."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill, indent

from ._options import ROWS, Row
from ._specs import Argument, RowSpec

_WEIGHT = Row(
    "sample_weight",
    "Tensor?",
    "Tensor | None",
    None,
    False,
    """(Tensor, optional): multiplies each row's loss; of a floating dtype and a shape that broadcasts to the rows',
    which is input's without the classes. ``"mean"`` divides by the sum of the weights in play. Differentiable.""",
)
_MASK = Row(
    "mask",
    "Tensor?",
    "Tensor | None",
    None,
    False,
    """(Tensor, optional): bool, of a shape that broadcasts to the rows'. ``False`` selects a row out, as
    ``ignore_index`` does: it adds nothing to the loss, to a gradient or to the count, even where its logits are NaN or
    Inf.""",
)
_DTYPE = Row(
    "dtype",
    "ScalarType?",
    "torch.dtype | None",
    None,
    True,
    """(torch.dtype, optional): of the result. Default: input's, with a target of probabilities the one that both
    promote to; under autocast at least float32.""",
)
_OTHERS = {row.name: row for row in ROWS}
OPTIONS: tuple[Row, ...] = (
    _WEIGHT,
    _MASK,
    *(_OTHERS[name] for name in ("normalizer", "scale", "batch_dims")),
    _DTYPE,
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

_FUNCTION_DOC = """``{formula}`` of each row of classes, fused: no softmax and no copy of the logits is stored.

{replaces}Source of the formula: {source}.

A row is all classes of one index of the other dimensions. With ``w`` for the class weights, ``s`` for label_smoothing
and ``q`` for the target's probabilities (of a class index: 1 for its class, 0 for the others), its loss is
``-sum(w * q' * log_softmax(input)) + z_loss * logsumexp(input)**2``, where ``q' = (1 - s) * q + s / classes``.

Args:
    input (Tensor): logits of shape ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)`` and any strides; they
        are never written to. float32, float64, float16 or bfloat16 for the fused kernels (other floating dtypes,
        devices other than CPU and CUDA, and DTensors are served by plain PyTorch).
    target (Tensor): the class index of each row, of input's shape without the classes and an integer dtype, uint8 to
        int64; or probabilities, of input's shape and a floating dtype. They need not sum to 1.
{options}

Returns:
    Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
    dimensions of the rows (0-d for 0); for ``"none"`` it has one loss a row, 0 where a row does not count. ``"mean"``
    divides by what the rows in play add up to: each its ``sample_weight`` times the ``weight`` of its class, or with a
    target of probabilities its ``sample_weight`` alone; 1 without either. A mean of nothing is NaN, a sum of nothing 0,
    the gradients of both 0. Differentiable in input, probabilities, weight, sample_weight and normalizer, any number of
    times. On the GPU a row whose index is out of range has a loss and gradients of NaN.

Raises:
    TypeError: an argument has the wrong type, a list for a tensor, say.
    ValueError: ``reduction`` is unknown; target has another first size than input; ``normalizer`` is the number 0, or
        comes with another reduction than ``"mean"``; ``batch_dims`` is negative or beyond the rank of the rows.
    RuntimeError: target or weight does not have its shape, or sample_weight or mask does not broadcast to the rows; the
        devices differ; a tensor has a dtype that is not taken, or is sparse, quantized or nested; input has no classes;
        a number is out of its range; ``ignore_index`` is not negative beside probabilities; ``dtype`` is not a floating
        one; on the CPU, a class index is out of range.

Example:
    >>> import torch, cudaloss
    >>> input = torch.zeros(3, 4, requires_grad=True)
    >>> loss = cudaloss.{function}(input, torch.tensor([1, 0, -100]))
    >>> loss.backward()
    >>> loss.detach()  # log(4), the mean over the first two rows
    tensor(1.3863)
    >>> input.grad
    tensor([[ 0.1250, -0.3750,  0.1250,  0.1250],
            [-0.3750,  0.1250,  0.1250,  0.1250],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
"""

_MODULE_DOC = """``{formula}`` of each row of classes: the module of :func:`cudaloss.{function}`.

{replaces}Source of the formula: {source}.

Args:
{options}

Keywords of a call:
{of_call}

Shape:
    input is ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)``. The rows have that shape without the
    classes, and so have class indices; probabilities have input's. The result has the shape of the first
    ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` that of the rows.

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
_REDUCTION = 'reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss a row.'


def _line(argument: Argument) -> str:
    kind = argument.annotation.replace(" | None", ", optional")
    return fill(f"{argument.name} ({kind}): {argument.meaning}.", 112, subsequent_indent="    ")


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


def _keywords(rows: Iterable[Row | Argument]) -> list[str]:
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
    behind = _keywords(row for row in spec.arguments if row.only_keyword)
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
