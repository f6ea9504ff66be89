"""The divergence of a head's distributions from those of a frozen teacher's head, by chunks of rows: both heads' logits
of a chunk are in memory that the next one takes, and the student's gradient is written over its logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._call.call import Call
from .._call.modes import BELOW_AUTOGRAD, FOR_INPUT, FOR_TARGET
from .._losses.options import Options
from .._losses.table import OF_ROWS
from .._ops import checks as _checks
from .._ops import private
from .._ops.vector_checks import at_ends
from .._public.ops import KERNELS
from . import calls, checks, plans, row_losses
from .blocks import define
from .calls import _are_served, _is_head, _under_autocast, _wants_gradient
from .nodes import HeadStep
from .plans import Head, Wanted
from .sparse import Reduction, checked_reduction

_JSD = next(spec for spec in OF_ROWS if spec.name == "jsd_with_logits")
# A chunk has at least this many rows, whatever its logits take: products of fewer rows use a GPU badly.
LEAST_ROWS = 256


class Divergence(NamedTuple):
    """Of the loss jsd_with_logits, whose ends are those of another loss: for a beta of 1 with exchanged operands."""

    beta: float
    temperature: float

    def value(self, student: Tensor, teacher: Tensor, reduction: str, dtype: torch.dtype, options: Options) -> Tensor:
        """Of logits (rows, classes), with autograd."""
        own = {**_JSD.given, **self._asdict(), "dim": 1}
        return KERNELS[_JSD.name].thorough(student, teacher, reduction, tuple(own.values()), dtype, *options[:5])

    def value_over(
        self, student: Tensor, teacher: Tensor, reduction: str, dtype: torch.dtype, options: Options
    ) -> Tensor:
        """The same; the student's gradient overwrites its logits."""
        call = Call(_JSD, student, teacher, reduction, dtype, options, None, self.temperature, self.beta)
        call = at_ends(call)
        wanted = FOR_INPUT if call.input is student else FOR_TARGET
        return private.forward_over_(*call.packed(wanted | BELOW_AUTOGRAD))


def most_rows(student: Head, teacher: Head) -> int:
    """How many rows a chunk has at most: each head's logits take up to BLOCK_BYTES."""
    row = student.weight.shape[0] * max(student.input.element_size(), teacher.input.element_size())
    return min(plans.CHUNK_ROWS, max(LEAST_ROWS, plans.BLOCK_BYTES // row))


def _rows_of(x: Tensor | None, some: slice) -> Tensor | None:
    return None if x is None else x[some]


def _step_op(*arguments: Any) -> Any:
    student, teacher, (beta, temperature, weight, counts, divisor, scale, *wanted) = (
        Head(*arguments[:3]),
        Head(*arguments[3:6]),
        arguments[6:],
    )
    loss, reduction = Divergence(beta, temperature), "sum" if divisor is None else "mean"
    dtype = row_losses.wide(student.input.dtype)
    classes, aligned = teacher.weight.shape[0], plans.aligned(teacher)
    memory: Tensor | None = None

    def value_over(logits: Tensor, some: slice) -> Tensor:
        nonlocal memory
        made = plans.logits_of(aligned.rows(some), memory)
        memory = made if memory is None else memory
        of_teacher = made[:, :classes]
        options = Options(_rows_of(weight, some), _rows_of(counts, some), divisor, scale)
        of = loss.value_over if any(wanted) else loss.value
        return of(logits, of_teacher, reduction, dtype, options)

    return plans.step(student, value_over, Wanted(*wanted), most_rows(student, teacher))


_OPERANDS = "Tensor input, Tensor linear_weight, Tensor? linear_bias"
step_op = define(
    f"_head_divergence({_OPERANDS}, Tensor target_input, Tensor target_weight, Tensor? target_bias, float beta, "
    "float temperature, Tensor? sample_weight, Tensor? counts, Tensor? divisor, float scale, bool for_input, "
    "bool for_weight, bool for_bias) -> (Tensor, Tensor, Tensor, Tensor)",
    _step_op,
    plans.fake_step,
)


def _by_definition(
    student: tuple[Any, ...], teacher: tuple[Any, ...], loss: Divergence, reduction: Reduction, shape: torch.Size
) -> Tensor:
    """From the logits of both."""
    logits, of_teacher = (torch.nn.functional.linear(*x) for x in (student, teacher))
    logits, of_teacher = (x.reshape(-1, x.shape[-1]) for x in (logits, of_teacher.detach()))
    found = loss.value(logits, of_teacher, reduction.reduction, reduction.dtype, reduction.options)
    return found.view(shape) if reduction.reduction == "none" else found


def _check(
    input: Any, linear_weight: Any, linear_bias: Any, target_input: Any, target_weight: Any, target_bias: Any
) -> None:
    teacher = {"target_input": target_input, "target_weight": target_weight}
    checks.check_layer(input, linear_weight, linear_bias, **teacher)
    checks.check_matrix(linear_weight)
    teacher |= {} if target_bias is None else {"target_bias": target_bias}
    for name, value in teacher.items():
        _checks.check_beside_layout(name, value)
        _checks.check_floating(name, value)
        if _wants_gradient(value):
            raise RuntimeError(
                f"{name} must not require a gradient, because the teacher is frozen: detach the teacher, "
                f"{name}.detach()"
            )
    rows, classes = tuple(input.shape[:-1]), linear_weight.shape[0]
    if target_input.dim() != input.dim() or tuple(target_input.shape[:-1]) != rows:
        wanted = ", ".join([*map(str, rows), "features"])
        raise RuntimeError(
            f"target_input must be of shape ({wanted}), with input's rows, got {tuple(target_input.shape)}"
        )
    wanted = classes, target_input.shape[-1]
    if target_weight.shape != wanted:
        raise RuntimeError(
            f"target_weight must be of shape {wanted}: linear_weight's classes and target_input's features, got "
            f"{tuple(target_weight.shape)}"
        )
    if target_bias is not None and (target_bias.shape != (classes,) or target_bias.device != input.device):
        raise RuntimeError(
            f"target_bias must be of shape ({classes},) and on input's device, {input.device}, got "
            f"{tuple(target_bias.shape)} on {target_bias.device}"
        )


def linear_jsd_with_logits(
    input: Any,
    linear_weight: Any,
    target_input: Any,
    target_weight: Any,
    beta: Any,
    temperature: Any,
    linear_bias: Any,
    target_bias: Any,
    reduction: Any,
    mask: Any,
    sample_weight: Any,
    normalizer: Any,
    scale: Any,
    dtype: Any,
) -> Tensor:
    _check(input, linear_weight, linear_bias, target_input, target_weight, target_bias)
    loss = Divergence(checks.check_beta(beta), checks.check_temperature(temperature))
    student = _under_autocast(input, linear_weight, linear_bias)
    teacher = _under_autocast(target_input, target_weight, target_bias)
    shape, classes = input.shape[:-1], linear_weight.shape[0]
    beside = sample_weight, mask, normalizer
    how = checked_reduction(student[0], classes, teacher[0], reduction, *beside, scale, dtype)
    given = [x for x in beside if x is not None and isinstance(x, Tensor)]
    is_large = shape.numel() * classes * input.element_size() > calls._SMALL_LOGITS
    served = (
        is_large
        and _is_head(*student)
        and _is_head(*teacher)
        and reduction != "none"
        and student[0].dtype != torch.float16  # a gradient divided by many rows would underflow
        and not _wants_gradient(*given)
        and _are_served(*student, *teacher, *given)
    )
    if not served:
        return _by_definition(student, teacher, loss, how, shape)
    own, theirs = (Head(x.reshape(-1, x.shape[-1]), weight, bias) for x, weight, bias in (student, teacher))
    return _of_heads(own, theirs, loss, how)


def _of_heads(student: Head, teacher: Head, loss: Divergence, how: Reduction) -> Tensor:
    weight, counts, normalizer, scale = how.options[:4]
    rows = student.input.shape[0]
    divisor = row_losses.divisor(weight, counts, rows) if how.reduction == "mean" and normalizer is None else normalizer
    divided = row_losses.Divided.of(divisor, normalizer is None, scale)
    call = *teacher, *loss, weight, counts, divided.divisor, divided.scale

    def thorough(*operands: Any) -> Tensor:
        return _by_definition(operands, teacher, loss, how, student.input.shape[:1])

    if _wants_gradient(*student):
        found = HeadStep.apply(*student, thorough, how.dtype, step_op, *call)
    else:
        found = step_op(*student, *call, False, False, False)[0].to(how.dtype)
    return divided.result(found)
