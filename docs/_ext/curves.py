"""Pictures of a loss and of its gradient, drawn with the losses themselves when the documentation is built."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import cudaloss
from cudaloss._losses.table import LossSpec, OfDifference

POINTS = 401
GREY = "#808080"  # is seen on a light page and on a dark one
COLOURED = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
# Where an input and a target lie, by what a row says of them.
_SPANS = {"logits": (-6, 6), "in (0, 1)": (0.01, 0.99), "log probabilities": (-5, 0), "logarithms": (-3, 3)}
_TARGETS = {"in [0, 1]": (0, 1), "in (0, 1]": (0.5, 1), "1 or -1": (1, -1), ">= 0": (0, 2)}
# Numbers of a loss's own argument that show what it does.
_NUMBERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "smooth_l1": ("beta", (0.5, 1, 2)),
    "huber": ("delta", (0.5, 1, 2)),
    "pseudo_huber": ("delta", (0.5, 1, 2)),
    "charbonnier": ("eps", (0.001, 0.5, 1)),
    "quantile": ("quantile", (0.1, 0.5, 0.9)),
    "gaussian_nll": ("var", (0.5, 1, 2)),
    "hinge_embedding": ("margin", (1, 2)),
    "margin_ranking": ("target", (1, -1)),
    "cross_entropy": ("label_smoothing", (0, 0.1)),
    "cosine_embedding": ("margin", (0.5,)),
    "triplet_margin": ("margin", (0.5, 1)),
    "kl_div_with_logits": ("temperature", (1, 2, 4)),
    "jsd_with_logits": ("beta", (0, 0.1, 0.5, 0.9, 1)),
}


Operands = Callable[[Tensor], list[Tensor]]  # of the points: for a loss of rows each point is a row


class Plot(NamedTuple):
    axis: str
    span: tuple[float, float]
    operands: dict[str, Operands]  # by what a legend says of them


def _pointwise(spec: LossSpec) -> Plot:
    of_difference, (first, second) = isinstance(spec.terms, OfDifference), spec.operands
    named = {
        "" if of_difference else f"{second} = {target:g}": lambda x, target=target: [x, torch.full_like(x, target)]
        for target in _TARGETS.get(spec.targets, (0,))
    }
    return Plot("input - target" if of_difference else first, _SPANS.get(spec.inputs, (-3, 3)), named)


def _of_classes(x: Tensor) -> list[Tensor]:
    return [F.pad(x[:, None], (0, 3)), torch.zeros_like(x, dtype=torch.int64)]


def _of_distributions(x: Tensor) -> list[Tensor]:
    return [F.pad(x[:, None], (0, 1)), x.new_tensor([1.0, 0.0]).expand(len(x), 2)]


def _on_circle(x: Tensor) -> list[Tensor]:
    return [torch.stack((x.cos(), x.sin()), 1), x.new_tensor([1.0, 0.0]).expand(len(x), 2)]


def _on_line(x: Tensor) -> list[Tensor]:
    anchor = torch.zeros_like(x)[:, None]
    return [anchor, anchor + 1, x[:, None]]


def _beside_box(x: Tensor) -> list[Tensor]:
    zero, one = torch.zeros_like(x), torch.ones_like(x)
    return [torch.stack((x, zero, x + 1, one), 1), x.new_tensor([0.0, 0.0, 1.0, 1.0]).expand(len(x), 4)]


def _labelled(label: int) -> Operands:
    return lambda x: [*_on_circle(x), torch.full_like(x, label)]


def _of_rows(spec: LossSpec) -> Plot:
    if spec.reads == "classes":
        return Plot("the target's logit, beside three logits of 0", (-6, 6), {"": _of_classes})
    if spec.reads == "index":
        return Plot("the target's log-probability", (-5, 0), {"": _of_classes})
    if spec.reads == "distributions":
        axis = "input's first logit of two, the second is 0; target's are 1 and 0"
        return Plot(axis, (-6, 6), {"": _of_distributions})
    if spec.reads == "boxes":
        return Plot("shift along x of one of two unit squares", (-2.5, 2.5), {"": _beside_box})
    if spec.differentiable_third:
        return Plot("distance from anchor to negative; to positive it is 1", (0.01, 4), {"": _on_line})
    labelled = {f"target = {label}": _labelled(label) for label in (1, -1)}
    return Plot("angle between the vectors", (0.01, math.pi), labelled if len(spec.operands) > 2 else {"": _on_circle})


def _numbers(spec: LossSpec) -> list[dict[str, float]]:
    name, numbers = _NUMBERS.get(spec.name, ("", ()))
    return [{name: number} for number in numbers] or [{}]


def draw(spec: LossSpec, folder: Path) -> Path:
    """An SVG of the loss on the left, of its slope along the same axis on the right."""
    loss = getattr(cudaloss, spec.function)
    plot = _of_rows(spec) if spec.of_rows else _pointwise(spec)
    x = torch.linspace(*plot.span, POINTS, dtype=torch.float64, requires_grad=True)
    file = folder / f"{spec.name}.svg"
    with mpl.rc_context({**dict.fromkeys(COLOURED, GREY), "svg.hashsalt": spec.name, "font.size": 9}):
        figure = Figure(figsize=(7.2, 2.5), layout="constrained")
        value, gradient = figure.subplots(1, 2)
        for (said, operands), numbers in itertools.product(plot.operands.items(), _numbers(spec)):
            # A number that each call must give is a tensor.
            own = {name: x.new_full((), n) if name in spec.needed else n for name, n in numbers.items()}
            losses = loss(*operands(x), reduction="none", **own)
            (slope,) = torch.autograd.grad(losses.sum(), x)
            label = ", ".join(filter(None, (said, *(f"{name} = {n:g}" for name, n in numbers.items()))))
            value.plot(x.detach(), losses.detach(), label=label)
            gradient.plot(x.detach(), slope)
        for axis, title in ((value, "loss"), (gradient, "gradient")):
            axis.set(title=title, xlabel=plot.axis)
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        if value.get_legend_handles_labels()[1]:  # of empty labels there is none
            value.legend(frameon=False, fontsize=8)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, transparent=True, metadata={"Date": None})
    return file
