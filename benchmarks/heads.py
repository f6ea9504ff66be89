"""What a head's loss costs beside its products: a training step of ``linear_cross_entropy`` in both plans and of
``linear_token_log_prob``, in bfloat16 (on a CPU float32), beside the three products alone, PyTorch's ops,
torch.compile, and Liger and quack if they are installed; the memory of each beyond operands and gradients, and the
errors of the gradients. Then ``token_log_prob`` of logits, and PyTorch's products for numbers of classes that 8 does
and does not divide.
``python benchmarks/heads.py`` (a GPU with 60 GB); ``--small``; ``--json FILE``."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from cudaloss.bench import measure

SHAPES = ((8192, 4096, 128_256), (16_384, 2048, 151_936), (4096, 4096, 32_000))
SMALL = ((512, 256, 8000),)
MIB = 1 << 20
CHECKED = 256  # rows whose gradients are compared with float64's
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def others() -> dict[str, Loss]:
    """What is not ours, of the same arguments."""
    compiled = torch.compile(lambda x, w, t: F.cross_entropy(F.linear(x, w).float(), t), dynamic=False)
    found: dict[str, Loss] = {"eager": lambda x, w, t: F.cross_entropy(F.linear(x, w), t), "compiled": compiled}
    if hasattr(F, "linear_cross_entropy"):  # torch 2.13
        options = torch.nn.LinearCrossEntropyOptions()
        found["F, chunked"] = lambda x, w, t: F.linear_cross_entropy(x, w, t, options=options)
    for name, module, function in (
        ("Liger", "liger_kernel.transformers.functional", "liger_fused_linear_cross_entropy"),
        ("quack", "quack.linear_cross_entropy", "chunked_linear_cross_entropy"),
    ):
        try:
            found[name] = getattr(importlib.import_module(module), function)
        except ImportError:
            continue
    return found


def ours() -> dict[str, Loss]:
    head, tokens = cudaloss.linear_cross_entropy, cudaloss.linear_token_log_prob

    def log_prob(memory: str) -> Loss:
        def loss(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
            found = tokens(x, w, t, return_entropy=True, memory=memory)
            return found[0].sum() + found[1].sum()

        return loss

    return {
        "fast": head,
        "least": lambda x, w, t: head(x, w, t, memory="least"),
        "fast, / 3": lambda x, w, t: head(x, w, t) / 3,
        "token_log_prob, least": log_prob("least"),
        "token_log_prob, fast": log_prob("fast"),
    }


def dtype_on(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32  # whose products of halves are slow


def empty_cache(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def memory_of(work: measure.Work, gradients: int, device: str) -> int | None:
    """MiB beyond operands and gradients."""
    if device != "cuda":
        return None
    work()
    empty_cache(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before - gradients) // MIB


def milliseconds(works: dict[str, measure.Work], device: str, rounds: int) -> dict[str, float]:
    return {name: timing.median * 1e3 for name, timing in measure.throughput(works, device, rounds).items()}


def error(found: Tensor, truth: Tensor) -> float:
    return ((found.double() - truth).norm() / truth.norm()).item()


def head(shape: tuple[int, int, int], device: str, rounds: int) -> dict[str, Any]:
    rows, features, classes = shape
    dtype = dtype_on(device)
    x = (torch.randn(rows, features, device=device) * 0.5).to(dtype).requires_grad_()
    w = (torch.randn(classes, features, device=device) * 0.02).to(dtype).requires_grad_()
    t = torch.randint(classes, (rows,), device=device)
    plain_x, plain_w = x.detach(), w.detach()
    products = {
        "three products": lambda: three(plain_x, plain_w),
        "two products": lambda: F.linear(plain_x, plain_w) @ plain_w,
        "one product": lambda: F.linear(plain_x, plain_w),
    }
    times = milliseconds(products, device, rounds)
    some = F.linear(plain_x[:CHECKED].double(), plain_w.double())
    truth = (some.softmax(1) - F.one_hot(t[:CHECKED], classes)) @ plain_w.double() / rows
    del some
    gradients = x.nbytes + w.nbytes
    found: dict[str, Any] = {"ms": times, "MiB": {}, "error of input's gradient": {}}
    steps: dict[str, measure.Work] = {}
    for name, loss in {**ours(), **others()}.items():

        def step(loss: Loss = loss) -> object:
            return torch.autograd.grad(loss(x, w, t), (x, w))

        empty_cache(device)
        try:
            found["MiB"][name] = memory_of(step, gradients, device)
            if "token" not in name and "/" not in name:
                of_input = torch.autograd.grad(loss(x, w, t), (x, w))[0][:CHECKED]
                found["error of input's gradient"][name] = error(of_input, truth)
            steps[name] = step
        except Exception as fault:  # another library's limit
            found.setdefault("faults", {})[name] = repr(fault)[:200]
    for name, step in steps.items():  # beside the products, which a GPU's clock also slows
        empty_cache(device)
        turn = milliseconds({name: step, "three products": lambda: three(plain_x, plain_w)}, device, rounds)
        times[name] = turn[name]
        found.setdefault("times the products", {})[name] = turn[name] / turn["three products"]
    empty_cache(device)
    frozen = {"frozen weight": lambda: torch.autograd.grad(cudaloss.linear_cross_entropy(x, plain_w, t), x)}
    forward = {"forward": lambda: cudaloss.linear_cross_entropy(plain_x, plain_w, t)}
    times |= milliseconds({**frozen, **forward}, device, rounds)
    return found


def three(x: Tensor, w: Tensor) -> object:
    """The products of a step, with the logits in the place of their gradient."""
    logits = F.linear(x, w)
    return logits @ w, logits.t() @ x


def tokens(shape: tuple[int, int], device: str, rounds: int) -> dict[str, Any]:
    """Log-probabilities and entropies of logits."""
    rows, classes = shape
    x = torch.randn(rows, classes, device=device).to(dtype_on(device)).requires_grad_()
    t = torch.randint(classes, (rows,), device=device)

    def by_formula(x: Tensor) -> tuple[Tensor, Tensor]:
        logs = x.float().log_softmax(-1)
        return logs.gather(-1, t[:, None])[:, 0], -(logs.exp() * logs).sum(-1)

    works = {
        "ours": lambda x: cudaloss.token_log_prob(x, t, return_entropy=True),
        "eager": by_formula,
        "compiled": torch.compile(by_formula, dynamic=False),
    }
    found: dict[str, Any] = {"MiB": {}, "ms": {}}
    for name, work in works.items():

        def step(work: Callable[[Tensor], tuple[Tensor, Tensor]] = work) -> object:
            log_prob, entropy = work(x)
            return torch.autograd.grad(log_prob.sum() + entropy.sum(), x)

        empty_cache(device)
        found["MiB"][name] = memory_of(step, x.nbytes, device)
        both = {f"{name}, step": step, f"{name}, forward": lambda work=work: work(x.detach())}
        found["ms"] |= milliseconds(both, device, rounds)
    return found


def products(classes: tuple[int, ...], device: str, rounds: int) -> dict[str, Any]:
    """Of the logits and of input's gradient, in rows of logits that begin at 16 bytes."""
    found: dict[str, Any] = {}
    for count in classes:
        x = torch.randn(4096, 768, device=device).to(dtype_on(device))
        w = torch.randn(count, 768, device=device).to(x.dtype)
        logits = x.new_zeros(4096, -(-count // 8) * 8)[:, :count]

        def make(x: Tensor = x, w: Tensor = w, logits: Tensor = logits) -> object:
            return torch.mm(x, w.t(), out=logits)

        def back(w: Tensor = w, logits: Tensor = logits) -> object:
            return torch.mm(logits, w)

        found[str(count)] = milliseconds({"logits": make, "input's gradient": back}, device, rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device, rounds = arguments.device, arguments.rounds
    is_small = arguments.small or device == "cpu"
    report: dict[str, Any] = {"device": device, "heads": {}, "tokens": {}}
    for shape in SMALL if is_small else SHAPES:
        report["heads"][str(shape)] = found = head(shape, device, rounds)
        print(shape, json.dumps(found, indent=1), flush=True)
        empty_cache(device)
    shape = (64, 8000) if is_small else (8192, 128_256)
    report["tokens"][str(shape)] = found = tokens(shape, device, rounds)
    print("tokens", shape, json.dumps(found, indent=1), flush=True)
    report["products"] = found = products((977, 984) if is_small else (50_257, 50_264), device, rounds)
    print("products", json.dumps(found, indent=1), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
