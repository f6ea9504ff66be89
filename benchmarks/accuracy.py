"""The largest errors of values and gradients against an exact reference, in ulp of the result, beside PyTorch's own.

For every loss and dtype, on random data, at sizes up to 2^31 + 5 on a GPU. Exits non-zero if an error is above 1 ulp
and above PyTorch's. For losses with exponentials the limit is 2 ulp (for halves 1) for any error of PyTorch, because in
the tails that is in the millions and would excuse anything. The reference is the row's formula in float64; for
exponentials of float64 operands, in 73 bits. Logits are drawn far into both tails, and half of their targets are 0 or
1. Single losses are measured too, because a mean shows only the large ones. A reference is computed over pieces that
fit in memory.
"""

from __future__ import annotations

import argparse
import json
import sys
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import cudaloss
from cudaloss._call.modes import DTYPES
from cudaloss._losses.table import SPECS, LossSpec
from cudaloss.bench import double_double as wide
from cudaloss.bench import symbolic
from cudaloss.bench.domains import suited
from cudaloss.bench.errors import largest_error, sum_and_error
from cudaloss.bench.modes import Loss
from cudaloss.bench.rivals import rival
from cudaloss.bench.symbolic import INPUT_SLOPE, LOSS

# Of a GPU's memory, and of a CPU's cache: the reference of exponentials runs thousands of PyTorch's kernels.
PIECE = {"cuda": 1 << 26, "cpu": 1 << 15}
LARGEST_FACTORED = 1 << 20
SECOND = 0.1  # for example label smoothing
SPREAD = 20.0  # the standard deviation of logits: 2^22 of them reach beyond 100, where float32's losses are subnormal


class Exact(NamedTuple):
    """Losses and slopes of a piece, with their rounding errors in float64 (None: not known), and the sizes for judging
    errors."""

    value: Tensor
    size_of_value: Tensor
    slope: Tensor
    size_of_slope: Tensor
    rest_of_value: Tensor | None = None
    rest_of_slope: Tensor | None = None


def exact(spec: LossSpec, input: Tensor, target: Tensor) -> Exact:
    x, t = input.detach().double(), target.double()
    if spec.is_rational or input.dtype != torch.float64:
        value, slope = (symbolic.term(spec, which, torch, x, t, spec.default) for which in (LOSS, INPUT_SLOPE))
        return Exact(value.number, value.size, slope.number, slope.size)
    third = wide.pair(torch.full_like(x, spec.default)) if spec.needed else spec.default  # a label, of each element
    x, t = wide.pair(x), wide.pair(t)
    value, slope = (symbolic.term(spec, which, wide, x, t, third) for which in (LOSS, INPUT_SLOPE))
    return Exact(value.number.hi, value.size.hi, slope.number.hi, slope.size.hi, value.number.lo, slope.number.lo)


def divided(exact: Exact, count: int) -> Exact:
    """The gradients of a mean instead of the slopes."""
    size = exact.size_of_slope / count
    if exact.rest_of_slope is None:
        return exact._replace(slope=exact.slope / count, size_of_slope=size)
    slope = wide.Pair(exact.slope, exact.rest_of_slope) / float(count)
    return exact._replace(slope=slope.hi, rest_of_slope=slope.lo, size_of_slope=size)


def operands(spec: LossSpec, size: int, dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(size)
    if spec.inputs in ("real", "logits", "logarithms"):
        input = torch.randn(size, dtype=dtype, device=device).mul_(SPREAD if spec.inputs == "logits" else 1.0)
    else:
        input = suited(torch.rand(size, dtype=dtype, device=device), spec.inputs)
    if spec.targets == "real":
        return input.requires_grad_(), torch.randn(size, dtype=dtype, device=device)
    target = torch.rand(size, dtype=dtype, device=device)
    if spec.targets in ("in [0, 1]", "1 or -1"):  # also soft ones
        target[::2].round_()
        return input.requires_grad_(), target
    return input.requires_grad_(), suited(target, spec.targets)


def with_factors(spec: LossSpec, size: int, dtype: torch.dtype, device: str) -> dict[str, float]:
    """Single losses with a third operand and a weight for each element and a second number, and their gradients for a
    drawn grad_output. Each product rounds once more."""
    x, t = operands(spec, size, dtype, device)
    third, weight, incoming = (torch.rand(size, dtype=dtype, device=device) + 0.2 for _ in range(3))
    third = third.clamp(max=spec.parameter.largest) if spec.parameter else third
    smooths = spec.second is not None and spec.second.interval == "in [0, 1]"
    second = SECOND if smooths else spec.second_default
    own = spec.own(third, second)
    value = getattr(cudaloss, spec.function)(x, t, reduction="none", weight=weight, **own)
    (gradient,) = torch.autograd.grad(value, x, incoming)
    is_double = dtype == torch.float64
    m, of = (wide, wide.pair) if is_double else (torch, lambda y: y)
    x, t, third, weight, incoming = (of(y.detach().double()) for y in (x, t, third, weight, incoming))
    second = of(torch.full((size,), SECOND, dtype=torch.float64, device=device)) if smooths else second
    errors = {}
    for name, which, found, factor in (
        ("factored_single", LOSS, value, weight),
        ("factored_gradient", INPUT_SLOPE, gradient, weight * incoming),
    ):
        term = symbolic.term(spec, which, m, x, t, third, second)
        number, bound_by = term.number * factor, term.size * factor
        parts = (number.hi, bound_by.hi, number.lo) if is_double else (number, bound_by, None)
        errors[f"cudaloss_{name}_ulp"] = largest_error(found, parts[0], dtype, *parts[1:])
    return errors


def with_gradients(losses: dict[str, Loss], input: Tensor, target: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """The mean and its gradient by each. PyTorch's way is left out if it does not fit in the GPU's memory."""
    found = {}
    for name, loss in losses.items():
        try:
            value = loss(input, target, reduction="mean")
            found[name] = value.detach(), *torch.autograd.grad(value, input)
        except torch.OutOfMemoryError:
            if name == "cudaloss":
                raise
    return found


def measure(spec: LossSpec, size: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    input, target = operands(spec, size, dtype, device)
    both = {"cudaloss": getattr(cudaloss, spec.function), "torch": rival(spec)}
    # As tensors, which PyTorch asks for.
    needed = {name: torch.tensor([number], dtype=dtype, device=device) for name, number in spec.needed.items()}
    losses: dict[str, Loss] = {name: partial(loss, **needed) for name, loss in both.items()}
    means = with_gradients(losses, input, target)
    losses = {name: losses[name] for name in means}
    worst = dict.fromkeys([f"{name}_{kind}_ulp" for kind in kinds_of(spec) for name in losses], 0.0)
    total, length = Fraction(), PIECE[device]
    with torch.no_grad():
        for begin in range(0, size, length):
            piece = slice(begin, begin + length)
            x, t = input[piece], target[piece]
            found = divided(exact(spec, x, t), size)
            sums = [found.value] if found.rest_of_value is None else [found.value, found.rest_of_value]
            total += sum(Fraction(part) for terms in sums for part in sum_and_error(terms))
            for name, loss in losses.items():
                of_slope = (dtype, found.size_of_slope, found.rest_of_slope)
                errors = {"gradient": largest_error(means[name][1][piece], found.slope, *of_slope)}
                if "single" in kinds_of(spec):
                    single = loss(x, t, reduction="none")
                    errors["single"] = largest_error(
                        single, found.value, dtype, found.size_of_value, found.rest_of_value
                    )
                for kind, error in errors.items():
                    worst[f"{name}_{kind}_ulp"] = max(worst[f"{name}_{kind}_ulp"], error)
    mean = total / size
    of_mean = [torch.tensor(part, dtype=torch.float64) for part in (float(mean), float(mean - Fraction(float(mean))))]
    for name, (value, _) in means.items():
        worst[f"{name}_value_ulp"] = largest_error(value.cpu(), of_mean[0], dtype, rest=of_mean[1])
    row = {"loss": spec.name, "size": size, "dtype": str(dtype).removeprefix("torch."), **worst}
    if spec.ulps > 1 and size <= LARGEST_FACTORED:
        row |= with_factors(spec, size, dtype, device)
    return {**row, "holds": all(worst[f"cudaloss_{kind}_ulp"] <= bound(spec, row, kind) for kind in kinds_of(spec))}


def bound(spec: LossSpec, row: dict[str, Any], kind: str) -> float:
    if spec.ulps > 1:
        return 1.0 if row["dtype"] in ("float16", "bfloat16") else spec.ulps
    return max(1.0, row.get(f"torch_{kind}_ulp", 0.0))


def kinds_of(spec: LossSpec) -> tuple[str, ...]:
    return ("value", "gradient") if spec.is_rational else ("value", "gradient", "single")


def keeps_much(spec: LossSpec) -> bool:
    """Whether PyTorch's way to the loss keeps several tensors of the data's size."""
    return spec.ulps > 1 or not hasattr(torch.nn.functional, spec.function)


def cases(sizes: list[int]) -> list[tuple[LossSpec, int, torch.dtype]]:
    # PyTorch's own BCE, and compositions for losses that it lacks, take more than 140 GB for 2^31 float64 elements.
    # Ours alone does not fit in 80 GB either, beside the reference in 73 bits.
    return [
        (spec, size, dtype)
        for size in sizes
        for dtype in DTYPES
        for spec in SPECS
        if not (keeps_much(spec) and dtype == torch.float64 and size > 1 << 30)
    ]


def show(found: list[dict[str, Any]], console: Console) -> None:
    kinds = ("value", "gradient", "single")
    columns = [column for kind in kinds for column in (f"{kind}, ulp", "torch's")]
    table = Table("loss", "dtype", "size", *columns, title="largest errors")
    for row in found:
        errors = (row.get(f"{name}_{kind}_ulp") for kind in kinds for name in ("cudaloss", "torch"))
        cells = ("" if error is None else f"{error:.3g}" if error >= 100 else f"{error:.2f}" for error in errors)
        table.add_row(row["loss"], row["dtype"], f"{row['size']:,}", *cells)
    console.print(table)
    for dtype in dict.fromkeys(row["dtype"] for row in found):
        errors = [row[key] for row in found if row["dtype"] == dtype for key in row if "_factored_" in key]
        console.print(f"with all factors, {dtype}: at most {max(errors, default=0.0):.2f} ulp")
    failed = [row for row in found if not row["holds"]]
    console.print(f"{len(found)} rows, {len(failed)} above what is allowed", *failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    largest = [(1 << 28) + 3, (1 << 31) + 5] if arguments.device == "cuda" else [(1 << 22) + 3]
    sizes = arguments.sizes or [1, 7, 100, 4096, 4097, 100_003, *largest]
    console = Console()
    if not console.is_terminal:
        console = Console(width=130)
    found: list[dict[str, Any]] = []
    planned, interrupted = cases(sizes), False
    try:
        for case in track(planned, description="measuring", console=console):
            found.append(measure(*case, arguments.device))
    except KeyboardInterrupt:
        interrupted = True
    finally:  # also after an exception: the rows before it
        if arguments.json:
            arguments.json.write_text(json.dumps(found, indent=1))
        show(found, console)
    if interrupted:
        console.print(f"interrupted after {len(found)} of {len(planned)} rows")
        return 130  # as a shell reports SIGINT
    return 0 if all(row["holds"] for row in found) else 1


if __name__ == "__main__":
    sys.exit(main())
