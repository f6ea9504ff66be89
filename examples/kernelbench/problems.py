"""The six KernelBench problems, each with its reference and its solution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import problem_94
import problem_95
import problem_96
import problem_98
import problem_99
import problem_100
import solution_94
import solution_95
import solution_96
import solution_98
import solution_99
import solution_100
import torch
from torch import Tensor, nn

Loss = Callable[..., Tensor]


@dataclass(frozen=True)
class Problem:
    name: str
    reference: Any  # a module: SHAPE, Model, get_inputs, get_init_inputs
    solution: Any  # a module: ModelNew
    terms: Loss  # the loss of each element, or of each row, in plain PyTorch
    reduction: str = "mean"  # the benchmark's
    ulps: float = 1.0  # the tolerance
    # What each gradient is made of, where that cancels: the sum of the magnitudes. None where it is the gradient's own.
    sizes: Callable[..., Sequence[Tensor | None]] | None = None
    of_rows: bool = False  # whether a term is one of a row

    def ours(self, reduction: str = "") -> nn.Module:
        return self.solution.ModelNew(*self.reference.get_init_inputs(), reduction=reduction or self.reduction)

    def eager(self, reduction: str = "") -> Loss:
        """The reference; the benchmark has one reduction only, the others are of the same terms."""
        reductions: dict[str, Loss] = {
            self.reduction: self.reference.Model(*self.reference.get_init_inputs()),
            "sum": lambda *inputs: self.terms(*inputs).sum(),
            "none": self.terms,
        }
        return reductions[reduction or self.reduction]

    def shape_of_terms(self, inputs: Sequence[Tensor]) -> torch.Size:
        return inputs[0].shape[:1] if self.of_rows else inputs[0].shape

    def draw(self, device: torch.device, seed: int, shape: tuple[int, int] | None = None) -> list[Tensor]:
        torch.manual_seed(seed)
        # The benchmark's get_inputs names no device, and 4 GiB are slow to draw on a CPU.
        with device, patch.object(self.reference, "SHAPE", shape or self.reference.SHAPE):
            return self.reference.get_inputs()


def magnitudes_of_triplets(anchor: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A difference and eps, which can cancel, divided by their sum's length."""
    apart = (anchor - positive, anchor - negative)
    near, far = ((x.abs() + 1e-6) / (x + 1e-6).norm(dim=-1, keepdim=True) for x in apart)
    return near + far, near, far


MSE = Problem("94 MSE", problem_94, solution_94, lambda p, t: (p - t) ** 2)
CROSS_ENTROPY = Problem(
    "95 cross entropy",
    problem_95,
    solution_95,
    lambda p, t: torch.nn.functional.cross_entropy(p, t, reduction="none"),
    ulps=2.0,
    of_rows=True,
)
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
    sizes=lambda p, t: (None, t.log().abs() + 1 + p.log().abs()),
)
TRIPLET_MARGIN = Problem(
    "99 triplet margin",
    problem_99,
    solution_99,
    lambda a, p, n: torch.nn.functional.triplet_margin_loss(a, p, n, reduction="none"),
    ulps=2.0,
    sizes=magnitudes_of_triplets,
    of_rows=True,
)
HINGE = Problem("100 hinge", problem_100, solution_100, lambda p, t: (1 - p * t).clamp(min=0))
PROBLEMS = (MSE, CROSS_ENTROPY, SMOOTH_L1, KL_DIV, TRIPLET_MARGIN, HINGE)
