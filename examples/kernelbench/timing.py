"""Times of ModelNew, the reference and torch.compile of the reference, and of the memory they are bound by.

All that is compared is called in turns, so that clocks and neighbours are the same for all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from problems import Loss, Problem
from torch import Tensor

Call = Callable[[], object]


@dataclass(frozen=True)
class Pass:
    name: str
    wanted: tuple[int, ...]  # which operands get gradients
    bytes_an_element: int  # least traffic in float32: both operands read each way, and the gradients written


PASSES = (
    Pass("forward", (), 8),
    Pass("forward + backward", (0,), 20),
    Pass("forward + both gradients", (0, 1), 24),
)


@dataclass(frozen=True)
class Timing:
    """Milliseconds: median, 20th and 80th percentile."""

    median: float
    p20: float
    p80: float

    def bandwidth(self, moved: int) -> float:
        """In GB/s."""
        return moved / self.median / 1e6


def summarise(milliseconds: Sequence[float]) -> Timing:
    fifths = statistics.quantiles(milliseconds, n=5, method="inclusive")
    return Timing(statistics.median(milliseconds), fifths[0], fifths[3])


def _now(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _milliseconds(start: Any, end: Any) -> float:
    return (end - start) * 1e3 if isinstance(start, float) else start.elapsed_time(end)


def interleaved(calls: dict[str, Call], device: torch.device, rounds: int, warm_up: int = 3) -> dict[str, Timing]:
    """Times of `calls` (at least two `rounds`). No cache is flushed: the operands should be larger than it."""
    names = list(calls)
    marks: dict[str, list[tuple[Any, Any]]] = {name: [] for name in names}
    for _ in range(warm_up + rounds):
        names.append(names.pop(0))  # so that each is first in turn
        for name in names:
            start = _now(device)
            calls[name]()
            marks[name].append((start, _now(device)))
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # only now: a GPU that waits for its next launch would be timed with the wait
    return {name: summarise([_milliseconds(*mark) for mark in marks[name][warm_up:]]) for name in calls}


def _call(loss: Loss, operands: list[Tensor], wanted: list[Tensor]) -> Call:
    if wanted:
        return lambda: torch.autograd.grad(loss(*operands), wanted)
    return lambda: loss(*operands)


def time_losses(
    problem: Problem, inputs: list[Tensor], device: torch.device, rounds: int, with_compile: bool
) -> dict[Pass, dict[str, Timing]]:
    losses: dict[str, Loss] = {"cudaloss": problem.ours(), "eager": problem.eager()}
    if with_compile:
        losses["torch.compile"] = torch.compile(problem.eager(), dynamic=False)
    timings = {}
    for one in PASSES:
        operands = [x.detach().requires_grad_(i in one.wanted) for i, x in enumerate(inputs)]
        wanted = [operands[i] for i in one.wanted]
        calls = {name: _call(loss, operands, wanted) for name, loss in losses.items()}
        timings[one] = interleaved(calls, device, rounds)
    return timings


def ceilings(inputs: list[Tensor], device: torch.device, rounds: int) -> dict[str, float]:
    """What memory gives PyTorch's simplest kernels on operands of this size, in TB/s."""
    a, b = inputs
    out = torch.empty_like(a)
    calls: dict[str, Call] = {
        "copy": lambda: out.copy_(a),
        "sum": lambda: a.sum(),
        "add": lambda: torch.add(a, b, out=out),
    }
    moved = {"copy": 8, "sum": 4, "add": 12}
    timings = interleaved(calls, device, rounds)
    return {name: timing.bandwidth(moved[name] * a.numel()) / 1e3 for name, timing in timings.items()}
