"""skorch: a regressor and a classifier, fitted by skorch's own loop."""

from __future__ import annotations

import torch
from seeded import seed, state
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import Tensor, nn


def results() -> dict[str, Tensor]:
    found = {}
    for name, kind, loss in (
        ("regressor, MSELoss", NeuralNetRegressor, nn.MSELoss),
        ("regressor, SmoothL1Loss", NeuralNetRegressor, nn.SmoothL1Loss),
        ("regressor, HuberLoss", NeuralNetRegressor, nn.HuberLoss),
        ("classifier, CrossEntropyLoss", NeuralNetClassifier, nn.CrossEntropyLoss),
        ("classifier, NLLLoss", NeuralNetClassifier, nn.NLLLoss),
    ):
        seed()
        of_classes = kind is NeuralNetClassifier
        last = [nn.Softmax(dim=-1)] if loss is nn.NLLLoss else []  # skorch takes the logarithm
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3 if of_classes else 1), *last).double()
        data = torch.randn(96, 8, dtype=torch.float64).numpy()
        target = torch.randint(3, (96,)).numpy() if of_classes else data[:, :1] ** 2
        net = kind(model, criterion=loss, lr=0.05, max_epochs=3, batch_size=32, verbose=0)
        net.fit(data, target)
        found |= {f"{name}: history": torch.tensor(net.history[:, ("train_loss", "valid_loss")], dtype=torch.float64)}
        found |= state(name, net.module_)
    return found
