"""The report for people: plain text, because even the barest installation must be able to print it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from itertools import groupby
from operator import itemgetter
from typing import Any

WIDTH = 110


def _row(name: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"{name:<21} ", subsequent_indent=" " * 22)


def _filled(text: str) -> str:
    """Wrapped, without breaks inside paths and commands."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _built(package: dict[str, Any]) -> Iterable[str]:
    yield _row(f"cudaloss {package['version']}", package["folder"])
    if not package["compiled"]:
        yield _row("  compiled kernels", "none that can be loaded")
        return
    yield _row("  compiled kernels", f"CPU and CUDA {package['cuda']}" if package["cuda"] else "CPU")
    if package["cuda"]:
        yield _row("  SASS", " ".join(package["sass"]) or "none")
        yield _row("  PTX", " ".join(package["ptx"]) or "none")
    yield _row("  for torch", f"{package['torch_target']} and later")
    yield _row("  compiler", package["compiler"])
    yield _row("  csrc_tree", package["csrc_tree"])


def _present(report: dict[str, Any]) -> Iterable[str]:
    python, torch, driver = report["python"], report["torch"], report["driver"]
    yield _row(f"Python {python['version']}", f"{python['implementation']}, {python['extension_suffix']}")
    yield _row("platform", report["platform"])
    backend = f"ROCm {torch['rocm']}" if torch["rocm"] else f"CUDA {torch['cuda']}" if torch["cuda"] else "no CUDA"
    yield _row(f"torch {torch['version']}", backend)
    if driver:
        version = driver["version"] or "of unknown version"
        yield _row("NVIDIA driver", f"{version}, supports CUDA up to {driver['cuda']}")
    else:
        yield _row("NVIDIA driver", "none")
    for gpu in report["gpus"]:
        capability = f", {gpu['capability']}" if gpu["capability"] else ""
        yield _row(gpu["device"], f"{gpu['name']}{capability}, covered by {gpu['covered_by'] or 'nothing'}")
    if not report["gpus"]:
        yield _row("GPUs", "none that torch sees")


def _tested(report: dict[str, Any]) -> Iterable[str]:
    """What runs on each device, and the self-test of each loss there."""
    test = report["self_test"]
    results = {(result["loss"], result["device"]): result for result in test["results"]}
    yield f"Self-test: forward and backward, within {test['tolerance']:.0e} of the definition in float64."
    width = max((len(row["loss"]) for row in report["paths"]), default=0) + 1
    for (device, path, reason), rows in groupby(report["paths"], itemgetter("device", "path", "reason")):
        yield _filled(f"{device}: {path} ({reason})")
        for row in rows:
            result = results.get((row["loss"], row["device"]))
            verdict = "not run" if result is None else "passed" if result["passed"] else "failed"
            error = f", off by {result['error']:.1e}" if result and result["error"] is not None else ""
            yield f"  {row['loss']:<{width}}{verdict}{error}"


def rendered(report: dict[str, Any]) -> str:
    lines = [*_built(report["cudaloss"]), *_present(report), "", *_tested(report), ""]
    lines += [_filled(f"Note: {note}") for note in report["notes"]]
    lines += [_filled(f"Problem ({problem['cause']}): {problem['message']}") for problem in report["problems"]]
    if report["ok"]:
        lines.append("All fits.")
    return "\n".join(lines)
