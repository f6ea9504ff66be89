"""A call of a loss with its keywords, and how it is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from torch import Tensor

from cudaloss._call.call import Call as Checked
from cudaloss._losses.options import NONE, Options
from cudaloss._losses.table import LossSpec
from cudaloss._reference import definition
from exact import Exact
from oracle import EXACT_COUNT, HALVES, OF_HALVES, bar, error, op

# The plain-PyTorch reference's error is an excuse only as far as it is rounding. For float32 up to 15 ulp were seen (a
# weight of stride 0 summed); one element too many in a count of 40,007 makes 210.
LARGEST_EXCUSE = 64.0


def assert_within(
    spec: LossSpec,
    found: Tensor,
    exact: Tensor,
    size: Tensor,
    theirs: Callable[[], Tensor],
    of_halves: bool = False,
) -> None:
    """At most the loss's bound, or the error of the plain-PyTorch reference; 2 ulp of float64, which nothing wider is
    rounded to. `of_halves`: a float32 sum of many halves on a GPU."""
    allowed = bar(spec, found.dtype, 2.0 if found.dtype == torch.float64 else 1.0, factored=True)
    if of_halves and spec.ulps > 1:
        allowed = OF_HALVES
    worst = error(found, exact, found.dtype, size)
    if not worst <= allowed:
        allowed = max(allowed, min(error(theirs(), exact, found.dtype, size), LARGEST_EXCUSE))
    assert worst <= allowed, f"{worst:.2f} ulp, {allowed:.2f} are allowed"


def selecting(shape: Sequence[int], device: str, batch_dims: int = 0) -> Options:
    """Weights and a mask that leaves out two elements of five."""
    mask = torch.rand(shape, device=device) < 0.6
    return Options(torch.rand(shape, device=device) + 0.1, mask, batch_dims=batch_dims)


def with_and_without(shape: Sequence[int], device: str) -> tuple[Options, Options]:
    return NONE, selecting(shape, device, min(1, len(shape)))


@dataclass
class Call:
    """The arguments of a loss, and the grad_output of its backward."""

    spec: LossSpec
    input: Tensor
    target: Tensor
    reduction: str = "mean"
    parameter: float | Tensor | None = None
    options: Options = NONE
    dtype: torch.dtype | None = None
    incoming: str = "random"  # or a number
    second: float | None = None

    def __post_init__(self) -> None:
        if self.parameter is None:
            self.parameter = self.spec.default
        if self.second is None:
            self.second = self.spec.second_default

    @cached_property
    def exact(self) -> Exact:
        numbers = self.reduction, self.parameter, self.options, self.second
        return Exact(self.spec, self.input, self.target, *numbers, self.result_dtype == torch.float64)

    def grad_output(self, value: Tensor) -> Tensor:
        kind, *rest = self.incoming.split()
        if kind == "random":
            found = torch.randn(value.shape, generator=torch.Generator().manual_seed(7)).to(value)
            return found.mT.contiguous().mT if rest and value.dim() > 1 else found
        return torch.full((), float(kind), dtype=value.dtype, device=value.device).expand(value.shape)

    @property
    def result_dtype(self) -> torch.dtype:
        return definition.result_dtype(self.input, self.target, self.dtype, autocast=False)

    def keywords(self) -> dict[str, object]:
        given = {name: value for name, value in self.options._asdict().items() if value is not None}
        own = {self.spec.second.name: self.second} if self.spec.second else {}
        return {**given, **own, "dtype": self.dtype}

    def value_error(self) -> float:
        """In ulp of the value's dtype."""
        value = op(self.spec)(self.input, self.target, self.reduction, self.parameter, **self.keywords())
        return error(value, self.exact.value, value.dtype, self.exact.size)

    def least_size(self, dtype: torch.dtype) -> float:
        """For a mean: below it a term times its weight is subnormal, and its lost digits show when weights divide
        it."""
        weight = self.options.weight
        if weight is None or self.reduction != "mean":
            return 0.0
        sizes = weight.detach().double().abs()
        sizes = sizes[(sizes > 0) & (sizes < 1)]  # NaN, which a mask may hide, is neither
        return torch.finfo(dtype).tiny / sizes.min().item() if sizes.numel() else 0.0

    def assert_right(self) -> None:
        """The value and the gradients of the operands that require them."""
        arguments = self.input, self.target, self.reduction, self.parameter
        value = op(self.spec)(*arguments, **self.keywords())
        assert (value.shape, value.device) == (self.exact.value.shape, self.input.device)
        assert value.dtype == self.result_dtype
        size = self.exact.size.clamp(min=self.least_size(value.dtype))
        is_sum = self.reduction != "none" and value.dtype == torch.float32
        is_sum_of_halves = is_sum and all(x.is_cuda and x.dtype in HALVES for x in (self.input, self.target))
        of_halves = is_sum_of_halves and self.exact.shape.numel() > EXACT_COUNT
        assert_within(self.spec, value, self.exact.value, size, lambda: self.plain(*arguments), of_halves)
        operands = [x for x in (self.input, self.target) if x.requires_grad]
        if operands:
            grad_output = self.grad_output(value)
            self.assert_gradients(torch.autograd.grad(value, operands, grad_output), grad_output)

    def assert_gradients(self, found: Sequence[Tensor], grad_output: Tensor) -> None:
        """`found`: the gradients of the operands that require gradients."""
        both = self.input, self.target
        needed = [i for i, x in enumerate(both) if x.requires_grad]

        @cache
        def theirs() -> list[Tensor]:
            leaves = [x.detach().requires_grad_(i in needed) for i, x in enumerate(both)]
            value = self.plain(*leaves, self.reduction, self.parameter)
            return torch.autograd.grad(value, [leaves[i] for i in needed], grad_output)

        for turn, (operand, gradient) in enumerate(zip(needed, found, strict=True)):
            assert (gradient.shape, gradient.dtype) == (both[operand].shape, both[operand].dtype)
            exact, size = self.exact.gradient(operand, grad_output)
            assert_within(self.spec, gradient, exact, size, lambda turn=turn: theirs()[turn])

    def plain(self, *arguments: object) -> Tensor:
        return definition.loss(Checked.of(self.spec, *arguments, self.result_dtype, self.options, self.second))

    def _repr_pretty_(self, printer, cycle) -> None:  # what Hypothesis prints of a failure
        def show(value: object) -> str:
            if not isinstance(value, Tensor):
                return repr(value)
            return f"{value.dtype}{tuple(value.shape)} stride {value.stride()} grad {value.requires_grad}"

        fields = {name: getattr(self, name) for name in ("input", "target", "reduction", "parameter", "second")}
        fields |= {**self.options._asdict(), "dtype": self.dtype, "incoming": self.incoming}
        printer.text(f"{self.spec.name}(" + ",\n  ".join(f"{name}={show(x)}" for name, x in fields.items()) + ")")
