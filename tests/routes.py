"""The routes by which a loss is computed, and numbers at the edges of its domain, where the routes must agree."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import cudaloss
from capturing import exported
from cudaloss._losses.table import OF_ROWS, VARIANTS, LossSpec

inf, nan = math.inf, math.nan
TINY = 1e-40  # below float32's normal numbers

_REAL = [0.0, *(sign * x for x in (TINY, 1e-3, 0.5, 1.0, 50.0, 95.0, 104.0, 200.0, 1e30, inf) for sign in (1, -1)), nan]
# The numbers of each domain, with its ends and what lies outside of them.
EDGES: dict[str, list[float]] = {
    "real": _REAL,
    "logits": _REAL,
    "logarithms": [x for x in _REAL if x != 1e30],
    "in (0, 1)": [0.0, 1.0, TINY, 1e-12, 1e-3, 0.5, 1 - 2**-24, nan],
    "in (0, 1]": [0.0, 1.0, TINY, 1e-12, 0.5, nan],
    "in [0, 1]": [0.0, 1.0, TINY, 0.25, 0.5, nan],
    "log probabilities": [0.0, -TINY, -1e-3, -0.5, -50.0, -104.0, -200.0, -1e30, -inf, nan],
    "1 or -1": [1.0, -1.0],
    "> 0": [0.0, TINY, 1e-3, 1.0, 2.5, 1e30, inf, nan],
    ">= 0": [0.0, TINY, 0.5, 1.0, 2.0, 1e30, nan],
}


@dataclass(frozen=True)
class Case:
    """A loss with its numbers: what a call of one element, or row, takes; the operands of all in a batch."""

    name: str
    spec: LossSpec
    operands: dict[str, Tensor]  # by their names in the function; the first dimension is the batch
    numbers: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Tensor] = field(default_factory=dict)  # a weight or a mask of the batch
    rank: int = 0  # of one operand

    @property
    def differentiable(self) -> list[str]:
        return [name for name, x in self.operands.items() if x.is_floating_point()]

    def on(self, device: str) -> Case:
        def moved(tensors: dict[str, Any]) -> dict[str, Any]:
            return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in tensors.items()}

        return replace(self, operands=moved(self.operands), numbers=moved(self.numbers), options=moved(self.options))


def _grid(*axes: list[float]) -> Iterator[Tensor]:
    return iter(torch.tensor(list(itertools.product(*axes)), dtype=torch.float32).unbind(1))


def _third(spec: LossSpec) -> dict[str, list[float]]:
    third = spec.parameter
    if third is None:
        return {}
    return {third.name: OF_CALL[third.name] if third.of_call else [0.25, 0.75]}


OF_CALL = {"var": [0.0, TINY, 0.5, 1e30, inf], "target": [1.0, -1.0, 0.5]}
SECONDS = {
    "gamma": (0.0, 0.25, 1.0, 2.0, 3.5),
    "power": (1.0, 2.0),
    "label_smoothing": (0.0, 0.125),
    "eps": (0.0, 2**-10),
    "margin": (0.0, 0.5),
}


def elements() -> Iterator[Case]:
    """Cases of all losses of elements; a new loss has them by its row."""
    for spec in VARIANTS:
        if spec.of_rows:
            continue
        seconds = SECONDS[spec.second.name] if spec.second else (None,)
        flags = [name for name, value in spec.flag_values.items() if value]
        for second in seconds:
            numbers: dict[str, Any] = dict(spec.flag_values)
            if spec.second:
                numbers[spec.second.name] = second
            label = "-".join([spec.name, *flags, *([] if second is None else [f"{second:g}"])])
            edges = dict(zip(spec.operands, (EDGES[spec.inputs], EDGES[spec.targets]), strict=True))
            if spec.second and spec.second.name == "margin" and second:
                # At the margin the slope jumps. Beside 0.5 float64 takes TINY for 0, and a GPU's kernel, whose numbers
                # have a rest, for what it is: each is right to its last digit.
                edges = {name: [x for x in axis if abs(x) != TINY] for name, axis in edges.items()}
            third = _third(spec)
            if not (spec.parameter and spec.parameter.of_call):
                yield Case(label, spec, dict(zip(edges, _grid(*edges.values()), strict=True)), numbers)
            if third:
                edges |= third
                operands = dict(zip(edges, _grid(*edges.values()), strict=True))
                yield Case(f"{label}-tensor", spec, operands, numbers)


_LOGITS = [0.0, 1.0, -104.0, 200.0, 1e30, -inf, inf, nan]
_VECTORS = [0.0, 1.0, -2.0, 1e-22, 1e22, nan]


def _rows(numbers: list[float], size: int) -> Tensor:
    return torch.tensor(list(itertools.product(numbers, repeat=size)), dtype=torch.float32)


def _pairs(numbers: list[float]) -> tuple[Tensor, Tensor]:
    """All vectors of two beside each other."""
    each = _rows(numbers, 2)
    return each.repeat_interleave(len(each), 0), each.repeat(len(each), 1)


def rows() -> Iterator[Case]:
    """Cases of all losses of rows: a row of three classes for each combination of logits, or of two numbers."""
    by_name = {spec.name: spec for spec in OF_ROWS}
    logits = _rows(_LOGITS, 3)
    count = len(logits)
    index = torch.tensor([0, 1, 2, -100]).repeat(count)[:count]
    shares = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.25, 0.5], [0.0, 0.5, 0.5]]).repeat(count, 1)[:count]
    weight = torch.tensor([0.5, 0.0, 2.0])
    cross_entropy = by_name["cross_entropy"]
    for label, target in (("index", index), ("probabilities", shares)):
        operands = {"input": logits, "target": target}
        for name, numbers in {
            "": {},
            "-weight": {"weight": weight},
            "-smoothing": {"label_smoothing": 0.125},
            "-z_loss": {"z_loss": 0.01},
            "-softcap": {"softcap": 30.0},
        }.items():
            yield Case(f"cross_entropy-{label}{name}", cross_entropy, operands, numbers, rank=1)
    yield Case("nll", by_name["nll"], {"input": logits, "target": index}, rank=1)
    yield Case("nll-weight", by_name["nll"], {"input": logits, "target": index}, {"weight": weight}, rank=1)
    x, t = _pairs(_LOGITS)
    for temperature in (1.0, 2.0):
        yield _of_vectors("kl_div_with_logits", x, t, temperature=temperature)
    for beta in (0.0, 0.25, 1.0):
        yield _of_vectors("jsd_with_logits", x, t, beta=beta)
    x, t = _pairs(_VECTORS)
    yield _of_vectors("cosine_similarity", x, t, dim=-1)
    yield _of_vectors("cosine_embedding", x, t, torch.tensor([1, -1, -1]).repeat(len(x))[: len(x)], margin=0.25)
    for swap in (False, True):
        yield _of_vectors("triplet_margin", x, t, x.flip(0), swap=swap)
    corners = _rows([0.0, 1.0, 3.0, inf, nan], 4)
    x = torch.cat((corners[(corners[:, :2] <= corners[:, 2:]).all(1)], corners[-1:]))
    x, t = x.repeat_interleave(len(x), 0), x.repeat(len(x), 1)
    for name in ("generalized", "distance", "complete"):
        yield _of_vectors(f"{name}_box_iou", x, t)


def _of_vectors(name: str, *operands: Tensor, **numbers: Any) -> Case:
    spec = next(spec for spec in OF_ROWS if spec.name == name)
    label = "-".join([name, *(f"{key}={value}" for key, value in numbers.items())])
    return Case(label, spec, dict(zip(spec.operands, operands, strict=True)), numbers, rank=1)


def with_option(case: Case, option: str) -> Case:
    """The case as it is ("plain"), "weighted" or "masked"."""
    count = len(next(iter(case.operands.values())))
    name = "sample_weight" if case.spec.reads in ("classes", "index") else "weight"
    options = {
        "plain": {},
        "weighted": {name: torch.tensor([0.5, 2.0, 1.5]).repeat(count)[:count]},
        "masked": {"mask": torch.tensor([True, False]).repeat(count)[:count]},
    }
    return replace(case, name=f"{case.name}-{option}", options=options[option])


Results = dict[str, Tensor]  # "value", and the gradients by operand


def function(case: Case, via: str = "function", **more: Any) -> Callable[..., Tensor]:
    """The loss as a function of its operands and options, in the order of the case."""
    public = getattr(cudaloss, case.spec.function) if via == "function" else getattr(torch.ops.cudaloss, case.spec.name)
    third = case.spec.parameter
    names = [*case.operands, *case.options]
    if via == "op" and third and third.default is not None:
        names = [f"{name}_tensor" if name == third.name else name for name in names]

    def call(*tensors: Tensor, reduction: str) -> Tensor:
        return public(**dict(zip(names, tensors, strict=True)), reduction=reduction, **case.numbers, **more)

    return call


def _tensors(case: Case) -> list[Tensor]:
    return [*case.operands.values(), *case.options.values()]


def _places(case: Case) -> tuple[int, ...]:
    names = list(case.operands)
    return tuple(names.index(name) for name in case.differentiable)


def _results(case: Case, value: Tensor, gradients: Any) -> Results:
    return {"value": value.detach(), **dict(zip(case.differentiable, gradients, strict=True))}


def _leaves(case: Case) -> tuple[list[Tensor], list[Tensor]]:
    tensors, places = _tensors(case), _places(case)
    tensors = [x.clone().requires_grad_() if i in places else x for i, x in enumerate(tensors)]
    return tensors, [tensors[i] for i in places]


def _by_autograd(case: Case, call: Callable[..., Tensor], create_graph: bool = False, single: bool = True) -> Results:
    tensors, leaves = _leaves(case)
    value = call(*tensors)
    found = torch.autograd.grad(value.sum(), leaves, create_graph=create_graph)
    found = [x.detach() for x in found]
    with torch.no_grad():
        value = value if single else function(case)(*tensors, reduction="none")
    return _results(case, value, found)


def fused(case: Case, via: str = "function", reduction: str = "sum") -> Results:
    return _by_autograd(case, partial(function(case, via), reduction=reduction), single=reduction == "none")


def reference(case: Case) -> Results:
    """The kernels do not serve a weight that requires a gradient."""
    tensors, leaves = _leaves(case)
    call = function(case)
    name = "sample_weight" if case.spec.reads in ("classes", "index") else "weight"
    if name in case.options:
        place = [*case.operands, *case.options].index(name)
        tensors[place] = tensors[place].clone().requires_grad_()
        value = call(*tensors, reduction="none")
    else:
        value = function(case, **{name: torch.ones((), device=tensors[0].device, requires_grad=True)})(
            *tensors, reduction="none"
        )
    return _results(case, value, torch.autograd.grad(value.sum(), leaves))


def _by_transform(case: Case, transform: Callable[..., Any], via: str) -> Results:
    call, places = partial(function(case, via), reduction="sum"), _places(case)
    value = vmap(call)(*_tensors(case))
    return _results(case, value, transform(call, places)(*_tensors(case)))


def _grad_of_sum(case: Case) -> Any:
    return grad(partial(function(case), reduction="sum"), _places(case))(*_tensors(case))


def _compiled(case: Case, reduction: str, backend: str = "aot_eager") -> Results:
    torch._dynamo.reset()
    more = {"normalizer": 1.0} if reduction == "mean" else {}
    call = torch.compile(partial(function(case, **more), reduction=reduction), backend=backend, fullgraph=True)
    return _by_autograd(case, call, single=reduction == "none")


def _forward_ad(case: Case) -> Results:
    found, call = [], function(case)
    for place in _places(case):
        with forward_ad.dual_level():
            tensors = _tensors(case)
            tensors[place] = forward_ad.make_dual(tensors[place], torch.ones_like(tensors[place]))
            value, tangent = forward_ad.unpack_dual(call(*tensors, reduction="none"))
            found.append(torch.zeros_like(value) if tangent is None else tangent)
    return _results(case, value, found)


def _captured(case: Case, capture: Callable[..., Any], reduction: str) -> Results:
    call = partial(function(case), reduction=reduction)
    graph = capture(lambda *tensors: call(*tensors), tuple(_tensors(case)))
    return _by_autograd(case, graph, single=reduction == "none")


FIRST: dict[str, Callable[[Case], Results]] = {
    "fused none": partial(fused, reduction="none"),
    "op": partial(fused, via="op"),
    "reference": reference,
    "create_graph": lambda case: _by_autograd(case, partial(function(case), reduction="none"), create_graph=True),
    "grad": lambda case: _results(
        case, fused(case)["value"], grad(partial(function(case), reduction="sum"), _places(case))(*_tensors(case))
    ),
    "compiled none": partial(_compiled, reduction="none"),
    "compiled sum": partial(_compiled, reduction="sum"),
    "compiled mean": partial(_compiled, reduction="mean"),
    "make_fx": partial(_captured, capture=lambda f, tensors: make_fx(f)(*tensors), reduction="none"),
    "make_fx sum": partial(_captured, capture=lambda f, tensors: make_fx(f)(*tensors), reduction="sum"),
    "export, decomposed": partial(
        _captured,
        capture=lambda f, tensors: exported(f, tensors).run_decompositions().module(),
        reduction="none",
    ),
    "export": partial(_captured, capture=lambda f, tensors: exported(f, tensors).module(), reduction="none"),
}
for _via in ("function", "op"):
    for _name, _transform in {
        "vmap(grad)": lambda call, places: vmap(grad(call, places)),
        "vmap(jacrev)": lambda call, places: vmap(jacrev(call, places)),
        # For one operand at a time: a tangent of 0 of another one, times an infinite slope, is NaN.
        "vmap(jacfwd)": lambda call, places: lambda *x: [vmap(jacfwd(call, place))(*x) for place in places],
        "vmap(vmap(grad))": lambda call, places: (
            lambda *x: [y.flatten(0, 1) for y in vmap(vmap(grad(call, places)))(*(z.unflatten(0, (1, -1)) for z in x))]
        ),
    }.items():
        FIRST[f"{_name} of the {_via}"] = partial(_by_transform, transform=_transform, via=_via)
# Of elements alone: a tangent of ones adds up the classes of a row.
FIRST_OF_ELEMENTS = {**FIRST, "forward AD": _forward_ad}


# ---- second derivatives in the input ----


def _twice(case: Case) -> Tensor:
    tensors, leaves = _leaves(case)
    (slope,) = torch.autograd.grad(function(case)(*tensors, reduction="sum"), leaves[:1], create_graph=True)
    return torch.autograd.grad(slope.sum(), leaves[:1], allow_unused=True)[0] if slope.requires_grad else slope * 0


SECOND: dict[str, Callable[[Case], Tensor]] = {
    "create_graph twice": _twice,
    "hessian": lambda case: vmap(hessian(partial(function(case), reduction="sum")))(*_tensors(case)),
    "hessian of the op": lambda case: vmap(hessian(partial(function(case, "op"), reduction="sum")))(*_tensors(case)),
    "jacrev(jacrev)": lambda case: vmap(jacrev(jacrev(partial(function(case), reduction="sum"))))(*_tensors(case)),
    "grad(grad)": lambda case: vmap(grad(grad(partial(function(case), reduction="sum"))))(*_tensors(case)),
}
