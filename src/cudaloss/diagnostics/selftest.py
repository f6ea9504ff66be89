"""Every loss, forward and backward, on every device, against its definition in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import functional
from .._call.call import Call
from .._losses.options import NONE, Options
from .._losses.table import LossSpec
from .._reference import definition
from ..bench.domains import suited

TOLERANCE = 1e-6  # of the largest element of the exact result: 8 units in the last place of float32
SHAPE = (5, 1003)  # rows that no vector size divides
IMAGE = (5, 17, 59)  # the same number of logits, with classes that are not adjacent


class Case(NamedTuple):
    """A call of a mean, and its definition, with operands in float64."""

    input: Tensor
    target: Tensor
    given: dict[str, Any]
    exact: Callable[[Tensor, Tensor], Tensor]


def _cases(spec: LossSpec) -> list[Case]:
    if not spec.of_rows:
        return _pointwise_calls(spec)
    return _calls_of_vectors(spec) if spec.of_vectors else _calls_of_rows(spec)


def _calls_of_vectors(spec: LossSpec) -> list[Case]:
    """A plain call, and one with a weight and a mask for each row. If a call names the vectors' dimension, the elements
    of a vector are not adjacent."""
    generator = torch.Generator().manual_seed(0)

    def call(shape: tuple[int, ...], options: Options) -> Case:
        draw = torch.rand if spec.reads == "boxes" else torch.randn
        input, target, third = (draw(shape, generator=generator) for _ in range(3))
        input, target = suited(input, spec.inputs), suited(target, spec.targets)
        rows = (shape[0], *shape[2:])
        if not spec.differentiable_third:
            third = torch.randint(2, rows, generator=generator) * 2 - 1 if len(spec.operands) > 2 else None

        def exact(x: Tensor, t: Tensor) -> Tensor:
            return definition.loss(Call.usual(spec, x, t, "mean", torch.float64, options, third))

        own = dict(zip(spec.operands[2:], (third,), strict=False))
        beside = {"weight": options.weight, "mask": options.mask, "batch_dims": options.batch_dims}
        return Case(input, target, {**own, **beside}, exact)

    whole = SHAPE[1] + 1  # divisible by the vector size
    shape, apart = (SHAPE, IMAGE) if spec.given["dim"] is not None else (SHAPE, (SHAPE[0], whole))
    shape, apart = ((whole, 4), (SHAPE[0], 4)) if spec.reads == "boxes" else (shape, apart)
    rows = (apart[0], *apart[2:])
    options = Options(
        weight=torch.rand(rows, generator=generator) + 0.5,
        mask=torch.rand(rows, generator=generator) < 0.75,
        batch_dims=len(rows) - 1,
    )
    return [call(shape, Options()), call(apart, options)]


def _pointwise_calls(spec: LossSpec) -> list[Case]:
    """A plain call, and one with a weight and a mask for each row."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(SHAPE, generator=generator)
    input = target + 2 * torch.randn(SHAPE, generator=generator)
    if spec.inputs != "real":
        input = suited(torch.rand(SHAPE, generator=generator), spec.inputs)
    if spec.targets != "real":
        target = suited(torch.rand(SHAPE, generator=generator), spec.targets)
    weight = torch.rand(SHAPE, generator=generator) + 0.5
    mask = torch.rand(SHAPE, generator=generator) < 0.75

    def call(options: Options) -> Case:
        def exact(x: Tensor, t: Tensor) -> Tensor:
            return definition.loss(Call.usual(spec, x, t, "mean", torch.float64, options))

        return Case(input, target, {**spec.needed, **options._asdict()}, exact)

    return [call(NONE), call(Options(weight=weight, mask=mask, batch_dims=1))]


def _calls_of_rows(spec: LossSpec) -> list[Case]:
    """With indices: a plain call, and one with all arguments. One with probabilities, if the loss takes them."""
    generator = torch.Generator().manual_seed(0)

    def logits(shape: tuple[int, ...]) -> Tensor:
        return 4 * torch.randn(shape, generator=generator)

    def indices(shape: tuple[int, ...]) -> Tensor:
        found = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
        found.view(-1)[1] = -100
        return found

    def call(
        input: Tensor,
        target: Tensor,
        class_weight: Tensor | None = None,
        options: Options = NONE,
        **numbers: float,
    ) -> Case:
        def exact(x: Tensor, t: Tensor) -> Tensor:
            z_loss, smoothing, softcap = (numbers.get(name, 0.0) for name in ("z_loss", "label_smoothing", "softcap"))
            call = Call(spec, x, t, "mean", torch.float64, options, class_weight, z_loss, smoothing)
            return definition.loss(call._replace(softcap=softcap))

        beside = {"sample_weight": options.weight, "mask": options.mask, "batch_dims": options.batch_dims}
        return Case(input, target, {"weight": class_weight, **numbers, **beside}, exact)

    classes, of_rows = IMAGE[1], (IMAGE[0], *IMAGE[2:])
    weights = [torch.rand(shape, generator=generator) + 0.5 for shape in ((classes,), of_rows)]
    options = Options(weight=weights[1], mask=torch.rand(of_rows, generator=generator) < 0.75, batch_dims=1)
    plain = call(logits(SHAPE), indices(SHAPE))
    if spec.takes_indices_alone:
        return [plain, call(logits(IMAGE), indices(IMAGE), weights[0], options=options)]
    numbers = {"label_smoothing": 0.1, "z_loss": 1e-3, "softcap": 20.0}
    return [
        plain,
        call(logits(IMAGE), indices(IMAGE), weights[0], options, **numbers),
        call(logits(SHAPE), logits(SHAPE).softmax(1)),
    ]


def _with_gradients(function: Callable[..., Tensor], input: Tensor, target: Tensor, /, **given: Any) -> list[Tensor]:
    """The value, and the gradients of floating operands."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in (input, target)]
    value = function(*leaves, **given)
    wanted = [x for x in leaves if x.requires_grad]
    return [value.detach(), *torch.autograd.grad(value.sum(), wanted)]


def _found(spec: LossSpec, case: Case, device: str) -> list[Tensor]:
    given = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in case.given.items()}
    function = getattr(functional, spec.function)
    return _with_gradients(function, case.input.to(device), case.target.to(device), reduction="mean", **given)


def _exact(case: Case) -> list[Tensor]:
    return _with_gradients(case.exact, *(x.double() if x.is_floating_point() else x for x in case[:2]))


def _error(found: Tensor, exact: Tensor) -> float:
    largest = exact.abs().max().item()
    return (found.cpu().double() - exact).abs().max().item() / (largest or 1.0)  # a target's gradient can be 0


def usable(device: str) -> str | None:
    """The error of PyTorch's own kernels there; None if they work."""
    try:
        (torch.ones(3, device=device) + 1).sum().item()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def run(spec: LossSpec, device: str) -> dict[str, Any]:
    """Whether the loss and its gradients are correct there, the error, and the exception if one was raised."""
    result: dict[str, Any] = {"loss": spec.name, "device": device, "error": None, "message": None}
    try:
        errors = [
            _error(found, exact)
            for case in _cases(spec)
            for found, exact in zip(_found(spec, case, device), _exact(case), strict=True)
        ]
    except Exception as error:
        return {**result, "passed": False, "message": str(error)}
    if any(error != error for error in errors):
        return {**result, "passed": False, "message": "the result has NaN"}
    largest = max(errors)
    message = None if largest <= TOLERANCE else f"off by {largest:.1e} of the exact result, more than {TOLERANCE:.0e}"
    return {**result, "passed": message is None, "error": largest, "message": message}
