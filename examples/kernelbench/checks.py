"""What is checked of a job: its values and gradients against float64, and what it promises beyond them.

The tolerance is the problem's, in ulps of float32 at the exact result, or the reference's own error where that is
larger. Of a sum that cancels, the ulp is that of the magnitudes' sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple

import torch
from problems import Loss, Problem
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cudaloss.bench.errors import largest_error

NAMED = 3  # failures told one by one
CHUNK = 2**26  # elements at once in float64: 0.5 GiB a tensor
# Around the widths of a vector, a warp, a block and a tile; the last passes over a persistent grid more than once, and
# is below 2**24, up to which float32 counts exactly.
SIZES = (1, 31, 1023, 8193, 1_000_003, 5_000_011)
SHAPES = ((), (7, 13), (1, 32_767), (3, 1, 5, 17), (129, 257, 3), *((size,) for size in SIZES))


@dataclass(frozen=True)
class Finding:
    """The outcome of one check; `passed` is None where this machine cannot tell."""

    check: str
    passed: bool | None
    detail: str


Check = Callable[[Problem, Sequence[str], torch.device], Finding]


class Results(NamedTuple):
    """A loss and its gradients, or the errors of these."""

    value: Any
    grad_predictions: Any
    grad_targets: Any


def evaluate(loss: Loss, inputs: Sequence[Tensor], grad_output: Tensor) -> Results:
    operands = [x.detach().requires_grad_() for x in inputs]
    value = loss(*operands)
    return Results(value.detach(), *torch.autograd.grad(value, operands, grad_output))


def draw_grad_output(reduction: str, like: Tensor) -> Tensor:
    """In 0.5..1.5, since a backward that leaves it out would pass with ones."""
    return 0.5 + (torch.rand_like(like) if reduction == "none" else torch.rand((), device=like.device))


def ulps(found: Tensor, exact: Tensor, size: Tensor | None = None) -> float:
    return largest_error(found, exact, torch.float32, size)


def worst(first: Results, second: Results) -> Results:
    return Results(*(max(pair, key=lambda x: (math.isnan(x), x)) for pair in zip(first, second, strict=True)))


def chunks(*tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    """Tensors of one shape side by side, in pieces of whole rows; views, of expanded ones too."""
    first = torch.atleast_1d(tensors[0])
    rows = max(1, CHUNK * len(first) // first.numel())
    return zip(*(torch.atleast_1d(tensor).split(rows) for tensor in tensors), strict=True)


def divisor_of(reduction: str, like: Tensor) -> int:
    return {"mean": like.numel(), "batchmean": len(torch.atleast_1d(like))}.get(reduction, 1)


def errors(
    problem: Problem, results: Results, inputs: Sequence[Tensor], reduction: str, grad_output: Tensor
) -> Results:
    """The errors of `results`, in ulps, against float64 in chunks."""
    found = Results(0.0, 0.0, 0.0)
    total, size, for_targets = (
        torch.zeros(shape, dtype=torch.float64, device=grad_output.device) for shape in ((), (), inputs[1].shape)
    )
    shared = inputs[1].shape != inputs[0].shape  # by rows: the targets' gradient is a sum over them
    divisor = divisor_of(reduction, inputs[0])
    of_one_shape = [x.expand_as(inputs[0]) for x in (*inputs, grad_output, *results)]
    for predictions, targets, weight, value, to_predictions, to_targets in chunks(*of_one_shape):
        operands = [x.double().requires_grad_() for x in (predictions, targets)]
        terms, scale = problem.terms(*operands), weight.double() / divisor
        exact = torch.autograd.grad(terms, operands, scale)
        terms = terms.detach()
        total += terms.sum()
        size += terms.abs().sum()
        value_error = ulps(value, terms) if reduction == "none" else 0.0
        if shared:
            for_targets += exact[1].sum_to_size(for_targets.shape)
            targets_error = 0.0
        else:
            made_of = problem.size_for_targets(*operands).detach() * scale if problem.size_for_targets else None
            targets_error = ulps(to_targets, exact[1], made_of)
        found = worst(found, Results(value_error, ulps(to_predictions, exact[0]), targets_error))
    if shared:
        found = found._replace(grad_targets=ulps(results.grad_targets, for_targets))
    if reduction != "none":
        found = found._replace(value=ulps(results.value, total / divisor, size / divisor))
    return found


@dataclass(frozen=True)
class Comparison:
    """Errors of ModelNew and of the reference on the same inputs."""

    ours: Results
    eager: Results
    ulps: float = 1.0  # the tolerance

    @property
    def passed(self) -> bool:
        return all(ours <= max(self.ulps, eager) for ours, eager in zip(self.ours, self.eager, strict=True))

    def __str__(self) -> str:
        ours, eager = (
            " ".join(f"{error:.2g}" if error > 100 else f"{error:.2f}" for error in found)
            for found in (self.ours, self.eager)
        )
        return f"{ours} ulp (eager {eager})"


def compare(problem: Problem, inputs: Sequence[Tensor], reduction: str) -> Comparison:
    grad_output = draw_grad_output(reduction, inputs[0])

    def errors_of(loss: Loss) -> Results:  # one result at a time in memory
        return errors(problem, evaluate(loss, inputs, grad_output), inputs, reduction, grad_output)

    return Comparison(errors_of(problem.ours(reduction)), errors_of(problem.eager(reduction)), problem.ulps)


def summarise(check: str, comparisons: dict[str, Comparison]) -> Finding:
    """One finding of many comparisons: the worst errors of each kind, and where one was too large."""
    ours = reduce(worst, (comparison.ours for comparison in comparisons.values()))
    eager = reduce(worst, (comparison.eager for comparison in comparisons.values()))
    failed = [f"{name}: {comparison}" for name, comparison in comparisons.items() if not comparison.passed]
    detail = f"value, gradients: {Comparison(ours, eager)}"
    more = [f"{len(failed) - NAMED} more"] if len(failed) > NAMED else []
    return Finding(check, not failed, "; ".join([detail, *failed[:NAMED], *more]))


def draw_of_shape(problem: Problem, shape: tuple[int, ...], device: torch.device, aligned: bool = True) -> list[Tensor]:
    """Normal numbers wide enough for both branches of smooth L1, or what suits the problem made of them; a slice from
    element 1 on if not `aligned`."""
    count, skipped = math.prod(shape), 0 if aligned else 1
    drawn = (problem.suited(2 * torch.randn(count + skipped, device=device)) for _ in range(2))
    return [numbers[skipped:].reshape(shape) for numbers in drawn]


def any_size(problem: Problem, reductions: Sequence[str], device: torch.device) -> Finding:
    comparisons = {}
    for shape in SHAPES:
        for aligned in (True, False):
            name = f"{shape}{'' if aligned else ' misaligned'}"
            for reduction in reductions:
                inputs = draw_of_shape(problem, shape, device, aligned)
                comparisons[f"{name}, {reduction}"] = compare(problem, inputs, reduction)
    return summarise(f"{len(SHAPES)} odd shapes, aligned and not", comparisons)


def counts_each_once(problem: Problem, reductions: Sequence[str], device: torch.device) -> Finding:
    """Equal terms must add up to exactly that many of them, in a sum and in a mean."""
    term = problem.terms(torch.ones(()), torch.zeros(())).item()
    wrong = []
    for shape in SHAPES:
        ones, zeros = torch.ones(shape, device=device), torch.zeros(shape, device=device)
        total, mean = (problem.ours(reduction)(ones, zeros).item() for reduction in ("sum", "mean"))
        if (total, mean) != (term * math.prod(shape), term):
            wrong.append(f"{shape}: sum {total}, mean {mean}")
    return Finding("each element counted once", not wrong, "; ".join(wrong) or f"exact for {len(SHAPES)} shapes")


class OpNames(TorchDispatchMode):
    """The names of the ops that reach a backend."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def one_op_each_way(problem: Problem, reductions: Sequence[str], device: torch.device) -> Finding:
    """Forward and backward are one compiled op each, with no op before or after, ``.item()`` included."""
    operands = [x.requires_grad_() for x in draw_of_shape(problem, (1023,), device)]
    wrong = []
    for reduction in reductions:
        loss = problem.ours(reduction)
        grad_output = draw_grad_output(reduction, operands[0].detach())
        with OpNames() as forward:
            value = loss(*operands)
        with OpNames() as backward:
            torch.autograd.grad(value, operands, grad_output)
        seen = forward.names, backward.names
        if any(len(names) != 1 or not names[0].startswith("cudaloss::") for names in seen):
            wrong.append(f"{reduction}: forward {', '.join(seen[0])}; backward {', '.join(seen[1])}")
    detail = "; ".join(wrong) or f"for {', '.join(reductions)}; gradients of both operands"
    return Finding("one op each way", not wrong, detail)


def _captures(problem: Problem, reduction: str, device: torch.device) -> bool:
    """Whether forward and backward give the same bits from a CUDA graph, replayed on inputs it was not made with."""
    loss, shape = problem.ours(reduction), (1_000_003,)
    inputs = draw_of_shape(problem, shape, device)
    grad_output = draw_grad_output(reduction, inputs[0])
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # capture wants one run beforehand
        evaluate(loss, inputs, grad_output)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = evaluate(loss, inputs, grad_output)
    for held, fresh in zip(inputs, draw_of_shape(problem, shape, device), strict=True):
        held.copy_(fresh)
    grad_output.copy_(draw_grad_output(reduction, inputs[0]))
    graph.replay()
    expected = evaluate(loss, inputs, grad_output)
    return all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


def never_waits(problem: Problem, reductions: Sequence[str], device: torch.device) -> Finding:
    """The CPU neither waits for the GPU nor reads from it: a CUDA graph, whose capture forbids both, takes it all."""
    check = "captured in a CUDA graph"
    if device.type != "cuda":
        return Finding(check, None, "needs a GPU")
    try:
        wrong = [r for r in reductions if not _captures(problem, r, device)]
    except RuntimeError as error:
        return Finding(check, False, str(error).splitlines()[0])
    return Finding(check, not wrong, f"replay differs for {', '.join(wrong)}" if wrong else ", ".join(reductions))
