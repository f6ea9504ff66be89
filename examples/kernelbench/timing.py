"""Times of ModelNew, the reference and torch.compile of the reference, and of the memory they are bound by.

All that is compared is called in turns, so that clocks and neighbours are the same for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from problems import Loss, Problem
from torch import Tensor

from cudaloss.bench.measure import Timing, Work, throughput


@dataclass(frozen=True)
class Pass:
    name: str
    wanted: tuple[int, ...]  # which operands get gradients

    def bytes(self, inputs: list[Tensor]) -> int:
        """The least traffic: all operands read once, and the gradients written."""
        return sum(x.nbytes for x in (*inputs, *(inputs[i] for i in self.wanted)))


def passes_over(inputs: list[Tensor]) -> list[Pass]:
    floating = tuple(i for i, x in enumerate(inputs) if x.is_floating_point())
    passes = [Pass("forward", ()), Pass("forward + backward", (0,))]
    return [*passes, Pass("forward + all gradients", floating)] if len(floating) > 1 else passes


class Timed(NamedTuple):
    """The times of one pass, by loss."""

    by_loss: dict[str, Timing]
    bytes: int  # that must move at least


def _call(loss: Loss, operands: list[Tensor], wanted: list[Tensor]) -> Work:
    if wanted:
        return lambda: torch.autograd.grad(loss(*operands), wanted)
    return lambda: loss(*operands)


def time_losses(
    problem: Problem, inputs: list[Tensor], device: torch.device, rounds: int, with_compile: bool
) -> dict[Pass, Timed]:
    losses: dict[str, Loss] = {"cudaloss": problem.ours(), "eager": problem.eager()}
    if with_compile:
        losses["torch.compile"] = torch.compile(problem.eager(), dynamic=False)
    timings = {}
    for one in passes_over(inputs):
        operands = [x.detach().requires_grad_(i in one.wanted) for i, x in enumerate(inputs)]
        wanted = [operands[i] for i in one.wanted]
        calls = {name: _call(loss, operands, wanted) for name, loss in losses.items()}
        timings[one] = Timed(throughput(calls, device.type, rounds), one.bytes(inputs))
    return timings


def ceilings(a: Tensor, device: torch.device, rounds: int) -> dict[str, float]:
    """What memory gives PyTorch's simplest kernels on operands of this size, in TB/s."""
    b, out = torch.rand_like(a), torch.empty_like(a)
    calls: dict[str, Work] = {
        "copy": lambda: out.copy_(a),
        "sum": lambda: a.sum(),
        "add": lambda: torch.add(a, b, out=out),
    }
    moved = {"copy": 8, "sum": 4, "add": 12}
    timings = throughput(calls, device.type, rounds)
    return {name: timing.gigabytes_per_second(moved[name] * a.numel()) / 1e3 for name, timing in timings.items()}
