"""ultralytics: the losses of its YOLO models, each by a small model of random weights, and steps of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from seeded import gradients, seed, state
from torch import Tensor, nn
from ultralytics.cfg import get_cfg
from ultralytics.nn import tasks
from ultralytics.utils.loss import BCEDiceLoss

torch.set_default_dtype(torch.float64)  # its losses make tensors of the default one, and compare them with the model's
CLASSES, IMAGES, SIZE, OBJECTS, POINTS = 5, 2, 64, 6, 17
PIXELS = SIZE // 4  # of a mask's side


def _model(kind: Any, name: str) -> nn.Module:
    """The smallest of its sizes, with narrower layers for the models that have no attention."""
    configuration = tasks.yaml_model_load(name)
    if name.startswith("yolov8"):
        configuration["scales"] = {"n": [0.33, 0.0625, 256]}
    model = kind(configuration, nc=CLASSES, verbose=False).train()
    model.args = get_cfg()  # as its trainer sets it
    return model


def _batch() -> dict[str, Tensor]:
    """Images with objects, as its data loader gives them."""
    places = torch.rand(OBJECTS, 4) * 0.4 + 0.3  # centre and size, of the image's
    covered = torch.randint(OBJECTS // IMAGES + 1, (IMAGES, PIXELS, PIXELS))  # by which of the image's objects
    return {
        "img": torch.randn(IMAGES, 3, SIZE, SIZE),
        "batch_idx": torch.arange(IMAGES).repeat_interleave(OBJECTS // IMAGES).double(),
        "cls": torch.randint(CLASSES, (OBJECTS, 1)).double(),
        "bboxes": places,
        "masks": covered.double(),
        "sem_masks": torch.randint(CLASSES, (IMAGES, PIXELS, PIXELS)),
        "keypoints": torch.cat([torch.rand(OBJECTS, POINTS, 2), torch.ones(OBJECTS, POINTS, 1)], 2),
    }


def _with_angles() -> dict[str, Tensor]:
    batch = _batch()
    return batch | {"bboxes": torch.cat([batch["bboxes"], torch.rand(OBJECTS, 1)], 1)}


def _of_images() -> dict[str, Tensor]:
    return _batch() | {"cls": torch.randint(CLASSES, (IMAGES,))}


def _of_pixels() -> dict[str, Tensor]:
    classes = torch.randint(CLASSES, (IMAGES, SIZE, SIZE))
    classes[:, :4] = 255  # which does not count
    return _batch() | {"semantic_mask": classes}


# kind of model, configuration, a batch
MODELS: tuple[tuple[str, str, Callable[[], dict[str, Tensor]]], ...] = (
    ("DetectionModel", "yolov8n.yaml", _batch),
    ("DetectionModel", "yolo26n.yaml", _batch),
    ("SegmentationModel", "yolov8n-seg.yaml", _batch),
    ("PoseModel", "yolov8n-pose.yaml", _batch),
    ("OBBModel", "yolov8n-obb.yaml", _with_angles),
    ("ClassificationModel", "yolov8n-cls.yaml", _of_images),
    ("SemanticSegmentationModel", "yolo26n-sem.yaml", _of_pixels),
)


def _of_masks() -> dict[str, Tensor]:
    """The loss of the pixels' classes in the segmentation of YOLO26, whose model makes float32 targets for it."""
    seed()
    logits = nn.ParameterList([torch.randn(IMAGES, CLASSES, PIXELS, PIXELS)])
    target = (torch.rand(IMAGES, CLASSES, 2 * PIXELS, 2 * PIXELS) < 0.3).double()
    return gradients("BCE and Dice", logits, BCEDiceLoss()(logits[0], target))


def _trained() -> dict[str, Tensor]:
    seed()
    model, losses = _model(tasks.DetectionModel, "yolov8n.yaml"), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(4):
        optimizer.zero_grad()
        value = model(_batch())[0].sum()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    return {"training: losses": torch.stack(losses), **state("training", model)}


def results() -> dict[str, Tensor]:
    found = {}
    for kind, name, batch in MODELS:
        seed()
        model = _model(getattr(tasks, kind), name)
        found |= gradients(name, model, model(batch())[0].sum())
    return found | _of_masks() | _trained()
