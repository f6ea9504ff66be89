"""diffusers: a small UNet trained to undo a scheduler's noise, by the losses of its training scripts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import compute_snr
from seeded import seed, state
from torch import Tensor


def _min_snr(predicted: Tensor, target: Tensor, snr: Tensor) -> Tensor:
    single = F.mse_loss(predicted, target, reduction="none").mean(dim=(1, 2, 3))
    return (single * snr.clamp(max=5.0) / snr).mean()


# Called with prediction, target and each sample's signal-to-noise ratio.
STYLES = {
    "mse": lambda predicted, target, _: F.mse_loss(predicted, target, reduction="mean"),
    "min-SNR": _min_snr,
    "smooth L1": lambda predicted, target, _: F.smooth_l1_loss(predicted, target, reduction="mean", beta=0.1),
    "Huber": lambda predicted, target, _: F.huber_loss(predicted, target, reduction="mean", delta=0.1),
}


def results() -> dict[str, Tensor]:
    found = {}
    for prediction in ("epsilon", "v_prediction"):
        for style, loss in STYLES.items():
            seed()
            scheduler = DDPMScheduler(100, prediction_type=prediction)
            model = UNet2DModel(
                sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), norm_num_groups=4,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            ).double()  # fmt: skip
            clean, noise = (torch.randn(4, 1, 8, 8, dtype=torch.float64) for _ in range(2))
            steps = torch.randint(100, (4,))
            noisy, snr = scheduler.add_noise(clean, noise, steps), compute_snr(scheduler, steps).double()
            target = noise if prediction == "epsilon" else scheduler.get_velocity(clean, noise, steps)
            optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
            for _ in range(3):
                optimizer.zero_grad()
                value = loss(model(noisy, steps).sample, target, snr)
                value.backward()
                optimizer.step()
                losses.append(value.detach().clone())
            name = f"{prediction}, {style}"
            found |= {f"{name}: losses": torch.stack(losses), **state(name, model)}
    return found
