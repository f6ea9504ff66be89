"""What the loss does to a whole training step: forward, loss, backward and optimizer, under bfloat16 autocast. The
steps are those of steps/: GPT-2 of transformers, a 3D U-Net, RetinaNet, a diffusion transformer, and GRPO with a
causal transformer, with random weights and data. Each has its loss as people write it, the same under torch.compile,
and ours. Milliseconds are medians of rounds in which all losses of a step take turns; MiB are the peak of the step.
Before, from the same weights, each loss and its gradients are compared with the first loss's: one that differs is not
timed, and the exit status is 1.
``python benchmarks/endtoend.py`` (a GPU with 80 GB; GPT-2 needs transformers); ``--only NAME ...``; ``--small`` also on
a CPU, without torch.compile, which takes longer there than all else; ``--json FILE``."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from heads import MIB, empty_cache, milliseconds
from steps import Call, Step, detector, diffusion, gpt2, grpo, unet
from torch import Tensor

from cudaloss.bench import measure

STEPS: dict[str, Callable[[str, bool], Step]] = {
    "gpt2": gpt2.step,
    "unet": unet.step,
    "detector": detector.step,
    "diffusion": diffusion.step,
    "grpo": grpo.step,
}
NEEDS = {"gpt2": "transformers"}
OF_LOSS, OF_GRADIENTS = 1e-3, 2e-2  # relative differences that are allowed, of bfloat16 networks


class Values(NamedTuple):
    """Of a loss, without its factor."""

    loss: float
    gradients: list[Tensor]


def backward(step: Step, loss: Call, device: str) -> Tensor:
    step.optimizer.zero_grad(set_to_none=True)
    with torch.autocast(device, torch.bfloat16):
        value = loss()
    value.backward()
    return value


def values(step: Step, name: str, device: str) -> Values:
    factor = step.factors.get(name, 1.0)
    loss = backward(step, step.losses[name], device).item() / factor
    return Values(loss, [p.grad / factor for p in step.model.parameters() if p.grad is not None])


def norm(gradients: list[Tensor]) -> float:
    return torch.stack([each.norm() for each in gradients]).norm().item()


def compared(found: Values, first: Values) -> dict[str, float]:
    size = norm(first.gradients)
    apart = norm([a - b for a, b in zip(found.gradients, first.gradients, strict=True)]) / size
    bound = OF_LOSS * max(abs(first.loss), 0.1)  # a loss of both signs can be near 0
    if not (abs(found.loss - first.loss) <= bound and apart <= OF_GRADIENTS):  # NaN neither
        raise AssertionError(f"{found.loss} instead of {first.loss}; the gradients differ by {apart} of theirs")
    return {"loss": found.loss, "norm of the gradients": norm(found.gradients), "difference of the gradients": apart}


def checked(step: Step, device: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What is known of each loss from the same weights, and of others what is wrong."""
    rows, wrong, first = {}, {}, None
    for name in step.losses:
        try:
            found = values(step, name, device)
            first = first or found
            rows[name] = compared(found, first)
        except Exception as fault:  # the other losses still count
            traceback.print_exc()
            wrong[name] = repr(fault)[:300]
    return rows, wrong


def timed(step: Step, names: Iterable[str], device: str, rounds: int) -> dict[str, dict[str, Any]]:
    def work(loss: Call) -> measure.Work:
        def train() -> None:
            backward(step, loss, device)
            step.optimizer.step()

        return train

    works = {name: work(step.losses[name]) for name in names}
    rows: dict[str, dict[str, Any]] = {name: {"ms": ms} for name, ms in milliseconds(works, device, rounds).items()}
    for name, train in works.items():
        step.optimizer.zero_grad(set_to_none=True)
        empty_cache(device)
        rows[name]["MiB"] = measure.peak_bytes(train) // MIB if device == "cuda" else None
    return rows


def add(report: dict[str, Any], name: str, step: Step, device: str, rounds: int) -> None:
    rows, wrong = checked(step, device)
    report["wrong"] |= {f"{name}, {loss}": said for loss, said in wrong.items()}
    if not rows:
        return
    found = timed(step, rows, device, rounds)
    report["steps"][name] = step.text
    report[name] = {loss: {**found[loss], **row} for loss, row in rows.items()}
    for loss, row in report[name].items():
        print(f"{name}, {loss}:", json.dumps(row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", choices=list(STEPS), nargs="+", default=list(STEPS), help="these steps")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, is_small = arguments.device, arguments.small or arguments.device == "cpu"
    report: dict[str, Any] = {"device": device, "steps": {}, "skipped": {}, "wrong": {}}
    for name in arguments.only:
        if name in NEEDS and not importlib.util.find_spec(NEEDS[name]):
            report["skipped"][name] = f"needs {NEEDS[name]}: pip install {NEEDS[name]}"
            print(f"{name}: left out, {report['skipped'][name]}", flush=True)
            continue
        torch.manual_seed(0)
        add(report, name, STEPS[name](device, is_small), device, arguments.rounds)
        empty_cache(device)
        if arguments.json:  # after each step, so that an interrupt leaves them
            arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    if report["wrong"]:
        sys.exit("\n".join(f"{name}: {said}" for name, said in report["wrong"].items()))


if __name__ == "__main__":
    main()
