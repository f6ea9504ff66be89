"""The jobs of five ancestor kernels, each written once for one of two KernelBench problems.

Two ops do all five jobs, so that there is one ``ModelNew`` a problem; what tells the jobs apart is what must be shown
of it, which is the table here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import problem_94
import problem_96
import solution_94
import solution_96
import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    """A KernelBench problem and its solution."""

    name: str
    reference: ModuleType  # Model, get_inputs, get_init_inputs
    solution: ModuleType  # ModelNew
    terms: Loss  # the loss of each element, in plain PyTorch

    def ours(self, reduction: str = "mean") -> nn.Module:
        return self.solution.ModelNew(*self.reference.get_init_inputs(), reduction=reduction)

    def eager(self, reduction: str = "mean") -> Loss:
        """The reference; the benchmark has the mean only, the other reductions are of the same terms."""
        reductions: dict[str, Loss] = {
            "mean": self.reference.Model(*self.reference.get_init_inputs()),
            "sum": lambda predictions, targets: self.terms(predictions, targets).sum(),
            "none": self.terms,
        }
        return reductions[reduction]

    def draw(self, device: torch.device, seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        with device:  # the benchmark's get_inputs names none, and 4 GiB are slow to draw on a CPU
            return self.reference.get_inputs()


MSE = Problem("94 MSE", problem_94, solution_94, lambda p, t: (p - t) ** 2)
SMOOTH_L1 = Problem(
    "96 smooth L1",
    problem_96,
    solution_96,
    lambda p, t: torch.nn.functional.smooth_l1_loss(p, t, reduction="none"),
)
PROBLEMS = (MSE, SMOOTH_L1)


@dataclass(frozen=True)
class Job:
    """What one ancestor kernel was for. `shows` names functions of ``checks``; the random draws are for every job."""

    letter: str
    problem: Problem
    statement: str
    shows: tuple[str, ...]
    reductions: tuple[str, ...] = ("mean",)


JOBS = (
    Job(
        "a",
        SMOOTH_L1,
        "smooth-L1 mean, one chain of kernels and no sum on the CPU",
        shows=("one_op_each_way", "never_waits"),
    ),
    Job(
        "b",
        SMOOTH_L1,
        "smooth L1 with a fused backward for both operands, all reductions, no .item() on grad_output",
        shows=("one_op_each_way", "never_waits"),
        reductions=("mean", "sum", "none"),
    ),
    Job(
        "c",
        SMOOTH_L1,
        "multi-level reduction for any size, without device-wide synchronisation",
        shows=("any_size", "never_waits"),
    ),
    Job(
        "d",
        MSE,
        "MSE mean for variable batch sizes and shapes, grid-stride, each element counted once",
        shows=("any_size", "counts_each_once"),
    ),
    Job(
        "e",
        MSE,
        "MSE by a partial a block and a second stage that never exceeds a block's limit",
        shows=("any_size", "counts_each_once"),
    ),
)
