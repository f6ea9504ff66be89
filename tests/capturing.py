"""Every way in which PyTorch captures a call as a graph; and calls of a loss of each kind, with all their options."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ProfilerActivity, profile

import cudaloss
from cudaloss._call.modes import REDUCTIONS
from exact_boxes import drawn as drawn_boxes


class Module(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *tensors):
        return self.call(*tensors)


def traced_without_grad(call, tensors):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(call, tensors)


def traced_with_grad(call, tensors):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(call, (tensors[0].clone().requires_grad_(), *tensors[1:]))


def exported(call, tensors):
    return torch.export.export(Module(call), tensors)


def compiled(call, tensors):
    torch._dynamo.reset()
    return torch.compile(call, backend="aot_eager", fullgraph=True)


CAPTURES = {
    "jit.trace under no_grad": traced_without_grad,
    "jit.trace": traced_with_grad,
    "make_fx, real": lambda call, tensors: make_fx(call, tracing_mode="real")(*tensors),
    "make_fx, fake": lambda call, tensors: make_fx(call, tracing_mode="fake")(*tensors),
    "make_fx, symbolic": lambda call, tensors: make_fx(call, tracing_mode="symbolic")(*tensors),
    "make_fx, pre-dispatch": lambda call, tensors: make_fx(call, pre_dispatch=True)(*tensors),
    "export": lambda call, tensors: exported(call, tensors).module(),
    "export, decomposed": lambda call, tensors: exported(call, tensors).run_decompositions().module(),
    "compiled make_fx": lambda call, tensors: compiled(make_fx(call)(*tensors), tensors),
    "compile": compiled,
}


# ---- sample calls ----

SHAPE = (4, 6)


def _elements(device):
    return {name: 2 * torch.randn(SHAPE, device=device) for name in ("input", "target")}  # none at a kink


def _probable(device):
    input, target = _elements(device).values()
    return {"input": input, "target": target.sigmoid()}


def _rows(device, **more):
    index = torch.tensor([0, 3, -100, 5], device=device)
    return {"input": torch.randn(SHAPE, device=device), "target": index, **more}


def _vectors(device, *names):
    return {name: torch.randn(SHAPE, device=device) for name in names}


def _positive(device, *shape):
    return torch.rand(shape, device=device) + 0.5


def _boxes(device):
    return dict(zip(("boxes1", "boxes2"), drawn_boxes((4,), device=device), strict=True))


# A loss of each kind, and the tensors that each call of it has.
SAMPLES: dict[str, tuple[Callable[..., Tensor], Callable[[str], dict[str, Tensor]]]] = {
    "difference": (cudaloss.smooth_l1_loss, _elements),
    "difference, general": (cudaloss.log_cosh_loss, _elements),
    "difference and third": (cudaloss.smooth_l1_loss, lambda on: {**_elements(on), "beta": _positive(on, 6)}),
    "two operands": (cudaloss.binary_cross_entropy_with_logits, _probable),
    "two operands, general": (cudaloss.soft_margin_loss, _elements),
    "two operands and third": (
        partial(cudaloss.binary_cross_entropy_with_logits, label_smoothing=0.2),
        lambda on: {**_probable(on), "pos_weight": _positive(on)},
    ),
    "third of each call": (cudaloss.gaussian_nll_loss, lambda on: {**_elements(on), "var": _positive(on, *SHAPE)}),
    "flags": (
        partial(cudaloss.kl_div, log_target=True),
        lambda on: {name: x.log_softmax(1) for name, x in _elements(on).items()},
    ),
    "classes": (cudaloss.cross_entropy, _rows),
    "probabilities": (cudaloss.cross_entropy, lambda on: {**_rows(on), "target": _elements(on)["target"].softmax(1)}),
    "index": (cudaloss.nll_loss, _rows),
    "vectors": (cudaloss.cosine_similarity_loss, lambda on: _vectors(on, "input", "target")),
    "vectors and labels": (
        cudaloss.cosine_embedding_loss,
        lambda on: {**_vectors(on, "input1", "input2"), "target": torch.tensor([1, -1, -1, 1], device=on)},
    ),
    "three vectors": (
        partial(cudaloss.triplet_margin_loss, swap=True),
        lambda on: _vectors(on, "anchor", "positive", "negative"),
    ),
    "distributions": (partial(cudaloss.jsd_with_logits, temperature=2.0), lambda on: _vectors(on, "input", "target")),
    "boxes": (cudaloss.complete_box_iou_loss, _boxes),
}
OF_ROWS = list(SAMPLES)[list(SAMPLES).index("classes") :]


def options(kind: str, device: str = "cpu") -> dict[str, dict[str, Any]]:
    """What a call may say, by name."""
    of_rows = kind in OF_ROWS
    shape = SHAPE[:1] if of_rows else SHAPE
    mask = torch.tensor([True, False, True, True], device=device)
    weight = torch.linspace(0.5, 1.5, 6, device=device)  # of the classes, or a row of elements
    normalizer = {"normalizer": torch.tensor(3.0, device=device), "scale": 0.5}
    beside = {"mask": mask if of_rows else mask[:, None].expand(shape).clone().fill_diagonal_(True)}
    named = "sample_weight" if kind in ("classes", "probabilities", "index") else "weight"
    beside[named] = torch.linspace(0.5, 1.5, 4, device=device) if of_rows else weight
    found = {
        "plain": {},
        "none": {"reduction": "none"},
        "mask": {"mask": beside["mask"]},
        "weight": {named: beside[named]},
        "per sample": {"batch_dims": 1, **({"reduction": "sum"} if of_rows else {})},  # an ignored row has no mean
        "normalizer": normalizer,
        "number": {"normalizer": 7},
        "mask and weight": beside,
    }
    found["all per sample"] = {**beside, **found["per sample"], "scale": 0.5}
    own: dict[str, Any] = {"weight": weight} if kind in ("classes", "probabilities", "index") else {}
    if kind in ("classes", "probabilities"):
        found |= {"smoothing": {"label_smoothing": 0.1}, "z_loss and softcap": {"z_loss": 0.01, "softcap": 4.0}}
        found["class weight"] = own
        own = {**own, "label_smoothing": 0.1, "z_loss": 0.01}
    return found | {"all": {**beside, **own, **normalizer}}


# Each option with a loss of elements and of classes. What the other kinds add is their operands and numbers.
CALLS = [(kind, name) for kind in ("difference", "classes") for name in options(kind)]
CALLS += [(kind, name) for kind in SAMPLES if kind not in ("difference", "classes") for name in ("none", "all")]
# These calls go through all captures; the others through two, which compilers and exporters build on.
FULLY_CAPTURED = "plain", "all"
MAIN_CAPTURES = "make_fx, symbolic", "compile"


class Call(NamedTuple):
    """A function of tensors alone, which a graph is captured with, and others within their domains, for its replay."""

    call: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    others: tuple[Tensor, ...]


def calls(kind: str, name: str, device: str, dtype: torch.dtype = torch.float32) -> list[Call]:
    """The call; with each reduction that it can have, if these are not the same code for all options."""
    function, make = SAMPLES[kind]
    tensors, given = make(device), dict(options(kind, device)[name])
    tensors |= {key: given.pop(key) for key, x in list(given.items()) if isinstance(x, Tensor)}
    converted = tuple(x.to(dtype) if x.is_floating_point() else x for x in tensors.values())
    one = "normalizer" in given or "normalizer" in tensors or (kind in OF_ROWS and name != "plain")
    reductions = [given.pop("reduction", "mean")] if one or "reduction" in given else REDUCTIONS

    def call(*tensors_, reduction):
        return function(**dict(zip(tensors, tensors_, strict=True)), reduction=reduction, **given)

    others = tuple(x.flip(0) if x.is_floating_point() and x.dim() else x for x in converted)
    others = tuple(x * 1.5 if x.is_floating_point() and not x.dim() else x for x in others)
    return [Call(lambda *x, r=reduction: call(*x, reduction=r), converted, others) for reduction in reductions]


def assert_captured(capture: str, call: Call) -> None:
    """That the graph does with other numbers what the call does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(CAPTURES[capture](call.call, call.tensors), call.call, call.others)


def assert_same(replayed, expected, tensors):
    """Values, and gradients of everything floating, of the loss beside another term."""
    found = []
    for call in (replayed, expected):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors]
        value = call(*leaves)
        assert value.requires_grad
        total = (value * 3).sum() + 0.01 * leaves[0].square().sum()
        wanted = [x for x in leaves if x.requires_grad]
        found.append((value.detach(), *torch.autograd.grad(total, wanted, allow_unused=True)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)


def private_calls(work):
    """The private ops that `work` calls, in order."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        work()
    calls = [event.name.split("::_pointwise_") for event in found.events()]
    return [call[1] for call in calls if call[0] == "cudaloss"]
