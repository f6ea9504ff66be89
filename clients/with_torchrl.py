"""torchrl: its objectives DQN, DDPG and TD3, a call of each on random transitions."""

from __future__ import annotations

import torch
from seeded import gradients, seed
from tensordict import TensorDict
from torch import Tensor, nn
from torchrl.modules import Actor, QValueActor, ValueOperator
from torchrl.objectives import DDPGLoss, DQNLoss, TD3Loss

DOUBLE = {"dtype": torch.float64}


def _transitions(action: Tensor) -> TensorDict:
    end = {"done": torch.zeros(16, 1, dtype=torch.bool), "terminated": torch.zeros(16, 1, dtype=torch.bool)}
    following = {"observation": torch.randn(16, 4, **DOUBLE), "reward": torch.randn(16, 1, **DOUBLE), **end}
    return TensorDict({"observation": torch.randn(16, 4, **DOUBLE), "action": action, "next": following}, [16])


class _Value(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8, **DOUBLE), nn.Tanh(), nn.Linear(8, 1, **DOUBLE))

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.layers(torch.cat([observation, action], -1))


def _of(name: str, objective: nn.Module, transitions: TensorDict) -> dict[str, Tensor]:
    losses = objective(transitions)
    named = {f"{name}: {key}": x.detach().clone() for key, x in losses.items() if key.startswith("loss")}
    total = sum(x.mean() for key, x in losses.items() if key.startswith("loss"))
    return named | gradients(name, objective, total)


def results() -> dict[str, Tensor]:
    found = {}
    for loss in ("smooth_l1", "l2", "l1"):
        seed()
        network = nn.Sequential(nn.Linear(4, 8, **DOUBLE), nn.Tanh(), nn.Linear(8, 3, **DOUBLE))
        discrete = QValueActor(network, in_keys=["observation"], action_space="categorical")
        found |= _of(f"DQN, {loss}", DQNLoss(discrete, loss_function=loss, action_space="categorical"),
                     _transitions(torch.randint(3, (16,))))  # fmt: skip
        actor = Actor(nn.Sequential(nn.Linear(4, 2, **DOUBLE), nn.Tanh()), in_keys=["observation"])
        value = ValueOperator(_Value(), in_keys=["observation", "action"])
        transitions = _transitions(torch.rand(16, 2, **DOUBLE) * 2 - 1)
        found |= _of(f"DDPG, {loss}", DDPGLoss(actor, value, loss_function=loss), transitions)
        bounds = {"bounds": (-torch.ones(2, **DOUBLE), torch.ones(2, **DOUBLE))}
        seed()
        found |= _of(f"TD3, {loss}", TD3Loss(actor, value, loss_function=loss, **bounds), transitions)
    return found
