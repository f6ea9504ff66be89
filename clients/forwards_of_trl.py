"""trl's log-probabilities of tokens, which its trainers take from hidden states and the head's weight, by our function.
What ours does not have, trl computes as before: logits that are scaled, and of the logits their mean, whether the token
is the most likely one, and the sum of the squared probabilities, of which the trainers make metrics and weights.
"""

from __future__ import annotations

import torch
from swap import counted
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction

import cudaloss

THEIRS = ChunkedLogProbFunction.apply
linear_token_log_prob = counted("linear_token_log_prob", cudaloss.linear_token_log_prob)


def _apply(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    chunk_size: int,
    softcap: float | None,
    logit_scale: float,
    outputs: tuple[str, ...],
) -> tuple[Tensor | None, ...]:
    call = temperature, chunk_size, softcap, logit_scale
    if logit_scale != 1:
        return THEIRS(hidden, weight, bias, targets, *call, outputs)
    options = {"linear_bias": bias, "temperature": temperature, "softcap": softcap}
    log_prob, entropy = linear_token_log_prob(hidden, weight, targets, return_entropy=True, **options)
    with torch.no_grad():
        _, _, *others = THEIRS(hidden, weight, bias, targets, *call, outputs)
    # float32, as theirs, which has float32 sums of any dtype
    return log_prob.float(), entropy.float() if "entropy" in outputs else None, *others


FORWARDS = {ChunkedLogProbFunction: _apply}
