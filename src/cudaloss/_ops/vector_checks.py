"""Errors for wrong arguments of a loss of vectors, before any kernel runs; its operands in the form for the kernels."""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from .._call.call import Call
from .._call.shapes import broadcast, rows_shape
from .._losses.options import Options
from .._losses.table import OF_ROWS, LossSpec
from .checks import (
    _is_number,
    as_float,
    check_dense,
    check_dtype,
    check_floating,
    check_options,
    check_reduction,
    result_dtype,
)

KL_DIV = next(spec for spec in OF_ROWS if spec.name == "kl_div_with_logits")


def _check_operand(name: str, value: Any, of_vectors: bool, first: Tensor | None) -> None:
    check_dense(name, value)
    if value.is_nested:
        raise RuntimeError(f"{name} must be a dense tensor, got a nested one; call {name}.to_padded_tensor(0)")
    if of_vectors:
        check_floating(name, value)
    elif value.dtype.is_complex:
        raise RuntimeError(f"{name} must be a real tensor, got {value.dtype}")
    if first is not None and value.device != first.device:
        raise RuntimeError(f"all operands must be on one device, got {first.device} and {name} on {value.device}")


def _joint(names: tuple[str, ...], shapes: list[tuple[int, ...]], what: str) -> torch.Size:
    try:
        return broadcast(*shapes)
    except RuntimeError:
        said = ", ".join(f"{name} {tuple(shape)}" for name, shape in zip(names, shapes, strict=True))
        raise RuntimeError(f"{what} must have shapes that broadcast together, got {said}") from None


def _check_embedding(vectors: list[Tensor], label: Tensor) -> None:
    """With PyTorch's messages."""
    first, second = (tuple(x.shape) for x in vectors)
    if label.dim() > 1:
        raise RuntimeError(f"0D or 1D target tensor expected, multi-target not supported: target has {label.dim()}D")
    if (len(first), len(second)) != (label.dim() + 1,) * 2:
        raise RuntimeError(
            f"{label.dim()}D target tensor expects {label.dim() + 1}D input tensors, but found inputs with sizes "
            f"{first} and {second}: beside a target of (N,) both must be of shape (N, D), beside one of () of (D,)"
        )


def _vector_dim(spec: LossSpec, vectors: list[Tensor], dim: Any) -> int:
    """The dimension of the vectors in the joint shape."""
    rank = max(x.dim() for x in vectors)
    if rank == 0:
        raise IndexError(f"{spec.operands[0]} must have a dimension of vectors, got a 0-d tensor")
    if spec.given["dim"] is None:
        if spec.differentiable_third and len({x.dim() for x in vectors}) > 1:
            said = ", ".join(f"{name} {x.dim()}D" for name, x in zip(spec.operands, vectors, strict=True))
            raise RuntimeError(
                f"The {', '.join(spec.operands)} tensors are expected to have the same number of dimensions, got {said}"
            )
        dim = -1
    elif not _is_number(dim, numbers.Integral):
        raise TypeError(f"dim must be an int, got {type(dim).__name__}")
    elif spec.reads == "distributions" and rank == 1 and dim == 1:
        dim = 0
    if not -rank <= dim < rank:
        raise IndexError(f"dim must be a dimension of the operands, in [{-rank}, {rank - 1}], got {dim}")
    return int(dim) % rank


def _numbers(spec: LossSpec, own: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for row in spec.arguments:
        if row.role != "number":
            continue
        if not _is_number(own[row.name]):
            raise TypeError(f"{row.name} must be a number, got {type(own[row.name]).__name__}")
        found[row.name] = as_float(row.name, own[row.name])
    if spec.differentiable_third and not found["margin"] > 0:
        raise ValueError(f"margin must be greater than 0, got {found['margin']}")
    number, finite = found.get(spec.number, own[spec.number]), "finite " if spec.number == "temperature" else ""
    if not spec.has_margin and not (number > 0 and (number < math.inf or not finite)):
        raise RuntimeError(f"{spec.number} must be a {finite}number > 0, got {number}")
    for row in spec.arguments:
        if row.interval is not None and not row.takes(found[row.name]):
            raise RuntimeError(f"{row.name} must be a number {row.interval}, got {found[row.name]}")
    return {**own, **found}


def at_ends(call: Call) -> Call:
    """If the mixture is one of the distributions alone (beta 0 or 1), both divergences from it, weighted, are 0. By
    convention the loss is then the divergence of the distributions from each other."""
    if call.spec.second_number != "beta" or (call.second != 0 and call.second != 1):
        return call
    if call.second == 1:
        call = call._replace(input=call.target, target=call.input)
    return call._replace(spec=KL_DIV, second=0.0)


def check(
    spec: LossSpec, input: Any, target: Any, reduction: Any, own: tuple[Any, ...], dtype: Any, options: Options
) -> Call:
    """Raises an error if something is wrong with a call; otherwise the call. Its operands have one shape with at least
    one dimension; if there are several, the vectors are along the second."""
    named = dict(zip(spec.given, own, strict=True))
    given = [input, target, *own[: len(spec.operands) - 2]]
    count = 3 if spec.differentiable_third else 2
    for place, (name, value) in enumerate(zip(spec.operands, given, strict=True)):
        _check_operand(name, value, place < count, given[0] if place else None)
    check_reduction(spec, reduction)
    check_dtype(dtype)
    named = _numbers(spec, named)
    if "swap" in spec.signature.split() and not isinstance(named["swap"], bool):
        raise TypeError(f"swap must be a bool, got {type(named['swap']).__name__}")
    vectors, labels = given[:count], given[count:]
    if labels:
        _check_embedding(vectors, labels[0])
    dim = _vector_dim(spec, vectors, named["dim"])
    shape = _joint(spec.operands[:count], [x.shape for x in vectors], ", ".join(spec.operands[:count]))
    if spec.reads == "boxes" and shape[dim] != 4:
        raise RuntimeError(f"boxes must have 4 corners along the last dimension, (x1, y1, x2, y2), got {tuple(shape)}")
    rows = torch.Size((*shape[:dim], *shape[dim + 1 :]))
    if labels:
        rows = _joint(("the rows", *spec.operands[2:]), [rows, labels[0].shape], "target and the rows of the inputs")
        shape = torch.Size((*rows, shape[-1]))
    vectors = [x if x.shape == shape else x.expand(shape) for x in vectors]
    if shape and dim != min(1, len(shape) - 1):
        vectors = [x.movedim(dim, 1) for x in vectors]
    third = labels[0].detach() if labels else vectors[2] if count == 3 else None
    x, t, *_ = vectors
    options = check_options(options, x, rows_shape(x), reduction)
    found = result_dtype(x, t, dtype)
    if count == 3 and dtype is None:
        found = torch.promote_types(found, vectors[2].dtype)
    variant, second = spec.variants[named["swap"]], named[spec.second_number] if spec.second_number else 0.0
    return at_ends(Call(variant, x, t, reduction, found, options, third, named[spec.number], second, p=named["p"]))
