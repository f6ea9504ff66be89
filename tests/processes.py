"""Processes for tests: forked from one that has imported what they need, because each import takes 1 to 3 s."""

from __future__ import annotations

import contextlib
import fcntl
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes  # pyright: ignore[reportPrivateImportUsage]

# Not cudaloss, which takes 0.1 s: programs below are about its import.
IMPORTED = ["torch.distributed.tensor.parallel", "torch.nn.parallel", "torch._inductor.compile_fx", "torch.profiler"]
IMPORTED += ["matplotlib.image", "matplotlib.backends.backend_agg", "sklearn.linear_model", "rich.progress", "pytest"]
# With a GPU nothing is forked: CUDA does not work in a process whose parent has used it.
METHOD = "spawn" if torch.cuda.is_available() else "forkserver"


def start(work: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Calls ``work(rank, *arguments)`` in that many processes. The first that fails ends the others, and raises."""
    multiprocessing.set_forkserver_preload(IMPORTED)
    start_processes(work, arguments, nprocs=count, start_method=METHOD)


def _run(_: int, code: str, arguments: tuple[str, ...], path: Path | None, output: str) -> None:
    if path:
        sys.path.insert(0, str(path))
    sys.argv = ["-c", *arguments]
    assert "cudaloss" not in sys.modules
    with open(output, "w") as file, contextlib.redirect_stdout(file):
        exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def printed_by(code: str, *arguments: object, path: Path | None = None) -> str:
    """What a program prints. It finds cudaloss at the path, or else where the tests do, and imports it anew."""
    with tempfile.NamedTemporaryFile("r") as file:
        start(_run, (code, tuple(map(str, arguments)), path, file.name), 1)
        return file.read()


def _find(
    rank: int, folder: str, count: int, backend: str, find: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    store, limit = f"file://{folder}/store", timedelta(seconds=60)
    dist.init_process_group(backend, init_method=store, rank=rank, world_size=count, timeout=limit)
    try:
        torch.save(find(*arguments), f"{folder}/{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def found_by_all(
    factory: pytest.TempPathFactory, count: int, find: Callable[..., Any], *arguments: Any, backend: str = "gloo"
) -> list[Any]:
    """What ``find(*arguments)`` returned in each of the processes of one group, which run once for all of xdist's. An
    exception in it ends the run, and fails all tests."""
    own = factory.getbasetemp()
    folder = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder /= "-".join([find.__module__, find.__name__, *map(str, arguments)])
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            start(_find, (str(folder), count, backend, find, arguments), count)
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]
