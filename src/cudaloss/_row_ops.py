"""``torch.ops.cudaloss`` for the losses of rows, like :mod:`._ops` for the pointwise ones."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _dispatch, _private, _reference, _vector_ops
from ._build import DEVICES
from ._dispatch import PLAIN_TENSORS
from ._modes import BELOW_AUTOGRAD, DTYPES, INDICES, LOSS
from ._ops import _AUTOCAST_WAYS, _WAYS, Kernel, _is_autocast, _is_usual, _none, _usual
from ._options import Options
from ._row_checks import check
from ._row_options import options_of
from ._specs import OF_ROWS, RowSpec


def _thorough(spec: RowSpec) -> Callable[..., Tensor]:
    def thorough(input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, *options: Any) -> Tensor:
        smoothing, rows, chosen = check(spec, input, target, reduction, own, dtype, Options(*options))
        of_dtype = target if target.is_floating_point() else input
        dtype = _reference.result_dtype(input, of_dtype, dtype, _is_autocast(input.device.type))
        return _dispatch.loss(spec, input, target, reduction, own[0], dtype, chosen, smoothing, rows)

    return thorough


def _ways(spec: RowSpec) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The ways of _ops, without and with autocast, for the targets that the loss takes."""
    taken = {*INDICES, *(() if spec.takes_indices_alone else DTYPES)}
    plain, autocast = ({key: way for key, way in ways.items() if key[2] in taken} for ways in (_WAYS, _AUTOCAST_WAYS))
    return plain, autocast


def _fused(spec: RowSpec) -> Callable[..., Tensor | None]:
    """The commonest calls: plain tensors; the private ops check the rest. Returns None for all others."""
    plain_ways, autocast_ways = _ways(spec)
    mode, loss, forward = spec.mode << LOSS | BELOW_AUTOGRAD, _private.loss, _private.forward
    # PyTorch's functions, looked up only once.
    is_grad_enabled, is_captured = torch.is_grad_enabled, _dispatch.is_captured
    is_included, pre_dispatch = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
    any_autocast, any_functorch = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    function_modes = torch._C._len_torch_function_stack

    def fused(
        input, target, reduction, own, dtype, sample_weight, mask, normalizer, scale, batch_dims
    ) -> Tensor | None:
        weight, ignore_index, smoothing, z_loss, softcap = own
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or dtype is not None
            or type(reduction) is not str
            or type(z_loss) is not float
            or not 0 <= z_loss < inf
            or any_functorch()
            or forward_ad._current_level >= 0
            or function_modes()
            or is_included(pre_dispatch)
        ):
            return None
        ways = autocast_ways if any_autocast() and _is_autocast(input.device.type) else plain_ways
        found = ways.get((reduction, input.dtype, target.dtype))
        if found is None:
            return None
        how, node = found
        way = None
        if is_grad_enabled() and (wants := input.requires_grad + 2 * target.requires_grad):
            if is_captured():  # two passes would not notice it
                return None
            how, way = how | wants << 4, node
        rest = ()
        if (
            weight is not None
            or type(ignore_index) is not int
            or ignore_index != -100
            or type(smoothing) is not float
            or smoothing != 0
            or softcap is not None
            or sample_weight is not None
            or mask is not None
            or normalizer is not None
            or type(scale) is not float
            or scale != 1
            or type(batch_dims) is not int
            or batch_dims != 0
        ):
            options = _usual(reduction, sample_weight, mask, normalizer, scale, batch_dims, False)
            if options is None or not _are_usual(input, target, own, batch_dims):
                return None
            flags, *rest = options
            how |= flags
            rest += weight, smoothing, ignore_index, softcap or 0.0
        if way is not None:
            return way(input, target, how | mode, z_loss, *rest)
        if rest:
            return forward(input, target, how | mode, z_loss, *rest)[0]
        return loss(input, target, how | mode, z_loss)

    return fused


def _are_usual(input: Tensor, target: Tensor, own: tuple[Any, ...], batch_dims: int) -> bool:
    """Whether the numbers of a call, except z_loss, are Python's own and in their ranges."""
    weight, ignore_index, smoothing, _, softcap = own
    return (
        (weight is None or _is_usual(weight, DTYPES))
        and type(ignore_index) is int
        and not (ignore_index >= 0 and target.is_floating_point())
        and type(smoothing) is float
        and 0 <= smoothing <= 1
        and (softcap is None or (type(softcap) is float and 0 < softcap < inf))
        and not (batch_dims and batch_dims == input.dim() - 1)  # single losses: _dispatch has a shorter way
    )


def _kernel_of(spec: RowSpec) -> Kernel:
    if spec.of_vectors:
        return _vector_ops.kernel_of(spec)
    return Kernel(_fused(spec) if DEVICES else _none, _thorough(spec))


def _define(spec: RowSpec) -> Kernel:
    """Defines the public op of `spec`."""
    rows = options_of(spec)
    own = {row.name: f"{row.schema} {row.name}={row.default}" for row in spec.arguments}
    own["reduction"] = f'str reduction="{spec.reduction}"'
    given_names = [name for name in spec.signature.split() if name in own]
    names = [*spec.operands[2:], *given_names]
    keywords = [*(own[row.name] for row in spec.arguments if row.only_keyword), *(row.of_op for row in rows)]
    named = ", ".join([*(f"Tensor {name}" for name in spec.operands), *(own[name] for name in given_names)])
    schema = f"{spec.name}({named}, *, {', '.join(keywords)}) -> Tensor"
    kernel, defaults = _kernel_of(spec), spec.given
    of_options: dict[str, Any] = {row.name: row.default for row in rows}

    # The dispatcher passes only arguments that are not at their defaults.
    def op(input, target, *given, **named):
        given = {**dict(zip(names, given, strict=False)), **named}
        own = tuple(given.get(name, default) for name, default in defaults.items())
        options = {name: given.get(name, default) for name, default in of_options.items()}
        dtype = options.pop("dtype")
        call = input, target, given.get("reduction", spec.reduction), own, dtype, *options.values()
        result = kernel.fused(*call)
        return kernel.thorough(*call) if result is None else result

    _private.define_public(schema, op)
    return kernel


KERNELS: dict[str, Kernel] = {spec.name: _define(spec) for spec in OF_ROWS}
