"""Stable-Baselines3: the tests in its source distribution that train A2C, DDPG, DQN, PPO, SAC and TD3."""

from __future__ import annotations

import sys
from pathlib import Path

from outcomes import outcomes

FILES = ("test_run.py", "test_identity.py", "test_n_step_replay.py", "test_train_eval_mode.py", "test_deterministic.py")


def results() -> dict[str, str]:
    return outcomes(Path(sys.prefix, "sources", "stable_baselines3", "tests"), *FILES)
