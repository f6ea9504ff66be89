"""A step of GRPO (Shao et al. 2024), as TRL computes it: a causal transformer with a large vocabulary, the
log-probabilities of the tokens that it chose, and the clipped ratio to those at the time of sampling, with the
divergence from a reference policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import cudaloss

from . import Step, adamw, compiled, of_outputs
from .layers import Attention, mlp

CLIP, TO_REFERENCE, TEMPERATURE = 0.2, 0.04, 0.9
LogProb = Callable[[Tensor, Tensor, Tensor], Tensor]  # of hidden states, the head's weight and tokens


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.parts = nn.ModuleList((Attention(width, width // 64, is_causal=True), mlp(width)))

    def forward(self, x: Tensor) -> Tensor:
        for norm, part in zip(self.norms, self.parts, strict=True):
            x = x + part(norm(x))
        return x


class Policy(nn.Module):
    def __init__(self, vocabulary: int, longest: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(vocabulary, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """The hidden states."""
        return self.norm(self.blocks(self.embed(tokens) + self.position.weight[: tokens.shape[1]]))


class Answers(NamedTuple):
    """Those of a group are answers to one prompt."""

    chosen: Tensor
    mask: Tensor  # 0 behind the last token
    advantage: Tensor
    old: Tensor  # log-probabilities at the time of sampling
    reference: Tensor  # those by the reference policy


def grpo(log_prob: Tensor, answers: Answers) -> Tensor:
    ratio, apart = (log_prob - answers.old).exp(), answers.reference - log_prob
    gain = torch.minimum(ratio * answers.advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * answers.advantage)
    losses = TO_REFERENCE * (apart.exp() - apart - 1) - gain
    return ((losses * answers.mask).sum(1) / answers.mask.sum(1)).mean()


def plain(states: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
    logits = F.linear(states, weight).float() / TEMPERATURE
    return logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)


def of_logits(states: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
    return cudaloss.token_log_prob(F.linear(states, weight), chosen, temperature=TEMPERATURE)


def of_head(states: Tensor, weight: Tensor, chosen: Tensor, memory: str = "least") -> Tensor:
    return cudaloss.linear_token_log_prob(states, weight, chosen, temperature=TEMPERATURE, memory=memory)


def whole(log_prob: LogProb) -> Callable[..., Tensor]:
    return lambda states, weight, answers: grpo(log_prob(states, weight, answers.chosen), answers)


def answers_of(start: Tensor, chosen: Tensor, groups: int) -> Answers:
    """`start`: the log-probabilities of the policy, near those of the earlier and of the reference policy."""
    rows, length = chosen.shape
    ends = torch.randint(length // 2, length + 1, (rows, 1), device=chosen.device)
    mask = (torch.arange(length, device=chosen.device) < ends).float()
    rewards = torch.randn(groups, rows // groups, device=chosen.device)
    advantage = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    old, reference = (start + scale * torch.randn_like(start) for scale in (0.1, 0.3))
    return Answers(chosen, mask, advantage.view(-1, 1), old, reference)


def step(device: str, is_small: bool) -> Step:
    groups, group, prompt, answer = (1, 4, 4, 16) if is_small else (1, 8, 256, 512)
    # Of 4,096 rows "fast" keeps the logits; of more it would be "least".
    vocabulary, width, depth = (977, 64, 2) if is_small else (151_936, 1024, 24)
    with torch.device(device):
        model = Policy(vocabulary, prompt + answer, width, depth)
        tokens = torch.randint(vocabulary, (groups * group, prompt + answer))

    def states() -> Tensor:
        return model(tokens)[:, prompt - 1 : -1]  # which foretell the answer

    weight, chosen = model.head.weight, tokens[:, prompt:]
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        answers = answers_of(plain(states(), weight, chosen), chosen, groups)
    eager = whole(plain)
    losses = {
        "eager": eager,
        **compiled(eager, is_small),
        "token_log_prob": whole(of_logits),
        "linear_token_log_prob": whole(of_head),
        "linear_token_log_prob, fast": whole(partial(of_head, memory="fast")),
    }
    text = f"GRPO, {groups * group} answers of {answer} tokens, {vocabulary:,} classes, {depth} layers, AdamW"
    return Step(text, model, adamw(model), of_outputs(lambda: (states(), weight, answers), losses))
