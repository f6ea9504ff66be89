"""The documentation of the public functions and modules of losses of rows."""

from __future__ import annotations

from collections.abc import Iterable
from textwrap import fill, indent

from cudaloss._losses.options import Row, options_of
from cudaloss._losses.table import Argument, LossSpec
from tools.faces.vector_docs import FIRST_OPERAND, FUNCTION_DOC, LABEL, MODULE_DOC, OTHER_OPERAND

_FUNCTION_DOC = """``{formula}`` of each row of classes, fused.

{replaces}Source of the formula: {source}.

{about}

Args:
    input (Tensor): {input} of shape ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)`` and any strides; they
        are never written to. float32, float64, float16 or bfloat16 for the fused kernels (plain PyTorch serves other
        floating dtypes, and devices other than CPU and CUDA). Of DTensors each process computes its own shard.
    target (Tensor): the class index of each row, with input's shape without the classes and an integer dtype, uint8
        to int64{or_probabilities}.
{options}

Returns:
    Tensor: in the unit of the formula. For ``"mean"`` and ``"sum"`` it has the shape of the first ``batch_dims``
    dimensions of the rows (0-d for 0); for ``"none"`` it has one loss for each row, 0 for a row that does not count.
    ``"mean"`` divides by a sum over the rows that count: each adds its ``sample_weight`` times the ``weight`` of its
    class{alone}; a missing one is 1.
    The mean over no rows is NaN, the sum is 0, and the gradients of both are 0. Differentiable in input,
    {and_probabilities}weight, sample_weight and normalizer, any number of times. On the GPU a row whose index is out of
    range has NaN as its loss and gradients.

Raises:
    TypeError: an argument has the wrong type, for example a list instead of a tensor.
    ValueError: ``reduction`` is unknown; target's first size is not input's; ``normalizer`` is the number 0, or
        ``reduction`` is not ``"mean"`` beside it; ``batch_dims`` is negative or above the rank of the rows.
    RuntimeError: target or weight has the wrong shape, or sample_weight or mask does not broadcast to the rows; the
        devices differ; a tensor has an unsupported dtype, or is sparse, quantized or nested; input has no classes;
        {ranges}``dtype`` is not a floating one; on the CPU, a class index is out of range.

Example:
{example}
"""

_MODULE_DOC = """``{formula}`` of each row of classes: the module of :func:`cudaloss.{function}`.

{replaces}Source of the formula: {source}.

Args:
{options}

Keywords of a call:
{of_call}

Shape:
    input is ``(classes,)``, ``(N, classes)`` or ``(N, classes, d1, ...)``. The rows, and class indices, have that
    shape without the classes{probabilities_have}. The result has the shape of the first
    ``batch_dims`` dimensions of the rows, 0-d for 0; for ``reduction="none"`` the shape of the rows.

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

LEGACY = "size_average, reduce (bool, optional): deprecated, as in PyTorch; if given, they set ``reduction``."
_REDUCTION = 'reduction (str): ``"mean"`` over the rows that count, ``"sum"``, or ``"none"`` for one loss for each row.'

# The additional text for a loss whose target can have probabilities.
_WITH_PROBABILITIES = {
    "or_probabilities": "; or probabilities, with input's shape and a floating dtype. They need not sum to 1",
    "alone": " (with a target of probabilities only its ``sample_weight``)",
    "and_probabilities": "probabilities, ",
    "probabilities_have": "; probabilities have input's shape",
    "ranges": "a number is out of its range; ``ignore_index`` is not negative and target has probabilities; ",
}


def _line(argument: Argument) -> str:
    kind = argument.annotation.replace(" | None", ", optional")
    return fill(f"{argument.name} ({kind}): {argument.meaning}.", 112, subsequent_indent="    ")


def _lines(spec: LossSpec, rows: Iterable[Row]) -> str:
    own = {row.name: _line(row) for row in spec.arguments}
    known = {"size_average": LEGACY, "reduction": _REDUCTION, **own}
    first = [known.pop(name) for name in spec.signature.split() if name in known]
    behind = [own[row.name] for row in spec.arguments if row.only_keyword]
    return indent("\n".join([*first, *behind, *(f"{row.name} {row.meaning}" for row in rows)]), "    ")


def _of_vectors(spec: LossSpec) -> dict[str, str]:
    """The additional text for a loss of vectors."""
    others = len(spec.operands) - 1
    meanings = [FIRST_OPERAND] + [OTHER_OPERAND] * others
    vectors = spec.operands
    if not spec.differentiable_third:
        vectors, meanings[2:] = spec.operands[:2], [LABEL] * (others - 1)
    shapes = ["torch.ones(2, 4)"] * len(vectors) + ["torch.ones(2)"] * (len(spec.operands) - len(vectors))
    what = "logits" if spec.reads == "distributions" else "vectors"
    of_number = "" if spec.has_margin else f"; ``{spec.number}`` is not above 0"
    intervals = [row for row in spec.arguments if row.interval]
    lines = (f"{name} {meaning.format(what=what)}" for name, meaning in zip(spec.operands, meanings, strict=True))
    return {
        "operands": indent("\n".join(lines), "    "),
        "vectors": ", ".join(vectors),
        "of_margin": "; ``margin`` is not above 0" if spec.differentiable_third else "",
        "of_number": of_number + "".join(f"; ``{row.name}`` is not {row.interval}" for row in intervals),
        "called": ", ".join(shapes),
    }


def _fill(template: str, spec: LossSpec, replaces: str, options: str, of_call: str = "") -> str:
    if spec.of_vectors:
        said = _of_vectors(spec)
    else:
        said = dict.fromkeys(_WITH_PROBABILITIES, "") if spec.takes_indices_alone else _WITH_PROBABILITIES
    return template.format(
        formula=spec.formula,
        source=spec.source,
        function=spec.function,
        module=spec.module,
        replaces=replaces,
        options=options,
        of_call=of_call,
        about=spec.about,
        input=spec.input_is,
        example=indent(spec.example, "    "),
        **said,
    )


def function_doc(spec: LossSpec, replaces: str) -> str:
    template = FUNCTION_DOC if spec.of_vectors else _FUNCTION_DOC
    return _fill(template, spec, replaces, _lines(spec, options_of(spec)))


def module_doc(spec: LossSpec, replaces: str) -> str:
    template, rows = MODULE_DOC if spec.of_vectors else _MODULE_DOC, options_of(spec)
    of_call = indent("\n".join(f"{row.name} {row.meaning}" for row in rows if not row.of_module), "    ")
    return _fill(template, spec, replaces, _lines(spec, (row for row in rows if row.of_module)), of_call)
