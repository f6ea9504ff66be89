"""torchvision: its losses of boxes, and its detectors on small images of random boxes, with a backbone of one
convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torchvision.models.detection as detection
import torchvision.ops as ops
from seeded import gradients, seed
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator, DefaultBoxGenerator
from torchvision.models.detection.keypoint_rcnn import KeypointRCNNHeads
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads
from torchvision.models.detection.ssd import SSD

CLASSES, POINTS, SIZE, CHANNELS = 4, 3, 64, 32
DOUBLE: dict[str, Any] = {"dtype": torch.float64}
SMALL: dict[str, Any] = {"min_size": SIZE, "max_size": SIZE}
ONE, SIX = AnchorGenerator(((8,),), ((1.0,),)), AnchorGenerator(((16, 32),), ((0.5, 1.0, 2.0),))


class _Backbone(nn.Sequential):
    def __init__(self, channels: Any = CHANNELS) -> None:
        super().__init__(nn.Conv2d(3, CHANNELS, 3, stride=8, padding=1), nn.Tanh())
        self.out_channels = channels


def _retina_net(loss: str) -> nn.Module:
    model = detection.RetinaNet(_Backbone(), CLASSES, anchor_generator=SIX, **SMALL)
    model.head.regression_head._loss_type = loss  # as torchvision's retinanet_resnet50_fpn_v2 sets it
    return model


def _of_regions(kind: Any, **options: Any) -> nn.Module:
    return kind(_Backbone(), CLASSES, rpn_anchor_generator=SIX, **SMALL, **options)


DETECTORS = {
    "RetinaNet, L1": lambda: _retina_net("l1"),
    "RetinaNet, smooth L1": lambda: _retina_net("smooth_l1"),
    "RetinaNet, GIoU": lambda: _retina_net("giou"),
    "RetinaNet, DIoU": lambda: _retina_net("diou"),
    "RetinaNet, CIoU": lambda: _retina_net("ciou"),
    "FCOS": lambda: detection.FCOS(_Backbone(), CLASSES, anchor_generator=ONE, **SMALL),
    "SSD": lambda: SSD(_Backbone([CHANNELS]), DefaultBoxGenerator([[2]]), (SIZE, SIZE), CLASSES),
    "Faster R-CNN": lambda: _of_regions(detection.FasterRCNN),
    "Mask R-CNN": lambda: _of_regions(detection.MaskRCNN, mask_head=MaskRCNNHeads(CHANNELS, (256,), 1)),
    "Keypoint R-CNN": lambda: _of_regions(
        detection.KeypointRCNN, keypoint_head=KeypointRCNNHeads(CHANNELS, (512,)), num_keypoints=POINTS
    ),
}

# With an `eps` beside the default. Of the last one torchvision uses the argument in one of its denominators, we in all.
BOX_LOSSES = {"generalized_box_iou_loss": 1e-2, "distance_box_iou_loss": 1e-2, "complete_box_iou_loss": 1e-7}


def _target() -> dict[str, Tensor]:
    """Three boxes at least 16 wide and high, their masks, and points in them of float32, as torchvision asks."""
    corner, extent = torch.rand(3, 2, **DOUBLE) * 24, torch.rand(3, 2, **DOUBLE) * 20 + 16
    points = corner[:, None] + extent[:, None] * torch.rand(3, POINTS, 2, **DOUBLE)
    return {
        "boxes": torch.cat([corner, corner + extent], 1),
        "labels": torch.randint(1, CLASSES, (3,)),
        "masks": torch.randint(2, (3, SIZE, SIZE), dtype=torch.uint8),
        "keypoints": torch.cat([points, torch.ones(3, POINTS, 1)], 2).float(),
    }


def _boxes() -> Tensor:
    """Large and small ones: some pairs are apart, some overlap, and some boxes are in another."""
    corner = torch.rand(64, 2, **DOUBLE) * 3
    return torch.cat([corner, corner + torch.rand(64, 2, **DOUBLE) * 2 + 0.01], 1)


def _of_boxes() -> dict[str, Tensor]:
    found = {}
    for name, other_eps in BOX_LOSSES.items():
        for options in ({}, {"reduction": "mean"}, {"reduction": "sum", "eps": other_eps}):
            seed()
            pair = _boxes().requires_grad_(), _boxes().requires_grad_()
            loss = getattr(ops, name)(*pair, **options)
            loss.square().sum().backward()
            key = f"{name}({options})"
            found[f"{key}: loss"] = loss.detach().clone()
            found |= {f"{key}: gradient {k}": box.grad for k, box in enumerate(pair)}
    return found


def results() -> dict[str, Tensor]:
    found = _of_boxes()
    for name, detector in DETECTORS.items():
        seed()
        model = detector().double().train()
        losses = model([torch.rand(3, SIZE, SIZE, **DOUBLE) for _ in range(2)], [_target() for _ in range(2)])
        # PyTorch's loss of a float64 input and a float32 target has the target's dtype, ours is float64.
        losses = {key: loss.double() for key, loss in losses.items()}
        found |= {f"{name}: {key}": loss.detach().clone() for key, loss in losses.items()}
        found |= gradients(name, model, torch.stack(list(losses.values())).sum())
    return found
