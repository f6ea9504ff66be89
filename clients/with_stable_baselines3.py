"""Stable-Baselines3: DQN, SAC, TD3, A2C and PPO on gymnasium's classic control, with fixed seeds."""

from __future__ import annotations

import stable_baselines3 as sb3
import torch
from seeded import seed, state
from torch import Tensor

OFF_POLICY = {"learning_starts": 64, "batch_size": 32, "buffer_size": 1000}
SMALL = {"seed": 0, "device": "cpu"}
# Few steps: as soon as a rounding error changes an action, all that follows is another run.
RUNS = (
    (sb3.DQN, "CartPole-v1", 160, OFF_POLICY | {"target_update_interval": 32}),
    (sb3.SAC, "Pendulum-v1", 96, OFF_POLICY),
    (sb3.TD3, "Pendulum-v1", 96, OFF_POLICY),
    (sb3.A2C, "CartPole-v1", 100, {}),
    (sb3.PPO, "CartPole-v1", 128, {"n_steps": 64, "batch_size": 32, "n_epochs": 4}),
)


def results() -> dict[str, Tensor]:
    found = {}
    for algorithm, environment, steps, options in RUNS:
        seed()
        model = algorithm("MlpPolicy", environment, policy_kwargs={"net_arch": [16]}, **options, **SMALL)
        model.learn(steps)
        observation = model.get_env().reset()
        found |= state(algorithm.__name__, model.policy)
        found[f"{algorithm.__name__}: actions"] = torch.as_tensor(model.predict(observation, deterministic=True)[0])
    return found
