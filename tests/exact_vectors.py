"""The exact values of losses of vectors, in float64 or double-doubles, and their test operands. 1 less a cosine, which
cancels, is always of double-doubles."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from exact_distributions import Divergence, divergence, jsd_of_torch, kl_div_of_torch, mixture
from exact_rows import error
from wide import Numbers, Wide, numbers

LONG = Wide.of
# Bounds for a single rounding, for a few, and for a half's one.
ULPS = {torch.float32: 2.0, torch.float64: 4.0, torch.float16: 1.0, torch.bfloat16: 1.0}
# Of differences of logarithms: those that are a smaller share of these have fewer digits than the dtype.
LOST = {torch.float32: 2.0**-23, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-11}


class Truth(NamedTuple):
    """Of each row its loss, and its gradients for an incoming one of 1, of the joint shape of all operands and with the
    vectors last; each beside the size of the largest term that it is a sum of."""

    losses: Numbers
    sizes: Numbers
    gradients: tuple[Numbers, ...]
    gradient_sizes: tuple[Numbers, ...]


def long(x: Tensor) -> Numbers:
    return Wide(x.detach().cpu().double().numpy())


def arithmetic(*vectors: Tensor) -> torch.dtype:
    return torch.float64 if any(x.dtype == torch.float64 for x in vectors) else torch.float32


def norm(x: Numbers) -> Numbers:
    return np.sqrt((x * x).sum(-1))


def larger(*terms: Numbers) -> Numbers:
    return np.maximum.reduce(np.broadcast_arrays(*map(np.abs, terms)))


class Cosine(NamedTuple):
    """a b / (|a| |b|) of each row, and its gradients, with the sizes of their terms."""

    value: Numbers
    gradients: tuple[Numbers, Numbers]
    sizes: tuple[Numbers, Numbers]


def cosine(vectors: tuple[Tensor, Tensor], norms: Callable[[Numbers], tuple[Numbers, Numbers]]) -> Cosine:
    """`norms` has the norm of each vector, and the share of it that is the vector's own. In float64 the sum of a b is
    itself one of terms that are larger; that of fewer digits is of float64."""
    a, b = map(long, torch.broadcast_tensors(*vectors))
    (of_a, own_a), (of_b, own_b) = ([x[..., None] for x in norms(y)] for y in (a, b))
    c = (a * b).sum(-1, keepdims=True) / (of_a * of_b)
    value = c[..., 0]
    if arithmetic(*vectors) == torch.float64:
        size = np.abs(a * b).sum(-1, keepdims=True) / (of_a * of_b)
    else:  # what cancels has been computed
        a, b, of_a, of_b, c = (np.asarray(x) for x in (a, b, of_a, of_b, c))
        size = c
    gradients = b / (of_a * of_b) - own_a * c * a / of_a**2, a / (of_a * of_b) - own_b * c * b / of_b**2
    sizes = (
        larger(b / (of_a * of_b), own_a * size * a / of_a**2),
        larger(a / (of_a * of_b), own_b * size * b / of_b**2),
    )
    return Cosine(value, gradients, sizes)


def of_cosine(losses: Numbers, sign: Numbers, found: Cosine, *vectors: Tensor) -> Truth:
    """Of a loss that is a number and a cosine with this sign. Its sums are of float64, so that less than one of its
    digits is lost where the loss has fewer: 2 units in the last place of 2^-27 are 2e-15. Of numbers that are all alike
    the roundings are too, and add up with their count."""
    count = max(8, vectors[0].shape[-1] // 32)
    size = LONG(1) if arithmetic(*vectors) == torch.float64 else count * LONG(2) ** -30
    return Truth(
        losses,
        np.abs(sign) * size,
        tuple(sign[..., None] * x for x in found.gradients),
        tuple(np.abs(sign)[..., None] * x for x in found.sizes),
    )


def cosine_similarity(input: Tensor, target: Tensor, dim: int = 1, eps: float = 1e-8) -> Truth:
    vectors = tuple(x.movedim(dim, -1) for x in torch.broadcast_tensors(input, target))
    found = cosine(vectors, lambda x: (np.maximum(norm(x), LONG(eps)), norm(x) >= LONG(eps)))
    return of_cosine(1 - found.value, np.full(found.value.shape, -1.0), found, *vectors)


def cosine_embedding(input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0) -> Truth:
    vectors = input1, input2
    found = cosine(vectors, lambda x: (np.sqrt((x * x).sum(-1) + LONG(1e-12)), np.ones(x.shape[:-1])))
    attracts, repels = (long(target) == x for x in (1, -1))  # by value: to PyTorch uint8's 255 is -1 too
    above = found.value - LONG(margin)
    losses = np.where(attracts, 1 - found.value, np.where(repels, np.maximum(above, 0), 0))
    sign = np.where(attracts, -1.0, np.where(repels & (above >= 0), 1.0, 0.0))
    return of_cosine(losses, sign, found, *vectors)


def triplet_margin(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, eps: float = 1e-6, swap: bool = False
) -> Truth:
    """Differences are rounded in the operands' arithmetic, as PyTorch's."""
    compute = arithmetic(anchor, positive, negative)
    a, p, n = (x.detach().cpu().to(compute) for x in torch.broadcast_tensors(anchor, positive, negative))
    number = numbers(a)
    u, v, w = number(a - p + eps), number(a - n + eps), number(p - n + eps)
    of_u, of_v, of_w = norm(u), norm(v), norm(w)
    swapped = swap & (of_w < of_v)
    far = np.where(swapped, of_w, of_v)
    raw = of_u - far + number(margin)

    def unit(x, length):
        return np.where((raw >= 0) & (length != 0), 1 / np.where(length == 0, 1, length), 0)[..., None] * x

    near, v, w = unit(u, of_u), unit(v, np.where(swapped, 0, of_v)), unit(w, np.where(swapped, of_w, 0))
    return Truth(
        np.maximum(raw, 0),
        np.where(raw < 0, 0, larger(of_u, far, number(margin))),
        (near - v, -near - w, v + w),
        (larger(near, v), larger(near, w), larger(v, w)),
    )


def of_distributions(
    input: Tensor, target: Tensor, dim: int, temperature: float, find: Callable[..., Divergence], sizes: Callable
) -> Truth:
    """float64 has no digits beside its own, so that its terms are log p and log q. In others' arithmetic these have
    twice the dtype's, which their difference has fewer of; the loss goes with its square. What all d of a row have in
    common is known from their sum, which has the rounding of each: a gradient whose own d is far smaller than the
    others' has that.

    `sizes` gives the terms of the gradients; and with which probability d's error goes into the loss and into the
    input's gradient, into the target's gradient, and, in float64, into the loss."""
    vectors, computed = torch.broadcast_tensors(input, target), arithmetic(input, target)
    dim = 0 if vectors[0].dim() == 1 else dim
    number = numbers(input, target)
    found, t = find(*(number(x.movedim(dim, -1)) for x in vectors), temperature=temperature), number(temperature)
    with np.errstate(all="ignore"):
        logs = [np.where(np.isfinite(x), np.abs(x), 0) for x in (found.log_p, found.log_q)]
        apart = np.where(found.p * found.q > 0, np.abs(found.log_p - found.log_q), 0)
        log = np.maximum(*logs)
        terms, both, of_target, of_loss = sizes(found, apart, t, computed == torch.float64)
    if computed == torch.float64:
        size, lost = of_loss * log, (np.maximum(log, 1),) * 2
    else:
        size = both * (log * LOST[torch.promote_types(input.dtype, target.dtype)]) ** 2 + both * 2.0**-43
        differences = (of_target * apart).sum(-1, keepdims=True)
        lost = [2 * np.maximum(log, 1) * LOST[x.dtype] + differences for x in (input, target)]
    # An exp below the normal numbers is 0.
    least = number(torch.finfo(computed).tiny / torch.finfo(computed).eps)
    found_sizes = tuple(
        larger(x, t * p * share, least) for x, p, share in zip(terms, (both, of_target), lost, strict=True)
    )
    return Truth(found.losses, t * t * size.sum(-1), (found.for_input, found.for_target), found_sizes)


def kl_div_with_logits(input: Tensor, target: Tensor, temperature: float = 1.0, dim: int = 1) -> Truth:
    def sizes(found, apart, t, is_wide):
        # The target's gradient is a difference of these.
        terms = larger(
            np.where(found.p > 0, found.p * (found.log_p - found.log_q) * t, 0), found.p * found.losses[..., None] / t
        )
        return (found.for_input, terms), np.maximum(found.p, found.q), found.p, found.p

    return of_distributions(input, target, dim, temperature, divergence, sizes)


def jsd_with_logits(input: Tensor, target: Tensor, beta: float = 0.5, temperature: float = 1.0, dim: int = 1) -> Truth:
    if beta == 0:
        return kl_div_with_logits(input, target, temperature, dim)
    if beta == 1:
        found = kl_div_with_logits(target, input, temperature, dim)
        return found._replace(gradients=found.gradients[::-1], gradient_sizes=found.gradient_sizes[::-1])

    def sizes(found, apart, t, is_wide):
        number = numbers(input, target)
        a, b, p, q = number(beta), 1 - number(beta), found.p, found.q
        m = a * p + b * q
        # An error of d changes a slope by this, and the mean of the slopes, which each gradient has, by their sum.
        bent = a * b * p * q / np.where(m > 0, m, 1)
        both, of_target = (bent + x * bent.sum(-1, keepdims=True) for x in (q, p))
        if is_wide:  # q and p have the error of their logarithms
            both, of_target = both + np.abs(found.for_input) / t, of_target + np.abs(found.for_target) / t
        most = found.losses[..., None] / t  # of the means
        terms = larger(found.for_input, q * most), larger(found.for_target, p * most)
        return terms, both, of_target, both + of_target

    return of_distributions(input, target, dim, temperature, partial(mixture, beta=beta), sizes)


def cosine_similarity_of_torch(input, target, reduction="mean", dim=1, eps=1e-8):
    losses = 1 - F.cosine_similarity(input, target, dim, eps)
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


class Loss(NamedTuple):
    ours: Callable[..., Tensor]
    theirs: Callable[..., Tensor]
    truth: Callable[..., Truth]
    vectors: int  # the first so many operands
    names: tuple[str, ...]


LOSSES = {
    "cosine_similarity": Loss(
        cudaloss.cosine_similarity_loss, cosine_similarity_of_torch, cosine_similarity, 2, ("input", "target")
    ),
    "cosine_embedding": Loss(
        cudaloss.cosine_embedding_loss, F.cosine_embedding_loss, cosine_embedding, 2, ("input1", "input2", "target")
    ),
    "triplet_margin": Loss(
        cudaloss.triplet_margin_loss, F.triplet_margin_loss, triplet_margin, 3, ("anchor", "positive", "negative")
    ),
    "kl_div_with_logits": Loss(
        cudaloss.kl_div_with_logits, kl_div_of_torch, kl_div_with_logits, 2, ("input", "target")
    ),
    "jsd_with_logits": Loss(cudaloss.jsd_with_logits, jsd_of_torch, jsd_with_logits, 2, ("input", "target")),
}
# The losses whose vectors are along a dimension that the call names; without a name the second.
OF_DIM = ("cosine_similarity", "kl_div_with_logits", "jsd_with_logits")

# Each loss, and each of its branches.
CASES = {
    "similarity": ("cosine_similarity", {}),
    "embedding": ("cosine_embedding", {"margin": 0.3}),
    "triplet": ("triplet_margin", {}),
    "triplet with swap": ("triplet_margin", {"margin": 0.7, "swap": True}),
    "divergence": ("kl_div_with_logits", {"temperature": 1.7}),
    "mixture": ("jsd_with_logits", {"beta": 0.3, "temperature": 1.7}),
}


def drawn(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, device: str = "cpu") -> list[Tensor]:
    """A call's operands, with vectors along the last dimension: of rows from alike to contrary, or from triplets that
    are told apart to those that are not; and labels of both kinds."""
    first = torch.randn(shape, dtype=torch.float64)
    count = math.prod(shape[:-1])
    along = torch.linspace(-1, 1, count, dtype=torch.float64).view(*shape[:-1], 1)
    if LOSSES[name].vectors == 2:
        second = along * first + 0.7 * torch.randn_like(first)
        found = [first.to(dtype), second.to(dtype)]
        labels = torch.where(torch.arange(count) % 3 == 1, 1, -1).view(shape[:-1])
        found += [labels] if name == "cosine_embedding" else []
    else:
        others = [first + size * torch.randn_like(first) for size in (1 + along / 2, 1)]
        found = [x.to(dtype) for x in (first, *others)]
    return [x.to(device) for x in found]


def of_operand(x, operand, dim):
    """Takes a tensor in the operands' joint shape, with the vectors last, and sums it for one operand."""
    dim = 0 if x.ndim == 1 else dim
    x = np.moveaxis(x, -1, dim)
    added = x.ndim - operand.dim()
    x = x.sum(tuple(range(added)))
    return x.sum(tuple(i for i, n in enumerate(operand.shape) if n == 1), keepdims=True)


def errors(function, name, operands, incoming, **own):
    """The errors of the single losses, of their mean, and of all gradients of both."""
    loss, dim = LOSSES[name], own.get("dim", 1) if name in OF_DIM else -1
    number = numbers(*operands[: loss.vectors], incoming)
    truth, of_each = loss.truth(*operands, **own), number(incoming)
    leaves = [x.detach().requires_grad_() for x in operands[: loss.vectors]]
    rest = operands[loss.vectors :]
    single = function(*leaves, *rest, reduction="none", **own)
    mean = function(*leaves, *rest, **own)
    assert single.shape == incoming.shape and single.dtype == mean.dtype == incoming.dtype
    count = number(truth.losses.size)
    found = [error(single, truth.losses, truth.sizes)]
    found.append(error(mean, truth.losses.sum() / count, np.maximum(truth.losses, truth.sizes).sum() / count))
    for value, factor in ((single, of_each[..., None]), (mean, 1 / count)):
        gradients = torch.autograd.grad(value, leaves, incoming if value is single else None)
        for x, leaf, *exact in zip(gradients, leaves, truth.gradients, truth.gradient_sizes, strict=True):
            assert x.dtype == leaf.dtype and x.shape == leaf.shape
            found.append(error(x, *(of_operand(y * factor, leaf, dim) for y in exact)))
    return found


def assert_right(name, operands, incoming=None, **own):
    """Of fp64 a bound is what PyTorch misses, where that is more."""
    loss = LOSSES[name]
    vectors = operands[: loss.vectors]
    with torch.no_grad():
        shaped = loss.ours(*operands, reduction="none", **own)
    incoming = (torch.rand(shaped.shape) + 0.5).to(shaped) if incoming is None else incoming
    found = errors(loss.ours, name, operands, incoming, **own)
    joint = torch.broadcast_shapes(*(x.shape for x in vectors))
    # The gradients of an operand that is broadcast are added up after their rounding; float64's are of more factors.
    of_gradients = [ULPS[x.dtype] * (2 if x.shape != joint or x.dtype == torch.float64 else 1) for x in vectors]
    bounds = [ULPS[shaped.dtype]] * 2 + of_gradients * 2
    if not all(x <= y for x, y in zip(found, bounds, strict=True)) and torch.float64 in (x.dtype for x in vectors):
        bounds = [max(x, y) for x, y in zip(bounds, errors(loss.theirs, name, operands, incoming, **own), strict=True)]
    assert [x <= y for x, y in zip(found, bounds, strict=True)] == [True] * len(bounds), (found, bounds)
