"""What is checked of a job: its values and gradients against float64, and what it promises beyond them.

The tolerance is the problem's, in ulps of float32 at the exact result, or the reference's own error where that is
larger. Of a sum that cancels, the ulp is that of the magnitudes' sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

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


Results = tuple[Any, ...]  # a loss and its gradients, or the errors of these


def differentiable(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x for x in inputs if x.is_floating_point()]


def evaluate(loss: Loss, inputs: Sequence[Tensor], grad_output: Tensor) -> Results:
    operands = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    value = loss(*operands)
    return value.detach(), *torch.autograd.grad(value, differentiable(operands), grad_output)


def draw_grad_output(problem: Problem, reduction: str, inputs: Sequence[Tensor]) -> Tensor:
    """In 0.5..1.5, since a backward that leaves it out would pass with ones."""
    shape = problem.shape_of_terms(inputs) if reduction == "none" else ()
    return 0.5 + torch.rand(shape, device=inputs[0].device)


def ulps(found: Tensor, exact: Tensor, size: Tensor | None = None) -> float:
    return largest_error(found, exact, torch.float32, size)


def worst(first: Results, second: Results) -> Results:
    return tuple(max(pair, key=lambda x: (math.isnan(x), x)) for pair in zip(first, second, strict=True))


def chunks(*tensors: Tensor) -> zip[tuple[Tensor, ...]]:
    """Tensors of one shape side by side, in pieces of whole rows; views, of expanded ones too."""
    first = torch.atleast_1d(tensors[0])
    rows = max(1, CHUNK * len(first) // first.numel())
    return zip(*(torch.atleast_1d(tensor).split(rows) for tensor in tensors), strict=True)


def divisor_of(reduction: str, terms: torch.Size) -> int:
    return {"mean": terms.numel(), "batchmean": terms[0] if terms else 1}.get(reduction, 1)


def errors(
    problem: Problem, results: Results, inputs: Sequence[Tensor], reduction: str, grad_output: Tensor
) -> Results:
    """The errors of `results`, in ulps, against float64 in chunks."""
    shape = problem.shape_of_terms(inputs)
    divisor = divisor_of(reduction, shape)
    value, *gradients = results
    whole = [x if problem.of_rows else x.expand_as(inputs[0]) for x in inputs]
    wanted = differentiable(whole)
    sums = [  # of the gradients of what all rows share: they are sums over the rows
        torch.zeros_like(x, dtype=torch.float64) if x.shape != operand.shape else None
        for x, operand in zip(gradients, wanted, strict=True)
    ]
    total, size = torch.zeros(2, dtype=torch.float64, device=value.device)
    found: Results = (0.0,) * len(results)
    gradients_of_whole = [x.expand_as(operand) for x, operand in zip(gradients, wanted, strict=True)]
    for pieces in chunks(*whole, grad_output.expand(shape), value.expand(shape), *gradients_of_whole):
        operands = [x.double().requires_grad_() if x.is_floating_point() else x for x in pieces[: len(inputs)]]
        weight, value_piece, *gradient_pieces = pieces[len(inputs) :]
        terms, scale = problem.terms(*operands), weight.double() / divisor
        exact = torch.autograd.grad(terms, differentiable(operands), scale)
        terms = terms.detach()
        total += terms.sum()
        size += terms.abs().sum()
        made_of = problem.sizes(*operands) if problem.sizes else [None] * len(exact)
        scale = scale.unsqueeze(-1) if problem.of_rows else scale
        piece_errors = [ulps(value_piece, terms) if reduction == "none" else 0.0]
        for piece, right, magnitudes, of_shared in zip(gradient_pieces, exact, made_of, sums, strict=True):
            if of_shared is None:
                piece_errors.append(ulps(piece, right, None if magnitudes is None else magnitudes.detach() * scale))
            else:
                of_shared += right.sum_to_size(of_shared.shape)
                piece_errors.append(0.0)
        found = worst(found, tuple(piece_errors))
    of_whole = [ulps(value, total / divisor, size / divisor) if reduction != "none" else 0.0]
    of_whole += [0.0 if right is None else ulps(x, right) for x, right in zip(gradients, sums, strict=True)]
    return worst(found, tuple(of_whole))


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
    grad_output = draw_grad_output(problem, reduction, inputs)

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


def draw_of_shape(shape: tuple[int, ...], device: torch.device, aligned: bool) -> list[Tensor]:
    """Normal numbers wide enough for both branches of smooth L1; a slice from element 1 on if not `aligned`."""
    count, skipped = math.prod(shape), 0 if aligned else 1
    return [2 * torch.randn(count + skipped, device=device)[skipped:].reshape(shape) for _ in range(2)]


def any_size(problem: Problem, reductions: Sequence[str], device: torch.device) -> Finding:
    comparisons = {}
    for shape in SHAPES:
        for aligned in (True, False):
            name = f"{shape}{'' if aligned else ' misaligned'}"
            for reduction in reductions:
                inputs = draw_of_shape(shape, device, aligned)
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
        if func.name() != "aten::promote_types":  # of dtypes alone
            self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def one_op_each_way(problem: Problem, reductions: Sequence[str], device: torch.device) -> Finding:
    """Forward and backward are one compiled op each, with no op before or after, ``.item()`` included. The gradient of
    a third operand is left out: it is a pass of its own."""
    operands = problem.draw(device, 0, (33, 31))
    wanted = [x.requires_grad_() for x in differentiable(operands[:2])]
    wrong = []
    for reduction in reductions:
        loss = problem.ours(reduction)
        grad_output = draw_grad_output(problem, reduction, operands)
        with OpNames() as forward:
            value = loss(*operands)
        with OpNames() as backward:
            torch.autograd.grad(value, wanted, grad_output)
        seen = forward.names, backward.names
        if any(len(names) != 1 or not names[0].startswith("cudaloss::") for names in seen):
            wrong.append(f"{reduction}: forward {', '.join(seen[0])}; backward {', '.join(seen[1])}")
    detail = "; ".join(wrong) or f"for {', '.join(reductions)}; gradients wanted: {len(wanted)}"
    return Finding("one op each way", not wrong, detail)


def _captures(problem: Problem, reduction: str, device: torch.device) -> bool:
    """Whether forward and backward give the same bits from a CUDA graph, replayed on inputs it was not made with."""
    loss, shape = problem.ours(reduction), (1009, 991)
    inputs = problem.draw(device, 0, shape)
    grad_output = draw_grad_output(problem, reduction, inputs)
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):  # capture wants one run beforehand
        evaluate(loss, inputs, grad_output)
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = evaluate(loss, inputs, grad_output)
    for held, fresh in zip(inputs, problem.draw(device, 1, shape), strict=True):
        held.copy_(fresh)
    grad_output.copy_(draw_grad_output(problem, reduction, inputs))
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
