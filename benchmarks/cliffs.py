"""The cost of calls of smooth L1 and binary cross entropy that the plain-PyTorch reference or the general kernels
serve: times beside PyTorch's own for the same composition, in turns in one process.
``python benchmarks/cliffs.py --device cpu`` (256 x 4,096 elements, one thread), ``--device cuda``; ``--json FILE``."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import cudaloss

SHAPE = (256, 4096)
Loss = Callable[..., torch.Tensor]


def eager(x: torch.Tensor, t: torch.Tensor, reduction: str = "mean", **options: Any) -> torch.Tensor:
    """PyTorch's smooth L1 with our keywords, composed as users would."""
    weight, mask, normalizer = (options.get(name) for name in ("weight", "mask", "normalizer"))
    if weight is None and mask is None and normalizer is None:
        return F.smooth_l1_loss(x, t, reduction=reduction)
    value = F.smooth_l1_loss(x, t, reduction="none")
    factor = mask if weight is None else weight
    value = value if factor is None else value * factor
    if reduction == "none":
        return value
    return value.sum() / (normalizer if normalizer is not None else factor.sum())


def eager_logits(x: torch.Tensor, t: torch.Tensor, pos_weight: torch.Tensor | None = None) -> torch.Tensor:
    """PyTorch's cross entropy; composed if pos_weight is learned, because its own is not differentiable in it."""
    if pos_weight is None:
        return F.binary_cross_entropy_with_logits(x, t)
    return ((1 - t) * F.softplus(x) + pos_weight * t * F.softplus(-x)).mean()


def step(loss: Loss, x: torch.Tensor, t: torch.Tensor, **options: Any) -> None:
    tensors = [x, *(v for v in options.values() if isinstance(v, torch.Tensor) and v.requires_grad)]
    torch.autograd.grad(loss(x, t, **options), tensors)


def double_backward(loss: Loss, x: torch.Tensor, t: torch.Tensor) -> None:
    (gradient,) = torch.autograd.grad(loss(x, t), x, create_graph=True)
    torch.autograd.grad(gradient.square().sum(), x)


def jvp(loss: Loss, x: torch.Tensor, t: torch.Tensor) -> None:
    with torch.no_grad(), forward_ad.dual_level():
        forward_ad.unpack_dual(loss(forward_ad.make_dual(x, t), t))


def works(device: str) -> dict[str, Callable[[Loss], Any]]:
    x, t = (torch.randn(SHAPE, device=device) for _ in range(2))
    leaf = x.clone().requires_grad_()
    weight = torch.rand(SHAPE, device=device, requires_grad=True)
    seven = torch.tensor(7.0, device=device, requires_grad=True)
    wide = (256, 4, 4, 4, 4, 4, 4)
    seven_dims, mask = leaf.detach().view(wide).requires_grad_(), torch.rand(wide, device=device) < 0.5
    mixed = torch.randn(SHAPE[::-1], device=device).mT
    integers = torch.randint(0, 9, SHAPE, dtype=torch.uint8).to(device, torch.uint16)
    return {
        "double backward": lambda f: double_backward(f, leaf, t),
        "jvp": lambda f: jvp(f, x, t),
        "vmap forward": lambda f: torch.func.vmap(f)(x, t),
        "learned weight": lambda f: step(f, leaf, t, weight=weight),
        "learned normalizer": lambda f: step(f, leaf, t, normalizer=seven),
        "seven dimensions, mask": lambda f: step(f, seven_dims, t.view(wide), mask=mask),
        "uint16 target": lambda f: step(f, leaf, integers if f is not eager else integers.float()),
        "none, transposed grad_output": lambda f: torch.autograd.grad(f(leaf, t, reduction="none"), leaf, mixed),
    }


def works_of_logits(device: str) -> dict[str, Callable[[Loss], Any]]:
    """The same for binary cross entropy, whose formulas have exponentials."""
    x, t = torch.randn(SHAPE, device=device), torch.rand(SHAPE, device=device)
    leaf = x.clone().requires_grad_()
    learned = torch.rand(SHAPE[1], device=device, requires_grad=True)
    return {
        "logits: double backward": lambda f: double_backward(f, leaf, t),
        "logits: jvp": lambda f: jvp(f, x, t),
        "logits: vmap forward": lambda f: torch.func.vmap(f)(x, t),
        "logits: learned pos_weight": lambda f: step(f, leaf, t, pos_weight=learned),
    }


def seconds(work: Callable[[], Any], device: str, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def ratios(ours: Callable[[], Any], theirs: Callable[[], Any], device: str, rounds: int, calls: int) -> float:
    """The median of our time divided by theirs."""
    for work in (ours, theirs, ours, theirs):
        seconds(work, device, calls)
    return statistics.median(seconds(ours, device, calls) / seconds(theirs, device, calls) for _ in range(rounds))


def compiled_none(device: str) -> dict[str, Callable[[], Any]]:
    """A compiled training step of ``reduction="none"`` with the caller's own arithmetic."""
    size = 1 << (26 if device == "cuda" else 20)
    x, t, w = (torch.randn(size, device=device) for _ in range(3))
    x.requires_grad_()

    def of(loss: Loss) -> Callable[[], Any]:
        compiled = torch.compile(lambda x, t: (loss(x, t, reduction="none") * w).square().mean(), dynamic=False)
        return lambda: torch.autograd.grad(compiled(x, t), x)

    return {"ours": of(cudaloss.smooth_l1_loss), "theirs": of(F.smooth_l1_loss)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    torch.set_num_threads(1)
    calls = 20 if device == "cuda" else 2
    found = {
        name: ratios(
            lambda w=work: w(cudaloss.smooth_l1_loss), lambda w=work: w(eager), device, arguments.rounds, calls
        )
        for name, work in works(device).items()
    }
    pairs = cudaloss.binary_cross_entropy_with_logits, eager_logits
    for name, work in works_of_logits(device).items():
        ours, theirs = (lambda w=work, f=loss: w(f) for loss in pairs)
        found[name] = ratios(ours, theirs, device, arguments.rounds, calls)
    both = compiled_none(device)
    found["compiled: none and arithmetic"] = ratios(both["ours"], both["theirs"], device, arguments.rounds, calls)
    print(f"our time over PyTorch's, fp32, smooth L1 unless said, {device}")
    for name, ratio in found.items():
        print(f"{name:30} {ratio:5.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"device": device, "times_of_eager": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
