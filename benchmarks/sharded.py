"""The extra cost of a loss of DTensors over the same loss of one shard: smooth L1, forward and backward, rows sharded;
a cross entropy with sharded classes, and a linear one with its weight sharded by classes, beside those with all classes
in one process.

Two processes: NCCL if there are two GPUs, otherwise gloo. Times are medians of the first process, in microseconds: on
the host for few elements (with the collectives, because gloo waits for them), on the device for many, there with the
peak memory of a step, in MiB. Elements are counted for a process, for the cross entropy over all. ``--json`` keeps the
numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.multiprocessing import spawn  # pyright: ignore[reportPrivateImportUsage]

import cudaloss
from cudaloss._sharded import eager
from cudaloss.bench import measure
from cudaloss.bench.environment import environment

PROCESSES = 2
FEW = 320
MANY = {"cuda": 1 << 28, "cpu": 1 << 22}  # of each process
LOGITS = {"cuda": (4096, 131072), "cpu": (256, 8192)}  # of all processes together, bf16
HEAD = {"cuda": (8192, 4096, 128256), "cpu": (128, 64, 8192)}  # rows, width and classes, bf16


def step(loss: Callable[..., Tensor], input: Tensor, target: Tensor, **options: Tensor) -> Callable[[], None]:
    input = input.detach().requires_grad_()

    def run() -> None:
        loss(input, target, **options).backward()
        input.grad = None

    return run


def works(size: int, device: str, mesh: Any) -> dict[str, Callable[[], None]]:
    own = torch.randn(size, device=device), torch.randn(size, device=device), torch.rand(size, device=device) < 0.7
    sharded = tuple(DTensor.from_local(x, mesh, [Shard(0)]) for x in own)
    found: dict[str, Callable[[], None]] = {}
    for name, (x, t, mask) in {"local": own, "sharded": sharded}.items():
        found[name] = step(cudaloss.smooth_l1_loss, x, t)
        found[f"{name}, mask"] = step(cudaloss.smooth_l1_loss, x, t, mask=mask)
    if size > FEW:
        return found
    for name in ("local", "local, mask"):
        found[f"{name}, then an all_reduce"] = after(found[name], collective(mesh))
    whole: Any = lambda x, t: F.mse_loss(x, t).full_tensor()  # noqa: E731  # pyright: ignore[reportAttributeAccessIssue]
    found["PyTorch's mse_loss, sharded"] = step(whole, *sharded[:2])
    for name in ("sharded", "sharded, mask"):
        found[f"{name}, in several nodes"] = mock.patch.object(eager, "loss", declined)(found[name])
    found["sharded, mask, counted first"] = mock.patch.object(eager, "_FEW", 0)(found["sharded, mask"])
    compiled = torch.compile(cudaloss.smooth_l1_loss, fullgraph=True, dynamic=False)
    for name, (x, t, mask) in {"local, compiled": own, "sharded, compiled": sharded}.items():
        found[name] = step(compiled, x, t)
        found[f"{name}, mask"] = step(compiled, x, t, mask=mask)
    return found


def after(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def declined(_: Any) -> None:
    """A call that is not served in one node."""


def vocabulary(device: str, mesh: Any) -> dict[str, Callable[[], None]]:
    rows, classes = LOGITS[device]
    target = torch.randint(0, classes, (rows,), device=device)
    whole = torch.randn(rows, classes, device=device, dtype=torch.bfloat16)
    part = DTensor.from_local(whole[:, : classes // PROCESSES].contiguous(), mesh, [Shard(1)])
    everywhere = DTensor.from_local(target, mesh, [Replicate()])

    return {
        "cross entropy, one process": step(cudaloss.cross_entropy, whole, target),
        "cross entropy, classes sharded": step(cudaloss.cross_entropy, part, everywhere),
    }


def head(device: str, mesh: Any) -> dict[str, Callable[[], None]]:
    rows, width, classes = HEAD[device]
    input = torch.randn(rows, width, device=device, dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(classes, width, device=device, dtype=torch.bfloat16) / math.sqrt(width)
    target = torch.randint(0, classes, (rows,), device=device)
    part = DTensor.from_local(weight[: classes // PROCESSES].clone(), mesh, [Shard(0)]).requires_grad_()

    def run(weight: Tensor) -> None:
        torch.autograd.grad(cudaloss.linear_cross_entropy(input, weight, target), (input, weight))

    return {
        "linear cross entropy, one process": partial(run, weight.requires_grad_()),
        "linear cross entropy, weight sharded": partial(run, part),
    }


def collective(mesh: Any) -> Callable[[], None]:
    number = torch.zeros((), device=mesh.device_type)
    return lambda: dist.all_reduce(number, group=mesh.get_group(0)) and None


def measured(device: str, rounds: int) -> list[dict[str, Any]]:
    mesh = init_device_mesh(device, (PROCESSES,))
    few = works(FEW, device, mesh) | {"an all_reduce": collective(mesh)}
    timings = measure.latency(few, rounds, 100)
    rows = [{"size": FEW, "of": name, "us": timing.median * 1e6} for name, timing in timings.items()]
    rows_of_head, _, classes = HEAD[device]
    many = {
        MANY[device]: partial(works, MANY[device]),
        math.prod(LOGITS[device]): vocabulary,
        rows_of_head * classes: head,
    }
    for size, make in many.items():
        of_size = make(device, mesh)
        timings = measure.throughput(of_size, device, rounds)
        for name, timing in timings.items():
            rows.append({"size": size, "of": name, "us": timing.median * 1e6})
            if device == "cuda":  # above the memory after the step, which leaves nothing
                rows[-1]["peak_mib"] = (measure.peak_bytes(of_size[name]) - torch.cuda.memory_allocated()) / 2**20
    return rows


def work(rank: int, folder: str, device: str, rounds: int) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend, store = "nccl" if device == "cuda" else "gloo", f"file://{folder}/store"
    limit = timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=PROCESSES, timeout=limit)
    try:
        rows = measured(device, rounds)
        if rank == 0:
            Path(folder, "rows.json").write_text(json.dumps(rows))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.device_count() >= PROCESSES else "cpu"
    with tempfile.TemporaryDirectory(prefix="cudaloss-") as folder:
        spawn(work, (folder, device, arguments.rounds), nprocs=PROCESSES)
        rows = json.loads(Path(folder, "rows.json").read_text())
    table = Table("elements", "step", "us", "peak, MiB", title=f"{PROCESSES} processes, {device}")
    for row in rows:
        memory = f"{row['peak_mib']:.2f}" if "peak_mib" in row else ""
        table.add_row(f"{row['size']:,}", row["of"], f"{row['us']:.0f}", memory)
    Console().print(table)
    if arguments.json:
        arguments.json.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
