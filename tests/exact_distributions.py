"""The truth of the divergences of two distributions, of their logits, in double-doubles; and PyTorch's own."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exact_rows import LONG


class Divergence(NamedTuple):
    """Of rows whose classes come last: the loss, its gradients for input and target, and what these are made of."""

    losses: np.ndarray
    for_input: np.ndarray
    for_target: np.ndarray
    p: np.ndarray
    q: np.ndarray
    log_p: np.ndarray
    log_q: np.ndarray


def _log_softmax(x: np.ndarray) -> np.ndarray:
    """The logarithm of the largest class is log1p of the others' sum: beside a 1 they would lose their digits. A row of
    NaN, of +inf or of -inf alone is NaN."""
    below = x - x.max(-1, keepdims=True)
    e = np.exp(below)
    largest = x.argmax(-1)[..., None]
    np.put_along_axis(e, largest, np.take_along_axis(e, largest, -1) - 1, -1)
    return below - np.log1p(e.sum(-1, keepdims=True))


def _grown(d: np.ndarray) -> np.ndarray:
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

    p: np.ndarray
    q: np.ndarray
    log_p: np.ndarray
    log_q: np.ndarray
    more: np.ndarray
    d: np.ndarray
    bad: np.ndarray
    none: np.ndarray

    def found(self, temperature: np.ndarray, loss: np.ndarray, for_input: np.ndarray, for_target: np.ndarray):
        found = loss * temperature**2, temperature * np.where(self.none, 0, for_input), temperature * for_target
        losses, *gradients = (np.where(self.bad, LONG(np.nan), x) for x in found)
        return Divergence(losses[..., 0], *gradients, self.p, self.q, self.log_p, self.log_q)


def _rows(input: np.ndarray, target: np.ndarray, t: np.ndarray) -> _Rows:
    bad = np.isnan(input).any(-1, keepdims=True) | np.isnan(target).any(-1, keepdims=True)
    for x in (input, target):
        bad |= (x == np.inf).any(-1, keepdims=True) | (x == -np.inf).all(-1, keepdims=True)
    log_q, log_p = _log_softmax(input / t), _log_softmax(target / t)
    q, p = np.exp(log_q), np.exp(log_p)
    none = (log_q == -np.inf) & (log_p == -np.inf)
    d = np.where(none, 0, log_q - np.where(none, 0, log_p))
    # q - p is p (exp(d) - 1), or q (1 - exp(-d)): of the larger one.
    more = np.where(d > 0, -q * np.expm1(-np.abs(d)), p * np.expm1(-np.abs(d)))
    return _Rows(p, q, log_p, log_q, more, d, bad, none)


def divergence(input: np.ndarray, target: np.ndarray, temperature: float = 1.0) -> Divergence:
    """T^2 sum(p (exp(d) - 1 - d)) with d = log q - log p, which is T^2 sum(p (log p - log q)) since p and q each add up
    to 1: no term of it is negative, so that none cancels. Where exp(d) is huge it is p that is small: there the term is
    q - p - p d. A class that is -inf in both operands is none."""
    t = LONG(temperature)
    with np.errstate(all="ignore"):
        rows = _rows(input, target, t)
        p, q, d = rows.p, rows.q, rows.d
        terms = np.where(d < 30, p * _grown(d), q - p - p * d)
        kl = np.where(p == 0, q, terms).sum(-1, keepdims=True)
        return rows.found(t, kl, rows.more, np.where(p == 0, 0, p * (-d - kl)))


def mixture(input: np.ndarray, target: np.ndarray, beta: float, temperature: float = 1.0) -> Divergence:
    """T^2 sum(beta p log(p / m) + (1 - beta) q log(q / m)), 0 < beta < 1. With u = m / p - 1 the first half is
    beta p (u - log1p(u)), likewise the other one: what this adds, beta p u and (1 - beta) q u, is 0 in sum."""
    t = LONG(temperature)
    with np.errstate(all="ignore"):
        rows = _rows(input, target, t)
        halves = []
        for of, log, share, sign in (
            (rows.q, rows.log_q, LONG(1) - LONG(beta), -1),
            (rows.p, rows.log_p, LONG(beta), 1),
        ):
            there = of > LONG(1e-290)  # so that no quotient is infinite
            u = (1 - share) * sign * rows.more / np.where(there, of, 1)
            m = LONG(beta) * rows.p + (1 - LONG(beta)) * rows.q
            slope = np.where(there, -np.log1p(u), log - np.log(np.where(of > 0, m, 1)))
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
