"""What the loss does to a whole training step: GPT-2 (124M, random weights) of transformers under bfloat16 autocast,
16 sequences of 1,024 tokens; milliseconds and the peak of memory in MiB of forward and backward. With transformers' own
loss, with ``cross_entropy`` of the logits, and with ``linear_cross_entropy`` in both plans.
``python benchmarks/endtoend.py`` (a GPU with 24 GB; transformers); ``--small`` also on a CPU; ``--json FILE``."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from heads import MIB, empty_cache
from torch import Tensor

import cudaloss

Step = Callable[[], Tensor]


def losses(model: Any, tokens: Tensor) -> dict[str, Step]:
    labels = F.pad(tokens, (0, 1), value=-100)[:, 1:]
    head = model.lm_head

    def states() -> Tensor:
        return model.transformer(tokens).last_hidden_state

    def of_logits() -> Tensor:
        logits = head(states())
        return cudaloss.cross_entropy(logits.flatten(0, 1), labels.flatten(), dtype=torch.float32)

    def of_head(memory: str) -> Tensor:
        return cudaloss.linear_cross_entropy(states(), head.weight, labels, memory=memory)

    return {
        "transformers": lambda: model(input_ids=tokens, labels=tokens).loss,
        "cross_entropy": of_logits,
        "linear_cross_entropy": lambda: of_head("fast"),
        "linear_cross_entropy / 4": lambda: of_head("fast") / 4,
        "linear_cross_entropy, least": lambda: of_head("least"),
    }


def measured(model: Any, loss: Step, device: str, rounds: int) -> dict[str, Any]:
    def step() -> Tensor:
        model.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            value = loss()
        value.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        return value

    for _ in range(3):
        value = step()
    empty_cache(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - start))
    memory = torch.cuda.max_memory_allocated() // MIB if device == "cuda" else None
    gradient = model.transformer.wte.weight.grad.double().norm().item()
    return {"ms": statistics.median(times), "MiB": memory, "loss": value.item(), "norm of a gradient": gradient}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    try:
        from transformers import GPT2Config, GPT2LMHeadModel
    except ImportError:
        raise SystemExit("benchmarks/endtoend.py needs transformers: pip install transformers") from None
    torch.manual_seed(0)
    device, is_small = arguments.device, arguments.small or arguments.device == "cpu"
    sizes = {"vocab_size": 977, "n_embd": 64, "n_layer": 2, "n_head": 2} if is_small else {}
    without_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", **without_dropout, **sizes)).to(device)
    shape = (2, 64) if is_small else (16, 1024)
    tokens = torch.randint(0, model.config.vocab_size, shape, device=device)
    report: dict[str, Any] = {"device": device, "gpt2": {}}
    for name, loss in losses(model, tokens).items():
        report["gpt2"][name] = found = measured(model, loss, device, arguments.rounds)
        print(name, json.dumps(found), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
