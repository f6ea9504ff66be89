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
from .plans import Head, Sum, logits_of, product

# The logits of a chunk that are made again, in bytes; and the rows of a product whose float32 result is rounded next.
# H200, (32768, 1024) bfloat16: products of 2,048 rows are split in two, and need another 0.25 ms.
CHUNK_BYTES, PRODUCT_ROWS = 128 << 20, 8192
# The chunks of a forward that makes gradients: siglip_loss, with all else equal, was some 6 % faster than with 128 MiB.
FAST_CHUNK_BYTES = 256 << 20

column_logs = _define(
    "_column_logs(Tensor logits, int first) -> Tensor",
    lambda logits, first: logits.new_empty(logits.shape[1], dtype=torch.float64),
)
_gradients_ = _define(
    "_pair_gradients_(Tensor(a!) logits, int first, Tensor row_logs, Tensor column_logs, Tensor of_own) -> ()"
)
_dots = _define("_partial_dots(Tensor a, Tensor b) -> Tensor")
_logistic_ = _define("_pair_logistic_(Tensor(a!) logits, int first, Tensor scale, Tensor? bias) -> Tensor")


class Pairs(NamedTuple):
    """The two sides, of one dtype."""

    rows: Tensor  # (rows, features)
    columns: Tensor  # (columns, features)
    first: int  # the first row's own column; the next row's is the next
    scale: Tensor | None = None  # of the rows in the logits, 0-d float64; None: 1

    def chunks(self, size: int | None = None) -> Iterator[tuple[slice, int]]:
        """Rows whose logits take about `size` bytes (CHUNK_BYTES), with the first one's own column."""
        fit = (CHUNK_BYTES if size is None else size) // (self.columns.shape[0] * self.rows.element_size()) // 64 * 64
        for some in _parts(self.rows.shape[0], max(64, fit)):
            yield some, self.first + some.start

    def logits(self, some: slice = slice(None), memory: Tensor | None = None) -> Tensor:
        rows = self.rows[some] if self.scale is None else scaled(self.rows[some], self.scale)
        return logits_of(Head(rows, self.columns, None), memory)


def _parts(count: int, step: int) -> Iterator[slice]:
    return (slice(begin, min(count, begin + step)) for begin in range(0, count, step))


def scaled(tensor: Tensor, factor: Tensor, dtype: torch.dtype | None = None, out: Tensor | None = None) -> Tensor:
    """The tensor times a 0-d float64 factor, rounded once."""
    tensor = tensor.contiguous()
    out = torch.empty_like(tensor, dtype=dtype) if out is None else out
    scaled_gradient_(tensor, factor, out)
    return out


class SoftmaxNumbers(NamedTuple):
    """The logarithms of the sums of exp(z) over each row's and each column's others, and of each row the partner's z.
    In float64."""

    of_rows: Tensor
    of_columns: Tensor
    own: Tensor


def softmax_numbers(pairs: Pairs, kept: Tensor | None = None) -> SoftmaxNumbers:
    """`kept`: all logits; otherwise they are made in chunks."""
    count, columns = pairs.rows.shape[0], pairs.columns.shape[0]
    of_rows = pairs.rows.new_empty(2, count, dtype=torch.float64)
    own_column = torch.arange(pairs.first, pairs.first + count, device=pairs.rows.device)
    of_columns, memory = [], None
    for some, first in pairs.chunks() if kept is None else [(slice(None), pairs.first)]:
        logits = pairs.logits(some, memory) if kept is None else kept
        memory = logits
        of_rows[:, some] = numbers_of(logits, Block(own_column[some], None, None, 0, columns))[: OWN + 1]
        of_columns.append(column_logs(logits, first))
    all_columns = of_columns[0] if len(of_columns) == 1 else torch.stack(of_columns).logsumexp(0)
    return SoftmaxNumbers(of_rows[LOG_SUM], all_columns, of_rows[OWN])


class SoftmaxSlopes(NamedTuple):
    """What the gradient of the logits is made of: the logarithms of the sums of exp(z) over whole rows and columns, and
    the partners' p + q - 2."""

    of_rows: Tensor
    of_columns: Tensor
    of_own: Tensor


def _scaled_product(a: Tensor, b: Tensor, factor: Tensor, out: Tensor, other: Tensor | None = None) -> Tensor | float:
    """Writes the product times the factor, rounded once. Returns the product's own product with `other`, summed."""
    found = product(a, b, wide=True)
    scaled(found, factor, out=out)
    return 0.0 if other is None else _dots(found, other.contiguous()).sum()


def softmax_gradients(
    pairs: Pairs, of: SoftmaxSlopes, factor: Tensor, kept: Tensor | None, whole: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of rows, columns and scale. The logits' is `factor` times p + q, for partners p + q - 2. `kept`:
    all logits, which are overwritten. `whole`: the columns' gradient is a part of a sum, in float32 for halves and
    without the factor and the scale."""
    rows, columns = pairs.rows, pairs.columns
    of_rows, of_columns, memory = rows.new_empty(rows.shape), Sum(columns, is_alone=False), None
    both, of_scale = factor if pairs.scale is None else factor * pairs.scale, factor.new_zeros(())
    if kept is not None:
        _gradients_(kept, pairs.first, *of)
    for some, first in pairs.chunks() if kept is None else ((x, 0) for x in _parts(len(rows), PRODUCT_ROWS)):
        if kept is None:
            logits = memory = pairs.logits(some, memory)
            _gradients_(logits, first, of.of_rows[some], of.of_columns, of.of_own[some])
        else:
            logits = kept[some]
        of_scale += _scaled_product(logits, columns, both, of_rows[some], rows[some])
        if kept is None or whole:
            of_columns.add(logits.t(), rows[some])
    if whole:
        return of_rows, of_columns.wide(), of_scale * factor
    if kept is None:
        return of_rows, scaled(of_columns.wide(), both, columns.dtype), of_scale * factor
    result = columns.new_empty(columns.shape)
    for some in _parts(len(columns), PRODUCT_ROWS):  # one product for each part, so that no sum is kept in float32
        _scaled_product(kept[:, some].t(), rows, both, result[some])
    return of_rows, result, of_scale * factor


def logistic(
    pairs: Pairs, scale: Tensor, bias: Tensor | None, wanted: bool, fast: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The sums of the losses log(1 + exp(-y (scale x + bias))), of the gradients of z, and of these times x. And the
    gradients of both sides, without `scale`, in float32 for halves. `fast`: with larger chunks."""
    sums, memory = scale.new_zeros(3), None
    wide = torch.promote_types(pairs.rows.dtype, torch.float32)
    of_rows = pairs.rows.new_empty(pairs.rows.shape, dtype=wide) if wanted else None
    of_columns = Sum(pairs.columns, is_alone=False)
    for some, first in pairs.chunks(FAST_CHUNK_BYTES if fast else None):
        logits = memory = pairs.logits(some, memory)
        sums += _logistic_(logits, first, scale, bias).sum(1)
        if of_rows is not None:
            of_rows[some] = product(logits, pairs.columns, wide=True)
            of_columns.add(logits.t(), pairs.rows[some])
    return sums, of_rows, of_columns.wide() if wanted else None


# ---- the ops, for compilers ----

scaled_op = define(
    "_pair_scaled(Tensor tensor, Tensor factor, ScalarType dtype) -> Tensor",
    scaled,
    lambda tensor, factor, dtype: tensor.new_empty(tensor.shape, dtype=dtype),
)

softmax_numbers_op = define(
    "_pair_softmax_numbers(Tensor rows, Tensor columns, Tensor scale) -> (Tensor, Tensor, Tensor)",
    lambda rows, columns, scale: tuple(
        x.clone() for x in softmax_numbers(Pairs(rows, columns, 0, scale))
    ),  # two share memory
    lambda rows, columns, _: tuple(x.new_empty(x.shape[0], dtype=torch.float64) for x in (rows, columns, rows)),
)
softmax_gradients_op = define(
    "_pair_softmax_gradients(Tensor rows, Tensor columns, Tensor of_rows, Tensor of_columns, Tensor of_own, "
    "Tensor factor, Tensor scale) -> (Tensor, Tensor, Tensor)",
    lambda rows, columns, of_rows, of_columns, of_own, factor, scale: softmax_gradients(
        Pairs(rows, columns, 0, scale), SoftmaxSlopes(of_rows, of_columns, of_own), factor, None, False
    ),
    lambda rows, columns, *rest: (rows.new_empty(rows.shape), columns.new_empty(columns.shape), rest[3].new_empty(())),
)


def _fake_logistic(rows: Tensor, columns: Tensor, scale: Tensor, bias: Tensor | None, wanted: bool, fast: bool) -> Any:
    of_sides = (x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, torch.float32)) for x in (rows, columns))
    return scale.new_empty(3), *(of_sides if wanted else (None, None))


logistic_op = define(
    "_pair_logistic(Tensor rows, Tensor columns, Tensor scale, Tensor? bias, bool wanted, bool fast) "
    "-> (Tensor, Tensor, Tensor)",
    lambda rows, columns, *rest: logistic(Pairs(rows, columns, 0), *rest),
    _fake_logistic,
)
