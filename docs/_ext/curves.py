"""Pictures of a loss and of its gradient, drawn with the losses themselves when the documentation is built."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from torch import Tensor

import cudaloss
from cudaloss._specs import LossSpec, OfDifference, RowSpec

POINTS = 401
GREY = "#808080"  # is seen on a light page and on a dark one
COLOURS = ("#2f7ed8", "#e8853a", "#3aa374", "#b05fc4")
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
    "cross_entropy": ("label_smoothing", (0, 0.1)),
    "cosine_embedding": ("margin", (0.5,)),
    "triplet_margin": ("margin", (0.5, 1)),
    "kl_div_with_logits": ("temperature", (1, 2, 4)),
}


class Course(NamedTuple):
    label: str
    losses: Callable[[Tensor], Tensor]  # of the points


class Plot(NamedTuple):
    axis: str
    span: tuple[float, float]
    courses: list[Course]


def _label(**numbers: float) -> str:
    return ", ".join(f"{name} = {number:g}" for name, number in numbers.items())


def _numbers(spec: LossSpec) -> list[dict[str, float]]:
    name, numbers = _NUMBERS.get(spec.name, ("", ()))
    return [{name: number} for number in numbers] or [{}]


def _own(spec: LossSpec, x: Tensor, numbers: dict[str, float]) -> dict[str, Any]:
    """The call's own arguments; one that every call gives is a tensor."""
    given = {**spec.needed, **numbers}
    return {name: x.new_full((), n) if name in spec.needed else n for name, n in given.items()}


def _pointwise(spec: LossSpec) -> Plot:
    loss = getattr(cudaloss, spec.function)

    def course(target: float, numbers: dict[str, float]) -> Course:
        def losses(x: Tensor) -> Tensor:
            return loss(x, torch.full_like(x, target), reduction="none", **_own(spec, x, numbers))

        named = {} if isinstance(spec.terms, OfDifference) else {"target": target}
        return Course(_label(**named, **numbers), losses)

    axis = "input - target" if isinstance(spec.terms, OfDifference) else "input"
    targets = _TARGETS.get(spec.targets, (0,))
    courses = [course(target, numbers) for target in targets for numbers in _numbers(spec)]
    return Plot(axis, _SPANS.get(spec.inputs, (-3, 3)), courses)


def _of_rows(spec: RowSpec) -> Plot:
    """Each point is a row: the axis says how its operands are made."""
    loss = getattr(cudaloss, spec.function)

    def plot(axis: str, span: tuple[float, float], operands: Callable[[Tensor], list[Tensor]], named: str = "") -> Plot:
        def course(numbers: dict[str, float]) -> Course:
            return Course(
                ", ".join(filter(None, (named, _label(**numbers)))),
                lambda x: loss(*operands(x), reduction="none", **numbers),
            )

        return Plot(axis, span, [course(numbers) for numbers in _numbers(spec)])

    def on_circle(x: Tensor) -> Tensor:
        return torch.stack((torch.cos(x), torch.sin(x)), 1)

    def classes(x: Tensor) -> list[Tensor]:
        return [torch.nn.functional.pad(x[:, None], (0, 3)), torch.zeros_like(x, dtype=torch.int64)]

    if spec.reads == "classes":
        return plot("the target's logit, beside three logits of 0", (-6, 6), classes)
    if spec.reads == "index":
        return plot("the target's log-probability", (-5, 0), classes)
    if spec.reads == "distributions":
        teacher = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        axis = "input's first logit of two, the second is 0; target's are 1 and 0"
        return plot(axis, (-6, 6), lambda x: [torch.nn.functional.pad(x[:, None], (0, 1)), teacher.expand(len(x), 2)])
    if spec.differentiable_third:
        axis = "distance from anchor to negative; to positive it is 1"
        zeros = torch.zeros(POINTS, 1, dtype=torch.float64)
        return plot(axis, (0.01, 4), lambda x: [zeros, zeros + 1, x[:, None]])
    fixed = on_circle(torch.zeros(POINTS, dtype=torch.float64))
    axis = "angle between the vectors"
    if len(spec.operands) == 2:
        return plot(axis, (0.01, math.pi), lambda x: [on_circle(x), fixed])
    labelled = [
        plot(axis, (0.01, math.pi), lambda x, label=label: [on_circle(x), fixed, torch.full_like(x, label)], named)
        for label, named in ((1, "target = 1"), (-1, "target = -1"))
    ]
    return labelled[0]._replace(courses=[course for one in labelled for course in one.courses])


def draw(spec: LossSpec, folder: Path) -> Path:
    """An SVG of the loss on the left, of its slope along the same axis on the right."""
    plot = _of_rows(spec) if isinstance(spec, RowSpec) else _pointwise(spec)
    x = torch.linspace(*plot.span, POINTS, dtype=torch.float64, requires_grad=True)
    style = {
        "text.color": GREY,
        "axes.labelcolor": GREY,
        "axes.edgecolor": GREY,
        "xtick.color": GREY,
        "ytick.color": GREY,
    }
    with mpl.rc_context({**style, "axes.titlecolor": GREY, "svg.hashsalt": spec.name, "font.size": 9}):
        figure = Figure(figsize=(7.2, 2.5), layout="constrained")
        value, gradient = figure.subplots(1, 2)
        for course, colour in zip(plot.courses, COLOURS, strict=False):
            losses = course.losses(x)
            (slope,) = torch.autograd.grad(losses.sum(), x)
            value.plot(x.detach(), losses.detach(), color=colour, label=course.label)
            gradient.plot(x.detach(), slope, color=colour)
        for axis, title in ((value, "loss"), (gradient, "gradient")):
            axis.set(title=title, xlabel=plot.axis)
            axis.grid(alpha=0.25)
            axis.spines[["top", "right"]].set_visible(False)
        if plot.courses[0].label:
            value.legend(frameon=False, fontsize=8)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{spec.name}.svg", transparent=True, metadata={"Date": None})
    return folder / f"{spec.name}.svg"
