"""What is compared: a loss in a mode, as cudaloss, eager PyTorch and torch.compile compute it on the same tensors."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import functional
from .._modes import DTYPES
from .._specs import SPECS, LossSpec
from .measure import Work

Row = dict[str, Any]
Loss = Callable[[Tensor, Tensor], Tensor]

RIVALS = ("eager", "compile")
COMPARABLE = {spec.name: spec for spec in SPECS if hasattr(F, spec.function)}

# KernelBench level 1: problem and reference by loss.
KERNELBENCH: dict[str, tuple[int, Loss]] = {
    "mse": (94, lambda predictions, targets: torch.mean((predictions - targets) ** 2)),
    "smooth_l1": (96, F.smooth_l1_loss),
}

# Full-sized tensors beside operands and gradients: as many as autograd holds at once in KernelBench's MSE.
TEMPORARIES = 5


@dataclass(frozen=True)
class Mode:
    """How a loss is called: forward without grad, or forward and backward of a mean."""

    name: str
    training: bool = True
    factor: float | None = None  # of the loss before its backward
    misaligned: bool = False  # the operands are slices of larger tensors
    both: bool = False  # both operands need a gradient, else the input alone
    compiled: bool = False  # cudaloss's function inside torch.compile, compared with torch.compile alone


FORWARD = Mode("forward", training=False)
STEP = Mode("step")
FORWARD_MODES = (FORWARD, Mode("misaligned", training=False, misaligned=True))
TRAINING_MODES = (
    STEP,
    Mode("scaled", factor=0.5),
    Mode("misaligned", misaligned=True),
    Mode("both", both=True),
    Mode("compiled", compiled=True),
)


@dataclass(frozen=True)
class Dtypes:
    """The dtypes of input and target."""

    input: torch.dtype
    target: torch.dtype

    @classmethod
    def parse(cls, text: str) -> Dtypes:
        """Of ``bfloat16``, or of a pair ``bfloat16/float32``."""
        known = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
        names = text.split("/")
        if len(names) > 2 or not all(name in known for name in names):
            raise argparse.ArgumentTypeError(f"a dtype or a pair input/target of {', '.join(known)}, not {text!r}")
        found = cls(known[names[0]], known[names[-1]])
        if found.is_mixed and found.autocast is None:
            raise argparse.ArgumentTypeError(
                f"{text}: PyTorch's losses take a mixed pair under autocast only, to "
                "which one of the two must be float16 or bfloat16"
            )
        return found

    @property
    def is_mixed(self) -> bool:
        return self.input != self.target

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of the autocast under which a mixed pair is called."""
        lower = [dtype for dtype in (self.input, self.target) if dtype in (torch.float16, torch.bfloat16)]
        return lower[0] if self.is_mixed and lower else None

    def __str__(self) -> str:
        names = dict.fromkeys(str(dtype).removeprefix("torch.") for dtype in (self.input, self.target))
        return "/".join(names)


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
    def reference(self) -> Loss:
        """PyTorch's own loss."""
        if self.suite == "kernelbench":
            return KERNELBENCH[self.spec.name][1]
        return getattr(F, self.spec.function)

    @property
    def bytes_an_element(self) -> int:
        """The least that must move: both operands once, and the gradients."""
        input, target = self.dtypes.input.itemsize, self.dtypes.target.itemsize
        gradients = (input + (target if self.mode.both else 0)) if self.mode.training else 0
        return input + target + gradients

    @property
    def bytes(self) -> int:
        return self.size * self.bytes_an_element

    @property
    def bytes_needed(self) -> int:
        """An estimate, on the safe side, of the memory in use at once."""
        widest = max(self.dtypes.input.itemsize, self.dtypes.target.itemsize)
        return self.bytes + TEMPORARIES * widest * self.size

    def row(self) -> Row:
        """What the row says of itself before anything is measured."""
        row: Row = {"suite": self.suite, "loss": self.spec.name, "mode": self.mode.name, "dtype": str(self.dtypes)}
        if self.suite == "kernelbench":
            row |= {"problem": KERNELBENCH[self.spec.name][0], "shape": list(self.shape)}
        return {**row, "size": self.size, "device": self.device}

    def operands(self) -> tuple[Tensor, Tensor]:
        input = self._operand(self.dtypes.input, offset=1).requires_grad_(self.mode.training)
        return input, self._operand(self.dtypes.target, offset=3).requires_grad_(self.mode.both)

    def _operand(self, dtype: torch.dtype, offset: int) -> Tensor:
        if not self.mode.misaligned:
            return torch.rand(self.shape, dtype=dtype, device=self.device)
        # Not a vector's multiple from the start of the allocation, and not the other operand's distance either.
        return torch.rand(self.size + offset, dtype=dtype, device=self.device)[offset:].view(self.shape)


def _under_autocast(loss: Loss, device: str, dtype: torch.dtype) -> Loss:
    def call(input: Tensor, target: Tensor) -> Tensor:
        with torch.autocast(device, dtype=dtype):
            return loss(input, target)

    return call


def _losses(case: Case, with_compile: bool, with_op: bool) -> dict[str, Loss]:
    ours, theirs = getattr(functional, case.spec.function), case.reference
    losses = {"cudaloss": ours, "eager": theirs}
    if with_op:
        losses["op"] = getattr(torch.ops.cudaloss, case.spec.name)
    if with_compile:
        torch._dynamo.reset()  # a graph of its own for each case, as static shapes give
        losses["compile"] = torch.compile(theirs, dynamic=False)
        if case.mode.compiled:
            losses = {"cudaloss": torch.compile(ours, dynamic=False), "compile": losses["compile"]}
    if case.dtypes.autocast:
        return {name: _under_autocast(loss, case.device, case.dtypes.autocast) for name, loss in losses.items()}
    return losses


def _work(mode: Mode, loss: Loss, input: Tensor, target: Tensor) -> Work:
    if not mode.training:
        return lambda: loss(input, target)

    def step() -> None:
        input.grad = target.grad = None
        value = loss(input, target)
        if mode.factor is not None:
            value = value * mode.factor
        value.backward()

    return step


def works(case: Case, with_compile: bool, with_op: bool = False) -> dict[str, Work]:
    """The same call by cudaloss, by PyTorch and by torch.compile; with the op itself, ``torch.ops.cudaloss``, too."""
    operands = case.operands()
    return {name: _work(case.mode, loss, *operands) for name, loss in _losses(case, with_compile, with_op).items()}


def leave_out_failing(works: dict[str, Work]) -> list[str]:
    """Calls each once, which compiles what is to be compiled. A rival that fails leaves; the notes that say so."""
    notes = []
    for name in list(works):
        try:
            works[name]()
        except Exception as error:  # whatever a compiler, or a lack of one, may raise
            if name not in RIVALS:
                raise
            del works[name]
            reason = str(error).strip().partition("\n")[0]
            notes.append(f"{name} failed, {type(error).__name__}: {reason}")
    return notes
