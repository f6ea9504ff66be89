"""The largest errors of values and gradients against float64, in ulp of the result, beside PyTorch's own.

For every loss and dtype, on random data, at sizes up to 2^31 + 5 on a GPU. Exits non-zero where an error is above 1 ulp
and above PyTorch's. A reduction's float64 reference is summed over pieces that fit in memory.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import cudaloss
from cudaloss import reference
from cudaloss._specs import SPECS, LossSpec
from cudaloss.bench.errors import compensated_sum, largest_error

PIECE = 1 << 26
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def exact_mean(spec: LossSpec, input: Tensor, target: Tensor) -> Tensor:
    sums = [
        compensated_sum(reference.loss(spec, a.double(), b.double(), "none", spec.default, torch.float64))
        for a, b in zip(input.split(PIECE), target.split(PIECE), strict=True)
    ]
    return torch.tensor(math.fsum(sums) / input.numel(), dtype=torch.float64)


def gradient_error(spec: LossSpec, gradient: Tensor, input: Tensor, target: Tensor) -> float:
    """The largest over all elements, each against the derivative of its own float64 term, divided by the count."""
    scale = torch.ones((), dtype=torch.float64, device=input.device) / input.numel()
    worst = 0.0
    for g, a, b in zip(gradient.split(PIECE), input.split(PIECE), target.split(PIECE), strict=True):
        arguments = (a.detach().double(), b.double(), "sum", spec.default, torch.float64, (True, False))
        exact = reference.gradients(spec, scale, *arguments)[0]
        assert exact is not None
        worst = max(worst, largest_error(g, exact, g.dtype))
    return worst


def measure(spec: LossSpec, size: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    torch.manual_seed(size)
    input = torch.randn(size, dtype=dtype, device=device).requires_grad_()
    target = torch.randn(size, dtype=dtype, device=device)
    with torch.no_grad():
        exact = exact_mean(spec, input, target)
    row = {"loss": spec.name, "size": size, "dtype": str(dtype).removeprefix("torch.")}
    for name, module in (("cudaloss", cudaloss), ("torch", F)):
        value = getattr(module, spec.function)(input, target)
        row[f"{name}_value_ulp"] = largest_error(value.cpu(), exact, dtype)
        (gradient,) = torch.autograd.grad(value, input)
        row[f"{name}_gradient_ulp"] = gradient_error(spec, gradient, input, target)
        del value, gradient
    row["holds"] = all(row[f"cudaloss_{k}_ulp"] <= max(1.0, row[f"torch_{k}_ulp"]) for k in ("value", "gradient"))
    return row


def rows(sizes: list[int], device: str) -> Iterator[dict[str, Any]]:
    comparable = [spec for spec in SPECS if hasattr(F, spec.function)]
    return (measure(spec, size, dtype, device) for size in sizes for dtype in DTYPES for spec in comparable)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    largest = [(1 << 28) + 3, (1 << 31) + 5] if arguments.device == "cuda" else [(1 << 22) + 3]
    sizes = arguments.sizes or [1, 7, 100, 4096, 4097, 100_003, *largest]
    console = Console()
    found = list(track(rows(sizes, arguments.device), description="measuring", console=console))
    table = Table("loss", "dtype", "size", "value, ulp", "torch's", "gradient, ulp", "torch's", title="largest errors")
    for row in found:
        errors = (row[f"{name}_{kind}_ulp"] for kind in ("value", "gradient") for name in ("cudaloss", "torch"))
        table.add_row(row["loss"], row["dtype"], f"{row['size']:,}", *(f"{error:.2f}" for error in errors))
    console.print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    failed = [row for row in found if not row["holds"]]
    console.print(f"{len(found)} rows, {len(failed)} above both 1 ulp and PyTorch's error", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
