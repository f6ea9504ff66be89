"""Interleaved timing of several functions that do the same work."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

Work = Callable[[], object]

LEAST_ROUNDS = 5
USUAL_CACHE = 32 << 20  # for a CPU whose system does not report it
# Spun before a timed call, about 2 ms: longer than a host takes to launch a training step (up to 1.2 ms for a compiled
# one, on an H100's slow host).
SLEEP_CYCLES = 4_000_000


@dataclass(frozen=True)
class Timing:
    """Quantiles of the time of a work, in seconds."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        fifths = statistics.quantiles(samples, n=5, method="inclusive")
        return cls(statistics.median(samples), fifths[0], fifths[3])

    def gigabytes_per_second(self, moved: float) -> float:
        return moved / self.median / 1e9

    def divided(self, calls: int) -> Timing:
        return Timing(self.median / calls, self.p20 / calls, self.p80 / calls)

    def slower_than(self, other: Timing) -> str:
        """``no``, or whether the slower median is ``within noise`` (the intervals p20 to p80 overlap) or ``beyond``."""
        if self.median <= other.median:
            return "no"
        overlap = self.p20 <= other.p80 and other.p20 <= self.p80
        return "within noise" if overlap else "beyond noise"


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _synchronized_seconds(work: Work) -> float:
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


def rounds_within(works: Mapping[str, Work], most: int, seconds: float) -> int:
    """How many rounds of all works, each called once before, fit into `seconds`: at least a few, at most `most`."""
    one_round = sum(map(_synchronized_seconds, works.values()))
    return min(most, max(LEAST_ROUNDS, int(seconds / one_round)))


def calls_within(works: Mapping[str, Work], most: int, seconds: float) -> int:
    """How many calls of the slowest work, called once before, fit into `seconds`: at least one, at most `most`."""
    return min(most, max(1, int(seconds / max(map(_synchronized_seconds, works.values())))))


def _in_turns(
    works: Mapping[str, Work], rounds: int, warm_up: int, timed: Callable[[Work], Any]
) -> dict[str, list[Any]]:
    """What `timed` returned for each work in `rounds` rounds, in each of which another work is first in turn."""
    names = list(works)
    found: dict[str, list[Any]] = {name: [] for name in names}
    for i in range(warm_up + rounds):
        names.append(names.pop(0))
        for name in names:
            outcome = timed(works[name])
            if i >= warm_up:
                found[name].append(outcome)
    return found


def _host_seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _gpu_events(work: Work) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    return start, end


def hold_gpu() -> None:
    """Keeps the GPU busy while the host queues the next work, so that no wait for a launch is timed."""
    torch.cuda._sleep(SLEEP_CYCLES)


def cache_bytes(device: str) -> int:
    """The size of the last cache before the memory."""
    if device == "cuda":
        return torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    try:
        known = max(os.sysconf(f"SC_LEVEL{level}_CACHE_SIZE") for level in (2, 3, 4))
    except (ValueError, OSError):  # not on macOS
        known = 0
    return known if known > 0 else USUAL_CACHE


def outgrows_cache(device: str, moved: int) -> bool:
    """Whether a call that moves `moved` bytes leaves nothing in the cache for the next call."""
    return moved >= 2 * cache_bytes(device)


def before_call(device: str, moved: int) -> tuple[Work | None, bool]:
    """What to run before each timed call that moves `moved` bytes, and whether that empties the GPU's L2 cache: it does
    if the operands of a call could stay there for the next."""
    if device != "cuda":
        return None, False
    if outgrows_cache(device, moved):
        return hold_gpu, False
    scratch = torch.empty(2 * cache_bytes(device), dtype=torch.uint8, device=device)

    def flush() -> None:
        scratch.zero_()
        hold_gpu()

    return flush, True


def throughput(
    works: Mapping[str, Work], device: str, rounds: int, warm_up: int = 3, before: Work | None = None
) -> dict[str, Timing]:
    """The time of each work on its device; `before` runs ahead of each call and is not timed. On a GPU with events,
    read only at the end: otherwise a GPU that waits for its next launch would be timed with the wait."""

    def timed(work: Work) -> Any:
        if before:
            before()
        return _gpu_events(work) if device == "cuda" else _host_seconds(work)

    found = _in_turns(works, rounds, warm_up, timed)
    if device == "cuda":
        synchronize()
        found = {name: [a.elapsed_time(b) / 1e3 for a, b in pairs] for name, pairs in found.items()}
    return {name: Timing.of(samples) for name, samples in found.items()}


def latency(works: Mapping[str, Work], rounds: int = 30, calls: int = 200) -> dict[str, Timing]:
    """The host's time for a call of each work: how long until it returns, while the GPU's queue is never full."""

    def seconds(work: Work) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            work()
        elapsed = (time.perf_counter() - start) / calls
        synchronize()
        return elapsed

    return {name: Timing.of(found) for name, found in _in_turns(works, rounds, 1, seconds).items()}


def graph_replay(works: Mapping[str, Work], rounds: int = 30, calls: int = 50) -> dict[str, Timing]:
    """The GPU's time for one call of each work, from replays of a CUDA graph of `calls` of them."""
    replays = {}
    for name, work in works.items():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                work()
        replays[name] = graph.replay
    timings = throughput(replays, "cuda", rounds, before=hold_gpu)
    return {name: timing.divided(calls) for name, timing in timings.items()}


def peak_bytes(work: Work) -> int:
    """The peak of allocated GPU memory during a call of `work`, which was called once before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def gpu_kernels(work: Work) -> int:
    """How many kernels the GPU runs for a call of `work`, called once before; the driver's copies and fills count too.
    None are seen if the profiler may not watch the GPU."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        work()
        synchronize()
    events = found.events() or ()
    return sum(event.device_type.name == "CUDA" and not event.is_user_annotation for event in events)
