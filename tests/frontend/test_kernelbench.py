"""The KernelBench problems of the examples: their solutions, and that what checks them sees what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from cudaloss.bench.cases import COMPARABLE, KERNELBENCH
from cudaloss.bench.rivals import rival

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "kernelbench"
NAMES = ("checks", "jobs", "problems", "run")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    """The example's modules, with matrices small enough for a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        before = set(sys.modules)
        found = {name: __import__(name) for name in NAMES}
        for problem in found["problems"].PROBLEMS:
            patch.setattr(problem.reference, "SHAPE", (130, 257))
        yield found
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "").parent == FOLDER:
            del sys.modules[name]


PROBLEMS = {path.stem.removeprefix("solution_") for path in FOLDER.glob("solution_*.py")}


def problem_of(example: dict[str, ModuleType], number: str) -> Any:
    (found,) = (one for one in example["problems"].PROBLEMS if one.name.split()[0] == number)
    return found


@pytest.mark.parametrize("number", sorted(PROBLEMS, key=int))
def test_values_and_gradients_of_five_draws(example: dict[str, ModuleType], number: str) -> None:
    problem = problem_of(example, number)
    for reduction, draws in example["run"].compare_draws(problem, 5, 0, CPU).items():
        finding = example["checks"].summarise(reduction, draws)
        assert len(draws) == 5 and finding.passed, finding.detail


@pytest.mark.parametrize("number", sorted(PROBLEMS, key=int))
def test_every_problem_is_one_op_each_way(example: dict[str, ModuleType], number: str) -> None:
    problem = problem_of(example, number)
    finding = example["checks"].one_op_each_way(problem, [problem.reduction], CPU)
    assert finding.passed, finding.detail


def test_one_row_of_targets_is_not_expanded(example: dict[str, ModuleType]) -> None:
    predictions, targets = problem_of(example, "100").draw(CPU, 0)
    assert predictions.shape == (130, 257) and targets.shape == (257,)
    assert set(targets.tolist()) == {-1, 1}


@pytest.mark.parametrize(
    ("number", "wrong"),
    [(number, wrong) for number, operands in (("95", 1), ("99", 3), ("100", 2)) for wrong in range(-1, operands)],
)
def test_what_is_wrong_is_found(
    example: dict[str, ModuleType], number: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value (-1), or one operand's gradient; in problem 100 the targets' is a sum over rows."""
    problem = problem_of(example, number)
    right = problem.solution.ModelNew.forward

    def forward(self: Any, *inputs: Tensor) -> Tensor:
        found = right(self, *inputs)
        if wrong < 0:
            return found * 1.0001
        return found + 1e-4 * (inputs[wrong] - inputs[wrong].detach()).mean()

    inputs = problem.draw(CPU, 0)
    assert example["checks"].compare(problem, inputs, "mean").passed
    monkeypatch.setattr(problem.solution.ModelNew, "forward", forward)
    comparison = example["checks"].compare(problem, inputs, "mean")
    assert comparison.ours[wrong + 1] > max(comparison.ulps, comparison.eager[wrong + 1])


def test_the_benchmark_has_the_problems_of_elements(example: dict[str, ModuleType]) -> None:
    for loss, timed in KERNELBENCH.items():
        problem = problem_of(example, str(timed.number))
        predictions, targets = problem.draw(CPU, 0)
        theirs = rival(COMPARABLE[loss])
        value = timed.call.eager(theirs, predictions, targets) if timed.call.eager else theirs(predictions, targets)
        torch.testing.assert_close(value, problem.eager()(predictions, targets))
    of_elements = {problem.name.split()[0] for problem in example["problems"].PROBLEMS if not problem.of_rows}
    assert {str(timed.number) for timed in KERNELBENCH.values()} == of_elements


def test_jobs_are_of_the_problems(example: dict[str, ModuleType]) -> None:
    jobs = example["jobs"].JOBS
    assert [job.letter for job in jobs] == sorted(job.letter for job in jobs)
    assert {job.problem for job in jobs} == set(example["problems"].PROBLEMS)
