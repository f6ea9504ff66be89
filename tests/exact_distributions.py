"""The truth of the divergence of two distributions, of their logits, in double-doubles; and PyTorch's own."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exact_rows import LONG


class Divergence(NamedTuple):
    """Of rows whose classes come last: T^2 KL, its gradients for input and target, and what these are made of."""

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


def divergence(input: np.ndarray, target: np.ndarray, temperature: float = 1.0) -> Divergence:
    """T^2 sum(p (exp(d) - 1 - d)) with d = log q - log p, which is T^2 sum(p (log p - log q)) since p and q each add up
    to 1: no term of it is negative, so that none cancels. Where exp(d) is huge it is p that is small: there the term is
    q - p - p d. A class that is -inf in both operands is none."""
    t = LONG(temperature)
    with np.errstate(all="ignore"):
        bad = np.isnan(input).any(-1, keepdims=True) | np.isnan(target).any(-1, keepdims=True)
        for x in (input, target):
            bad |= (x == np.inf).any(-1, keepdims=True) | (x == -np.inf).all(-1, keepdims=True)
        log_q, log_p = _log_softmax(input / t), _log_softmax(target / t)
        q, p = np.exp(log_q), np.exp(log_p)
        none = (log_q == -np.inf) & (log_p == -np.inf)
        d = np.where(none, 0, log_q - np.where(none, 0, log_p))
        terms = np.where(d < 30, p * _grown(d), q - p - p * d)
        kl = np.where(p == 0, q, terms).sum(-1, keepdims=True)
        # q - p is p (exp(d) - 1), or q (1 - exp(-d)): of the larger one.
        more = np.where(d > 0, -q * np.expm1(-np.abs(d)), p * np.expm1(-np.abs(d)))
        for_input = t * np.where(none, 0, more)
        for_target = t * np.where(p == 0, 0, p * (-d - kl))
    found = (np.where(bad, LONG(np.nan), x) for x in (kl * t * t, for_input, for_target))
    losses, *gradients = found
    return Divergence(losses[..., 0], *gradients, p, q, log_p, log_q)


def kl_div_of_torch(input: Tensor, target: Tensor, reduction="mean", temperature=1.0, *, dim=1) -> Tensor:
    """What PyTorch's users write."""
    dim = 0 if max(input.dim(), target.dim()) == 1 else dim
    logs = (F.log_softmax(x / temperature, dim) for x in torch.broadcast_tensors(input, target))
    losses = F.kl_div(*logs, log_target=True, reduction="none").sum(dim) * temperature**2
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
