"""Rows of the benchmark as the tests make them up."""

from __future__ import annotations

from typing import Any

from cudaloss.bench import cases, suites
from cudaloss.bench.cases import COMPARABLE, Case
from cudaloss.bench.measure import Timing
from cudaloss.bench.modes import STEP, Dtypes, Mode


def case(mode: Mode = STEP, dtypes: str = "float32", size: int = 64, suite: str = "training") -> Case:
    return Case(suite, COMPARABLE["mse"], mode, Dtypes.parse(dtypes), (size,), "cpu")


def made_up(
    ours: tuple[float, float, float], eager: tuple[float, float, float] = (2.0, 1.9, 2.1), **fields: Any
) -> cases.Row:
    timings = {"cudaloss": Timing(*ours), "eager": Timing(*eager)}
    return {**case().row(), **suites._timed(timings, []), **fields}
