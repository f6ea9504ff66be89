"""The keyword arguments that all losses of a kind have: a row for each. The schemas, the functions, the modules and
their documentation are made from these rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from .spec import LossSpec


class Options(NamedTuple):
    """The keyword arguments of a call that are not its dtype."""

    weight: Tensor | None = None
    mask: Tensor | None = None
    normalizer: Tensor | float | None = None
    scale: float = 1.0
    batch_dims: int = 0
    ignore_nan: bool = False

    def are_default(self) -> bool:
        """Compares no tensors, because that would wait for the GPU."""
        return all(
            value is default or (type(value) is type(default) and not isinstance(value, Tensor) and value == default)
            for value, default in zip(self, NONE, strict=True)
        )


NONE = Options()


@dataclass(frozen=True)
class Row:
    """One keyword argument."""

    name: str
    schema: str  # its type in the op's schema
    annotation: str  # its type in the function
    default: object
    of_module: bool  # a module keeps it; otherwise each call gives it
    meaning: str

    @property
    def of_op(self) -> str:
        """Its text in the op's schema."""
        return f"{self.schema} {self.name}={self.default}"


ROWS: tuple[Row, ...] = (
    Row(
        "weight",
        "Tensor?",
        "Tensor | None",
        None,
        False,
        """(Tensor, optional): multiplies each element's loss. It has a floating dtype and a shape that broadcasts to
    the joint shape of input and target; it is not expanded. ``"mean"`` divides by the sum of the weights that count.
    Differentiable.""",
    ),
    Row(
        "mask",
        "Tensor?",
        "Tensor | None",
        None,
        False,
        """(Tensor, optional): bool, with a shape that broadcasts to the joint shape of input and target. ``False``
    leaves an element out: it adds nothing to the loss, to a gradient or to the count, even if the data is NaN or
    Inf.""",
    ),
    Row(
        "normalizer",
        "Tensor?",
        "Tensor | float | None",
        None,
        False,
        """(Tensor or float, optional): the loss is the sum divided by it. A number, or a 0-d tensor on the data's
    device, which is read there without a synchronization. Only with ``"mean"``. Differentiable.""",
    ),
    Row(
        "scale",
        "float",
        "float",
        1.0,
        True,
        """(float): a constant factor for the loss and its gradients, applied in the same pass.""",
    ),
    Row(
        "batch_dims",
        "int",
        "int",
        0,
        True,
        """(int): how many leading dimensions the result keeps. The reduction runs for each of their indices; 1 gives
    one loss for each sample.""",
    ),
    Row(
        "ignore_nan",
        "bool",
        "bool",
        False,
        True,
        """(bool): elements whose target is NaN are left out, as with ``mask``.""",
    ),
    Row(
        "dtype",
        "ScalarType?",
        "torch.dtype | None",
        None,
        True,
        """(torch.dtype, optional): the result's dtype. Default: the dtype that input and target promote to; under
    autocast at least float32.""",
    ),
)

# ---- of losses of rows ----

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


def options_of(spec: LossSpec) -> tuple[Row, ...]:
    """The keywords of a call except the loss's own arguments."""
    if not spec.of_rows:
        return ROWS
    return _OF_VECTORS if spec.of_vectors else _OF_CLASSES
