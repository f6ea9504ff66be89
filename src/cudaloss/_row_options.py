"""The keyword arguments of losses of rows."""

from __future__ import annotations

from dataclasses import replace

from ._options import ROWS, Row
from ._specs import RowSpec

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
