"""skorch: the tests in its wheel that fit a net."""

from __future__ import annotations

from pathlib import Path

import skorch
from outcomes import outcomes

FILES = (
    "test_classifier.py", "test_regressor.py", "test_scoring.py", "test_helper.py", "callbacks/test_scoring.py",
    "callbacks/test_training.py", "callbacks/test_lr_scheduler.py", "test_net.py",
)  # fmt: skip


def results() -> dict[str, str]:
    return outcomes(Path(skorch.__file__).parent / "tests", *FILES)
