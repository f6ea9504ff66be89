"""The comparisons: a loss in a mode, computed on the same tensors by cudaloss, eager PyTorch and torch.compile."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import functional
from .._losses.table import SPECS, LossSpec
from .domains import suited
from .measure import Work
from .modes import PLAIN, WITH_THIRD, Call, Dtypes, Idiom, Loss, Mode
from .rivals import RIVALS, of_libraries, rival

Row = dict[str, Any]

COMPARABLE = {spec.name: spec for spec in SPECS}


@dataclass(frozen=True)
class Problem:
    """A problem of KernelBench's level 1."""

    number: int
    call: Call = PLAIN
    power: int = 30  # log2 of its elements


# By loss.
KERNELBENCH = {
    "mse": Problem(94, Call(eager=lambda _, predictions, targets: torch.mean((predictions - targets) ** 2))),
    "smooth_l1": Problem(96),
    "kl_div": Problem(
        98,
        Call(
            ours=lambda loss, predictions, targets: loss(predictions, targets, reduction="batchmean", log_input=False),
            eager=lambda loss, predictions, targets: loss(predictions.log(), targets, reduction="batchmean"),
            inputs="in [0, 1]",
        ),
        power=28,
    ),
    "hinge": Problem(
        100,
        Call(
            ours=lambda _, predictions, targets: torch.ops.cudaloss.hinge(predictions, targets),
            eager=lambda _, predictions, targets: torch.mean(torch.clamp(1 - predictions * targets, min=0)),
            one_row=True,
        ),
    ),
}


# Full-sized tensors beside operands and gradients: as many as autograd holds at once in KernelBench's MSE.
TEMPORARIES = 5
# The memory of indexing by a mask, and of its backward: int64 indices of four dimensions, and their sort.
INDEXED_BYTES = 64


@dataclass(frozen=True)
class Case:
    """One row of a suite."""

    suite: str
    spec: LossSpec
    mode: Mode
    dtypes: Dtypes
    shape: tuple[int, ...]
    device: str

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def call(self) -> Call:
        """The mode's. A loss that PyTorch does not compute without a third operand is given one."""
        return WITH_THIRD.get(self.spec.name, PLAIN) if self.mode.call is PLAIN else self.mode.call

    @property
    def bytes_an_element(self) -> int:
        """The least that must move: both operands once, what the call takes beside them, and the gradients."""
        input, target = self.dtypes.input.itemsize, 0 if self.call.one_row else self.dtypes.target.itemsize
        gradients = (input + (target if self.mode.both else 0)) if self.mode.training else 0
        return input * (1 + self.call.full_sized) + target + self.call.bytes_an_element + gradients

    @property
    def bytes(self) -> int:
        return self.size * self.bytes_an_element

    @property
    def bytes_needed(self) -> int:
        """A safe estimate of the memory in use at once."""
        widest = max(self.dtypes.input.itemsize, self.dtypes.target.itemsize)
        temporaries = TEMPORARIES * widest + (INDEXED_BYTES if self.call.indexed else 0)
        return self.bytes + temporaries * self.size

    def row(self) -> Row:
        """The row's facts that are known before any measurement."""
        row: Row = {"suite": self.suite, "loss": self.spec.name, "mode": self.mode.name, "dtype": str(self.dtypes)}
        if self.suite == "kernelbench":
            row["problem"] = KERNELBENCH[self.spec.name].number
        if len(self.shape) > 1:
            row["shape"] = list(self.shape)
        return {**row, "size": self.size, "device": self.device}

    def operands(self) -> tuple[Tensor, ...]:
        """Input, target, and the further arguments of the call."""
        of_input, of_target = self.mode.layouts
        input = suited(of_input(self.shape, self.dtypes.input, self.device), self.call.inputs or self.spec.inputs)
        shape = self.shape[-1:] if self.call.one_row else self.shape
        target = suited(of_target(shape, self.dtypes.target, self.device), self.spec.targets)
        target = target if self.call.one_row else target.expand(self.shape)
        arguments = self.call.arguments(self.shape, self.dtypes.input, self.device)
        return input.requires_grad_(self.mode.training), target.requires_grad_(self.mode.both), *arguments


def _under_autocast(loss: Loss, device: str, dtype: torch.dtype) -> Loss:
    def call(*operands: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype):
            return loss(*operands)

    return call


def _bound(idiom: Idiom | None, loss: Loss) -> Loss:
    return loss if idiom is None else lambda *operands: idiom(loss, *operands)


def _losses(case: Case, with_compile: bool, with_op: bool) -> dict[str, Loss]:
    call, theirs = case.call, rival(case.spec)
    mean = {} if case.spec.reduction == "mean" else {"reduction": "mean"}  # if that is not the default
    function = getattr(functional, case.spec.function)
    ours = _bound(call.ours, functools.partial(function, **mean) if mean else function)
    losses = {"cudaloss": ours, "eager": _bound(call.eager, theirs)}
    if with_op:
        op = getattr(torch.ops.cudaloss, case.spec.name)
        losses["op"] = _bound(call.op or call.ours, functools.partial(op, **mean) if mean else op)
    if call is PLAIN and not case.mode.both:  # not every library has the target's gradient
        losses |= of_libraries(case.spec)
    if with_compile:
        torch._dynamo.reset()  # a new graph for each case, as with static shapes
        losses["compile"] = torch.compile(_bound(call.compiled or call.eager, theirs), dynamic=False)
        if case.mode.compiled:
            losses = {"cudaloss": torch.compile(ours, dynamic=False), "compile": losses["compile"]}
    if call.indexed:
        losses["indexed"] = _bound(call.indexed, theirs)
    if case.dtypes.autocast:
        return {name: _under_autocast(loss, case.device, case.dtypes.autocast) for name, loss in losses.items()}
    return losses


def _work(mode: Mode, loss: Loss, input: Tensor, target: Tensor, *arguments: Tensor) -> Work:
    if not mode.training:
        return lambda: loss(input, target, *arguments)

    def step() -> None:
        for operand in (input, target, *arguments):
            operand.grad = None
        value = loss(input, target, *arguments)
        if mode.factor is not None:
            value = value * mode.factor
        value.backward()

    return step


def works(case: Case, with_compile: bool, with_op: bool = False) -> dict[str, Work]:
    """The same call by cudaloss, by PyTorch and by torch.compile; with the op itself, ``torch.ops.cudaloss``, too."""
    operands = case.operands()
    return {name: _work(case.mode, loss, *operands) for name, loss in _losses(case, with_compile, with_op).items()}


def leave_out_failing(works: dict[str, Work]) -> list[str]:
    """Calls each once, which compiles what must be compiled. Removes rivals that fail, and returns notes about them."""
    notes = []
    for name in list(works):
        try:
            works[name]()
        except Exception as error:  # anything that a compiler, or its absence, raises
            if name not in RIVALS:
                raise
            del works[name]
            reason = str(error).strip().partition("\n")[0]
            notes.append(f"{name} failed, {type(error).__name__}: {reason}")
    return notes
