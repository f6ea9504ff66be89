"""GPT-2 (124M, random weights) of transformers, with the loss of its next tokens."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss

from . import Call, Step, adamw, compiled, of_outputs

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # of hidden states, the head's weight and labels


def plain(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(states, weight).flatten(0, 1).float(), labels.flatten())


def liger() -> dict[str, Loss]:
    try:
        loss = importlib.import_module("liger_kernel.transformers.functional").liger_fused_linear_cross_entropy
    except ImportError:
        print("gpt2, Liger: left out, liger_kernel is not installed", flush=True)
        return {}
    return {"Liger": lambda states, weight, labels: loss(states.flatten(0, 1), weight, labels.flatten())}


def of_logits(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    logits = F.linear(states, weight).flatten(0, 1)
    return cudaloss.cross_entropy(logits, labels.flatten(), dtype=torch.float32)


def losses(model: Any, tokens: Tensor, is_small: bool) -> dict[str, Call]:
    labels = F.pad(tokens, (0, 1), value=-100)[:, 1:]
    fused = cudaloss.linear_cross_entropy
    of_states: dict[str, Loss] = {
        **compiled(plain, is_small),
        **liger(),
        "cross_entropy": of_logits,
        "linear_cross_entropy": fused,
        "linear_cross_entropy / 4": lambda *operands: fused(*operands) / 4,
        "linear_cross_entropy, least": lambda *operands: fused(*operands, memory="least"),
    }

    def forward() -> tuple[Tensor, ...]:
        return model.transformer(tokens).last_hidden_state, model.lm_head.weight, labels

    own = {"transformers": lambda: model(input_ids=tokens, labels=tokens).loss}
    return {**own, **of_outputs(forward, of_states)}


def step(device: str, is_small: bool) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 977, "n_embd": 64, "n_layer": 2, "n_head": 2} if is_small else {}
    without_dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model: Any = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa", **without_dropout, **sizes)).to(device)
    rows, length = (2, 64) if is_small else (16, 1024)
    tokens = torch.randint(0, model.config.vocab_size, (rows, length), device=device)
    text = f"GPT-2 of transformers {version('transformers')}, {rows} x {length:,} tokens, AdamW"
    factors = {"linear_cross_entropy / 4": 0.25}
    return Step(text, model, adamw(model), losses(model, tokens, is_small), factors)
