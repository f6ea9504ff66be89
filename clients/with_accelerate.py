"""accelerate: its own loop, with gradients accumulated over two batches."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from seeded import seed, state
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def results() -> dict[str, Tensor]:
    found = {}
    for loss in (F.mse_loss, F.smooth_l1_loss, F.soft_margin_loss):
        seed()
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).double()
        data, target = torch.randn(64, 8, dtype=torch.float64), torch.randn(64, 4, dtype=torch.float64).sign()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        loader = DataLoader(TensorDataset(data, target), batch_size=16)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        losses = []
        for batch, wanted in loader:
            with accelerator.accumulate(model):
                value = loss(model(batch), wanted)
                accelerator.backward(value)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(value.detach().clone())
        found |= {f"{loss.__name__}: losses": torch.stack(losses), **state(loss.__name__, model)}
    return found
