"""The rows of a run, known before anything is measured."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from .cases import COMPARABLE, KERNELBENCH, Case, Row
from .modes import (
    BFLOAT16,
    FEATURES,
    FLOAT32,
    FORWARD,
    FORWARD_MODES,
    MASKED,
    MASKED_FORWARD,
    MIXED,
    OWN_FEATURES,
    STEP,
    TRAINING_MODES,
    Dtypes,
    Mode,
)

# The losses with all kernels, used by most suites, and the others, which have a suite of their own.
COMMON = tuple(name for name, spec in COMPARABLE.items() if spec.kernels == "all")
FAMILY = tuple(name for name in COMPARABLE if name not in COMMON)
MODE_NAMES = tuple(mode.name for mode in (*TRAINING_MODES, *FEATURES, *OWN_FEATURES))  # those that can be asked for

# Fewer on the CPU, where torch.compile calls a C++ compiler for each row: 83 rows take 71 seconds on two cores; 177
# rows, for all losses, took 8 minutes.
DEFAULT_DTYPES = {"cuda": (FLOAT32, BFLOAT16, MIXED), "cpu": (FLOAT32, BFLOAT16)}
_CPU_MODES = ("step", *(mode.name for mode in (*FEATURES, *OWN_FEATURES)))
DEFAULT_MODES = {"cuda": MODE_NAMES, "cpu": _CPU_MODES}
LARGEST_CEILING = {"cuda": 28, "cpu": 24}
NEEDS_GPU = ("graph", "memory")
# Rows of these are compared with a ceiling.
THROUGHPUT = ("forward", "training", "family", "kernelbench", "features")


@dataclass(frozen=True)
class Part:
    """The default measurements of a suite, or of a part of one. Sizes are powers of two, by device."""

    modes: tuple[Mode, ...]
    sizes: dict[str, tuple[int, ...]]
    losses: tuple[str, ...] = tuple(COMPARABLE)
    default_losses: tuple[str, ...] = tuple(COMPARABLE)
    cpu_losses: tuple[str, ...] = ()  # the default on the CPU, if it has fewer
    # Whether modes and dtypes vary by default: then one at a time, and at the largest size.
    varied_modes: bool = False
    varied_dtypes: bool = False

    def default_losses_on(self, device: str) -> tuple[str, ...]:
        return self.cpu_losses if device == "cpu" and self.cpu_losses else self.default_losses


_THROUGHPUT_SIZES = {"cuda": (12, 16, 20, 24, 28), "cpu": (24,)}
_ONE_LOSS = ("smooth_l1",)
_of_common = partial(
    Part,
    sizes=_THROUGHPUT_SIZES,
    default_losses=COMMON,
    cpu_losses=("smooth_l1", "binary_cross_entropy_with_logits"),
    varied_modes=True,
    varied_dtypes=True,
)
SUITES = {
    "forward": (_of_common(FORWARD_MODES),),
    "training": (_of_common(TRAINING_MODES),),
    "family": (
        Part(
            (FORWARD, STEP),
            {"cuda": (20, 28), "cpu": (24,)},
            default_losses=FAMILY,
            cpu_losses=("kl_div",),
            varied_dtypes=True,
        ),
    ),
    "latency": (
        Part((FORWARD, STEP), {"cuda": (6, 12, 16), "cpu": (12,)}),
        Part((MASKED_FORWARD, *FEATURES), {"cuda": (12,), "cpu": (12,)}, default_losses=_ONE_LOSS),
    ),
    "graph": (Part((FORWARD,), {"cuda": (10, 12, 17, 20, 22)}),),
    "memory": (
        Part((STEP,), {"cuda": (28,)}, default_losses=COMMON, varied_dtypes=True),
        Part((MASKED,), {"cuda": (28,)}, default_losses=_ONE_LOSS),
    ),
    "kernelbench": tuple(
        Part(
            tuple(replace(mode, call=problem.call) for mode in (FORWARD, STEP)),
            {"cuda": (problem.power,), "cpu": (22,)},
            losses=(loss,),
        )
        for loss, problem in KERNELBENCH.items()
    ),
    "features": (
        Part(FEATURES, {"cuda": (28,), "cpu": (21,)}, default_losses=_ONE_LOSS, varied_modes=True),
        Part(OWN_FEATURES, {"cuda": (28,), "cpu": (21,)}, varied_modes=True),
    ),
}
SUITE_NAMES = ("ceilings", *SUITES)


@dataclass(frozen=True)
class Options:
    """The user's choices; None: the default."""

    device: str = "cpu"
    suites: tuple[str, ...] = SUITE_NAMES
    sizes: tuple[int, ...] | None = None
    dtypes: tuple[Dtypes, ...] | None = None
    modes: tuple[str, ...] | None = None
    losses: tuple[str, ...] | None = None
    ceiling_size: int | None = None
    rounds: int = 30
    compile: bool = True

    def sizes_of(self, part: Part) -> tuple[int, ...]:
        return self.sizes or part.sizes[self.device]


def parse_sizes(texts: list[str]) -> tuple[int, ...]:
    """From numbers and ranges: ``["6", "10-12"]`` is 6, 10, 11, 12."""
    found: set[int] = set()
    for text in texts:
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise argparse.ArgumentTypeError(f"a power of two or a range such as 6-30, not {text!r}")
        found |= set(range(first, last + 1))
    return tuple(sorted(found))


def _modes(options: Options, part: Part) -> list[Mode]:
    if not part.varied_modes:
        return list(part.modes)
    chosen = options.modes or DEFAULT_MODES[options.device]
    # A forward suite always has its plain call, which is not a training mode.
    modes = [mode for mode in part.modes if mode is FORWARD or mode.name in chosen]
    return [mode for mode in modes if options.modes or options.compile or not mode.compiled]


def _dtypes(options: Options, suite: str, part: Part) -> tuple[Dtypes, ...]:
    if suite == "kernelbench":
        return (FLOAT32,)
    return options.dtypes or (DEFAULT_DTYPES[options.device] if part.varied_dtypes else (FLOAT32,))


def _combinations(options: Options, suite: str, part: Part) -> Iterator[tuple[Mode, Dtypes, int]]:
    """Modes, dtypes and sizes: the chosen ones all crossed, the others one at a time."""
    sizes, modes, dtypes = options.sizes_of(part), _modes(options, part), _dtypes(options, suite, part)
    for mode, dtype, size in product(modes, dtypes, sizes):
        strays = (
            part.varied_modes and options.modes is None and mode not in (modes[0], *FEATURES, *OWN_FEATURES),
            part.varied_dtypes and options.dtypes is None and dtype is not dtypes[0],
        )
        if mode.dtypes and dtype is not dtypes[0]:
            continue  # it has its own, once
        if not any(strays) or (not all(strays) and size == sizes[-1]):
            yield mode, mode.dtypes or dtype, size


def _images(power: int) -> tuple[int, ...]:
    """2^28 elements are (64, 16, 512, 512), 2^21 are (8, 16, 128, 128); larger batches of these, or smaller images."""
    side = min(9, power // 3)
    channels = min(4, (power - 2 * side + 1) // 2)
    return (1 << power - 2 * side - channels, 1 << channels, 1 << side, 1 << side)


def _shape(suite: str, mode: Mode, power: int) -> tuple[int, ...]:
    if suite == "kernelbench" or mode in OWN_FEATURES:
        return (1 << power // 2, 1 << power - power // 2)
    if suite == "features" or (suite == "latency" and mode in FEATURES):
        return _images(power)
    return (1 << power,)


def runnable(options: Options) -> list[str]:
    """The chosen suites that this device can run, without the ceilings."""
    return [s for s in SUITES if s in options.suites and (options.device == "cuda" or s not in NEEDS_GPU)]


def skipped_suites(options: Options) -> list[Row]:
    missing = [name for name in options.suites if name in NEEDS_GPU and options.device != "cuda"]
    return [{"suite": name, "device": options.device, "skipped": "needs a CUDA device"} for name in missing]


def cases(options: Options) -> list[Case]:
    return [
        Case(suite, COMPARABLE[loss], mode, dtypes, _shape(suite, mode, size), options.device)
        for suite in runnable(options)
        for part in SUITES[suite]
        for mode, dtypes, size in _combinations(options, suite, part)
        for loss in part.losses
        if loss in (options.losses or part.default_losses_on(options.device)) and loss in mode.losses
    ]


def ceiling_size(options: Options) -> int | None:
    """The elements for the ceilings: as many as in the largest throughput suite, up to a limit."""
    against = [part for name in runnable(options) if name in THROUGHPUT for part in SUITES[name]]
    if "ceilings" not in options.suites and not against:
        return None
    if options.ceiling_size is not None:
        return 1 << options.ceiling_size
    limit = LARGEST_CEILING[options.device]
    largest = max((size for part in against for size in options.sizes_of(part)), default=max(options.sizes or [limit]))
    return 1 << min(largest, limit)
