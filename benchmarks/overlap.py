"""What the losses of overlap and of boxes cost: forward, and forward and backward, beside the usual formulas in
PyTorch's ops and torch.compile; the floor (the bytes that must move, at torch.add's speed); and the memory of a step
beyond operands and gradient. ``python benchmarks/overlap.py`` (a GPU with 60 GB); ``--small``; ``--json FILE``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from heads import empty_cache, memory_of, milliseconds
from torch import Tensor

import cudaloss
from cudaloss._reference import boxes as plain_boxes

EPS = 1e-5
Loss = Callable[..., Tensor]


def _dice(p: Tensor, y: Tensor) -> Tensor:
    """As MONAI's DiceLoss, of probabilities and a one-hot target."""
    dims = tuple(range(2, p.dim()))
    return (1 - (2 * (p * y).sum(dims) + EPS) / (p.sum(dims) + y.sum(dims) + EPS)).mean()


def dice_softmax(z: Tensor, t: Tensor) -> Tensor:
    p = z.float().softmax(1)
    return _dice(p, torch.zeros_like(p).scatter_(1, t, 1.0))


def dice_ce(z: Tensor, t: Tensor) -> Tensor:
    return dice_softmax(z, t) + F.cross_entropy(z.float(), t[:, 0])


def dice_sigmoid(z: Tensor, y: Tensor) -> Tensor:
    return _dice(z.sigmoid(), y)


def dice_bce(z: Tensor, y: Tensor) -> Tensor:
    return dice_sigmoid(z, y) + F.binary_cross_entropy_with_logits(z, y)


def boxes_of(name: str) -> Loss:
    return lambda a, b: plain_boxes.value(name, (a, b), 1, 1e-7).mean()


class Case(NamedTuple):
    name: str
    ours: Loss
    plain: Loss
    operands: Callable[[str], tuple[Tensor, Tensor]]  # on a device; the first one gets a gradient


def _indices(
    shape: tuple[int, ...], dtype: torch.dtype, device: str, order: torch.memory_format = torch.contiguous_format
) -> tuple[Tensor, Tensor]:
    target = torch.randint(shape[1], (shape[0], 1, *shape[2:]), device=device)
    return torch.randn(shape, device=device).to(dtype, memory_format=order), target


def _labels(shape: tuple[int, ...], device: str) -> tuple[Tensor, Tensor]:
    return torch.randn(shape, device=device), (torch.rand(shape, device=device) < 0.3).float()


def _boxes(count: int, device: str) -> tuple[Tensor, Tensor]:
    corner, size = torch.rand(count, 2, device=device), torch.rand(count, 2, device=device) + 0.1
    first = torch.cat((corner, corner + size), 1)
    return first, torch.cat((corner + 0.1, corner + size + 0.05), 1)


def cases(small: bool) -> list[Case]:
    volume, image = ((1, 5, 16, 16, 16), (2, 1, 64, 64)) if small else ((4, 14, 128, 128, 128), (8, 1, 256, 256, 128))
    softmax = partial(cudaloss.dice_loss, activation="softmax")
    found = []
    for dtype in (torch.float32,) if small else (torch.float32, torch.bfloat16):
        of_volume = partial(_indices, volume, dtype)
        found.append(Case(f"dice of a softmax, {volume} {dtype}", softmax, dice_softmax, of_volume))
        found.append(Case(f"dice_ce, {volume} {dtype}", cudaloss.dice_ce_loss, dice_ce, of_volume))
    lesser, few = (torch.float32, (2, 3, 16, 16)) if small else (torch.bfloat16, (16, 4, 1024, 1024))
    last = partial(_indices, volume, lesser, order=torch.channels_last_3d)
    found.append(Case(f"dice of a softmax, {volume} {lesser} channels last", softmax, dice_softmax, last))
    found.append(Case(f"dice of a softmax, {few} {lesser}", softmax, dice_softmax, partial(_indices, few, lesser)))
    sigmoid = partial(cudaloss.dice_loss, activation="sigmoid")
    found.append(Case(f"dice of a sigmoid, {image}", sigmoid, dice_sigmoid, partial(_labels, image)))
    found.append(Case(f"dice_bce, {image}", cudaloss.dice_bce_loss, dice_bce, partial(_labels, image)))
    for count in (1000,) if small else (1000, 1 << 20):
        for kind in ("generalized", "distance", "complete"):
            name = f"{kind}_box_iou"
            ours = partial(getattr(cudaloss, f"{name}_loss"), reduction="mean")
            found.append(Case(f"{name}, {count}", ours, boxes_of(name), partial(_boxes, count)))
    return found


def _bytes_per_ms(device: str, small: bool) -> float:
    a, b = (torch.empty(1 << (16 if small else 28), device=device) for _ in range(2))
    return 3 * a.nbytes / milliseconds({"add": lambda: torch.add(a, b, out=a)}, device, 5)["add"]


def measured(case: Case, device: str, rounds: int, speed: float) -> dict[str, Any]:
    x, t = case.operands(device)
    x.requires_grad_()
    ways = {"ours": case.ours, "eager": case.plain, "compiled": torch.compile(case.plain, dynamic=False)}

    def forward(loss: Loss) -> Tensor:
        with torch.no_grad():
            return loss(x, t)

    def step(loss: Loss) -> Tensor:
        return torch.autograd.grad(loss(x, t), x)[0]

    found: dict[str, Any] = {"floor": {"forward": (x.nbytes + t.nbytes) / speed}}
    found["floor"]["step"] = (3 * x.nbytes + 2 * t.nbytes) / speed
    for label, work in (("forward", forward), ("step", step)):
        found[label] = milliseconds({way: partial(work, loss) for way, loss in ways.items()}, device, rounds)
    for way, loss in ways.items():
        empty_cache(device)
        found.setdefault("MiB", {})[way] = memory_of(partial(step, loss), x.nbytes, device)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, small = arguments.device, arguments.small or arguments.device == "cpu"
    speed, report = _bytes_per_ms(device, small), {"device": device, "ms": {}}
    for case in cases(small):
        report["ms"][case.name] = measured(case, device, arguments.rounds, speed)
        empty_cache(device)
    print(json.dumps(report, indent=1), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
