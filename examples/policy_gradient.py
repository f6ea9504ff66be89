"""Teaches a small recurrent policy to count, by GRPO and by DPO, with log-probabilities from its hidden states.

A prompt is a number. The policy samples an answer of up to 8 tokens; each token that is one more than the token before
it earns a reward. Both losses come from the log-probabilities of the sampled tokens:

* GRPO (Shao et al. 2024, DeepSeekMath): the ratio to the policy that sampled them, clipped, times the advantage within
  a group of answers to one prompt; the divergence from a frozen reference policy; here also a bonus for entropy;
* DPO (Rafailov et al. 2023, Direct Preference Optimization): the best answer of each group against its worst.

``cudaloss.linear_token_log_prob`` gives the policy's, with the entropy; ``cudaloss.token_log_prob`` the reference's,
which has its logits. The claims, each checked, with a raised error where it fails:

* value and gradients (of the states and of the head's weight) of each loss are those of ``log_softmax`` and ``gather``
  in float64, to 1e-4, at every training step;
* each loss at least doubles the reward.

Needs scikit-learn, matplotlib and rich::

    python examples/policy_gradient.py
    python examples/policy_gradient.py --quick
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

NUMBERS, END = 24, 0  # tokens; END ends an answer
WIDTH, LONGEST = 48, 8
PROMPTS, GROUP = 16, 8  # answers to each prompt
TEMPERATURE = 0.8
CLIP, TO_REFERENCE, OF_ENTROPY, DPO_BETA = 0.2, 0.02, 0.003, 0.3
INNER = 2  # steps with one batch of answers: in the first all ratios are 1


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUMBERS, WIDTH)
        self.recur = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, NUMBERS, bias=False)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.recur(self.embed(tokens), state)


class Answers(NamedTuple):
    """PROMPTS * GROUP rows, those of a group side by side."""

    tokens: Tensor  # the prompt first; padded with END, because each must be a class
    mask: Tensor  # which tokens the policy chose: not the prompt, nor padding
    reward: Tensor
    old: Tensor  # log-probabilities at the time of sampling
    logits: Tensor  # of the reference policy, also behind the last token


class Values(NamedTuple):
    log_prob: Tensor
    entropy: Tensor
    reference: Tensor  # the log-probability by the reference policy


def fused(states: Tensor, weight: Tensor, answers: Answers) -> Values:
    """The recipe. The logits of all positions but the last are a view, which is read without a copy."""
    chosen = answers.tokens[:, 1:]
    with torch.no_grad():  # the reference policy is frozen
        reference = cudaloss.token_log_prob(answers.logits[:, :-1], chosen, temperature=TEMPERATURE)
    own = cudaloss.linear_token_log_prob(states, weight, chosen, temperature=TEMPERATURE, return_entropy=True)
    return Values(own[0], own[1], reference)


def plain(states: Tensor, weight: Tensor, answers: Answers) -> Values:
    both = F.linear(states.double(), weight.double()), answers.logits[:, :-1].double()
    logs, of_reference = ((logits / TEMPERATURE).log_softmax(-1) for logits in both)
    log_prob, reference = (x.gather(-1, answers.tokens[:, 1:, None]).squeeze(-1) for x in (logs, of_reference))
    return Values(log_prob, -(logs.exp() * logs).sum(-1), reference)


@torch.no_grad()
def sample(policy: Policy, reference: Policy, generator: torch.Generator) -> Answers:
    prompt = torch.randint(1, NUMBERS - LONGEST, (PROMPTS, 1), generator=generator).repeat_interleave(GROUP, 0)
    tokens, state, ended, log_probs, mask = [prompt], None, torch.zeros_like(prompt, dtype=torch.bool), [], []
    for _ in range(LONGEST):
        out, state = policy(tokens[-1], state)
        logs = (policy.head(out[:, -1]) / TEMPERATURE).log_softmax(-1)
        chosen = torch.where(ended, END, torch.multinomial(logs.exp(), 1, generator=generator))
        log_probs.append(logs.gather(1, chosen))
        mask.append(~ended)
        tokens.append(chosen)
        ended = ended | (chosen == END)
    every, chose = torch.cat(tokens, 1), torch.cat(mask, 1)
    right = (every[:, 1:] == every[:, :-1] + 1) & chose
    logits = reference.head(reference(every)[0])
    return Answers(every, chose, right.sum(1) / LONGEST, torch.cat(log_probs, 1), logits)


def grpo(values: Values, answers: Answers) -> Tensor:
    groups = answers.reward.view(PROMPTS, GROUP)
    advantage = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    ratio, apart = (values.log_prob - answers.old).exp(), values.reference - values.log_prob
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    divergence = apart.exp() - apart - 1  # its mean over samples is the divergence, and it is never below 0
    return (TO_REFERENCE * divergence - gain - OF_ENTROPY * values.entropy)[answers.mask].mean()


def dpo(values: Values, answers: Answers) -> Tensor:
    gained = torch.where(answers.mask, values.log_prob - values.reference, 0).sum(1).view(PROMPTS, GROUP)
    groups = answers.reward.view(PROMPTS, GROUP)
    best, worst = (gained.gather(1, each.unsqueeze(1)).squeeze(1) for each in (groups.argmax(1), groups.argmin(1)))
    differ = groups.amax(1) > groups.amin(1)
    return -(F.logsigmoid(DPO_BETA * (best - worst)) * differ).sum() / differ.sum().clamp(min=1)


def whole(objective: Callable[[Values, Answers], Tensor], values: Callable[..., Values]) -> Callable[..., Tensor]:
    return lambda states, weight, answers: objective(values(states, weight, answers), answers)


def train(loss: scaffold.Compared, start: Policy, steps: int, seed: int, name: str) -> list[float]:
    """The mean rewards of the batches of answers."""
    policy, generator, batches = copy.deepcopy(start), torch.Generator().manual_seed(seed), []

    def batch_loss() -> Tensor:
        if len(loss.differences) % INNER == 0:
            batches.append(sample(policy, start, generator))
        states, _ = policy(batches[-1].tokens[:, :-1])
        return loss(states, policy.head.weight, batches[-1])

    scaffold.fit(scaffold.one_cycle(policy, 1e-2, steps), batch_loss, steps, name)
    return [answers.reward.mean().item() for answers in batches]


def main() -> None:
    arguments = scaffold.options(__file__, "Teach a policy to count.", 400, quick=100)
    start = scaffold.seeded(Policy, arguments.seed)
    curves, compared = {}, {}
    for name, objective in {"GRPO": grpo, "DPO": dpo}.items():
        compared[name] = scaffold.Compared(whole(objective, fused), whole(objective, plain), 1e-2, operands=2)
        curves[name] = train(compared[name], start, arguments.steps, arguments.seed, name)
        say(f"{name}: mean reward {curves[name][0]:.3f} at first, {curves[name][-1]:.3f} at last")
    figure = Figure((6, 4), layout="constrained")
    scaffold.show_curves(figure.subplots(), curves, "mean reward")
    scaffold.save(figure, arguments.output)

    for name, loss in compared.items():
        loss.require_within(1e-4, "log_softmax and gather in float64")
        require(curves[name][-1] > 2 * curves[name][0], f"{name} at least doubles the reward")


if __name__ == "__main__":
    main()
