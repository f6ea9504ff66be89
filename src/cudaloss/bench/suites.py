"""The measurements: each makes a row from a case."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

import torch

from . import measure
from .cases import Case, Row, leave_out_failing, works
from .measure import Timing, Work
from .plan import Options
from .rivals import RIVALS

Ceilings = dict[str, float]  # GB/s by name

# The limits for long calls.
ROW_SECONDS = 1.0
SAMPLE_SECONDS = 0.005

MOVED = {"copy": 2, "sum": 1, "add": 3}  # tensors read and written


def _free_bytes(device: str) -> int | None:
    """The free memory; None if the system does not report it."""
    if device == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):  # not on macOS
        return None


def shortage(needed: int, device: str) -> str | None:
    """Why `needed` bytes are too many, if they are."""
    free = _free_bytes(device)
    if free is not None and needed > free:
        gc.collect()
        free = _free_bytes(device)
    if free is None or needed <= free:
        return None
    return f"needs about {needed / 2**30:.1f} GiB of memory, {free / 2**30:.1f} GiB are free"


def _timed(timings: dict[str, Timing], notes: list[str]) -> Row:
    ours = timings["cudaloss"]
    row: Row = {
        "seconds": {name: asdict(timing) for name, timing in timings.items()},
        "speedup": {name: timings[name].median / ours.median for name in RIVALS if name in timings},
    }
    if "eager" in timings:
        row["slower"] = ours.slower_than(timings["eager"])
    return {**row, "notes": notes} if notes else row


def _in_turns(rivals: dict[str, Work], moved: int, options: Options) -> tuple[dict[str, Timing], Row]:
    rounds = measure.rounds_within(rivals, options.rounds, ROW_SECONDS)
    before, flushed = measure.before_call(options.device, moved)
    timings = measure.throughput(rivals, options.device, rounds, before=before)
    return timings, {"rounds": rounds, "l2_flushed": flushed}


def ceilings(size: int, options: Options) -> Row:
    """The throughput of PyTorch's simplest kernels here: a copy, a sum (reads only), an addition (2 reads, a write)."""
    row: Row = {"suite": "ceilings", "dtype": "float32", "size": size, "device": options.device}
    reason = shortage(3 * 4 * size, options.device)
    if reason:
        return {**row, "skipped": reason}
    a, b, c = (torch.rand(size, device=options.device) for _ in range(3))
    calls: dict[str, Work] = {
        "copy": lambda: c.copy_(a),
        "sum": lambda: a.sum(),
        "add": lambda: torch.add(a, b, out=c),
    }
    for call in calls.values():
        call()
    timings, conditions = _in_turns(calls, 4 * size, options)
    rates = {name: timing.gigabytes_per_second(MOVED[name] * 4 * size) for name, timing in timings.items()}
    seconds = {name: asdict(timing) for name, timing in timings.items()}
    return {**row, **conditions, "seconds": seconds, "gigabytes_per_second": rates}


def _throughput(case: Case, options: Options, limits: Ceilings) -> Row:
    """The time on the device, with achieved GB/s: the bytes that must move, over the time."""
    rivals = works(case, options.compile)
    notes = leave_out_failing(rivals)
    timings, conditions = _in_turns(rivals, case.bytes, options)
    rates = {name: timing.gigabytes_per_second(case.bytes) for name, timing in timings.items()}
    row = {**_timed(timings, notes), **conditions, "bytes": case.bytes, "gigabytes_per_second": rates}
    if case.suite == "features" and case.device == "cuda":
        row["kernels"] = {name: measure.gpu_kernels(work) for name, work in rivals.items()}
    ceiling = limits.get("add" if case.mode.training else "sum")
    if ceiling is None or not measure.outgrows_cache(case.device, case.bytes):  # a cache is faster than the memory
        return row
    return {**row, "of_ceiling": rates["cudaloss"] / ceiling}


def _latency(case: Case, options: Options, _: Ceilings) -> Row:
    """The host's time for a call."""
    rivals = works(case, options.compile, with_op=not case.mode.training)
    notes = leave_out_failing(rivals)
    calls = measure.calls_within(rivals, 200, SAMPLE_SECONDS)
    return {**_timed(measure.latency(rivals, options.rounds, calls), notes), "calls": calls}


@contextmanager
def waits_fail() -> Iterator[None]:
    """Makes waits for the GPU fail, as in a capture: PyTorch's own gaussian_nll_loss, for example, waits."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def _graph(case: Case, options: Options, _: Ceilings) -> Row:
    """The GPU's time for a call with graph replay. Without torch.compile, whose share would be compile time."""
    rivals = works(case, with_compile=False)
    with waits_fail():
        notes = leave_out_failing(rivals)
    calls = measure.calls_within(rivals, 50, SAMPLE_SECONDS)
    return {**_timed(measure.graph_replay(rivals, options.rounds, calls), notes), "calls": calls}


def _memory(case: Case, options: Options, _: Ceilings) -> Row:
    """The peak of a training step above its operands."""
    rivals = works(case, options.compile)
    operands = torch.cuda.memory_allocated()
    notes = leave_out_failing(rivals)
    row: Row = {"peak_bytes": {name: measure.peak_bytes(work) - operands for name, work in rivals.items()}}
    return {**row, "notes": notes} if notes else row


MEASURES: dict[str, Callable[[Case, Options, Ceilings], Row]] = {
    "forward": _throughput,
    "training": _throughput,
    "family": _throughput,
    "kernelbench": _throughput,
    "features": _throughput,
    "latency": _latency,
    "graph": _graph,
    "memory": _memory,
}


def measured(case: Case, options: Options, limits: Ceilings) -> Row:
    """The row of a case; ``skipped`` has the reason if this machine cannot measure it."""
    row = case.row()
    reason = shortage(case.bytes_needed, case.device)
    if case.mode.compiled and not options.compile:
        reason = "needs torch.compile"
    if reason:
        return {**row, "skipped": reason}
    try:
        return {**row, **MEASURES[case.suite](case, options, limits)}
    except torch.OutOfMemoryError:
        return {**row, "skipped": "out of memory"}
