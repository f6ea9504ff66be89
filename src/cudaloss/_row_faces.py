"""The arguments and source of the public functions and modules for losses of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ._options import ROWS, Row
from ._specs import Argument, RowSpec

_WEIGHT = Row(
    "sample_weight",
    "Tensor?",
    "Tensor | None",
    None,
    False,
    """(Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts to the
    rows' shape (input's without the classes). ``"mean"`` divides by the sum of the weights that count.
    Differentiable.""",
)
_MASK = Row(
    "mask",
    "Tensor?",
    "Tensor | None",
    None,
    False,
    """(Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row out, as
    ``ignore_index`` does: it adds nothing to the loss, to a gradient or to the count, even if its logits are NaN or
    Inf.""",
)
_DTYPE = Row(
    "dtype",
    "ScalarType?",
    "torch.dtype | None",
    None,
    True,
    """(torch.dtype, optional): the result's dtype. Default: input's dtype; with a target of probabilities the one
    that both promote to; under autocast at least float32.""",
)
_OTHERS = {row.name: row for row in ROWS}
_OF_CLASSES: tuple[Row, ...] = (
    _WEIGHT,
    _MASK,
    *(_OTHERS[name] for name in ("normalizer", "scale", "batch_dims")),
    _DTYPE,
)
_OF_VECTORS: tuple[Row, ...] = (
    replace(
        _WEIGHT,
        name="weight",
        meaning="""(Tensor, optional): multiplies each row's loss. It has a floating dtype and a shape that broadcasts
    to the rows' shape (the operands' without the vectors' dimension). ``"mean"`` divides by the sum of the weights
    that count. Differentiable.""",
    ),
    replace(
        _MASK,
        meaning="""(Tensor, optional): bool, with a shape that broadcasts to the rows' shape. ``False`` leaves a row
    out: it adds nothing to the loss, to a gradient or to the count, even if its vectors have NaN or Inf.""",
    ),
    *_OF_CLASSES[2:-1],
    replace(
        _DTYPE,
        meaning="""(torch.dtype, optional): the result's dtype. Default: the dtype that the vectors promote to; under
    autocast at least float32.""",
    ),
)


def options_of(spec: RowSpec) -> tuple[Row, ...]:
    """The keywords of a call except the loss's own arguments."""
    return _OF_VECTORS if spec.of_vectors else _OF_CLASSES


FUNCTION_BODY = """\
    {legacy}own = {own}
    if not is_dynamo_compiling():
        result = _fused_{name}(
            {first_two}, reduction, own, dtype, {weight}, mask, normalizer, scale, batch_dims
        )
        if result is not None:
            return result
    return _unusual_{name}({first_two}, reduction, own, dtype, {weight}, mask, normalizer, scale, batch_dims)
"""


def _keywords(rows: Iterable[Row | Argument]) -> list[str]:
    return [f"{row.name}: {row.annotation} = {row.default}" for row in rows]


def fields(spec: RowSpec, legacy: str) -> dict[str, str]:
    """The values for the templates of ``_faces``."""
    own, options = {row.name: row for row in spec.arguments}, options_of(spec)
    annotations = {"size_average": "bool | None", "reduce": "bool | None", "reduction": "str"}
    annotations |= {name: row.annotation for name, row in own.items()}
    defaults = {"size_average": None, "reduce": None, "reduction": f'"{spec.reduction}"'}
    defaults |= {name: row.default for name, row in own.items()}
    between = ",\n{indent}"
    given = between.join(f"{name}: {annotations[name]} = {defaults[name]}" for name in spec.signature.split())
    behind = _keywords(row for row in spec.arguments if row.only_keyword)
    of_module = [row for row in options if row.of_module]
    of_call = [row for row in options if not row.of_module]
    kept = [*((name, row.annotation) for name, row in own.items()), *((row.name, row.annotation) for row in of_module)]
    forwarded = [f"{name}=self.{name}" for name in ["reduction", *(name for name, _ in kept)]]
    return {
        "name": spec.name,
        "operands": between.join(f"{name}: Tensor" for name in spec.operands),
        "passed": ",\n            ".join(spec.operands),
        "first_two": ", ".join(spec.operands[:2]),
        "weight": options[0].name,
        "function": spec.function,
        "module": spec.module,
        "options": given,
        "module_options": given,
        "keywords": between.join([*behind, *_keywords(options)]),
        "module_keywords": between.join([*behind, *_keywords(of_module)]),
        "call_arguments": "",
        "call_keywords": between.join(_keywords(of_call)),
        "legacy": legacy,
        "own": ", ".join(
            name if name in own or name in spec.operands else repr(default) for name, default in spec.given.items()
        ),
        "store": "\n        ".join(
            f'keep(self, "{name}", {name})' if annotation.startswith("Tensor") else f"self.{name} = {name}"
            for name, annotation in kept
        ),
        "store_stub": "\n        ".join(f"self.{name}: {annotation}" for name, annotation in kept),
        "forward": ",\n            ".join([*forwarded, *(f"{row.name}={row.name}" for row in of_call)]),
        "representation": "".join(f", {name}={{shown(self.{name})}}" for name in own),
    }
