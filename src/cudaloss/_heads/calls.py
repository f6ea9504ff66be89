"""Which way a call goes: the kernels with the products around them, or the reference, which has the whole logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._call.call import are_distributed
from .._call.modes import DTYPES
from .._losses.options import Options
from .._ops import dispatch, private
from .._ops.checks import is_autocast
from .._ops.dispatch import PLAIN_TENSORS, is_captured
from .._ops.private import is_compiled
from .._ops.row_checks import check
from .._public.ops import KERNELS
from . import checks, plans, row_losses
from .blocks import Block, bent
from .nodes import HeadNumbers, HeadStep, LogitsNumbers, TokenValues, sharded
from .plans import Head
from .row_losses import CROSS_ENTROPY, CrossEntropy

_cross_entropy = KERNELS["cross_entropy"]
# Logits of up to this many bytes are whole: a step on the host then takes 0.2 ms, otherwise 0.5 (CPU, (4, 8, 16)).
_SMALL_LOGITS = 1 << 20
# Logits of up to this many bytes are in one piece, whatever the number of rows.
_ONE_PIECE = 64 << 20


def _under_autocast(input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The operands of a product in autocast's dtype, if it is active."""
    if not is_autocast(input.device.type):
        return input, weight, bias
    dtype = torch.get_autocast_dtype(input.device.type)

    def cast(x: Tensor) -> Tensor:
        return x if x.dtype == torch.float64 else x.to(dtype)

    return cast(input), cast(weight), None if bias is None else cast(bias)


def _result_dtype(input: Tensor) -> torch.dtype:
    return row_losses.wide(input.dtype) if is_autocast(input.device.type) else input.dtype


def _are_served(*tensors: Tensor | None) -> bool:
    """Whether the kernels take the tensors, as far as their kind goes."""
    given = [x for x in tensors if x is not None]
    device = given[0].device
    if dispatch.transformed() or (is_captured() and not is_compiled()):
        return False
    if not is_captured() and any(type(x) not in PLAIN_TENSORS for x in given):
        return False
    return all(dispatch._is_readable(x, device) and device.type != "meta" for x in given)


def _is_head(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the products are of one dtype that the kernels take."""
    are_alike = all(x is None or x.dtype == input.dtype for x in (weight, bias))
    return input.dtype in DTYPES and are_alike and input.numel() > 0


def _wants_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _plan(memory: str) -> str:
    """The plan of a call. Hooks on saved tensors (checkpoints, offloading) do not see what a fast plan keeps."""
    return "least" if private.has_hooks() else memory


def _keeps_logits(head: Head, memory: str) -> bool:
    """Whether a step keeps the logits until its backward. In one piece they are less memory than a float32 gradient of
    the weight if there are at most twice as many rows as features."""
    rows, features = head.input.shape
    logits = rows * head.weight.shape[0] * head.input.element_size()
    return memory == "fast" and (rows <= max(2 * features, plans.CHUNK_ROWS) or logits <= _ONE_PIECE)


# ---- cross entropy ----


def _flat(x: Tensor | None, shape: torch.Size) -> Tensor | None:
    """An option of rows, for rows in one dimension."""
    return None if x is None else x.expand(shape).reshape(-1)


def _indices(target: Tensor) -> Tensor:
    """A target of class indices for rows in one dimension, side by side."""
    return target.reshape(-1).long().contiguous()


def _like_logits(input: Tensor, classes: int) -> Tensor:
    """A tensor of one element that has the logits' shape, for checks that ask it."""
    rows = input.shape[:-1]
    return input.new_empty(1).expand(*rows[:1], classes, *rows[1:])


def _local_of(operands: tuple[Any, ...], beside: tuple[Any, ...]) -> Any:
    """What this process has of a head whose classes are sharded; None if they are not, or in a way that only PyTorch's
    own ops take."""
    if not are_distributed(operands[1]) or is_captured() or dispatch.transformed():
        return None
    return sharded().local_of(operands, beside)


def linear_cross_entropy(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    weight: Any,
    reduction: Any,
    ignore_index: Any,
    label_smoothing: Any,
    z_loss: Any,
    softcap: Any,
    sample_weight: Any,
    mask: Any,
    normalizer: Any,
    scale: Any,
    dtype: Any,
    memory: Any,
) -> Tensor:
    checks.check_memory(memory)
    checks.check_head(input, linear_weight, target, linear_bias, takes_probabilities=True)
    if ignore_index is None:
        ignore_index = -100
    elif target.is_floating_point():
        raise RuntimeError("ignore_index cannot be specified when target contains probabilities")
    operands, beside = (input, linear_weight, linear_bias), (target, weight, sample_weight, mask, normalizer)
    local = None if target.is_floating_point() else _local_of(operands, beside)
    part, classes = None, linear_weight.shape[0]
    if local is not None:
        part, operands, beside = local.part, local.operands, local.beside
    operands = _under_autocast(*operands)
    is_large = target.numel() * classes * input.element_size() > _SMALL_LOGITS
    served = (
        (is_large or memory == "least" or part is not None)
        and linear_weight.dim() == 2
        and not target.is_floating_point()
        and _is_head(*operands)
        and not _wants_gradient(weight)
        and _are_served(*operands, *(x for x in beside if isinstance(x, Tensor)))
    )
    if not served:
        own = weight, ignore_index, label_smoothing, z_loss, softcap
        options = Options(sample_weight, mask, normalizer, scale)
        return _by_reference(input, linear_weight, target, linear_bias, reduction, own, dtype, options)
    (target, weight, sample_weight, mask, normalizer), input = beside, operands[0]
    own = weight, ignore_index, label_smoothing, z_loss, softcap
    options = Options(sample_weight, mask, normalizer, scale)
    like = _like_logits(input, classes)
    call = check(CROSS_ENTROPY, like, target, reduction, own, dtype, options)
    smoothing, options = call.second, call.options
    if dtype is None:
        dtype = _result_dtype(input)
    shape = target.shape
    head = Head(input.reshape(-1, input.shape[-1]), *operands[1:])
    index = _indices(target)
    counts = index != call.ignore_index
    flat_mask = _flat(options.mask, shape)
    counts = counts if flat_mask is None else counts & flat_mask
    first = 0 if part is None else part.first
    shares = None
    if weight is not None and smoothing != 0:
        shares = weight.to(row_losses.wide(input.dtype))[first : first + head.weight.shape[0]]
    block = Block(index, counts, shares, first, classes, call.softcap, shares=smoothing != 0)
    reduced = _flat(options.weight, shape), reduction, options.normalizer, options.scale, dtype
    loss = CrossEntropy(weight, classes, smoothing, call.parameter, *reduced)
    found = _of_head(head, block, loss, "fast" if memory is None else memory, part)
    found = found.view(shape) if reduction == "none" else found
    return found if local is None else sharded().wrapped(found, local)


def _of_head(head: Head, block: Block, loss: CrossEntropy, memory: str, part: Any) -> Tensor:
    memory = _plan(memory)
    keeps = not is_compiled() and _keeps_logits(head, memory)
    is_step = (
        part is None
        and _wants_gradient(*head)
        and not keeps
        and memory == "fast"
        and loss.reduction != "none"
        and head.input.dtype != torch.float16  # a gradient divided by many rows would underflow
        and block.softcap == 0.0  # whose kernel cannot write over the logits
        and not _wants_gradient(loss.sample_weight, loss.normalizer if isinstance(loss.normalizer, Tensor) else None)
    )
    if is_step:
        return _step(head, block, loss)
    return row_losses.value(loss, _numbers(head, block, keeps, part), block.target, block.counts)


def _numbers(head: Head, block: Block, keeps: bool, part: Any, indices: Tensor | None = None) -> Any:
    """The numbers; with `indices` also the z of these classes."""
    if _wants_gradient(*head):
        return HeadNumbers.apply(*head, keeps, part, indices, *block)
    found, z = plans.numbers_op(*head, *block, indices)
    if part is not None:
        found, z = sharded().joined(found, part), None if z is None else sharded().added(z, part)
    return found if z is None else (found, z)


def _step(head: Head, block: Block, loss: CrossEntropy) -> Tensor:
    of = row_losses.denominator(loss, block.target, block.counts)
    divided = row_losses.Divided.of(of, loss.normalizer is None, loss.scale)

    def thorough(*operands: Any) -> Tensor:
        found = HeadNumbers.apply(*operands, False, None, None, *block)
        return row_losses.value(loss, found, block.target, block.counts)

    call = loss.class_weight, loss.smoothing, loss.z_loss, loss.sample_weight, divided.divisor, divided.scale
    return divided.result(HeadStep.apply(*head, thorough, loss.dtype, plans.step_op, *block, *call))


def _by_reference(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    linear_bias: Tensor | None,
    reduction: str,
    own: tuple[Any, ...],
    dtype: torch.dtype | None,
    options: Options,
) -> Tensor:
    """The definition: the logits, and their cross entropy."""
    shape, flat = target.shape, input if input.dim() <= 2 else input.flatten(0, -2)
    if input.dim() > 2:
        target = target.flatten(0, -2) if target.is_floating_point() else target.flatten()
        rows = input.shape[:-1]
        options = options._replace(weight=_flat(options.weight, rows), mask=_flat(options.mask, rows))
        shape = rows
    bias = None if linear_bias is None else linear_bias.reshape(-1)
    logits = torch.nn.functional.linear(flat, linear_weight.flatten(0, -2), bias)
    logits = logits.reshape(*flat.shape[:-1], *linear_weight.shape[:-1])
    call = logits, target, reduction, own, dtype, *options[:5]
    found = _cross_entropy.fused(*call)
    found = _cross_entropy.thorough(*call) if found is None else found
    return found.view(shape) if reduction == "none" and input.dim() > 2 else found


# ---- log-probabilities of tokens ----


def _as_rows(input: Tensor) -> Tensor | None:
    """The logits in two dimensions of rows, without a copy; None: they need one."""
    if input.dim() < 3:
        return input.view(1, -1, input.shape[-1]) if input.dim() == 2 or input.is_contiguous() else None
    try:
        return input.view(input.shape[0], -1, input.shape[-1])
    except RuntimeError:
        return None


def _finished(found: Tensor, shape: torch.Size, dtype: torch.dtype, return_entropy: bool) -> Any:
    made = TokenValues.apply(found, return_entropy, dtype == torch.float64)
    return tuple(x.view(shape) for x in made) if return_entropy else made.view(shape)


def _log_prob_of(logits: Tensor, target: Tensor, temperature: float, softcap: float, return_entropy: bool) -> Any:
    """The definition, of logits."""
    logs = bent(logits.to(row_losses.wide(logits.dtype)), softcap, temperature).log_softmax(-1)
    log_prob = logs.gather(-1, target.long().unsqueeze(-1)).squeeze(-1)
    if not return_entropy:
        return log_prob
    p = logs.exp()
    return log_prob, -(p * torch.where(p == 0, 0, logs)).sum(-1)


def token_log_prob(input: Any, target: Any, temperature: Any, softcap: Any, return_entropy: bool) -> Any:
    checks._dense(input=input, target=target)
    checks.check_classes(input)
    checks.check_indices(target, input.shape[:-1])
    if input.device != target.device:
        raise RuntimeError(f"input and target must be on one device, got {input.device} and {target.device}")
    temperature, cap = checks.check_bend(target, temperature, softcap)
    rows = None
    if input.dtype in DTYPES and input.numel() > 0 and _are_served(input, target) and input.stride(-1) == 1:
        rows = _as_rows(input)
    if rows is None:
        return _log_prob_of(input, target, temperature, cap, return_entropy)
    index = _indices(target)
    block = Block(index, None, None, 0, input.shape[-1], cap, temperature, entropy=return_entropy)
    wants = _wants_gradient(input)
    found = LogitsNumbers.apply(rows, None, *block) if wants else plans.logits_numbers_op(rows, *block, None)[0]
    return _finished(found, target.shape, row_losses.wide(input.dtype), return_entropy)


def linear_token_log_prob(
    input: Any,
    linear_weight: Any,
    target: Any,
    linear_bias: Any,
    temperature: Any,
    softcap: Any,
    return_entropy: bool,
    memory: Any,
) -> Any:
    checks.check_memory(memory)
    checks.check_head(input, linear_weight, target, linear_bias, takes_probabilities=False)
    checks.check_matrix(linear_weight)
    temperature, cap = checks.check_bend(target, temperature, softcap)
    classes, part = linear_weight.shape[0], None
    local = _local_of((input, linear_weight, linear_bias), (target,))
    if local is not None:
        part, (input, linear_weight, linear_bias), (target,) = local.part, local.operands, local.beside
    input, linear_weight, linear_bias = _under_autocast(input, linear_weight, linear_bias)
    if not (_is_head(input, linear_weight, linear_bias) and _are_served(input, linear_weight, linear_bias, target)):
        logits = torch.nn.functional.linear(input, linear_weight, linear_bias)
        return _log_prob_of(logits, target, temperature, cap, return_entropy)
    head = Head(input.reshape(-1, input.shape[-1]), linear_weight, linear_bias)
    first, index = 0 if part is None else part.first, _indices(target)
    block = Block(index, None, None, first, classes, cap, temperature, entropy=return_entropy)
    keeps = not is_compiled() and _keeps_logits(head, _plan("least" if memory is None else memory))
    found = _finished(_numbers(head, block, keeps, part), target.shape, row_losses.wide(input.dtype), return_entropy)
    return found if local is None else sharded().wrapped(found, local)
