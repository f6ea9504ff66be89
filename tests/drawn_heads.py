"""Shared code of the tests of heads: operands, the plans, and the definition in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import cudaloss
from cudaloss._heads import calls, plans

# Which plan a call takes: the whole logits until the backward, chunks of rows, blocks of classes.
PLANS = ("kept", "step", "least")
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "sum": {"reduction": "sum", "scale": 0.3},
    "single": {"reduction": "none"},
    "smoothing": {"label_smoothing": 0.1},
    "class weight": {"weight": True},
    "both": {"label_smoothing": 0.1, "weight": True},
    "z_loss": {"z_loss": 0.01},
    "z_loss and class weight": {"z_loss": 0.01, "weight": True},
    "softcap": {"softcap": 3.0},
    "rows": {"mask": True, "sample_weight": True, "ignore_index": 2},
    "all": {
        "mask": True,
        "sample_weight": True,
        "weight": True,
        "label_smoothing": 0.2,
        "z_loss": 0.01,
        "softcap": 2.0,
    },
    "normalizer": {"normalizer": 3.5},
}


def take(monkeypatch, plan: str) -> str:
    """Lets small heads take a plan; returns the keyword `memory` for it."""
    monkeypatch.setattr(calls, "_SMALL_LOGITS", -1)
    if plan == "step":
        monkeypatch.setattr(calls, "_keeps_logits", lambda *head: False)
        monkeypatch.setattr(plans, "CHUNK_ROWS", 7)
    if plan == "least":
        monkeypatch.setattr(plans, "BLOCK_BYTES", 64)
        monkeypatch.setattr(plans, "LEAST_CLASSES", 16)
    return "least" if plan == "least" else "fast"


def drawn(shape, features, classes, dtype, device, bias=True):
    """Input, weight and bias of small logits, and targets, of which the second is ignored."""
    input = torch.randn(*shape, features, dtype=torch.float64).to(dtype)
    weight = (torch.randn(classes, features, dtype=torch.float64) / features**0.5).to(dtype)
    of_bias = torch.randn(classes, dtype=torch.float64).to(dtype) if bias else None
    target = torch.randint(classes, shape)
    if target.numel() > 1:
        target.view(-1)[1] = -100
    leaves = [None if x is None else x.to(device).requires_grad_() for x in (input, weight, of_bias)]
    return (*leaves, target.to(device))


def given_options(name: str, target, classes: int, dtype) -> dict[str, Any]:
    """The keywords of a row of OPTIONS, with tensors for True."""
    options, device = dict(OPTIONS[name]), target.device
    if "weight" in options:
        options["weight"] = torch.rand(classes, device=device).to(dtype) + 0.5
    if "mask" in options:
        options["mask"] = torch.rand(target.shape, device=device) < 0.7
    if "sample_weight" in options:
        options["sample_weight"] = torch.rand(target.shape, device=device).to(dtype) + 0.5
    if "ignore_index" in options:
        target.view(-1)[1] = options["ignore_index"]
    return options


class ExactProduct(torch.autograd.Function):
    """x times w transposed, rounded about once: beside it the products of float64 have errors of their own."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return exact_product(x, w.T)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return exact_product(grad, w), exact_product(grad.T, x)


def exact_product(a, b):
    """From slices of 19 bits, whose products float64 adds without rounding, up to 2^15 of them in any order."""
    found = [x @ y for x in slices(a) for y in slices(b)]
    return sum(sorted(found, key=lambda x: x.abs().max().item()))


def slices(x):
    unit = 2.0 ** (math.frexp(x.abs().max().item())[1] - 19)
    found = []
    for _ in range(3):
        found.append((x / unit).round() * unit)
        x, unit = x - found[-1], unit / 2**19
    return found


def by_definition(input, linear_weight, bias, target, dtype=None, **options):
    """The loss from the whole logits in `dtype`, and leaves for its gradients. None: the truth, in float64."""

    def cast(x: Any) -> Any:
        return x.detach().to(dtype or torch.float64) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    leaves = [None if x is None else cast(x).requires_grad_() for x in (input, linear_weight, bias)]
    x, w, b = leaves
    rows = {name: options.pop(name, None) for name in ("mask", "sample_weight")}
    rows = {name: None if x is None else cast(x).reshape(-1) for name, x in rows.items()}
    options = {name: cast(x) for name, x in options.items()}
    x = x.reshape(-1, x.shape[-1])
    logits = F.linear(x, w, b) if dtype else ExactProduct.apply(x, w) + (0 if b is None else b)
    found = cudaloss.cross_entropy(logits, target.reshape(-1), **rows, **options)
    return (found.view(target.shape) if options.get("reduction") == "none" else found), leaves


def token_by_definition(logits, target, temperature=1.0, softcap=None):
    logs = calls.bent(logits.double(), softcap or 0.0, temperature).log_softmax(-1)
    p = logs.exp()
    entropy = -(p * torch.where(p == 0, 0, logs)).sum(-1)
    return logs.gather(-1, target.unsqueeze(-1)).squeeze(-1), entropy


def found_by(loss, leaves, incoming):
    """The loss, and the gradients of the leaves that there are."""
    wanted = [x for x in leaves if x is not None]
    return [loss, *torch.autograd.grad(loss, wanted, incoming.to(loss.dtype))]


def error(found, truth) -> float:
    """The largest error, relative to the largest number."""
    found, truth = found.detach().double(), truth.detach().double()
    return ((found - truth).abs().max() / truth.abs().max().clamp(min=1e-30)).item()


def assert_close(found, theirs, truth) -> None:
    """At most three times the error of the same from the whole logits, whose products are rounded alike; and 8 eps."""
    for ours, other, exact in zip(found, theirs, truth, strict=True):
        allowed = 3 * error(other, exact) + 8 * torch.finfo(ours.dtype).eps
        assert ours.dtype == other.dtype and ours.shape == exact.shape
        assert error(ours, exact) <= allowed, f"{error(ours, exact):.2e}, {allowed:.2e} is allowed"


def largest_allocation(step: Callable[[], object]) -> int:
    """The most bytes that one operation of a step on a CPU leaves allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as found:
        step()
    return max(event.self_cpu_memory_usage for event in found.events() or [])
