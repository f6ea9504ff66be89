"""Lightning: its Trainer fits a module whose step calls a loss, gradients accumulated over two batches."""

from __future__ import annotations

import lightning
import torch
import torch.nn.functional as F
from seeded import seed, state
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self, loss: str) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
        self.loss = loss
        self.losses: list[Tensor] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        value = getattr(F, self.loss)(self.layers(batch[0]), batch[1])
        self.losses.append(value.detach().clone())
        return value

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def results() -> dict[str, Tensor]:
    found = {}
    for loss in ("mse_loss", "huber_loss", "l1_loss", "binary_cross_entropy_with_logits"):
        seed()
        model = Regression(loss)
        data = torch.randn(64, 8, dtype=torch.float64)
        loader = DataLoader(TensorDataset(data, torch.rand(64, 4, dtype=torch.float64)), batch_size=16)
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            max_epochs=3, accelerator="cpu", accumulate_grad_batches=2, enable_model_summary=False, **quiet
        )
        trainer.fit(model, loader)
        found |= {f"{loss}: losses": torch.stack(model.losses), **state(loss, model)}
    return found
