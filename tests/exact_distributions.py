"""The truth of the divergences of two distributions, of their logits, in float64 or double-doubles; and PyTorch's."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wide import Numbers, Wide


class Divergence(NamedTuple):
    """Of rows whose classes come last: the loss, its gradients for input and target, and what these are made of."""

    losses: Numbers
    for_input: Numbers
    for_target: Numbers
    p: Numbers
    q: Numbers
    log_p: Numbers
    log_q: Numbers


def _number(x: float, beside: Numbers) -> Numbers:
    return Wide.of(x) if isinstance(beside, Wide) else np.float64(x)


def _log_softmax(x: Numbers, t: Numbers) -> Numbers:
    """Of x / t. The logarithm of the largest class is log1p of the others' sum: beside a 1 they would lose digits.
    A row of NaN, of +inf or of -inf alone is NaN."""
    below = (x - x.max(-1, keepdims=True)) / t
    e = np.exp(below)
    largest = x.argmax(-1)[..., None]
    np.put_along_axis(e, largest, np.take_along_axis(e, largest, -1) - 1, -1)
    return below - np.log1p(e.sum(-1, keepdims=True))


def _grown(d: Numbers) -> Numbers:
    """exp(d) - 1 - d, from its series where it would cancel."""
    near = np.where(np.abs(d) < 0.25, d, 0)
    series, term = np.zeros_like(near), near.copy()
    for k in range(2, 16):
        term = term * near / k
        series += term
    return np.where(np.abs(d) < 0.25, series, np.expm1(np.where(d < 30, d, 0)) - d)


class _Rows(NamedTuple):
    """q - p and d = log q - log p without cancellation; `bad` rows are not finite, `none` are classes that are -inf in
    both operands."""

    p: Numbers
    q: Numbers
    log_p: Numbers
    log_q: Numbers
    more: Numbers
    d: Numbers
    bad: Numbers
    none: Numbers

    def found(self, temperature: Numbers, loss: Numbers, for_input: Numbers, for_target: Numbers):
        found = loss * temperature**2, temperature * np.where(self.none, 0, for_input), temperature * for_target
        losses, *gradients = (np.where(self.bad, np.nan, x) for x in found)
        return Divergence(losses[..., 0], *gradients, self.p, self.q, self.log_p, self.log_q)


def _rows(input: Numbers, target: Numbers, t: Numbers) -> _Rows:
    bad = np.isnan(input).any(-1, keepdims=True) | np.isnan(target).any(-1, keepdims=True)
    for x in (input, target):
        bad |= (x == np.inf).any(-1, keepdims=True) | (x == -np.inf).all(-1, keepdims=True)
    log_q, log_p = _log_softmax(input, t), _log_softmax(target, t)
    q, p = np.exp(log_q), np.exp(log_p)
    none = (log_q == -np.inf) & (log_p == -np.inf)
    d = np.where(none, 0, log_q - np.where(none, 0, log_p))
    # q - p is p (exp(d) - 1), or q (1 - exp(-d)): of the larger one.
    more = np.where(d > 0, -q * np.expm1(-np.abs(d)), p * np.expm1(-np.abs(d)))
    return _Rows(p, q, log_p, log_q, more, d, bad, none)


def divergence(input: Numbers, target: Numbers, temperature: float = 1.0) -> Divergence:
    """T^2 sum(p (exp(d) - 1 - d)) with d = log q - log p, which is T^2 sum(p (log p - log q)) since p and q each add up
    to 1: no term of it is negative, so that none cancels. Where exp(d) is huge it is p that is small: there the term is
    q - p - p d. A class that is -inf in both operands is none."""
    t = _number(temperature, input)
    with np.errstate(all="ignore"):
        rows = _rows(input, target, t)
        p, q, d = rows.p, rows.q, rows.d
        terms = np.where(d < 30, p * _grown(d), q - p - p * d)
        kl = np.where(p == 0, q, terms).sum(-1, keepdims=True)
        return rows.found(t, kl, rows.more, np.where(p == 0, 0, p * (-d - kl)))


def mixture(input: Numbers, target: Numbers, beta: float, temperature: float = 1.0) -> Divergence:
    """T^2 sum(beta p log(p / m) + (1 - beta) q log(q / m)), 0 < beta < 1. With u = m / p - 1 the first half is
    beta p (u - log1p(u)), likewise the other one: what this adds, beta p u and (1 - beta) q u, is 0 in sum."""
    t = _number(temperature, input)
    with np.errstate(all="ignore"):
        rows = _rows(input, target, t)
        halves = []
        for of, share, sign in ((rows.q, 1 - _number(beta, input), -1), (rows.p, _number(beta, input), 1)):
            there = of > 1e-290  # so that no quotient is infinite
            u = (1 - share) * sign * rows.more / np.where(there, of, 1)
            d = -np.maximum(sign * rows.d, -600.0)  # beyond this the exp is the sum
            slope = np.where(there, -np.log1p(u), d - np.log((1 - share) + share * np.exp(d)))
            term = np.where(there, of * (u + slope), (1 - share) * sign * rows.more)
            halves.append((np.where(of == 0, 0, share * slope), share * term, of))
        loss = sum(term for _, term, _ in halves).sum(-1, keepdims=True)
        gradients = [np.where(of == 0, 0, of * (s - (of * s).sum(-1, keepdims=True))) for s, _, of in halves]
        return rows.found(t, loss, *gradients)


def kl_div_of_torch(input: Tensor, target: Tensor, reduction="mean", temperature=1.0, *, dim=1) -> Tensor:
    """What PyTorch's users write."""
    dim = 0 if max(input.dim(), target.dim()) == 1 else dim
    logs = (F.log_softmax(x / temperature, dim) for x in torch.broadcast_tensors(input, target))
    losses = F.kl_div(*logs, log_target=True, reduction="none").sum(dim) * temperature**2
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def jsd_of_torch(input: Tensor, target: Tensor, reduction="mean", beta=0.5, temperature=1.0, *, dim=1) -> Tensor:
    """What PyTorch's users write."""
    dim = 0 if max(input.dim(), target.dim()) == 1 else dim
    log_q, log_p = (F.log_softmax(x / temperature, dim) for x in torch.broadcast_tensors(input, target))
    if beta in (0, 1):
        pairs = ((1, log_q, log_p),) if beta == 0 else ((1, log_p, log_q),)
    else:
        log_m = torch.logaddexp(log_p + math.log(beta), log_q + math.log(1 - beta))
        pairs = (beta, log_m, log_p), (1 - beta, log_m, log_q)
    terms = sum(share * F.kl_div(of, log, log_target=True, reduction="none").sum(dim) for share, of, log in pairs)
    losses = terms * temperature**2
    return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def student_and_teacher(
    shape: tuple[int, ...],
    noise: float = 1.0,
    offset: float = 0.0,
    sure: float = 1.0,
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32),
    device: str = "cpu",
) -> list[Tensor]:
    """Logits of spread `sure`, and others beside them, which differ by `offset` and noise."""
    teacher = sure * torch.randn(shape, dtype=torch.float64)
    along = torch.linspace(0.1, 1, math.prod(shape[:-1]), dtype=torch.float64).view(*shape[:-1], 1)
    student = teacher + offset + noise * along * torch.randn(shape, dtype=torch.float64)
    return [x.to(dtype).to(device) for x, dtype in zip((student, teacher), dtypes, strict=True)]
