"""Interleaved timing of several functions that do the same work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Quantiles of one work's time, in seconds."""

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


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


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


def throughput(works: Mapping[str, Work], device: str, rounds: int, warm_up: int = 3) -> dict[str, Timing]:
    """The time each work takes on its device. On a GPU by events, read only at the end: a GPU that waits for its next
    launch would be timed with the wait. No cache is flushed: operands should be larger than it."""
    if device != "cuda":
        return {name: Timing.of(found) for name, found in _in_turns(works, rounds, warm_up, _host_seconds).items()}
    marks = _in_turns(works, rounds, warm_up, _gpu_events)
    synchronize()
    return {name: Timing.of([a.elapsed_time(b) / 1e3 for a, b in pairs]) for name, pairs in marks.items()}


def latency(works: Mapping[str, Work], rounds: int = 30, calls: int = 200) -> dict[str, Timing]:
    """The host's time for one call of each work: how long until it returns, the GPU's queue never full."""

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
    return {name: timing.divided(calls) for name, timing in throughput(replays, "cuda", rounds).items()}
