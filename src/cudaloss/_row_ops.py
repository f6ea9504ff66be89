"""``torch.ops.cudaloss`` of the losses of rows, as :mod:`._ops` has the pointwise ones."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _dispatch, _private, reference
from ._build import DEVICES
from ._dispatch import PLAIN_TENSORS
from ._modes import BELOW_AUTOGRAD, DTYPES, INDICES, LOSS
from ._ops import _WAYS, Kernel, _is_autocast, _is_usual, _none, _under_autocast, _usual
from ._options import Options
from ._row_checks import check
from ._row_faces import OPTIONS
from ._specs import OF_ROWS, RowSpec


def _thorough(spec: RowSpec) -> Callable[..., Tensor]:
    def thorough(input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, *options: Any) -> Tensor:
        smoothing, rows, chosen = check(input, target, reduction, own, dtype, Options(*options))
        of_dtype = target if target.is_floating_point() else input
        dtype = reference.result_dtype(input, of_dtype, dtype, _is_autocast(input.device.type))
        return _dispatch.loss(spec, input, target, reduction, own[0], dtype, chosen, smoothing, rows)

    return thorough


def _fused(spec: RowSpec) -> Callable[..., Tensor | None]:
    """The commonest calls: plain tensors, of which the private ops find out the rest. They decline with None."""
    mode, forward = spec.mode << LOSS | BELOW_AUTOGRAD, _private.forward
    readable = (*DTYPES, *INDICES)

    def fused(
        input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims
    ) -> Tensor | None:
        weight, ignore_index, smoothing, z_loss, softcap = own
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or target.dtype not in readable
            or dtype is not None
            or type(reduction) is not str
            or type(ignore_index) is not int
            or type(smoothing) is not float
            or not 0 <= smoothing <= 1
            or type(z_loss) is not float
            or not 0 <= z_loss < inf
            or (weight is not None and not _is_usual(weight, DTYPES))
            or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0
            or torch._C._len_torch_function_stack()
            or _dispatch.is_captured()
        ):
            return None
        if softcap is None:
            softcap = 0.0
        elif type(softcap) is not float or not 0 < softcap < inf:
            return None
        options = _usual(reduction, sample_weight, mask, normalizer, scale, batch_dims, False)
        ways = _under_autocast(input) if torch._C._is_any_autocast_enabled() else _WAYS
        found = ways.get((reduction, input.dtype, target.dtype))
        if found is None or options is None or (batch_dims and batch_dims == input.dim() - 1):
            return None
        if ignore_index >= 0 and target.is_floating_point():
            return None
        how, nodes = found
        flags, *rest = options
        how |= flags | mode
        call = *rest, weight, smoothing, ignore_index, softcap
        if torch.is_grad_enabled() and (wants := input.requires_grad + 2 * target.requires_grad):
            return nodes[wants](input, target, how | wants << 4, z_loss, *call)
        return forward(input, target, how, z_loss, *call)[0]

    return fused


def _define(spec: RowSpec) -> Kernel:
    """Defines the public op of `spec`."""
    own = {row.name: f"{row.schema} {row.name}={row.default}" for row in spec.arguments}
    own["reduction"] = f'str reduction="{spec.reduction}"'
    names = [name for name in spec.signature.split() if name in own]
    keywords = [*(own[row.name] for row in spec.arguments if row.only_keyword), *(row.of_op for row in OPTIONS)]
    named = ", ".join(own[name] for name in names)
    schema = f"{spec.name}(Tensor input, Tensor target, {named}, *, {', '.join(keywords)}) -> Tensor"
    _private.LIBRARY.define(schema, tags=_private.TAGS)
    kernel = Kernel(_fused(spec) if DEVICES else _none, _thorough(spec))
    usual = {row.name: row.default for row in spec.arguments}
    of_options: dict[str, Any] = {row.name: row.default for row in OPTIONS}

    # The dispatcher passes on only what differs from its default.
    def op(input, target, *given, **named):
        given = {**dict(zip(names, given, strict=False)), **named}
        own = tuple(given.get(name, default) for name, default in usual.items())
        options = {name: given.get(name, default) for name, default in of_options.items()}
        dtype = options.pop("dtype")
        call = input, target, given.get("reduction", spec.reduction), own, dtype, *options.values()
        result = kernel.fused(*call)
        return kernel.thorough(*call) if result is None else result

    for key in ("CompositeImplicitAutograd", "FuncTorchBatched"):
        _private.LIBRARY.impl(spec.name, op, key)
    return kernel


KERNELS: dict[str, Kernel] = {spec.name: _define(spec) for spec in OF_ROWS}
