"""The numbers of rows of logits: all that a loss must know of a row's classes. They come from blocks of classes.

For each row, in float64: log(sum of exp(z)) over the classes except the target's; the target's z; the mean of z over
the other classes, by their probabilities; and the sum of class_weight * z over all. z is the logit after softcap and
temperature. The third number is 0 unless a loss needs the entropy, the fourth unless it gives each class a share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call.varying import widest
from .._ops import private

NUMBERS = 4
LOG_SUM, OWN, MEAN, SHARES = range(NUMBERS)
SCHEMA = (
    "Tensor target, Tensor? counts, Tensor? class_weight, int first_class, int all_classes, float softcap, "
    "float temperature, bool entropy, bool shares"
)


class Block(NamedTuple):
    """Some classes of all, for rows in one dimension."""

    target: Tensor  # int64, of all classes
    counts: Tensor | None  # bool: the rows that count; None: all
    class_weight: Tensor | None  # of the block's classes, float32, or float64 beside such logits; only for `shares`
    first_class: int
    all_classes: int
    softcap: float = 0.0  # 0: none
    temperature: float = 1.0
    entropy: bool = False
    shares: bool = False

    def part(self, first: int, classes: int) -> Block:
        """The same for some of the block's classes."""
        weight = None if self.class_weight is None else self.class_weight[first : first + classes]
        return self._replace(class_weight=weight, first_class=self.first_class + first)

    def rows(self, some: slice) -> Block:
        counts = None if self.counts is None else self.counts[some]
        return self._replace(target=self.target[some], counts=counts)


_SUMS = 5
_LIBRARY = private.LIBRARY


def _define(schema: str, fake: Callable[..., Any] | None = None) -> Any:
    """Declares a compiled op. Autograd does not see it."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=private.TAGS)
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    if fake:  # register_fake takes 0.7 ms of the import for each op, because it looks for the caller's source
        _LIBRARY.impl(name, fake, "Meta")
    return getattr(private.OPS, name).default


def define(schema: str, kernel: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Defines an op in Python, which compilers see as one and autograd does not see. It raises an error for tensors
    that require a gradient, because its results would be detached."""

    def undifferentiated(*arguments: Any) -> Any:
        if torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments):
            raise RuntimeError("cudaloss: this private op has no derivative: call the public function")
        with torch.no_grad():
            return kernel(*arguments)

    found = _define(schema, fake)
    _LIBRARY.impl(schema.partition("(")[0], undifferentiated, "CompositeExplicitAutograd")
    return found


def _fake_token_values(numbers: Tensor, entropy: bool, wide: bool) -> Any:
    found = numbers.new_empty(numbers.shape[1], dtype=torch.float64 if wide else torch.float32)
    return found, torch.empty_like(found) if entropy else None


_sums_ = _define(f"_class_sums_(Tensor input, {SCHEMA}, Tensor(a!) sums, int index) -> ()")
_numbers = _define(
    "_class_numbers(Tensor sums, Tensor target, Tensor? counts, int all_classes, bool entropy) -> Tensor"
)
_gradients_ = _define(
    f"_class_gradients_(Tensor input, {SCHEMA}, Tensor numbers, Tensor grads, Tensor(a!) gradient) -> ()"
)
token_values = _define("_token_values(Tensor numbers, bool entropy, bool wide) -> (Tensor, Tensor)", _fake_token_values)
token_gradients = _define(
    "_token_gradients(Tensor numbers, Tensor? grad_log_prob, Tensor? grad_entropy) -> Tensor",
    lambda numbers, *grads: torch.empty_like(numbers),
)
scaled_gradient_ = _define("_scaled_gradient_(Tensor gradient, Tensor factor, Tensor(a!) out) -> ()")


class Sums:
    """The sums of rows over blocks of classes."""

    def __init__(self, like: Tensor, rows: int, blocks: int) -> None:
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        self.sums, self.block = like.new_empty(blocks, _SUMS, rows, dtype=dtype), 0

    def add(self, logits: Tensor, block: Block) -> None:
        """Adds the next block, (rows, classes) or (outer, inner, classes)."""
        _sums_(logits.unsqueeze(0) if logits.dim() == 2 else logits, *block, self.sums, self.block)
        self.block += 1

    def numbers(self, block: Block) -> Tensor:
        return _numbers(self.sums, block.target, block.counts, block.all_classes, block.entropy)


def numbers_of(logits: Tensor, block: Block) -> Tensor:
    """The numbers from all classes at once."""
    sums = Sums(logits, block.target.shape[0], 1)
    sums.add(logits, block)
    return sums.numbers(block)


def fake_numbers(like: Tensor, rows: Any) -> Tensor:
    return like.new_empty(NUMBERS, rows, dtype=torch.float64)


def write_gradient(logits: Tensor, block: Block, numbers: Tensor, grads: Tensor, gradient: Tensor) -> None:
    """Writes the logits' gradient, from the gradients of the numbers of all classes. It can be in the logits' own
    memory."""
    if logits.dim() == 2:
        logits, gradient = logits.unsqueeze(0), gradient.unsqueeze(0)
    _gradients_(logits, *block, numbers, grads, gradient)


def bent(logits: Tensor, softcap: float, temperature: float) -> Tensor:
    z = softcap * torch.tanh(logits / softcap) if softcap != 0 else logits
    return z if temperature == 1 else z / temperature


def by_torch(logits: Tensor, block: Block) -> Tensor:
    """The numbers of (rows, classes) in plain PyTorch, which can be differentiated any number of times."""
    x = logits.to(widest(logits.device))
    x = x if block.counts is None else torch.where(block.counts.unsqueeze(1), x, 0)
    z = bent(x, block.softcap, block.temperature)
    index = block.target - block.first_class
    is_own = torch.arange(x.shape[1], device=x.device) == index.unsqueeze(1)
    own = torch.where(is_own.any(1), torch.where(is_own, z, 0).sum(1), -torch.inf)
    others = torch.where(is_own, -torch.inf, z)
    top = others.detach().amax(1, keepdim=True)
    e = (others - torch.where(top == -torch.inf, 0, top)).exp()
    total, is_empty = e.sum(1), top.squeeze(1) == -torch.inf
    total = torch.where(is_empty, 1, total)
    log_sum = torch.where(is_empty, -torch.inf, total.log() + top.squeeze(1))
    mean = (e * torch.where(e == 0, 0, others)).sum(1) / total if block.entropy else torch.zeros_like(own)
    weighted = z if block.class_weight is None else z * block.class_weight
    shares = weighted.sum(1) if block.shares else torch.zeros_like(own)
    found = torch.stack([log_sum, own, mean, shares])
    if block.counts is None:
        return found
    return torch.where(block.counts, found, 0)
