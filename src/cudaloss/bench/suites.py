"""The measurements, each a generator of rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import functional
from .._specs import SPECS, LossSpec
from . import measure

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One line of a table: a loss at a size."""

    spec: LossSpec
    size: int
    dtype: torch.dtype
    device: str
    training: bool

    def operands(self) -> tuple[Tensor, Tensor]:
        input, target = (torch.rand(self.size, dtype=self.dtype, device=self.device) for _ in range(2))
        return input.requires_grad_(self.training), target

    def bytes(self) -> int:
        """The least that must move: both operands once, and the gradient."""
        return self.size * self.dtype.itemsize * (3 if self.training else 2)

    def row(self, suite: str, timings: dict[str, measure.Timing]) -> Row:
        ours = timings["cudaloss"].median
        return {
            "suite": suite,
            "loss": self.spec.name,
            "mode": "training" if self.training else "forward",
            "size": self.size,
            "dtype": str(self.dtype).removeprefix("torch."),
            "seconds": {name: asdict(timing) for name, timing in timings.items()},
            "speedup": {name: timing.median / ours for name, timing in timings.items() if name != "cudaloss"},
        }


def _step(loss: Callable[[Tensor, Tensor], Tensor], input: Tensor, target: Tensor) -> Callable[[], object]:
    if not input.requires_grad:
        return lambda: loss(input, target)

    def step() -> None:
        input.grad = None
        loss(input, target).backward()

    return step


def _works(case: Case, compiled: bool) -> dict[str, Callable[[], object]]:
    operands = case.operands()
    theirs = getattr(F, case.spec.function)
    losses = {"cudaloss": getattr(functional, case.spec.function), "eager": theirs}
    if compiled:
        torch._dynamo.reset()  # a graph of its own for each size, as static shapes give
        losses["compile"] = torch.compile(theirs, dynamic=False)
    return {name: _step(loss, *operands) for name, loss in losses.items()}


def _cases(sizes: list[int], dtype: torch.dtype, device: str, modes: tuple[bool, ...]) -> Iterator[Case]:
    comparable = [spec for spec in SPECS if hasattr(F, spec.function)]
    return (Case(spec, size, dtype, device, training) for training in modes for size in sizes for spec in comparable)


def throughput(sizes: list[int], dtype: torch.dtype, device: str, compiled: bool, rounds: int) -> Iterator[Row]:
    """Forward, and forward + backward, at memory-bound sizes, with achieved GB/s."""
    for case in _cases(sizes, dtype, device, (False, True)):
        timings = measure.throughput(_works(case, compiled), device, rounds)
        row = case.row("throughput", timings)
        row["gigabytes_per_second"] = timings["cudaloss"].gigabytes_per_second(case.bytes())
        yield row


def latency(sizes: list[int], dtype: torch.dtype, device: str) -> Iterator[Row]:
    """Host time of a call without grad, and of a training step."""
    for case in _cases(sizes, dtype, device, (False, True)):
        works = _works(case, compiled=False)
        if not case.training:
            operands, op = case.operands(), getattr(torch.ops.cudaloss, case.spec.name)
            works["op"] = lambda operands=operands, op=op: op(*operands)
        yield case.row("latency", measure.latency(works))


def graph(sizes: list[int], dtype: torch.dtype, device: str) -> Iterator[Row]:
    """GPU time of a forward under graph replay."""
    for case in _cases(sizes, dtype, device, (False,)):
        yield case.row("graph", measure.graph_replay(_works(case, compiled=False)))


def ceilings(size: int, device: str, rounds: int) -> Row:
    """What this memory gives at best, in GB/s: a copy, a sum (reads only), an addition (two reads, a write)."""
    a, b, c = (torch.rand(size, device=device) for _ in range(3))
    works = {"copy": lambda: c.copy_(a), "sum": lambda: a.sum(), "add": lambda: torch.add(a, b, out=c)}
    moved = {"copy": 8, "sum": 4, "add": 12}
    timings = measure.throughput(works, device, rounds)
    rates = {name: timing.gigabytes_per_second(moved[name] * size) for name, timing in timings.items()}
    return {"suite": "ceilings", "size": size, "gigabytes_per_second": rates}
