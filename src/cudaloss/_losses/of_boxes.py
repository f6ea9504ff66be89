"""Losses of pairs of boxes: one number for each box of both operands."""

from __future__ import annotations

from .argument import Argument
from .spec import LossSpec

_ABOUT = """\
A box is ``(x1, y1, x2, y2)`` along the last dimension, with ``x1 <= x2`` and ``y1 <= y2``. ``IoU`` is the area of the
intersection over that of the union. ``eps`` is added to each denominator, so that boxes without area have finite
losses and gradients. Values, gradients and arguments are torchvision's, but for a mean over no boxes, which is NaN. The
arithmetic is float64's, for boxes of any dtype, and the result has the boxes' dtype. {}"""
_OF_GENERALIZED = "``C`` is the area of the smallest box around both boxes, and ``U`` that of their union."
_OF_DISTANCE = "``r`` is the distance of the boxes' centres, and ``c`` the diagonal of the smallest box around both."
_OF_COMPLETE = """The loss is :func:`distance_box_iou_loss` plus ``a * v``, with ``v = 4 / pi**2 *
(atan(w1 / h1) - atan(w2 / h2))**2`` of the widths and heights, and ``a = v / (1 - IoU + v)``, which has no gradient.
For a box without height ``atan(w / h)`` is pi / 2; beside a point ``v`` is 0. torchvision then has NaN gradients. It
adds ``eps`` only to the denominator of ``a``, and 1e-7 to the others."""
_EXAMPLE = """\
>>> import torch, cudaloss
>>> boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0]], requires_grad=True)
>>> loss = cudaloss.{}(boxes, torch.tensor([[1.0, 0.0, 3.0, 2.0]]), reduction="mean")
>>> loss.backward()
>>> loss.detach()  # {}
tensor({})"""
_EPS = Argument("eps", "number", 1e-7, "above 0; added to each denominator")
_ZHENG = "Zheng et al., Distance-IoU Loss: Faster and Better Learning for Bounding Box Regression, 2020"


def _row(
    number: int, name: str, module: str, formula: str, about: str, example: tuple[str, str], source: str
) -> LossSpec:
    return LossSpec(
        id=number,
        name=name,
        module=module,
        operands=("boxes1", "boxes2"),
        arguments=(_EPS,),
        reads="boxes",
        formula=formula,
        about=_ABOUT.format(about),
        example=_EXAMPLE.format(f"{name}_loss", *example),
        source=source,
        signature="reduction eps",
        reduction="none",
        ulps=2.0,
        inputs="boxes",
        targets="boxes",
    )


ROWS = (
    _row(
        71,
        "generalized_box_iou",
        "GeneralizedBoxIoULoss",
        "1 - IoU + (C - U) / C",
        _OF_GENERALIZED,
        ("1 - 2 / 6 + (6 - 6) / 6", "0.6667"),
        "Rezatofighi et al., Generalized Intersection over Union, 2019",
    ),
    _row(
        72,
        "distance_box_iou",
        "DistanceBoxIoULoss",
        "1 - IoU + r**2 / c**2",
        _OF_DISTANCE,
        ("1 - 2 / 6 + 1 / 13", "0.7436"),
        _ZHENG,
    ),
    _row(
        73,
        "complete_box_iou",
        "CompleteBoxIoULoss",
        "1 - IoU + r**2 / c**2 + a * v",
        _OF_COMPLETE,
        ("1 - 2 / 6 + 1 / 13, and both are square", "0.7436"),
        _ZHENG,
    ),
)
