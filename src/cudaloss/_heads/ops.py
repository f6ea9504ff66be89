"""``torch.ops.cudaloss`` for heads and tokens: the form of their calls in graphs. An op of tokens gives a list of one
tensor, or of two with the entropy."""

from __future__ import annotations

import torch

from .. import _private
from . import calls

_HEAD = "Tensor input, Tensor linear_weight, Tensor target, *, Tensor? linear_bias=None"
_BEND = "float temperature=1.0, float? softcap=None, bool return_entropy=False"


def _cross_entropy_op(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    weight=None,
    reduction="mean",
    ignore_index=None,
    label_smoothing=0.0,
    z_loss=0.0,
    softcap=None,
    sample_weight=None,
    mask=None,
    normalizer=None,
    scale=1.0,
    dtype=None,
    memory=None,
):
    call = z_loss, softcap, sample_weight, mask, normalizer, scale, dtype, memory
    of_torch = linear_bias, weight, reduction, ignore_index, label_smoothing
    return calls.linear_cross_entropy(input, linear_weight, target, *of_torch, *call)


_private.define_composite(
    f'linear_cross_entropy({_HEAD}, Tensor? weight=None, str reduction="mean", int? ignore_index=None, '
    "float label_smoothing=0.0, float z_loss=0.0, float? softcap=None, Tensor? sample_weight=None, Tensor? mask=None, "
    "Tensor? normalizer=None, float scale=1.0, ScalarType? dtype=None, str? memory=None) -> Tensor",
    _cross_entropy_op,
)


def _log_prob_op(input, target, *, temperature=1.0, softcap=None, return_entropy=False):
    found = calls.token_log_prob(input, target, temperature, softcap, return_entropy)
    return list(found) if return_entropy else [found]


def _linear_log_prob_op(
    input,
    linear_weight,
    target,
    *,
    linear_bias=None,
    temperature=1.0,
    softcap=None,
    return_entropy=False,
    memory=None,
):
    call = linear_bias, temperature, softcap, return_entropy, memory
    found = calls.linear_token_log_prob(input, linear_weight, target, *call)
    return list(found) if return_entropy else [found]


_private.define_composite(f"token_log_prob(Tensor input, Tensor target, *, {_BEND}) -> Tensor[]", _log_prob_op)
_private.define_composite(f"linear_token_log_prob({_HEAD}, {_BEND}, str? memory=None) -> Tensor[]", _linear_log_prob_op)

linear_cross_entropy = torch.ops.cudaloss.linear_cross_entropy
token_log_prob = torch.ops.cudaloss.token_log_prob
linear_token_log_prob = torch.ops.cudaloss.linear_token_log_prob
