"""What every loss takes beside its operands: one row an argument, of which the ops' schemas, the functions, the modules
and their documentation are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Options(NamedTuple):
    """The keyword arguments of a call that are not its dtype."""

    weight: Tensor | None = None
    mask: Tensor | None = None
    normalizer: Tensor | float | None = None
    scale: float = 1.0
    batch_dims: int = 0
    ignore_nan: bool = False

    def are_default(self) -> bool:
        """Without a comparison of tensors, for which a GPU would wait."""
        return all(
            value is default or (type(value) is type(default) and not isinstance(value, Tensor) and value == default)
            for value, default in zip(self, NONE, strict=True)
        )


NONE = Options()


@dataclass(frozen=True)
class Row:
    """One keyword argument."""

    name: str
    schema: str  # its type as the op's schema has it
    annotation: str  # as the function has it
    default: object
    of_module: bool  # a module keeps it; else it is given with each call
    meaning: str

    @property
    def of_op(self) -> str:
        """What the op's schema says of it."""
        return f"{self.schema} {self.name}={self.default}"


ROWS: tuple[Row, ...] = (
    Row(
        "weight",
        "Tensor?",
        "Tensor | None",
        None,
        False,
        """(Tensor, optional): multiplies each element's loss; of a floating dtype and a shape that broadcasts to input
    and target's common one, read without expansion. ``"mean"`` divides by the sum of the weights in play.
    Differentiable.""",
    ),
    Row(
        "mask",
        "Tensor?",
        "Tensor | None",
        None,
        False,
        """(Tensor, optional): bool, of a shape that broadcasts to input and target's common one. ``False`` selects an
    element out: it adds nothing to the loss, to a gradient or to the count, even where the data is NaN or Inf.""",
    ),
    Row(
        "normalizer",
        "Tensor?",
        "Tensor | float | None",
        None,
        False,
        """(Tensor or float, optional): the loss is the sum divided by it; a number, or a 0-d tensor on the data's
    device, which is read there without a synchronisation. Only with ``"mean"``. Differentiable.""",
    ),
    Row(
        "scale",
        "float",
        "float",
        1.0,
        True,
        """(float): a constant factor of the loss and of its gradients, applied in the same pass.""",
    ),
    Row(
        "batch_dims",
        "int",
        "int",
        0,
        True,
        """(int): how many leading dimensions the result keeps; the reduction runs for each of their indices, 1 is one
    loss a sample.""",
    ),
    Row(
        "ignore_nan",
        "bool",
        "bool",
        False,
        True,
        """(bool): elements whose target is NaN are selected out, as by ``mask``.""",
    ),
    Row(
        "dtype",
        "ScalarType?",
        "torch.dtype | None",
        None,
        True,
        """(torch.dtype, optional): of the result. Default: the dtype that input and target promote to; under
    autocast at least float32.""",
    ),
)
