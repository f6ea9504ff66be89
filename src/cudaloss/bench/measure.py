"""Interleaved timing of several functions that do the same work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Work = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Quantiles of one function's time, in seconds."""

    median: float
    p20: float
    p80: float

    @classmethod
    def of(cls, samples: list[float]) -> Timing:
        deciles = statistics.quantiles(samples, n=10, method="inclusive")
        return cls(statistics.median(samples), deciles[1], deciles[7])


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _seconds_on_gpu(work: Work) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    work()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def _seconds_on_host(work: Work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def interleaved(works: Mapping[str, Work], rounds: int, seconds: Callable[[Work], float]) -> dict[str, Timing]:
    """The timing of each work over `rounds` rounds, each of which runs them all in turn, after one warm-up round."""
    samples: dict[str, list[float]] = {name: [] for name in works}
    for i in range(rounds + 1):
        for name, work in works.items():
            elapsed = seconds(work)
            if i > 0:
                samples[name].append(elapsed)
    return {name: Timing.of(found) for name, found in samples.items()}


def throughput(works: Mapping[str, Work], device: str, rounds: int) -> dict[str, Timing]:
    """The time each work takes on its device: by events on a GPU, by the clock on the CPU."""
    return interleaved(works, rounds, _seconds_on_gpu if device == "cuda" else _seconds_on_host)


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

    return interleaved(works, rounds, seconds)


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
    timings = interleaved(replays, rounds, _seconds_on_gpu)
    return {name: Timing(t.median / calls, t.p20 / calls, t.p80 / calls) for name, t in timings.items()}
