"""Where every checked call enters; and the private ops under autograd and transforms, which enter here too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._call.call import Call, are_distributed, unpacked
from .._ops import dispatch, private
from .._ops.autograd import by_reference, gradients, transformed
from .._reference import definition


def loss(call: Call) -> Tensor:
    """The loss of a call whose arguments have been checked, with autograd."""
    if are_distributed(call.input, call.target, call.third, *call.options[:3]) and not transformed():
        from .._sharded.loss import loss as of_dtensors

        return of_dtensors(call)
    return dispatch.loss(call)


# ---- the private ops under autograd and transforms ----


def _denominators(*call):
    found = unpacked(*call)
    return definition.denominators(found) if found.reduction == "mean" else None


def _composed(*call):
    return definition.loss(unpacked(*call)), _denominators(*call)


# Each op in plain PyTorch.
_COMPOSED: dict[str, Callable[..., Any]] = {
    "forward": _composed,
    "denominators": _denominators,
    "gradients": lambda grad_output, denominators, *call: by_reference(grad_output, call),
}


def _register(kind: str, composed: Callable[..., Any]) -> None:
    """Makes the op correct wherever PyTorch can replay it: with derivatives under autograd, and under transforms."""
    overload = private.op(kind)

    def autograd(keyset, *call):
        if (torch.is_grad_enabled() and torch._C._any_requires_grad(*call)) or transformed():
            if kind == "forward":  # with the kernels if they serve the call
                return loss(unpacked(*call)), _denominators(*call)
            return composed(*call)
        if kind == "gradients":
            return gradients(*call)
        return overload.redispatch(keyset & torch._C._after_autograd_keyset, *call)

    name = overload._schema.name
    private.LIBRARY.impl(name, autograd, "Autograd", with_keyset=True)
    for key in _BATCHED:
        private.LIBRARY.impl(name, composed, key)


_BATCHED = (private.TRANSFORMS, "Batched")
for _kind, _function in _COMPOSED.items():
    _register(_kind, _function)
for _key in _BATCHED:  # a batched backward cannot use the stored gradients
    private.LIBRARY.impl("_pointwise_rescale_", lambda *call: False, _key)
