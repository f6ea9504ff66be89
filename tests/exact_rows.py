"""The exact values of losses of rows, in float64 or double-doubles, and their test operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from wide import Numbers, Wide, numbers


class Truth(NamedTuple):
    """Of each row: its loss, its gradients for an incoming one of 1, the size of the terms that these are differences
    of, and what it counts; by rows, in the order of input's, and by classes."""

    losses: Numbers
    for_input: Numbers
    sizes: Numbers
    for_target: Numbers | None
    counts: Numbers


def by_rows(x: Tensor) -> Tensor:
    """(rows, classes) of what has classes."""
    dim = 1 if x.dim() > 1 else 0
    return x.movedim(dim, -1).reshape(-1, x.shape[dim])


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Truth:
    """-sum(w q' log p) + z lse^2 of each row. Of an index its own log comes by log1p of the others' sum."""
    number = numbers(input, target, weight)
    x, s = number(by_rows(input)), number(label_smoothing)
    slope = number(1)
    if softcap is not None:
        bent = np.tanh(x / number(softcap))
        x, slope = number(softcap) * bent, 1 - bent * bent
    rows, classes = x.shape
    w = number(np.ones(classes) if weight is None else weight)
    if target.is_floating_point():
        q = number(by_rows(target))
        counts, kept = number(np.ones(rows)), np.ones(rows, bool)
        top = x.max(-1, keepdims=True)
        e = np.exp(x - top)
        largest = (np.arange(rows), x.argmax(-1))
        e[largest] = 0  # of which lse - x is log1p of the others' sum: 1 would hide it
        log_all = np.log1p(e.sum(-1))
        e[largest] = 1
        lse, p = top[:, 0] + log_all, e / e.sum(-1, keepdims=True)
        logs = (x - top) - log_all[:, None]
        share = w * ((1 - s) * q + s / classes)
        at = None
    else:
        index = target.detach().cpu().reshape(-1).long().numpy()
        kept = index != ignore_index
        index = np.where(kept, index, 0)
        at = (np.arange(rows), index)
        counts = np.where(kept, w[index], 0)
        e = np.exp(x - x[at][:, None])
        e[at] = 0
        others = e.sum(-1)
        lse = x[at] + np.log1p(others)
        p = e / (1 + others)[:, None]
        p[at] = 1 / (1 + others)
        logs = x - lse[:, None]
        logs[at] = -np.log1p(others)
        share = np.broadcast_to(w * s / classes, x.shape).copy()
        share[at] += (1 - s) * w[index]
    z = number(z_loss)
    with np.errstate(invalid="ignore"):
        losses = np.where(share == 0, 0, -share * logs).sum(-1) + z * lse * lse
    total = share.sum(-1) + 2 * z * lse
    grads = total[:, None] * p - share
    if at is not None and s == 0 and z == 0:  # without the cancellation
        grads[at] = -share[at] * others / (1 + others)
    sizes = (np.abs(total[:, None] * p) + share) * np.abs(slope)
    if at is not None and s == 0 and z == 0:
        sizes = np.abs(grads * slope)
    out = ~kept
    losses = np.where(out, 0, losses)
    grads, sizes = (np.where(out[:, None], 0, g) for g in (grads * slope, sizes))
    for_target = (1 - s) * w * -logs if at is None else None
    return Truth(losses, grads, sizes, for_target, counts)


def as_input(by_classes: Numbers, input: Tensor) -> Numbers:
    """(rows, classes) in the shape of input."""
    dim = 1 if input.dim() > 1 else 0
    shape = [size for i, size in enumerate(input.shape) if i != dim]
    return np.moveaxis(by_classes.reshape(*shape, input.shape[dim]), -1, dim)


_DIGITS = {torch.float32: (23, -126), torch.float64: (52, -1022), torch.float16: (10, -14), torch.bfloat16: (7, -126)}


def error(found: Tensor, exact: Numbers, sizes: Numbers | None = None) -> float:
    """The largest error in units in the last place of the exact numbers, or of `sizes` where these are larger; infinite
    where one is NaN or infinite and the other is not the same."""
    digits, least = _DIGITS[found.dtype]
    ours, exact = found.detach().cpu().double().numpy().reshape(-1), Wide.of(exact).reshape(-1)
    rounded = np.asarray(exact)
    beyond = np.abs(rounded) > torch.finfo(found.dtype).max
    rounded = np.where(beyond, np.copysign(np.inf, rounded), rounded)
    finite = np.isfinite(rounded)
    same = np.where(np.isnan(rounded), np.isnan(ours), ours == rounded)
    if not same[~finite].all() or not np.isfinite(ours[finite]).all():
        return float("inf")
    if not finite.any():
        return 0.0
    size = np.abs(rounded[finite])
    if sizes is not None:
        size = np.maximum(size, np.abs(np.asarray(Wide.of(sizes)).reshape(-1)[finite]))
    exponent = np.maximum(np.frexp(size)[1] - 1, least)
    exponent = np.where(size == 0, least, exponent)
    return float(np.ldexp(np.abs(np.asarray(ours[finite] - exact[finite])), digits - exponent).max())


def assert_same_bits(function: Callable[..., Tensor], input: Tensor, target: Tensor) -> None:
    """That a mean and its gradient do not depend on the number of threads, nor on the run."""
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            leaf = input.clone().requires_grad_()
            value = function(leaf, target)
            value.backward()
            found.append((value.detach(), leaf.grad))
    finally:
        torch.set_num_threads(before)
    for value, gradient in found[1:]:
        assert torch.equal(value, found[0][0]) and torch.equal(gradient, found[0][1])
