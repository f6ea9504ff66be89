"""Which rows a run has, known before anything is measured."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

import torch

from .cases import COMPARABLE, FORWARD, FORWARD_MODES, KERNELBENCH, STEP, TRAINING_MODES, Case, Dtypes, Mode, Row

FLOAT32 = Dtypes(torch.float32, torch.float32)
BFLOAT16 = Dtypes(torch.bfloat16, torch.bfloat16)
MIXED = Dtypes(torch.bfloat16, torch.float32)

# Fewer on the CPU, for a run of about a minute.
DEFAULT_DTYPES = {"cuda": (FLOAT32, BFLOAT16, MIXED), "cpu": (FLOAT32, BFLOAT16)}
DEFAULT_MODES = {"cuda": tuple(mode.name for mode in TRAINING_MODES), "cpu": ("step", "misaligned")}
LARGEST_CEILING = {"cuda": 28, "cpu": 24}
NEEDS_GPU = ("graph", "memory")
# Rows of these are compared with a ceiling.
THROUGHPUT = ("forward", "training", "kernelbench")


@dataclass(frozen=True)
class Suite:
    """What a suite measures by default. Sizes are powers of two, by device."""

    modes: tuple[Mode, ...]
    sizes: dict[str, tuple[int, ...]]
    losses: tuple[str, ...] = tuple(COMPARABLE)
    # Whether modes and dtypes vary though nobody asked for any: one at a time then, and at the largest size.
    varied_modes: bool = False
    varied_dtypes: bool = False


_THROUGHPUT_SIZES = {"cuda": (12, 16, 20, 24, 28), "cpu": (16, 24)}
SUITES = {
    "forward": Suite(FORWARD_MODES, _THROUGHPUT_SIZES, varied_modes=True, varied_dtypes=True),
    "training": Suite(TRAINING_MODES, _THROUGHPUT_SIZES, varied_modes=True, varied_dtypes=True),
    "latency": Suite((FORWARD, STEP), {"cuda": (6, 12, 16), "cpu": (12,)}),
    "graph": Suite((FORWARD,), {"cuda": (10, 12, 17, 20, 22)}),
    "memory": Suite((STEP,), {"cuda": (28,)}, varied_dtypes=True),
    "kernelbench": Suite((FORWARD, STEP), {"cuda": (30,), "cpu": (22,)}, losses=tuple(KERNELBENCH)),
}
SUITE_NAMES = ("ceilings", *SUITES)


@dataclass(frozen=True)
class Options:
    """What was asked for; None where it is the default's to choose."""

    device: str = "cpu"
    suites: tuple[str, ...] = SUITE_NAMES
    sizes: tuple[int, ...] | None = None
    dtypes: tuple[Dtypes, ...] | None = None
    modes: tuple[str, ...] | None = None
    losses: tuple[str, ...] = field(default=tuple(COMPARABLE))
    ceiling_size: int | None = None
    rounds: int = 30
    compile: bool = True

    def sizes_of(self, suite: str) -> tuple[int, ...]:
        return self.sizes or SUITES[suite].sizes[self.device]


def parse_sizes(texts: list[str]) -> tuple[int, ...]:
    """Of numbers and ranges: ``["6", "10-12"]`` is 6, 10, 11, 12."""
    found: set[int] = set()
    for text in texts:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise argparse.ArgumentTypeError(f"a power of two or a range such as 6-30, not {text!r}")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def _modes(options: Options, suite: Suite) -> list[Mode]:
    if not suite.varied_modes:
        return list(suite.modes)
    chosen = options.modes or DEFAULT_MODES[options.device]
    # A forward suite always has its plain call, which is no mode of training.
    modes = [mode for mode in suite.modes if mode is FORWARD or mode.name in chosen]
    return [mode for mode in modes if options.modes or options.compile or not mode.compiled]


def _dtypes(options: Options, name: str) -> tuple[Dtypes, ...]:
    if name == "kernelbench":
        return (FLOAT32,)
    return options.dtypes or (DEFAULT_DTYPES[options.device] if SUITES[name].varied_dtypes else (FLOAT32,))


def _combinations(options: Options, name: str) -> Iterator[tuple[Mode, Dtypes, int]]:
    """Modes, dtypes and sizes: all crossed that were asked for, the others one at a time."""
    suite, sizes = SUITES[name], options.sizes_of(name)
    modes, dtypes = _modes(options, suite), _dtypes(options, name)
    for mode, dtype, size in product(modes, dtypes, sizes):
        strays = (
            suite.varied_modes and options.modes is None and mode is not modes[0],
            suite.varied_dtypes and options.dtypes is None and dtype is not dtypes[0],
        )
        if not any(strays) or (not all(strays) and size == sizes[-1]):
            yield mode, dtype, size


def _shape(suite: str, power: int) -> tuple[int, ...]:
    return (1 << power // 2, 1 << power - power // 2) if suite == "kernelbench" else (1 << power,)


def runnable(options: Options) -> list[str]:
    """The suites asked for that this device can run, without the ceilings."""
    return [s for s in SUITES if s in options.suites and (options.device == "cuda" or s not in NEEDS_GPU)]


def skipped_suites(options: Options) -> list[Row]:
    missing = [name for name in options.suites if name in NEEDS_GPU and options.device != "cuda"]
    return [{"suite": name, "device": options.device, "skipped": "needs a CUDA device"} for name in missing]


def cases(options: Options) -> list[Case]:
    return [
        Case(suite, COMPARABLE[loss], mode, dtypes, _shape(suite, size), options.device)
        for suite in runnable(options)
        for mode, dtypes, size in _combinations(options, suite)
        for loss in SUITES[suite].losses
        if loss in options.losses
    ]


def ceiling_size(options: Options) -> int | None:
    """The elements on which the ceilings are measured: as many as the largest throughput suite has, up to a limit."""
    against = [name for name in runnable(options) if name in THROUGHPUT]
    if "ceilings" not in options.suites and not against:
        return None
    if options.ceiling_size is not None:
        return 1 << options.ceiling_size
    limit = LARGEST_CEILING[options.device]
    largest = max((size for name in against for size in options.sizes_of(name)), default=max(options.sizes or [limit]))
    return 1 << min(largest, limit)
