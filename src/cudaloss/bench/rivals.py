"""The rivals of cudaloss: PyTorch's own losses, users' compositions of its functions, other libraries' losses."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .._call.call import Call
from .._losses.table import LossSpec
from .._reference import definition
from .modes import Loss

LIBRARY_ROW = 4096  # elements of a row, for a library whose loss is for rows


def _composed(value: Callable[..., Tensor]) -> Loss:
    def loss(x: Tensor, y: Tensor, reduction: str = "mean", **parameters: float | Tensor) -> Tensor:
        found = value(x, y, **parameters)
        if reduction == "batchmean":
            return found.sum() / len(x)
        return found if reduction == "none" else getattr(found, reduction)()

    return loss


def _focal(x: Tensor, y: Tensor, alpha: float = 0.25, gamma: float = 2.0) -> Tensor:
    """Composed as in torchvision."""
    p = x.sigmoid()
    away = 1 - (p * y + (1 - p) * (1 - y))
    loss = F.binary_cross_entropy_with_logits(x, y, reduction="none") * away**gamma
    return (alpha * y + (1 - alpha) * (1 - y)) * loss


def _varifocal(x: Tensor, y: Tensor, alpha: float = 0.75, gamma: float = 2.0) -> Tensor:
    """Composed as in mmdetection."""
    weight = y * (y > 0) + alpha * (x.sigmoid() - y).abs() ** gamma * (y <= 0)
    return F.binary_cross_entropy_with_logits(x, y, reduction="none") * weight


# Users' compositions for losses that PyTorch's functions lack, or warn about.
COMPOSED: dict[str, Loss] = {
    "quantile": _composed(lambda x, y, quantile=0.5: torch.maximum(quantile * (y - x), (quantile - 1) * (y - x))),
    "pseudo_huber": _composed(lambda x, y, delta=1.0: delta**2 * ((1 + ((x - y) / delta) ** 2).sqrt() - 1)),
    "charbonnier": _composed(lambda x, y, eps=1e-3: ((x - y) ** 2 + eps**2).sqrt()),
    "log_cosh": _composed(lambda x, y: (x - y) + F.softplus(-2 * (x - y)) - math.log(2)),
    "hinge": _composed(lambda x, y, margin=1.0, power=1: (margin - y * x).clamp(min=0) ** power),
    "sigmoid_focal": _composed(_focal),
    "varifocal": _composed(_varifocal),
    "kl_div": _composed(lambda x, y, **own: F.kl_div(x, y, reduction="none", **own)),  # whose "mean" warns
}


def rival(spec: LossSpec) -> Loss:
    """PyTorch's own loss; otherwise the users' composition; otherwise the row's formula."""
    if hasattr(F, spec.function) and spec.name not in COMPOSED:
        return getattr(F, spec.function)

    def defined(x: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        dtype = definition.result_dtype(x, y, None, False)
        return definition.loss(Call.usual(spec, x, y, reduction, dtype))

    return COMPOSED.get(spec.name, defined)


def _from(module: str, mean: Callable[[Any, Tensor, Tensor], Tensor]) -> Loss:
    """Imported by the call: if a library does not load, its loss is removed as a rival that fails."""
    return lambda x, y: mean(import_module(module), x, y)


def _in_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, min(LIBRARY_ROW, x.numel()))


# The mean, by library (by its package name) and loss.
LIBRARIES: dict[str, dict[str, Loss]] = {
    "torchvision": {
        "sigmoid_focal": _from("torchvision.ops", lambda ops, x, y: ops.sigmoid_focal_loss(x, y, reduction="mean")),
    },
    "liger_kernel": {
        "kl_div": _from(
            "liger_kernel.ops.kl_div",
            lambda ops, x, y: ops.LigerKLDivLossFunction.apply(_in_rows(x), _in_rows(y), "mean"),
        ),
    },
}
RIVALS = ("eager", "compile", "indexed", *LIBRARIES)


def of_libraries(spec: LossSpec) -> dict[str, Loss]:
    """By library, for those that are installed."""
    found = {name: losses[spec.name] for name, losses in LIBRARIES.items() if spec.name in losses}
    return {name: loss for name, loss in found.items() if find_spec(name)}
