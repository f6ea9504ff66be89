"""``torch.ops.cudaloss``: the public op of every loss, registered from the rows of ``_losses.table``.

Each has one Python kernel for all backends, for autograd and for vmap. It takes the commonest calls directly
(``fused``), and checks the arguments of all others (``thorough``). torch.compile and torch.export see through it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._call.modes import (
    BATCH_DIMS,
    BELOW_AUTOGRAD,
    DTYPES,
    FOR_THIRD,
    IGNORE_NAN,
    INDICES,
    INTEGERS,
    LOSS,
    MAX_DIMS,
    MAY_DECLINE,
    pack,
)
from .._install.build import DEVICES
from .._losses.options import Options, options_of
from .._losses.spec import BATCHMEAN, REDUCTIONS
from .._losses.table import PUBLIC, LossSpec
from .._ops import autograd, checks, dispatch, private, row_checks, vector_checks
from .._ops.dispatch import PLAIN_TENSORS, is_usual
from . import entry
from .usual import usual_of


class Kernel(NamedTuple):
    """The parts of a public op, called as ``f(input, target, reduction, own, dtype, *options)``, where `own` has the
    values of ``spec.given``; a loss of rows may leave out the last option."""

    fused: Callable[..., Tensor | None]  # the commonest calls; None for all others
    thorough: Callable[..., Tensor]  # every call, with its arguments checked


def _thorough(spec: LossSpec) -> Callable[..., Tensor]:
    check: Any = vector_checks.check if spec.of_vectors else row_checks.check if spec.of_rows else checks.check

    def thorough(input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, *options: Any) -> Tensor:
        return entry.loss(check(spec, input, target, reduction, own, dtype, Options(*options)))

    return thorough


def _way(reduction: str, result: torch.dtype) -> tuple[int, Callable[..., Tensor | None]]:
    """The mode of a call with this reduction and result, without the loss; and its node."""
    how = pack(reduction, result) | MAY_DECLINE | BELOW_AUTOGRAD
    return how, autograd.two_passes if reduction == "none" else autograd.one_pass


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


def _ways(spec: LossSpec) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Those for the targets that the loss takes."""
    if not spec.of_rows:
        return _WAYS, _AUTOCAST_WAYS
    taken = DTYPES if spec.of_vectors else INDICES if spec.takes_indices_alone else (*DTYPES, *INDICES)
    plain, autocast = ({key: way for key, way in ways.items() if key[2] in taken} for ways in (_WAYS, _AUTOCAST_WAYS))
    return plain, autocast


def _fused(spec: LossSpec) -> Callable[..., Tensor | None]:
    """The commonest calls: plain tensors of one shape; the private ops check the rest. Returns None for all others.
    Every line is on the hot path of every call: only a few flags, 0.05 us each."""
    usual, (plain_ways, autocast_ways), lacking = usual_of(spec), _ways(spec), 1 if spec.of_rows else 0
    loss, forward, plain = private.loss, private.forward, (spec.mode << LOSS, spec.default, ())
    # PyTorch's functions, looked up only once.
    is_grad_enabled, is_captured, is_autocast = torch.is_grad_enabled, dispatch.is_captured, torch.is_autocast_enabled
    is_included, pre_dispatch = torch._C._dispatch_tls_is_dispatch_key_included, torch._C.DispatchKey.PreDispatch
    any_autocast, any_functorch = torch._C._is_any_autocast_enabled, torch._C._are_functorch_transforms_active
    function_modes = torch._C._len_torch_function_stack

    def fused(
        input, target, reduction, own, dtype, weight, mask, normalizer, scale, batch_dims, ignore_nan=False
    ) -> Tensor | None:
        if (
            type(input) not in PLAIN_TENSORS
            or type(target) not in PLAIN_TENSORS
            or type(reduction) is not str
            or dtype is not None
            or any_functorch()
            or forward_ad._current_level >= 0
            or function_modes()
        ):
            return None
        ways = autocast_ways if any_autocast() and is_autocast("cuda" if input.is_cuda else "cpu") else plain_ways
        found = ways.get((reduction, input.dtype, target.dtype))
        numbers = plain if usual is None else usual(input, target, own)
        if found is None or numbers is None:
            return None
        (how, node), (mode, parameter, tail) = found, numbers
        how |= mode
        way = None
        if is_grad_enabled() and (wants := (input.requires_grad + 2 * target.requires_grad) << 4 | mode & FOR_THIRD):
            if is_captured():  # two passes would not notice it
                return None
            how, way = how | wants, node
        elif is_included(pre_dispatch):
            return None
        rest = ()
        if (
            tail
            or weight is not None
            or mask is not None
            or normalizer is not None
            or type(scale) is not float
            or scale != 1.0
            or type(batch_dims) is not int
            or batch_dims != 0
            or ignore_nan is not False
        ):
            options = _usual_options(reduction, weight, mask, normalizer, scale, batch_dims, ignore_nan)
            if options is None or (way is None and is_captured()):
                return None
            if batch_dims and batch_dims == input.dim() - lacking:  # single losses: dispatch.loss has a shorter way
                return None
            flags, *rest = options
            how |= flags
            rest += tail
        if way is not None:
            return way(input, target, how, parameter, *rest)
        if rest:
            return forward(input, target, how, parameter, *rest)[0]
        return loss(input, target, how, parameter)

    def fused_over_batch(input, target, reduction, own, dtype, weight, mask, normalizer, *options):
        if reduction == BATCHMEAN and normalizer is None and type(input) in PLAIN_TENSORS and not is_captured():
            reduction, normalizer = checks.over_batch(input)
        return fused(input, target, reduction, own, dtype, weight, mask, normalizer, *options)

    return fused_over_batch if spec.batchmean else fused


def _usual_options(reduction, weight, mask, normalizer, scale, batch_dims, ignore_nan) -> tuple[Any, ...] | None:
    """The mode's flags and the options, in the order of the private ops; None if they are not the usual ones."""
    divisor = None
    if (
        type(scale) is not float
        or type(batch_dims) is not int
        or not 0 <= batch_dims <= MAX_DIMS
        or type(ignore_nan) is not bool
        or (weight is not None and not is_usual(weight, DTYPES))
        or (mask is not None and not is_usual(mask, (torch.bool,)))
    ):
        return None
    if normalizer is not None:
        if type(normalizer) is float and normalizer != 0:
            divisor, normalizer = normalizer, None
        elif not is_usual(normalizer, DTYPES):
            return None
        if reduction != "mean":
            return None
    return batch_dims << BATCH_DIMS | (IGNORE_NAN if ignore_nan else 0), scale, weight, mask, normalizer, divisor


def _none(*call: Any) -> None:
    """``fused`` for a package without compiled kernels: a refused binary may have registered its kernels anyway."""


def _schema(spec: LossSpec) -> tuple[str, list[str]]:
    """The public op's schema, and its positional arguments after input and target."""
    third, own = spec.parameter, {row.name: row.of_schema for row in spec.arguments}
    own["reduction"] = f'str reduction="{spec.reduction}"'
    order = [*spec.needed, "reduction", *(row.name for row in spec.parameters if not row.of_call)]
    given = [name for name in (spec.signature.split() if spec.of_rows else order) if name in own]
    keywords = [own[row.name] for row in spec.arguments if row.only_keyword]
    keywords += [row.of_op for row in options_of(spec)]
    if third and third.default is not None:
        keywords.append(f"Tensor? {third.name}_tensor=None")
    keywords += [] if spec.of_rows else [own[flag.name] for flag in spec.flags]
    named = ", ".join([*(f"Tensor {name}" for name in spec.operands), *(own[name] for name in given)])
    return f"{spec.name}({named}, *, {', '.join(keywords)}) -> Tensor", [*spec.operands[2:], *given]


def _define(spec: LossSpec) -> Kernel:
    """Defines the public op of `spec`."""
    kernel = Kernel(_fused(spec) if DEVICES else _none, _thorough(spec))
    schema, names = _schema(spec)
    options = {row.name: row.default for row in options_of(spec) if row.name != "dtype"}
    defaults = [spec.reduction, *spec.given.values(), None, *options.values()]
    places = {name: place for place, name in enumerate(["reduction", *spec.given, "dtype", *options])}
    if spec.parameter:
        places[f"{spec.parameter.name}_tensor"] = places[spec.parameter.name]
    positions, behind = [places[name] for name in names], 1 + len(spec.given)
    plain = spec.reduction, tuple(spec.given.values()), None, *options.values()

    # The dispatcher passes only arguments that are not at their defaults, and those before them.
    def op(input, target, *given, **named):
        call = input, target, *plain
        if given or named:
            found = defaults.copy()
            for place, value in zip(positions, given, strict=False):
                if value is not None:
                    found[place] = value
            for name, value in named.items():
                if value is not None:
                    found[places[name]] = value
            call = input, target, found[0], tuple(found[1:behind]), *found[behind:]
        result = kernel.fused(*call)
        return kernel.thorough(*call) if result is None else result

    private.define_public(schema, op)
    return kernel


# The public ops' kernels by name. The functions call them directly, which saves a dispatcher round trip (1 us).
KERNELS: dict[str, Kernel] = {spec.name: _define(spec) for spec in PUBLIC}
