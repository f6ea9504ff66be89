"""diffusers: a small UNet trained to undo a scheduler's noise, by the losses of its training scripts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from diffusers.training_utils import compute_snr
from seeded import seed, trained
from torch import Tensor


def _of_styles(scheduler: DDPMScheduler, steps: Tensor, predicted: Tensor, target: Tensor) -> dict[str, Tensor]:
    snr = compute_snr(scheduler, steps).double()
    single = F.mse_loss(predicted, target, reduction="none").mean(dim=(1, 2, 3))
    return {
        "mse": F.mse_loss(predicted, target, reduction="mean"),
        "min-SNR": (single * snr.clamp(max=5.0) / snr).mean(),
        "smooth L1": F.smooth_l1_loss(predicted, target, reduction="mean", beta=0.1),
        "Huber": F.huber_loss(predicted, target, reduction="mean", delta=0.1),
    }


def results() -> dict[str, Tensor]:
    found = {}
    for prediction in ("epsilon", "v_prediction"):
        for style in ("mse", "min-SNR", "smooth L1", "Huber"):
            seed()
            scheduler = DDPMScheduler(100, prediction_type=prediction)
            model = UNet2DModel(
                sample_size=8, in_channels=1, out_channels=1, block_out_channels=(8, 8), norm_num_groups=4,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            ).double()  # fmt: skip
            clean, noise = (torch.randn(4, 1, 8, 8, dtype=torch.float64) for _ in range(2))
            steps = torch.randint(100, (4,))
            noisy = scheduler.add_noise(clean, noise, steps)
            target = noise if prediction == "epsilon" else scheduler.get_velocity(clean, noise, steps)

            def loss(model=model, noisy=noisy, steps=steps, target=target, scheduler=scheduler, style=style) -> Tensor:
                return _of_styles(scheduler, steps, model(noisy, steps).sample, target)[style]

            found |= trained(f"{prediction}, {style}", model, loss, 3)
    return found
