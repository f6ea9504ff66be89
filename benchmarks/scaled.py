"""What it costs to multiply a loss by a factor: times of a training step of ``factor * loss`` beside those of ``loss``,
with a constant and a changing factor, after the first step; on a GPU as a CUDA graph. Also fp16 steps with a gradient
scaler's factor, beside torch.compile's of PyTorch's functions.
``python benchmarks/scaled.py`` (a GPU with 16 GB), ``--device cpu`` (small operands); ``--json FILE``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from cudaloss.bench import measure

Loss = Callable[[Tensor], Tensor]
FACTORS = {"x 0.3": 0.3, "/ 4": 0.25}
SCALE = 65536.0  # a gradient scaler's first


def cases(device: str, size: int) -> dict[str, Callable[[], tuple[Loss, Tensor]]]:
    """Makes a loss and its input; the operands are then freed before the next case's are made."""

    def elements(
        loss: Callable[..., Tensor], dtype: torch.dtype = torch.float32, **options: Any
    ) -> tuple[Loss, Tensor]:
        x, t = (torch.rand(size, device=device).to(dtype) for _ in range(2))
        given = {name: make(size) for name, make in options.items()}
        return lambda a: loss(a, t, **given), x.requires_grad_()

    def samples() -> tuple[Loss, Tensor]:
        x, t = (torch.rand(64, size // 64, device=device) for _ in range(2))
        return lambda a: cudaloss.smooth_l1_loss(a, t, batch_dims=1).mean(), x.requires_grad_()

    def rows(dtype: torch.dtype, classes: int) -> tuple[Loss, Tensor]:
        count = max(1, size // 2 // classes)
        x, t = torch.randn(count, classes, device=device).to(dtype), torch.randint(0, classes, (count,), device=device)
        return lambda a: cudaloss.cross_entropy(a, t), x.requires_grad_()

    def mask(size: int) -> Tensor:
        return torch.rand(size, device=device) < 0.5

    def weight(size: int) -> Tensor:
        return torch.rand(size, device=device)

    return {
        "smooth_l1": lambda: elements(cudaloss.smooth_l1_loss),
        "smooth_l1 bf16": lambda: elements(cudaloss.smooth_l1_loss, torch.bfloat16),
        "binary_cross_entropy_with_logits": lambda: elements(cudaloss.binary_cross_entropy_with_logits),
        "smooth_l1, mask": lambda: elements(cudaloss.smooth_l1_loss, mask=mask),
        "smooth_l1, weight": lambda: elements(cudaloss.smooth_l1_loss, weight=weight),
        "smooth_l1, each sample": samples,
        "cross_entropy": lambda: rows(torch.float32, 4096),
        "cross_entropy bf16": lambda: rows(torch.bfloat16, 8192),
    }


OF_HALVES = {
    "mse": (cudaloss.mse_loss, F.mse_loss),
    "smooth_l1": (cudaloss.smooth_l1_loss, F.smooth_l1_loss),
    "binary_cross_entropy_with_logits": (
        cudaloss.binary_cross_entropy_with_logits,
        F.binary_cross_entropy_with_logits,
    ),
}


def milliseconds(works: dict[str, measure.Work], device: str, rounds: int) -> dict[str, float]:
    """The median of each, in turns; on a GPU from replays of a CUDA graph."""
    if device == "cuda":
        found = measure.graph_replay(works, rounds, calls=4)
    else:
        found = measure.throughput(works, device, rounds)
    return {name: timing.median * 1e3 for name, timing in found.items()}


def steps(loss: Loss, x: Tensor, device: str) -> dict[str, measure.Work]:
    """A step plain, with each factor, and with a factor that changes in every step."""
    changing = torch.ones((), device=device)

    def step(factor: float | Tensor | None) -> object:
        value = loss(x)
        return torch.autograd.grad(value if factor is None else value * factor, x)

    return {
        "1": lambda: step(None),
        **{name: lambda f=factor: step(f) for name, factor in FACTORS.items()},
        "changing": lambda: step(changing.mul_(1.0009765625)),
    }


def steps_of_halves(name: str, device: str, size: int) -> dict[str, measure.Work]:
    """An fp16 step with a gradient scaler's factor: ours, and torch.compile's of PyTorch's function."""
    ours, theirs = OF_HALVES[name]
    x, t = (torch.rand(size, device=device).half() for _ in range(2))
    x.requires_grad_()
    compiled = torch.compile(lambda: theirs(x.float(), t.float()), dynamic=False)
    return {
        "ours": lambda: torch.autograd.grad(ours(x, t, dtype=torch.float32) * SCALE, x),
        "compiled F": lambda: torch.autograd.grad(compiled() * SCALE, x),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, help="elements; 2^28 on a GPU, 2^20 on a CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, rounds = arguments.device, arguments.rounds
    size = arguments.size or 1 << (28 if device == "cuda" else 20)
    found = {}
    for name, make in cases(device, size).items():
        found[name] = times = milliseconds(steps(*make(), device), device, rounds)
        relative = "  ".join(f"{key} {value / times['1']:5.2f}" for key, value in times.items())
        print(f"{name:34} {times['1']:8.3f} ms; in these: {relative}", flush=True)
    halves = {name: milliseconds(steps_of_halves(name, device, size), device, rounds) for name in OF_HALVES}
    for name, times in halves.items():
        ratio = times["compiled F"] / times["ours"]
        print(f"{name:34} {times['ours']:8.3f} ms in fp16 with a scaler; {ratio:.2f} times as fast as compiled F")
    if arguments.json:
        report = {"device": device, "size": size, "steps": found, "fp16": halves}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
