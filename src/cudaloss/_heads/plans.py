"""The products around the numbers of rows. The logits of a head are never whole in memory, except in its fast plan,
where they are in the memory of their gradient.

- :func:`numbers` and :func:`gradients` go over blocks of classes. The backward makes each block's logits again: four
  products of a head's size, not three, and memory for one block (the plan ``"least"``).
- :func:`step` goes over chunks of rows, and makes the gradients in the forward, over the logits: three products. The
  weight's gradient is added up in float32. A chunk has rows enough for products at their speed: of 4,096 a step takes
  1.12 times its products (H200, bfloat16, ``benchmarks/heads.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import row_losses
from .blocks import SCHEMA, Block, Sums, define, fake_numbers, numbers_of, write_gradient
from .places import SCHEMA as OF_PLACES
from .places import OfPlaces, Places, check_indices
from .row_losses import CrossEntropy

CHUNK_ROWS = 4096
ALIGNED_DEVICES = ["cuda"]  # whose products need aligned heads
# The most logits of a block of classes, and its fewest classes but for small heads.
BLOCK_BYTES, LEAST_CLASSES = 256 << 20, 1024


class Head(NamedTuple):
    """The operands of the products, in two dimensions, of one dtype."""

    input: Tensor  # (rows, features)
    weight: Tensor  # (classes, features)
    bias: Tensor | None  # (classes,)

    def part(self, first: int, classes: int) -> Head:
        bias = None if self.bias is None else self.bias[first : first + classes]
        return self._replace(weight=self.weight[first : first + classes], bias=bias)

    def rows(self, some: slice) -> Head:
        return self._replace(input=self.input[some])


class Wanted(NamedTuple):
    """Which gradients are."""

    input: bool
    weight: bool
    bias: bool


def aligned(head: Head) -> Head:
    """The head with classes of zeros behind the last one, where a row of logits would not be whole vectors of 16 bytes:
    cuBLAS has slow kernels for these. H200, bfloat16, (4096, 768) hidden states and 50,257 classes: the logits take
    3.36 ms, of 50,264 classes 0.45; input's gradient 2.54 and 0.41."""
    more = -head.weight.shape[0] % (16 // head.weight.element_size())
    if more == 0 or head.weight.device.type not in ALIGNED_DEVICES:
        return head
    pad = torch.nn.functional.pad
    bias = None if head.bias is None else pad(head.bias, (0, more))
    return head._replace(weight=pad(head.weight, (0, 0, 0, more)), bias=bias)


def clear_behind(logits: Tensor, classes: int) -> None:
    """Sets to 0 what logits, or their gradient, have behind the classes."""
    if logits.shape[1] > classes:
        logits[:, classes:] = 0


def logits_of(head: Head, memory: Tensor | None = None) -> Tensor:
    """The logits, in rows that begin at 16 bytes; of one class side by side. `memory`: of earlier ones, which were at
    least as many."""
    rows, classes = head.input.shape[0], head.weight.shape[0]
    if memory is None:
        step = 16 // head.input.element_size()
        memory = head.input.new_empty(rows, -(-classes // step) * step)
        if not memory.is_cuda:
            # Products of bfloat16 by AMX (torch 2.13) read what is behind a row too, and multiply it by 0: it must not
            # be NaN.
            clear_behind(memory, classes)
    out = memory[:rows, :classes]
    if classes == 1 < rows:  # torch 2.10's products of halves on a CPU are wrong for a column of a wider matrix
        out = memory.as_strided((rows, 1), (1, 1))
    if head.bias is None:
        return torch.mm(head.input, head.weight.t(), out=out)
    return torch.addmm(head.bias, head.input, head.weight.t(), out=out)


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def product(a: Tensor, b: Tensor, wide: bool) -> Tensor:
    """The product; `wide`: in float32 for halves. With `out` autocast does not see it."""
    is_wide = wide and _is_half(a)
    if is_wide and a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    found = a.new_empty(a.shape[0], b.shape[1], dtype=torch.float32 if is_wide else None)
    return torch.mm(a.float() if is_wide else a, b.float() if is_wide else b, out=found)


class Sum:
    """A sum of products, in float32 for halves. The first can be the only one: then it is rounded once, by the
    product."""

    def __init__(self, like: Tensor, is_alone: bool) -> None:
        self.like, self.is_wide = like, _is_half(like) and not is_alone
        self.total: Tensor | None = None

    def add(self, a: Tensor, b: Tensor) -> None:
        if self.total is None:
            self.total = product(a, b, self.is_wide)
        elif not self.is_wide:
            self.total = torch.addmm(self.total, a, b, out=self.total)
        elif a.is_cuda:
            torch.addmm(self.total, a, b, out=self.total, out_dtype=torch.float32)
        else:
            self.total += product(a, b, wide=True)

    def wide(self) -> Tensor:
        if self.total is None:
            return self.like.new_zeros(self.like.shape, dtype=row_losses.wide(self.like.dtype))
        return self.total

    def result(self, dtype: torch.dtype | None = None) -> Tensor:
        found = self.like.new_zeros(self.like.shape) if self.total is None else self.total
        return found.to(self.like.dtype if dtype is None else dtype)


def _blocks(head: Head, block: Block) -> Iterator[tuple[int, Head, Block]]:
    """Blocks of classes, with the number of the first class. Their logits take up to BLOCK_BYTES, and at most half
    of all."""
    rows, classes = head.input.shape[0], head.weight.shape[0]
    fit = max(LEAST_CLASSES, min(BLOCK_BYTES // (rows * head.input.element_size()), -(-classes // 2)))
    step = 64 if fit > 64 else 1  # of the sizes, for the products
    size = -(-classes // -(-classes // fit) // step) * step
    for first in range(0, classes, size):
        some = min(size, classes - first)
        yield first, head.part(first, some), block.part(first, some)


def numbers(head: Head, block: Block, indices: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The numbers, and the z of the classes at `indices`, if there are any."""
    parts, memory = list(_blocks(head, block)), None
    sums = Sums(head.input, head.input.shape[0], len(parts))
    if indices is not None:
        check_indices(indices, block.all_classes)
    places = None if indices is None else Places(indices, block)
    for _, part, of_part in parts:
        made = logits_of(aligned(part), memory)
        memory = made if memory is None else memory
        logits = made[:, : part.weight.shape[0]]
        sums.add(logits, of_part)
        if places is not None:
            places.add(logits, of_part)
    return sums.numbers(block), None if places is None else places.z()


def of_logits(logits: Tensor, block: Block, indices: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The same from all logits at once."""
    if indices is None:
        return numbers_of(logits, block), None
    check_indices(indices, block.all_classes)
    places = Places(indices, block)
    places.add(logits, block)
    return numbers_of(logits, block), places.z()


def gradients(
    grads: Tensor,
    numbers: Tensor,
    of_places: OfPlaces,
    head: Head,
    block: Block,
    wanted: Wanted,
    wide: bool,
    logits: Tensor | None = None,
) -> Any:
    """The gradients of input, weight and bias, from the gradients of the numbers of all classes. `wide`: input's is not
    rounded to a half. `logits`: the whole ones, which are overwritten; otherwise they are made again, in blocks."""
    at = of_places.gradients(grads, numbers, block)
    parts = list(_blocks(head, block)) if logits is None else [(0, head, block)]
    of_input = Sum(head.input, is_alone=len(parts) == 1 and not wide)
    of_weight = head.weight.new_empty(head.weight.shape) if wanted.weight else None
    of_bias = head.weight.new_empty(head.weight.shape[0]) if wanted.bias else None
    memory = None
    for first, part, of_part in parts:
        classes, whole = part.weight.shape[0], aligned(part)
        made = logits_of(whole, memory) if logits is None else logits
        memory = made if memory is None else memory
        gradient = made[:, :classes]
        write_gradient(gradient, of_part, numbers, grads, gradient)
        if at is not None:
            at.write(gradient, of_part.first_class)
        clear_behind(made, classes)
        some = slice(first, first + classes)
        if wanted.input:
            of_input.add(made, whole.weight)
        if of_weight is not None and whole is part:
            torch.mm(made.t(), part.input, out=of_weight[some])
        elif of_weight is not None:
            of_weight[some] = product(made.t(), part.input, wide=False)[:classes]
        if of_bias is not None:
            of_bias[some] = gradient.sum(0)
    dtype = row_losses.wide(head.input.dtype) if wide else None
    return of_input.result(dtype) if wanted.input else None, of_weight, of_bias


def chunks(rows: int, most: int | None = None) -> int:
    """How many chunks of rows a step has. `most`: rows of a chunk."""
    return max(1, -(-rows // (CHUNK_ROWS if most is None else most)))


def step(
    head: Head, value_over: Callable[[Tensor, slice], Tensor], wanted: Wanted, most: int | None = None
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """The loss in float64, a sum over rows or with a divisor, and its gradients; those of weight and bias in float32
    for halves. `value_over`: the loss of some rows, given their logits, whose gradient it writes over them."""
    rows, count = head.input.shape[0], chunks(head.input.shape[0], most)
    size = -(-rows // count)
    total = head.input.new_zeros((), dtype=torch.float64)  # of chunks' values in the logits' arithmetic
    of_input = head.input.new_empty(head.input.shape) if wanted.input else None
    whole, classes = aligned(head), head.weight.shape[0]
    of_weight = Sum(head.weight, is_alone=count == 1)
    wide = torch.float32 if _is_half(head.weight) else head.weight.dtype
    of_bias = head.weight.new_zeros(head.weight.shape[0], dtype=wide) if wanted.bias else None
    memory = None
    for first in range(0, rows, size):
        some = slice(first, min(rows, first + size))
        part = whole.rows(some)
        made = logits_of(part, memory)
        memory = made if memory is None else memory
        logits = made[:, :classes]
        total += value_over(logits, some)
        clear_behind(made, classes)
        if of_input is not None:
            torch.mm(made, whole.weight, out=of_input[some])
        if wanted.weight:
            of_weight.add(made.t(), part.input)
        if of_bias is not None:
            of_bias += logits.sum(0, dtype=wide)
    return total, of_input, of_weight.result(wide)[:classes] if wanted.weight else None, of_bias


# ---- the ops, for eager code and for compilers ----

_HEAD = f"Tensor input, Tensor linear_weight, Tensor? linear_bias, {SCHEMA}"


def _split(arguments: tuple[Any, ...]) -> tuple[Head, Block]:
    return Head(*arguments[:3]), Block(*arguments[3:])


def _numbers_op(*arguments: Any) -> Any:
    *call, indices = arguments
    return numbers(*_split(tuple(call)), indices)


def _fake_z(indices: Tensor | None) -> Tensor | None:
    return None if indices is None else indices.new_empty(indices.shape, dtype=torch.float64)


def _gradients_op(grads: Tensor, numbers: Tensor, *arguments: Any) -> Any:
    *call, for_input, for_weight, for_bias, wide = arguments
    of_places, wanted = OfPlaces(*call[:3]), Wanted(for_input, for_weight, for_bias)
    return gradients(grads, numbers, of_places, *_split(tuple(call[3:])), wanted, wide)


def _fake_gradients(grads: Tensor, numbers: Tensor, *arguments: Any) -> Any:
    *call, for_input, for_weight, for_bias, wide = arguments
    input, weight, bias = call[3:6]
    of_input = input.new_empty(input.shape, dtype=row_losses.wide(input.dtype) if wide else None)
    of_bias = None if bias is None or not for_bias else bias.new_empty(bias.shape)
    return of_input if for_input else None, weight.new_empty(weight.shape) if for_weight else None, of_bias


numbers_op = define(
    f"_head_numbers({_HEAD}, Tensor? indices) -> (Tensor, Tensor)",
    _numbers_op,
    lambda input, *rest: (fake_numbers(input, input.shape[0]), _fake_z(rest[-1])),
)
gradients_op = define(
    f"_head_gradients(Tensor grads, Tensor numbers, {OF_PLACES}, {_HEAD}, bool for_input, bool for_weight, "
    "bool for_bias, bool wide) -> (Tensor, Tensor, Tensor)",
    _gradients_op,
    _fake_gradients,
)


def _step_op(*arguments: Any) -> Any:
    *call, class_weight, smoothing, z_loss, sample_weight, divisor, scale, for_input, for_weight, for_bias = arguments
    head, block = _split(tuple(call))
    rest = sample_weight, "sum" if divisor is None else "mean", divisor, scale, row_losses.wide(head.input.dtype)
    loss = CrossEntropy(class_weight, head.weight.shape[0], smoothing, z_loss, *rest)

    def value_over(logits: Tensor, some: slice) -> Tensor:
        return row_losses.value_over(loss.rows(some), logits, block.rows(some))

    return step(head, value_over, Wanted(for_input, for_weight, for_bias))


def fake_step(*arguments: Any) -> Any:
    input, weight, bias = arguments[:3]
    for_input, for_weight, for_bias = arguments[-3:]
    wide = torch.float32 if _is_half(weight) else weight.dtype
    return (
        input.new_empty((), dtype=torch.float64),
        input.new_empty(input.shape) if for_input else None,
        weight.new_empty(weight.shape, dtype=wide) if for_weight else None,
        None if bias is None or not for_bias else bias.new_empty(bias.shape, dtype=wide),
    )


step_op = define(
    f"_head_step({_HEAD}, Tensor? row_class_weight, float smoothing, float z_loss, Tensor? sample_weight, "
    "Tensor? divisor, float scale, bool for_input, bool for_weight, bool for_bias) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _step_op,
    fake_step,
)


def _logits_numbers(logits: Tensor, *arguments: Any) -> Any:
    *call, indices = arguments
    return of_logits(logits, Block(*call), indices)


def _logits_gradient(grads: Tensor, numbers: Tensor, *arguments: Any) -> Tensor:
    of_places, logits, block = OfPlaces(*arguments[:3]), arguments[3], Block(*arguments[4:])
    gradient = logits.new_empty(logits.shape)
    write_gradient(logits, block, numbers, grads, gradient)
    at = of_places.gradients(grads, numbers, block)
    if at is not None:
        at.write(gradient, 0)
    return gradient


logits_numbers_op = define(
    f"_logits_numbers(Tensor input, {SCHEMA}, Tensor? indices) -> (Tensor, Tensor)",
    _logits_numbers,
    lambda logits, *rest: (fake_numbers(logits, logits.shape[0] * logits.shape[1]), _fake_z(rest[-1])),
)
logits_gradient_op = define(
    f"_logits_gradient(Tensor grads, Tensor numbers, {OF_PLACES}, Tensor input, {SCHEMA}) -> Tensor",
    _logits_gradient,
    lambda *call: call[5].new_empty(call[5].shape),
)
