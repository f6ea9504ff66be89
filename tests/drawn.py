"""Drawn calls of a loss: any shapes, layouts, dtypes and keywords, with poison in everything that is left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from calls import Call
from cudaloss._losses.options import Options
from oracle import DTYPES, SECONDS, SUITED, has_domain, largest_logit, of_probabilities

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Sizes at which the kernels change: a block's elements, tiles, a chunk of the CPU engine.
LONG = (1023, 1025, 2048, 4095, 4097, 8192, 8193, 16_385, 32_768, 32_769, 40_007)
# Of float64 operands that a loss multiplies: a double-double has few digits of exp(-600), and none of exp(-745).
# tests/kernels/test_rounding.py goes on from there.
LARGEST_OF_PRODUCTS = 24.0

# ---- shapes ----


@st.composite
def shapes(draw):
    """Small ones, many short segments under batch_dims, few long ones, and now and then many elements."""
    kind = draw(st.sampled_from(("small",) * 12 + ("segments",) * 5 + ("long",)))
    if kind == "small":
        return tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5, 6, 7, 0)), max_size=4)))
    if kind == "segments":
        last, first = draw(st.integers(1, 40)), draw(st.sampled_from((1, 3, 30, 70)))
        return draw(st.sampled_from(((first, last), (first, 2, last), (last, 2, 65), (last, first), (5, 3, 7, last))))
    count = draw(st.sampled_from(LONG))
    return draw(st.sampled_from(((count,), (2, count // 2), (count // 40, 40), (3, count // 24, 8))))


# ---- layouts ----


class Layout(NamedTuple):
    """A tensor's memory layout: dimensions outermost first, with gaps."""

    order: tuple[int, ...]
    pads: tuple[int, ...]
    steps: tuple[int, ...]
    offset: int

    def hold(self, values: Tensor, dtype: torch.dtype, device: str) -> Tensor:
        """`values` in this layout; the gaps have numbers that no kernel may read."""
        sizes = [values.shape[d] * self.steps[d] + self.pads[d] for d in self.order]
        garbage = math.nan if dtype.is_floating_point else 1
        storage = torch.full((self.offset + math.prod(sizes),), garbage, dtype=dtype, device=device)
        view = storage[self.offset :].view(sizes).permute([self.order.index(d) for d in range(values.dim())])
        for d, size in enumerate(values.shape):
            step, pad = self.steps[d], self.pads[d]
            view = view.narrow(d, pad // 2, size * step)[(slice(None),) * d + (slice(None, None, step),)]
        return view.copy_(values)


def contiguous(dims: int) -> Layout:
    return Layout(tuple(range(dims)), (0,) * dims, (1,) * dims, 0)


@st.composite
def orders(draw, dims):
    kind = draw(st.sampled_from(("as it is", "channels last", "transposed", "permuted")))
    natural = list(range(dims))
    if dims < 2 or kind == "as it is":
        return tuple(natural)
    if kind == "channels last":
        return (0, *natural[2:], 1)
    if kind == "transposed":
        return (*natural[:-2], dims - 1, dims - 2)
    return tuple(draw(st.permutations(natural)))


@st.composite
def dense_layouts(draw, dims):
    return contiguous(dims)._replace(order=draw(orders(dims)), offset=draw(st.sampled_from((0, 0, 0, 1, 3))))


@st.composite
def layouts(draw, dims):
    layout = draw(dense_layouts(dims))
    if dims == 0 or draw(st.booleans()):
        return layout
    where = draw(st.integers(0, dims - 1))
    padded, stepped = draw(st.sampled_from(((2, 1), (1, 2), (0, 2), (0, 3), (5, 1))))
    at = lambda value, other: tuple(value if d == where else other for d in range(dims))  # noqa: E731
    return layout._replace(pads=at(padded, 0), steps=at(stepped, 1))


class Extent(NamedTuple):
    """An operand's shape, and that of its memory: 1 where it is expanded with a stride of 0."""

    shape: tuple[int, ...]
    memory: tuple[int, ...]


@st.composite
def extents(draw, whole, ways=("whole",)):
    """Shapes that broadcast to `whole`."""
    way = draw(st.sampled_from(ways))
    if way == "whole" or not whole:
        return Extent(whole, whole)
    if way == "one value":
        return Extent((), ())
    kept = whole[draw(st.integers(0, len(whole) - 1)) :] if way == "dropped" else whole
    ones = draw(st.lists(st.sampled_from((False, True)), min_size=len(kept), max_size=len(kept)))
    narrow = tuple(1 if one and size else size for one, size in zip(ones, kept, strict=True))
    return Extent(kept, narrow) if way == "expanded" else Extent(narrow, narrow)


WHOLE = ("whole",)
ANY_EXTENT = ("whole",) * 5 + ("broadcast", "dropped", "expanded", "one value")
OF_A_KEYWORD = ("whole", "whole", "broadcast", "broadcast", "dropped", "expanded", "one value")

# ---- values ----


@dataclass(frozen=True)
class Values:
    """Where the numbers of one case come from."""

    generator: torch.Generator
    grain: float | None  # all are multiples of it, if it is given
    magnitude: float

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        return self._grained(torch.randn(shape, generator=self.generator, dtype=torch.float64) * self.magnitude)

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        return torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def chance(self, shape: tuple[int, ...], probability: float) -> Tensor:
        return self.uniform(shape) < probability

    def of_dtype(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """In float64, but numbers that an integer or a bool `dtype` holds."""
        if dtype.is_floating_point:
            return self.normal(shape)
        if dtype == torch.bool:
            return self.chance(shape, 0.5).double()
        info = torch.iinfo(dtype)
        return (self.normal(shape) * 30).round().clamp(max(info.min, -(2**15)), min(info.max, 2**15))

    def within(self, domain: str, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Numbers in a loss's domain instead of any; for an integer dtype those that it can represent."""
        if not dtype.is_floating_point:
            return (
                {"in (0, 1]": x.sign().abs(), "log probabilities": torch.zeros_like(x)}.get(domain, x.abs())
                .to(dtype)
                .double()
            )
        found = self._grained(SUITED[domain](x.clamp(-20, 20)))
        return found.clamp(1 / 64, 63 / 64) if domain.startswith("in (0") else found  # not rounded to their ends

    def of(self, numbers: tuple[float, ...], shape: tuple[int, ...]) -> Tensor:
        chosen = torch.randint(len(numbers), shape, generator=self.generator)
        return torch.tensor(numbers, dtype=torch.float64)[chosen]

    def probabilities(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Hard and soft targets."""
        hard = self.chance(shape, 0.5).double()
        soft = self._grained(self.uniform(shape))
        return torch.where(self.chance(shape, 0.5), soft, hard) if dtype.is_floating_point else hard

    def weights(self, shape: tuple[int, ...], kind: str) -> Tensor:
        found = self.uniform(shape) * 4
        found = found + 0.05 if self.grain is None else (found * 16).ceil() / 16
        if kind == "some 0":
            found[self.chance(shape, 0.3)] = 0
        if kind == "some negative":
            found[self.chance(shape, 0.3)] *= -0.125
        return found

    def _grained(self, x: Tensor) -> Tensor:
        return x if self.grain is None else (x / self.grain).round() * self.grain


def poison(x: Tensor, where: Tensor, generator: torch.Generator) -> None:
    """Writes NaN and both Inf, or an integer's extremes, to x at the given places."""
    if x.dtype.is_floating_point:
        bad = [math.nan, math.inf, -math.inf]
    elif x.dtype == torch.bool:
        return
    else:
        bad = [torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max]
    chosen = torch.tensor(bad, dtype=x.dtype)[torch.randint(len(bad), x.shape, generator=generator)]
    x[where] = chosen[where]


def unused(used: Tensor, memory: tuple[int, ...]) -> Tensor:
    """The elements of an operand that are left out everywhere in the broadcast shape."""
    return used.to(torch.int32).sum_to_size(memory) == 0


# ---- calls ----


def parameters_of(spec) -> tuple[float, ...]:
    """Numbers that every dtype holds, and by which float64's terms stay exact."""
    if spec.parameter is None:
        return (spec.default,)
    return (0.5, 0.25, 0.75) if spec.parameter.largest <= 1 else (1.0, 0.5, 2.0)


INCOMING = ("1", "1", "0.25", "-8", "random", "random", "random transposed")


@st.composite
def calls(draw, spec, device, *, keywords, dense):
    """`dense`: input and target lie in memory alike, without gaps, and keywords are whole or broadcast."""
    whole = draw(shapes())
    ways = WHOLE if dense else ANY_EXTENT
    extent = {name: draw(extents(whole, ways)) for name in ("input", "target")}
    shape = torch.broadcast_shapes(*(found.shape for found in extent.values()))
    integers = draw(st.integers(0, 3)) == 0
    dtypes = {
        "input": draw(st.sampled_from(DTYPES)),
        "target": draw(st.sampled_from((*INTEGERS, torch.bool) if integers else DTYPES)),
    }
    same_dtype = draw(st.booleans()) and not integers
    if same_dtype:
        dtypes["target"] = dtypes["input"]
    names = {"weight", "mask", "normalizer", "scale", "batch_dims", "ignore_nan"} if keywords else set()
    given = {name for name in sorted(names) if draw(st.booleans())}
    reduction = draw(st.sampled_from(("mean", "mean", "sum", "none")))
    result = draw(st.sampled_from((None, None, None, *DTYPES)))
    if "weight" in given:
        extent["weight"] = draw(extents(tuple(shape), OF_A_KEYWORD))
        dtypes["weight"] = draw(st.sampled_from(DTYPES))
    if "mask" in given:
        extent["mask"] = draw(extents(tuple(shape), OF_A_KEYWORD))
    if spec.parameter and keywords and draw(st.integers(0, 3)) == 0:
        extent["third"] = draw(extents(tuple(shape), OF_A_KEYWORD))
        dtypes["third"] = draw(st.sampled_from(DTYPES))

    # There is no wider arithmetic to judge float64: its terms are made exact, so that only later operations count.
    double = torch.float64 in (*dtypes.values(), result)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32 - 1)))
    values = Values(
        generator,
        1 / 64 if double else draw(st.sampled_from((None, None, 1 / 8))),
        draw(st.sampled_from([1.0, 30.0] if double else [1.0, 1e-3, 30.0])),
    )
    memory = {name: extent[name].memory for name in extent}
    of_target = values.probabilities if of_probabilities(spec) else values.of_dtype
    target = of_target(memory["target"], dtypes["target"])
    input = values.of_dtype(memory["input"], dtypes["input"])
    if spec.inputs == "logits":
        most = largest_logit(device, dtypes["input"])
        input = input.clamp(-most, most)
    if double and spec.targets == "1 or -1":
        input, target = (x.clamp(-LARGEST_OF_PRODUCTS, LARGEST_OF_PRODUCTS) for x in (input, target))
    if has_domain(spec):
        input = values.within(spec.inputs, input, dtypes["input"])
        target = target if of_probabilities(spec) else values.within(spec.targets, target, dtypes["target"])
    ignore_nan = "ignore_nan" in given
    if dtypes["target"].is_floating_point and draw(st.integers(0, 9)) < (8 if ignore_nan else 1):
        target[values.chance(target.shape, 0.3)] = math.nan
    found = {"input": input, "target": target.to(dtypes["target"])}
    if "weight" in given:
        kinds = ["positive", "positive", "some 0", "some negative"]
        found["weight"] = values.weights(memory["weight"], draw(st.sampled_from(kinds)))
    numbers = parameters_of(spec)
    if "third" in extent:
        found["third"] = values.of(numbers, memory["third"])
    seen = torch.ones(shape, dtype=torch.bool)
    if "mask" in given:
        found["mask"] = values.chance(memory["mask"], draw(st.sampled_from((0.0, 0.1, 0.5, 0.5, 0.9, 1.0))))
        seen = seen & found["mask"]
    used = seen & ~found["target"].expand(extent["target"].shape).isnan() if ignore_nan else seen
    for name, by in (("input", used), ("target", seen), ("weight", used), ("third", used)):
        if name in found:
            poison(found[name], unused(by, memory[name]), generator)

    held, layout = {}, None
    for name, tensor in found.items():
        dims = tensor.dim()
        if layout is None or name == "mask" or not (dense or draw(st.booleans())) or len(layout.order) != dims:
            layout = draw(dense_layouts(dims) if dense else layouts(dims))
        dtype = torch.bool if name == "mask" else dtypes[name]
        held[name] = layout.hold(tensor, dtype, device).expand(extent[name].shape)
    for name in draw(st.sampled_from((("input",), ("input", "target"), ("input", "target"), ("target",), ()))):
        held[name].requires_grad_(dtypes[name].is_floating_point)

    rows = torch.Size(shape)[:-1]
    if "third" in held and spec.parameter.may_lack_last and shape and held["third"].shape == rows:
        held["third"] = held["third"].unsqueeze(0)  # else it would be one number for each row
    normalizer = None
    if "normalizer" in given and reduction == "mean":
        dtype = draw(st.sampled_from((torch.float32, torch.float64, torch.int64)))
        normalizer = torch.tensor(draw(st.sampled_from((1, 3, 7.7, 1000))), dtype=dtype, device=device)
    options = Options(
        held.get("weight"),
        held.get("mask"),
        normalizer,
        draw(st.sampled_from((0.5, 3.0, 0.3))) if "scale" in given else 1.0,
        draw(st.integers(0, len(shape))) if "batch_dims" in given else 0,
        ignore_nan,
    )
    parameter = held.get("third", draw(st.sampled_from(numbers)))
    incoming = draw(st.sampled_from(INCOMING))
    seconds = SECONDS[spec.second.interval] if spec.second and keywords else (None,)
    second = draw(st.sampled_from(seconds))
    return Call(spec, held["input"], held["target"], reduction, parameter, options, result, incoming, second)
