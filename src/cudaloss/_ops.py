"""``torch.ops.cudaloss``: the public op of every loss, registered from the rows of ``_specs``.

Each has one Python kernel for all backends, for autograd and for vmap. It takes the commonest calls directly
(``fused``), and checks the arguments of all others (``thorough``). torch.compile and torch.export see through it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _autograd, _dispatch, _options, _private, _reference
from ._build import DEVICES
from ._checks import check
from ._dispatch import PLAIN_TENSORS
from ._modes import (
    BATCH_DIMS,
    BATCHMEAN,
    BELOW_AUTOGRAD,
    DTYPES,
    IGNORE_NAN,
    INTEGERS,
    LOSS,
    MAX_DIMS,
    MAY_DECLINE,
    REDUCTIONS,
    pack,
)
from ._options import Options
from ._specs import SPECS, LossSpec

Loss = Callable[..., Any]


class Kernel(NamedTuple):
    """The parts of a public op, called as ``f(input, target, reduction, parameter, second, dtype, *options)``. The
    parameter is the loss's third operand, a number or a tensor; second is its second number."""

    fused: Callable[..., Tensor | None]  # the commonest calls; None for all others
    thorough: Callable[..., Tensor]  # every call, with its arguments checked


def _is_autocast(device: str) -> bool:
    if device in DEVICES or torch.amp.is_autocast_available(device):
        return torch.is_autocast_enabled(device)
    return False  # for example meta, for which PyTorch raises


def _over_batch(input: Any) -> tuple[str, Any]:
    """The reduction and the normalizer for ``batchmean``."""
    return ("mean", torch.sym_float(input.shape[0])) if input.dim() else ("sum", None)  # as in PyTorch


def _thorough(spec: LossSpec) -> Callable[..., Tensor]:
    def thorough(
        input: Any, target: Any, reduction: Any, parameter: Any, second: Any, dtype: Any, *options: Any
    ) -> Tensor:
        own, chosen = check(spec, input, target, reduction, (parameter, second), dtype, Options(*options))
        if reduction == BATCHMEAN:
            reduction, normalizer = _over_batch(input)
            chosen = chosen._replace(normalizer=normalizer)
        dtype = _reference.result_dtype(input, target, dtype, _is_autocast(input.device.type))
        return _dispatch.loss(spec, input, target, reduction, own[0], dtype, chosen, own[1])

    return thorough


def _way(reduction: str, result: torch.dtype) -> tuple[int, Callable[..., Tensor | None]]:
    """The mode of a call with this reduction and result, without the loss; and its node."""
    return pack(reduction, result) | MAY_DECLINE, _autograd.two_passes if reduction == "none" else _autograd.one_pass


# Without autocast, and with it.
_WAYS, _AUTOCAST_WAYS = (
    {
        (reduction, input, target): _way(reduction, torch.promote_types(torch.promote_types(input, target), least))
        for reduction in REDUCTIONS
        for input in DTYPES
        for target in (*DTYPES, *INTEGERS)
    }
    for least in (torch.bool, torch.float32)
)


def _under_autocast(input: Tensor) -> dict[Any, Any]:
    return _AUTOCAST_WAYS if torch.is_autocast_enabled("cuda" if input.is_cuda else "cpu") else _WAYS


def _fused(spec: LossSpec) -> Callable[..., Tensor | None]:
    """The commonest calls: plain tensors of one shape; the private ops check the rest. Returns None for all others.
    Every line is on the hot path of every call: only a few flags, 0.05 us each."""
    own, loss, forward = spec.mode << LOSS | BELOW_AUTOGRAD, _private.loss, _private.forward
    default, largest = spec.default, spec.parameter.largest if spec.parameter else inf
    takes_second = spec.second.takes if spec.second else bool
    unchecked = 0.0 if spec.second is None or takes_second(0.0) else nan  # the kernels read it as no number
    may_lack_last = spec.parameter is not None and spec.parameter.may_lack_last
    # PyTorch's functions, looked up only once.
    is_grad_enabled, is_captured = torch.is_grad_enabled, _dispatch.is_captured
    is_included, pre_dispatch = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
    any_autocast, any_functorch = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    function_modes = torch._C._len_torch_function_stack

    def fused(
        input, target, reduction, parameter, second, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan
    ) -> Tensor | None:
        third = None
        if type(parameter) is not float:
            third, parameter = parameter, default
            if not _is_usual(third, DTYPES) or (may_lack_last and third.shape != input.shape):
                return None
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or not 0 < parameter <= largest
            or type(reduction) is not str
            or dtype is not None
            or any_functorch()
            or forward_ad._current_level >= 0
            or function_modes()
            or is_included(pre_dispatch)
        ):
            return None
        found = (_under_autocast(input) if any_autocast() else _WAYS).get((reduction, input.dtype, target.dtype))
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
            third is not None
            or type(second) is not float
            or second != unchecked
            or weight is not None
            or mask is not None
            or normalizer is not None
            or type(scale) is not float
            or scale != 1.0
            or type(batch_dims) is not int
            or batch_dims != 0
            or ignore_nan is not False
        ):
            options = _usual(reduction, weight, mask, normalizer, scale, batch_dims, ignore_nan)
            if options is None:
                return None
            flags, *rest = options
            how |= flags
            if type(second) is not float:
                return None
            if third is not None or second != unchecked:
                if not takes_second(second):
                    return None
                rest += third, second
            if batch_dims and batch_dims == input.dim():  # single losses: _dispatch has a shorter way
                return None
        if way is not None:
            return way(input, target, how | own, parameter, *rest)
        if rest:
            return forward(input, target, how | own, parameter, *rest)[0]
        return loss(input, target, how | own, parameter)

    def fused_over_batch(input, target, reduction, parameter, second, dtype, weight, mask, normalizer, *options):
        if reduction == BATCHMEAN and normalizer is None and type(input) in PLAIN_TENSORS and not is_captured():
            reduction, normalizer = _over_batch(input)
        return fused(input, target, reduction, parameter, second, dtype, weight, mask, normalizer, *options)

    return fused_over_batch if spec.batchmean else fused


def _is_usual(tensor: Any, dtypes: tuple[torch.dtype, ...]) -> bool:
    if type(tensor) not in PLAIN_TENSORS or tensor.dtype not in dtypes:
        return False
    return not (tensor.requires_grad and torch.is_grad_enabled())


def _usual(reduction, weight, mask, normalizer, scale, batch_dims, ignore_nan) -> tuple[Any, ...] | None:
    """The mode's flags and the options, in the order of the private ops; None if they are not the usual ones."""
    divisor = None
    if (
        type(scale) is not float
        or type(batch_dims) is not int
        or not 0 <= batch_dims <= MAX_DIMS
        or type(ignore_nan) is not bool
        or _dispatch.is_captured()
        or (weight is not None and not _is_usual(weight, DTYPES))
        or (mask is not None and not _is_usual(mask, (torch.bool,)))
    ):
        return None
    if normalizer is not None:
        if type(normalizer) is float and normalizer != 0:
            divisor, normalizer = normalizer, None
        elif not _is_usual(normalizer, DTYPES):
            return None
        if reduction != "mean":
            return None
    return batch_dims << BATCH_DIMS | (IGNORE_NAN if ignore_nan else 0), scale, weight, mask, normalizer, divisor


def _none(*call: Any) -> None:
    """``fused`` for a package without compiled kernels: a refused binary may have registered its kernels anyway."""


def _schema(spec: LossSpec) -> str:
    third, own, first = spec.parameter, "", ""
    for parameter in spec.parameters:
        if parameter.of_call:
            first += f", Tensor {parameter.name}"
        else:
            optional = parameter is third and parameter.default is None
            own += f", {'Tensor?' if optional else 'float'} {parameter.name}={parameter.default}"
    options = ", ".join(row.of_op for row in _options.ROWS)
    if third and third.default is not None:
        options += f", Tensor? {third.name}_tensor=None"
    options += "".join(f", bool {flag.name}={flag.default}" for flag in spec.flags)
    named = f'Tensor input, Tensor target{first}, str reduction="{spec.reduction}"{own}'
    return f"{spec.name}({named}, *, {options}) -> Tensor"


def _chosen(spec: LossSpec, kernels: tuple[Kernel, ...], options: dict[str, Any]) -> Kernel:
    """The kernel of the variant for the flags among the options."""
    values = [options.pop(flag.name, flag.default) for flag in spec.flags]
    return kernels[sum(value << bit for bit, value in enumerate(values))]


def _define(spec: LossSpec) -> tuple[Kernel, ...]:
    """Defines the public op of `spec`; returns its kernels, one for each variant of the row."""
    kernels = tuple(Kernel(_fused(variant) if DEVICES else _none, _thorough(variant)) for variant in spec.variants)
    third, usual, default, other = spec.parameter, spec.reduction, spec.default, spec.second_default
    as_tensor = f"{third.name}_tensor" if third else ""

    # The dispatcher passes only arguments that are not at their defaults.
    def op(input, target, reduction=usual, parameter=None, second=other, *, dtype=None, **options):
        kernel = _chosen(spec, kernels, options) if spec.flags else kernels[0]
        parameter = options.pop(as_tensor, parameter)
        parameter = default if parameter is None else parameter
        call = input, target, reduction, parameter, second, dtype, *(Options(**options) if options else _options.NONE)
        result = kernel.fused(*call)
        return kernel.thorough(*call) if result is None else result

    def with_third(input, target, parameter, reduction=usual, second=other, **options):
        return op(input, target, reduction, parameter, second, **options)

    def with_second(input, target, reduction=usual, second=other, **options):
        return op(input, target, reduction, None, second, **options)

    called = with_third if third and third.of_call else with_second if spec.second and not third else op
    _private.define_public(_schema(spec), called)
    return kernels


# The public ops' kernels by name. The functions call them directly, which saves a dispatcher round trip (1 us).
KERNELS: dict[str, tuple[Kernel, ...]] = {spec.name: _define(spec) for spec in SPECS}
