"""What the losses of pairs cost beside their products: a training step of ``clip_loss`` and ``siglip_loss`` in both
plans, in bfloat16 (on a CPU float32), beside the three products alone, the usual formula in PyTorch's ops, and
torch.compile; the memory of each beyond operands and gradients, and the errors of the gradients.
``python benchmarks/contrast.py`` (a GPU with 60 GB); ``--small``; ``--json FILE``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from heads import dtype_on, empty_cache, error, memory_of, milliseconds, three
from torch import Tensor

import cudaloss
from cudaloss.bench import measure

SHAPE, SMALL = (32_768, 1024), (512, 256)
CHECKED = 4096  # pairs whose gradients are compared with float64's
Loss = Callable[..., Tensor]


def clip(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """As open_clip's in one process."""
    logits = scale * a @ b.t()
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2


def siglip(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    logits = scale * a @ b.t() - 10.0
    signs = 2 * torch.eye(len(a), dtype=a.dtype, device=a.device) - 1
    return -F.logsigmoid(signs * logits).sum() / len(a)


def losses() -> dict[str, dict[str, Loss]]:
    def of(plain: Loss, ours: Callable[[str], Loss]) -> dict[str, Loss]:
        compiled = torch.compile(plain, dynamic=False)
        return {"fast": ours("fast"), "least": ours("least"), "eager": plain, "compiled": compiled}

    return {
        "clip": of(clip, lambda memory: lambda a, b, s: cudaloss.clip_loss(a, b, s, memory=memory)),
        "siglip": of(siglip, lambda memory: lambda a, b, s: cudaloss.siglip_loss(a, b, s, -10.0, memory=memory)),
    }


def sides(count: int, features: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    a = torch.randn(count, features, device=device)
    b = a + torch.randn(count, features, device=device)
    x, y = (F.normalize(x, dim=1).to(dtype_on(device)).requires_grad_() for x in (a, b))
    return x, y, torch.tensor(30.0, device=device, requires_grad=True)


def errors(loss: Loss, plain: Loss, operands: tuple[Tensor, ...]) -> list[float]:
    some = [x.detach()[:CHECKED].requires_grad_() if x.dim() else x for x in operands]
    exact = [x.detach().double().requires_grad_() for x in some]
    truth = torch.autograd.grad(plain(*exact), exact)
    found = torch.autograd.grad(loss(*some), some)
    return [error(mine, exactly) for mine, exactly in zip(found, truth, strict=True)]


def pairs(shape: tuple[int, int], device: str, rounds: int) -> dict[str, Any]:
    operands = a, b, _ = sides(*shape, device)
    plain_a, plain_b = a.detach(), b.detach()
    times = milliseconds({"one product": lambda: plain_a @ plain_b.t()}, device, rounds)
    found: dict[str, Any] = {"ms": times, "MiB": {}, "times the products": {}, "errors of the gradients": {}}
    for kind, works in losses().items():
        for label, loss in works.items():
            name = f"{kind}, {label}"

            def step(loss: Loss = loss) -> object:
                return torch.autograd.grad(loss(*operands), operands)

            empty_cache(device)
            found["MiB"][name] = memory_of(step, a.nbytes + b.nbytes, device)
            both: dict[str, measure.Work] = {name: step, "three products": lambda: three(plain_a, plain_b)}
            turn = milliseconds(both, device, rounds)
            times[name] = turn[name]
            found["times the products"][name] = turn[name] / turn["three products"]
            empty_cache(device)
            found["errors of the gradients"][name] = errors(loss, works["eager"], operands)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = arguments.device
    shape = SMALL if arguments.small or device == "cpu" else SHAPE
    report = {"device": device, "shape": shape, "pairs": pairs(shape, device, arguments.rounds)}
    print(json.dumps(report, indent=1), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
