"""open_clip: its losses, with tiny models of its architectures CLIP and CoCa, and steps of training."""

from __future__ import annotations

from typing import Any

import torch
from open_clip.coca_model import CoCa, MultimodalCfg
from open_clip.loss import ClipLoss, CoCaLoss, DistillClipLoss, SigLipLoss
from open_clip.model import CLIP, CLIPTextCfg, CLIPVisionCfg
from seeded import gradients, seed, state
from torch import Tensor, nn

PAIRS, WORDS, LENGTH, SIZE, WIDTH = 6, 64, 8, 16, 16
VISION = CLIPVisionCfg(layers=1, width=32, head_width=16, patch_size=8, image_size=SIZE)
TEXT = CLIPTextCfg(context_length=LENGTH, vocab_size=WORDS, width=32, heads=2, layers=1)


def _clip(**options: Any) -> nn.Module:
    return CLIP(WIDTH, VISION, TEXT, output_dict=True, **options).double()


def _coca() -> nn.Module:
    sizes = {"width": 32, "heads": 2, "layers": 1, "context_length": LENGTH}
    vision = CLIPVisionCfg(layers=1, width=32, head_width=16, patch_size=8, image_size=SIZE, attentional_pool=True,
                           attn_pooler_heads=2, attn_pooler_queries=4, output_tokens=True)  # fmt: skip
    text = CLIPTextCfg(context_length=LENGTH, vocab_size=WORDS, width=32, heads=2, layers=1, embed_cls=True,
                       output_tokens=True)  # fmt: skip
    model = CoCa(32, MultimodalCfg(**sizes), text, vision).double()
    nn.init.normal_(model.text_decoder.text_projection, std=32**-0.5)  # which open_clip leaves as memory has it
    return model


def _batch() -> tuple[Tensor, Tensor]:
    return torch.randn(PAIRS, 3, SIZE, SIZE, dtype=torch.float64), torch.randint(1, WORDS, (PAIRS, LENGTH))


def _distilled(model: nn.Module) -> Tensor:
    with torch.no_grad():
        teacher = _clip()(*_batch())
    found = model(*_batch())
    of_teacher = {f"dist_{name}": x for name, x in teacher.items()}
    return sum(DistillClipLoss()(**found, **of_teacher))


def _captioned(model: nn.Module) -> Tensor:
    images, text = _batch()
    text[:, -2:] = 0  # padding, which is not to be foretold
    return sum(CoCaLoss(caption_loss_weight=2.0, clip_loss_weight=1.0)(**model(images, text)))


# model, and its loss of a batch
LOSSES: dict[str, tuple[Any, Any]] = {
    "CLIP": (_clip, lambda model: ClipLoss()(**model(*_batch()))),
    "CLIP, cached labels": (_clip, lambda model: ClipLoss(cache_labels=True)(**model(*_batch()))),
    "CLIP with a bias": (
        lambda: _clip(init_logit_bias=-1.0),
        lambda model: ClipLoss()(**model(*_batch())),
    ),
    "SigLIP": (
        lambda: _clip(init_logit_bias=-10.0, init_logit_scale=2.3),
        lambda model: SigLipLoss()(**model(*_batch())),
    ),
    "distilled CLIP": (_clip, _distilled),
    "CoCa": (_coca, _captioned),
}


def _trained(name: str) -> dict[str, Tensor]:
    seed()
    build, loss = LOSSES[name]
    model = build()
    optimizer, values = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(4):
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        optimizer.step()
        values.append(value.detach())
    return {f"{name}: losses": torch.stack(values), **state(name, model)}


def results() -> dict[str, Tensor]:
    found = {}
    for name, (build, loss) in LOSSES.items():
        seed()
        model = build()
        found |= gradients(name, model, loss(model)) | _trained(name)
    return found
