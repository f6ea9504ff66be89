"""What it costs to multiply a loss by a factor: times of a training step of ``factor * loss`` beside those of ``loss``,
with a constant and a changing factor, after the first step; on a GPU as a CUDA graph. Also fp16 steps with a gradient
scaler's factor, beside torch.compile's of PyTorch's functions.
``python benchmarks/scaled.py`` (a GPU with 16 GB), ``--device cpu`` (small operands); ``--json FILE``."""

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
from torch import Tensor

import cudaloss

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


def replayed(step: Callable[[], Any], device: str) -> Callable[[], Any]:
    """The step as a CUDA graph, after it has run twice; on a CPU the step."""
    if device == "cpu":
        return step
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()

    def replay() -> None:
        _ = kept  # the graph writes into it
        graph.replay()

    return replay


def milliseconds(work: Callable[[], Any], device: str, rounds: int) -> float:
    def once(calls: int = 4) -> float:
        if device == "cpu":
            start = time.perf_counter()
            for _ in range(calls):
                work()
            return (time.perf_counter() - start) * 1e3 / calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()  # the clock starts behind it, so that the host is ahead
        start.record()
        for _ in range(calls):
            work()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / calls

    once()
    return statistics.median(once() for _ in range(rounds))


def scaled(loss: Loss, x: Tensor, device: str, rounds: int) -> dict[str, float]:
    """Milliseconds of a step: plain, with each factor, and with a factor that changes in every step."""

    def step(factor: float | Tensor | None) -> Any:
        value = loss(x)
        return torch.autograd.grad(value if factor is None else value * factor, x)

    found = {"1": milliseconds(replayed(lambda: step(None), device), device, rounds)}
    for name, factor in FACTORS.items():
        found[name] = milliseconds(replayed(lambda f=factor: step(f), device), device, rounds)
    changing = torch.ones((), device=device)

    def next_step() -> Any:
        changing.mul_(1.0009765625)
        return step(changing)

    found["changing"] = milliseconds(replayed(next_step, device), device, rounds)
    return found


def of_halves(device: str, size: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of an fp16 step with a gradient scaler's factor: ours, and torch.compile's of PyTorch's function."""
    found = {}
    for name, (ours, theirs) in OF_HALVES.items():
        x, t = (torch.rand(size, device=device).half() for _ in range(2))
        x.requires_grad_()
        compiled = torch.compile(lambda a, t=t, f=theirs: f(a.float(), t.float()), dynamic=False)
        losses = {"ours": lambda a, t=t, f=ours: f(a, t, dtype=torch.float32), "compiled F": compiled}
        found[name] = {
            which: milliseconds(
                replayed(lambda f=loss, x=x: torch.autograd.grad(f(x) * SCALE, x), device), device, rounds
            )
            for which, loss in losses.items()
        }
        del x, t, losses
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", type=int, help="elements; 2^28 on a GPU, 2^20 on a CPU")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, rounds = arguments.device, arguments.rounds
    size = arguments.size or 1 << (28 if device == "cuda" else 20)
    steps = {}
    for name, make in cases(device, size).items():
        steps[name] = scaled(*make(), device, rounds)
        times = "  ".join(f"{key} {value / steps[name]['1']:5.2f}" for key, value in steps[name].items())
        print(f"{name:34} {steps[name]['1']:8.3f} ms; in these: {times}", flush=True)
    halves = of_halves(device, size, rounds)
    for name, times in halves.items():
        ratio = times["compiled F"] / times["ours"]
        print(f"{name:34} {times['ours']:8.3f} ms in fp16 with a scaler; {ratio:.2f} times as fast as compiled F")
    if arguments.json:
        report = {"device": device, "size": size, "steps": steps, "fp16": halves}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
