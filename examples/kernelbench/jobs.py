"""The jobs of five ancestor kernels, each written once for problem 94 or 96 of KernelBench, and one for each of the
others.

There is one op and one ``ModelNew`` a problem (``solution_94.py`` and so on). What tells the jobs apart is what must be
shown of it, which is the table here.
"""

from __future__ import annotations

from dataclasses import dataclass

from checks import Check, any_size, counts_each_once, never_waits, one_op_each_way
from problems import CROSS_ENTROPY, HINGE, KL_DIV, MSE, SMOOTH_L1, TRIPLET_MARGIN, Problem


@dataclass(frozen=True)
class Job:
    """What one kernel is for."""

    letter: str
    problem: Problem
    statement: str
    shows: tuple[Check, ...]  # beyond its results on the benchmark's inputs, which every job must get right
    reductions: tuple[str, ...] = ("mean",)


JOBS = (
    Job(
        "a",
        SMOOTH_L1,
        "smooth-L1 mean, one chain of kernels and no sum on the CPU",
        shows=(one_op_each_way, never_waits),
    ),
    Job(
        "b",
        SMOOTH_L1,
        "smooth L1 with a fused backward for both operands, all reductions, no .item() on grad_output",
        shows=(one_op_each_way, never_waits),
        reductions=("mean", "sum", "none"),
    ),
    Job(
        "c",
        SMOOTH_L1,
        "multi-level reduction for any size, without device-wide synchronisation",
        shows=(any_size, never_waits),
    ),
    Job(
        "d",
        MSE,
        "MSE mean for variable batch sizes and shapes, grid-stride, each element counted once",
        shows=(any_size, counts_each_once),
    ),
    Job(
        "e",
        MSE,
        "MSE by a partial a block and a second stage that never exceeds a block's limit",
        shows=(any_size, counts_each_once),
    ),
    Job(
        "f",
        HINGE,
        "hinge loss with one target a column, which all rows read where it lies",
        shows=(one_op_each_way, never_waits),
    ),
    Job(
        "g",
        KL_DIV,
        "KL divergence of probabilities, their logarithm in the same pass",
        shows=(one_op_each_way, never_waits),
        reductions=("batchmean",),
    ),
    Job(
        "h",
        CROSS_ENTROPY,
        "cross entropy of class indices, value and gradient from one reading of the logits",
        shows=(one_op_each_way, never_waits),
    ),
    Job(
        "i",
        TRIPLET_MARGIN,
        "triplet margin loss, two gradients in the forward's pass and the negative's in one of its own",
        shows=(one_op_each_way, never_waits),
    ),
)
