"""The logits of pairs: all products of the members of two sides, of which a row's partner is one. They are made in
chunks of rows; each chunk gives what the loss must know of its rows and of all columns. So a softmax over rows and one
over columns take one product, and a sigmoid's loss makes its gradients in the forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .blocks import LOG_SUM, OWN, Block, _define, define, numbers_of, scaled_gradient_
from .plans import Head, Sum, logits_of, wide_product

# The logits of a chunk, in bytes: while they are read again they should be in the second-level cache; and what a
# backward takes beside the other side's gradient in float32.
FORWARD_BYTES, BACKWARD_BYTES = 64 << 20, 128 << 20

column_logs = _define(
    "_column_logs(Tensor logits, int first) -> Tensor",
    lambda logits, first: logits.new_empty(logits.shape[1], dtype=torch.float64),
)
_gradients_ = _define(
    "_pair_gradients_(Tensor(a!) logits, int first, Tensor row_logs, Tensor column_logs, Tensor of_own) -> ()"
)
_logistic_ = _define("_pair_logistic_(Tensor(a!) logits, int first, Tensor scale, Tensor? bias) -> Tensor")


class Pairs(NamedTuple):
    """The two sides, of one dtype."""

    rows: Tensor  # (rows, features)
    columns: Tensor  # (columns, features)
    first: int  # the first row's own column; the next row's is the next

    def chunks(self, size: int) -> Iterator[tuple[slice, int]]:
        """Rows whose logits take about `size` bytes, with the first one's own column."""
        rows, columns = self.rows.shape[0], self.columns.shape[0]
        step = max(64, size // (columns * self.rows.element_size()) // 64 * 64)
        for begin in range(0, rows, step):
            yield slice(begin, min(rows, begin + step)), self.first + begin

    def logits(self, some: slice, memory: Tensor | None) -> Tensor:
        return logits_of(Head(self.rows[some], self.columns, None), memory)


class SoftmaxNumbers(NamedTuple):
    """The logarithms of the sums of exp(z) over each row's and each column's others, and of each row the partner's z.
    In float64."""

    of_rows: Tensor
    of_columns: Tensor
    own: Tensor


def empty_logits(pairs: Pairs) -> Tensor:
    """The memory of all logits, in rows that begin at 16 bytes."""
    step = 16 // pairs.rows.element_size()
    return pairs.rows.new_empty(pairs.rows.shape[0], -(-pairs.columns.shape[0] // step) * step)


def softmax_numbers(pairs: Pairs, kept: Tensor | None = None) -> SoftmaxNumbers:
    """`kept`: memory for all logits, which keeps them."""
    count, columns = pairs.rows.shape[0], pairs.columns.shape[0]
    of_rows = pairs.rows.new_empty(2, count, dtype=torch.float64)
    of_columns, memory = [], None
    own_column = torch.arange(pairs.first, pairs.first + count, device=pairs.rows.device)
    for some, first in pairs.chunks(FORWARD_BYTES):
        logits = pairs.logits(some, memory if kept is None else kept[some])
        memory = logits if memory is None else memory
        of_rows[:, some] = numbers_of(logits, Block(own_column[some], None, None, 0, columns))[: OWN + 1]
        of_columns.append(column_logs(logits, first))
    return SoftmaxNumbers(of_rows[LOG_SUM], torch.stack(of_columns).logsumexp(0), of_rows[OWN])


class SoftmaxSlopes(NamedTuple):
    """What the gradient of the logits is made of: the logarithms of the sums of exp(z) over whole rows and columns, and
    the partners' p + q - 2."""

    of_rows: Tensor
    of_columns: Tensor
    of_own: Tensor


def softmax_gradients(
    pairs: Pairs, of: SoftmaxSlopes, factor: Tensor, scale: Tensor, unscaled: Tensor, kept: Tensor | None, whole: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of the unscaled rows, of the columns and of the scale. `pairs` has the rows times `scale`; the
    logits' gradient is p + q - 2 times `factor`. `whole`: the columns' is a part of a sum, in float32 for halves and
    without the factor."""
    of_rows = unscaled.new_empty(unscaled.shape)
    of_columns = Sum(pairs.columns, is_alone=False)
    of_scale, memory = factor.new_zeros(()), None
    for some, first in pairs.chunks(BACKWARD_BYTES):
        logits = pairs.logits(some, memory) if kept is None else kept[some, : pairs.columns.shape[0]]
        memory = logits if memory is None else memory
        _gradients_(logits, first, of.of_rows[some], of.of_columns, of.of_own[some])
        found = wide_product(logits, pairs.columns)
        of_scale += (unscaled[some] * found).sum(dtype=torch.float64)
        scaled_gradient_(found, factor * scale, of_rows[some])
        if kept is None or whole:
            of_columns.add(logits.t(), pairs.rows[some])
    if whole:
        return of_rows, of_columns.wide(), of_scale * factor
    result = pairs.columns.new_empty(pairs.columns.shape)
    if kept is None:
        scaled_gradient_(of_columns.wide(), factor, result)
    else:  # one product for each part of the columns, so that no sum is kept in float32
        for some, _ in Pairs(pairs.columns, pairs.rows, 0).chunks(BACKWARD_BYTES):
            scaled_gradient_(wide_product(kept[:, some].t(), pairs.rows), factor, result[some])
    return of_rows, result, of_scale * factor


def logistic(
    pairs: Pairs, scale: Tensor, bias: Tensor | None, wanted: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The sums of the losses log(1 + exp(-y (scale x + bias))), of the gradients of z, and of these times x. And the
    gradients of both sides, without `scale`, in float32 for halves."""
    sums, memory = scale.new_zeros(3), None
    of_rows = pairs.rows.new_empty(pairs.rows.shape, dtype=torch.promote_types(pairs.rows.dtype, torch.float32))
    of_columns = Sum(pairs.columns, is_alone=False)
    for some, first in pairs.chunks(BACKWARD_BYTES):
        logits = pairs.logits(some, memory)
        memory = logits if memory is None else memory
        sums += _logistic_(logits, first, scale, bias).sum(1)
        if wanted:
            of_rows[some] = wide_product(logits, pairs.columns)
            of_columns.add(logits.t(), pairs.rows[some])
    return (sums, of_rows, of_columns.wide()) if wanted else (sums, None, None)


# ---- the ops, for compilers ----

softmax_numbers_op = define(
    "_pair_softmax_numbers(Tensor rows, Tensor columns) -> (Tensor, Tensor, Tensor)",
    lambda rows, columns: tuple(x.clone() for x in softmax_numbers(Pairs(rows, columns, 0))),  # two share memory
    lambda rows, columns: tuple(x.new_empty(x.shape[0], dtype=torch.float64) for x in (rows, columns, rows)),
)
softmax_gradients_op = define(
    "_pair_softmax_gradients(Tensor rows, Tensor columns, Tensor of_rows, Tensor of_columns, Tensor of_own, "
    "Tensor factor, Tensor scale, Tensor unscaled) -> (Tensor, Tensor, Tensor)",
    lambda rows, columns, of_rows, of_columns, of_own, factor, scale, unscaled: softmax_gradients(
        Pairs(rows, columns, 0), SoftmaxSlopes(of_rows, of_columns, of_own), factor, scale, unscaled, None, False
    ),
    lambda rows, columns, *rest: (rows.new_empty(rows.shape), columns.new_empty(columns.shape), rest[3].new_empty(())),
)


def _fake_logistic(rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor | None, wanted: bool) -> Any:
    of_sides = (x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (rows, columns))
    return scale.new_empty(3), *(of_sides if wanted else (None, None))


logistic_op = define(
    "_pair_logistic(Tensor rows, Tensor columns, Tensor scale, Tensor? bias, bool wanted) -> (Tensor, Tensor, Tensor)",
    lambda rows, columns, scale, bias, wanted: logistic(Pairs(rows, columns, 0), scale, bias, wanted),
    _fake_logistic,
)
