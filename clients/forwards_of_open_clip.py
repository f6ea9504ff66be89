"""open_clip's modules with our functions, which take their arguments. What ours do not have, the modules compute as
before: a bias of ClipLoss, and features of several processes.
"""

from __future__ import annotations

from typing import Any

from open_clip.loss import ClipLoss, SigLipLoss
from swap import counted
from torch import Tensor

import cudaloss

THEIRS = {kind: kind.forward for kind in (ClipLoss, SigLipLoss)}
clip_loss, siglip_loss = (counted(name, getattr(cudaloss, name)) for name in ("clip_loss", "siglip_loss"))


def _clip(
    self: Any,
    image_features: Tensor,
    text_features: Tensor,
    logit_scale: Tensor,
    logit_bias: Tensor | None = None,
    output_dict: bool = False,
) -> Any:
    if logit_bias is not None or self.world_size > 1:
        return THEIRS[ClipLoss](self, image_features, text_features, logit_scale, logit_bias, output_dict)
    value = clip_loss(image_features, text_features, logit_scale)
    return {"contrastive_loss": value} if output_dict else value


def _siglip(
    self: Any,
    image_features: Tensor,
    text_features: Tensor,
    logit_scale: Tensor,
    logit_bias: Tensor,
    output_dict: bool = False,
) -> Any:
    if self.world_size > 1:
        return THEIRS[SigLipLoss](self, image_features, text_features, logit_scale, logit_bias, output_dict)
    value = siglip_loss(image_features, text_features, logit_scale, logit_bias)
    return {"contrastive_loss": value} if output_dict else value


FORWARDS = {ClipLoss: _clip, SigLipLoss: _siglip}
