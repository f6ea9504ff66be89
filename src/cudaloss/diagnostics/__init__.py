"""The report of ``python -m cudaloss``: the build, the machine, whether they fit, and a self-test.

Nothing else imports it, so that it costs ``import cudaloss`` nothing.
"""

from __future__ import annotations

import os
import platform
from typing import Any

import torch

from .._install import build
from .._install.binary import AGAIN
from .._losses.table import PUBLIC
from .._ops.private import PACKAGE
from . import facts, fit, selftest

KEYS = {"cpu": "CPU", "cuda": "CUDA"}  # PyTorch's dispatch keys, under which compiled kernels are registered


def _here() -> fit.Here:
    gpus, said = facts.gpus()
    binary = None
    if build.FAULT is None:
        from .. import _C as binary  # pyright: ignore[reportAttributeAccessIssue]
    return fit.Here(
        info=build.INFO,
        fault=build.FAULT,
        binary=binary,
        torch=facts.torch_here(),
        driver=facts.driver(),
        gpus=gpus,
        torch_says=said,
        hidden="CUDA_VISIBLE_DEVICES" in os.environ,
    )


def _is_registered(device: str) -> bool:
    key = KEYS.get(device.partition(":")[0])
    return key is not None and torch._C._dispatch_has_kernel_for_dispatch_key(f"{PACKAGE}::_pointwise_loss", key)


def _paths(here: fit.Here) -> list[dict[str, Any]]:
    devices: list[tuple[str, facts.Gpu | None]] = [("cpu", None), *((gpu.device, gpu) for gpu in here.gpus)]
    return [
        {"loss": spec.name, "device": device, "path": chosen.name, "reason": chosen.reason}
        for device, gpu in devices
        for spec in PUBLIC
        for chosen in [fit.path(here, device, gpu, _is_registered(device))]
    ]


def _self_test(paths: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[fit.Problem]]:
    """A result for each path that is not already an error, and the problems that they show."""
    specs = {spec.name: spec for spec in PUBLIC}
    results, problems = [], []
    paths = [row for row in paths if row["path"] != fit.NONE]
    failures = {device: selftest.usable(device) for device in dict.fromkeys(row["device"] for row in paths)}
    for device, failure in failures.items():
        if failure:
            message = f"torch {torch.__version__} itself fails on {device}: {failure}. {fit.CUDA_TORCH}"
            problems.append(fit.Problem("torch-device", message))
    for row in paths:
        if failures[row["device"]]:
            continue
        result = selftest.run(specs[row["loss"]], row["device"])
        results.append(result)
        if not result["passed"]:
            message = (
                f"{row['loss']} on {row['device']} ({row['path']}) fails its self-test: {result['message']}. "
                f"Reinstall cudaloss: {AGAIN}; if it stays, report it with the output of `python -m cudaloss --json`."
            )
            problems.append(fit.Problem("self-test", message))
    return results, problems


def report() -> dict[str, Any]:
    """The whole report, as ``--json`` prints it."""
    here = _here()
    paths = _paths(here)
    results, failures = _self_test(paths)
    problems = [*fit.problems(here), *failures]
    return {
        "ok": not problems,
        "problems": [problem._asdict() for problem in problems],
        "notes": fit.notes(here),
        "cudaloss": facts.package(),
        "python": facts.python(),
        "platform": platform.platform(),
        "torch": here.torch,
        "driver": _driver(here.driver),
        "gpus": [_gpu(here, gpu) for gpu in here.gpus],
        "paths": paths,
        "self_test": {"tolerance": selftest.TOLERANCE, "results": results},
    }


def _driver(driver: facts.Driver | None) -> dict[str, Any] | None:
    if driver is None:
        return None
    return {"version": driver.version, "cuda": f"{driver.cuda // 1000}.{driver.cuda % 1000 // 10}", "gpus": driver.gpus}


def _gpu(here: fit.Here, gpu: facts.Gpu) -> dict[str, Any]:
    code = here.code_for(gpu)
    return {
        "device": gpu.device,
        "name": gpu.name,
        "capability": gpu.capability and "{}.{}".format(*gpu.capability),
        "covered_by": code and f"{code.kind} {code}",
    }
