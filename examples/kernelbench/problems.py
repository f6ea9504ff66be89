"""The four KernelBench problems, each with its reference and its solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import problem_94
import problem_96
import problem_98
import problem_100
import solution_94
import solution_96
import solution_98
import solution_100
import torch
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Problem:
    name: str
    reference: Any  # a module: SHAPE, Model, get_inputs, get_init_inputs
    solution: Any  # a module: ModelNew
    terms: Loss  # the loss of each element, in plain PyTorch
    reduction: str = "mean"  # the benchmark's
    ulps: float = 1.0  # the tolerance
    # What the targets' gradients are made of, where that cancels: the sum of the magnitudes.
    size_for_targets: Loss | None = None
    suited: Callable[[Tensor], Tensor] = lambda x: x  # makes operands of any numbers

    def ours(self, reduction: str = "") -> nn.Module:
        return self.solution.ModelNew(*self.reference.get_init_inputs(), reduction=reduction or self.reduction)

    def eager(self, reduction: str = "") -> Loss:
        """The reference; the benchmark has one reduction only, the others are of the same terms."""
        reductions: dict[str, Loss] = {
            self.reduction: self.reference.Model(*self.reference.get_init_inputs()),
            "sum": lambda predictions, targets: self.terms(predictions, targets).sum(),
            "none": self.terms,
        }
        return reductions[reduction or self.reduction]

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
KL_DIV = Problem(
    "98 KL divergence",
    problem_98,
    solution_98,
    lambda p, t: torch.nn.functional.kl_div(p.log(), t, reduction="none"),
    reduction="batchmean",
    ulps=2.0,  # of losses with logarithms
    size_for_targets=lambda p, t: t.log().abs() + 1 + p.log().abs(),
    suited=torch.sigmoid,
)
HINGE = Problem("100 hinge", problem_100, solution_100, lambda p, t: (1 - p * t).clamp(min=0))
PROBLEMS = (MSE, SMOOTH_L1, KL_DIV, HINGE)
