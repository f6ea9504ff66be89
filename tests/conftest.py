"""What the tests iterate over: every loss of the registry, every device of this machine."""

from __future__ import annotations

import os
import tempfile

# Compiled graphs of an earlier state of the package must not be found. Read when PyTorch's compiler is imported.
_CACHE = tempfile.TemporaryDirectory(prefix="cudaloss-tests-", ignore_cleanup_errors=True)
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _CACHE.name

import pytest
import torch

from cudaloss._build import INFO
from cudaloss._specs import SPECS


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spec" in metafunc.fixturenames:
        metafunc.parametrize("spec", SPECS, ids=lambda spec: spec.name)
    if "device" in metafunc.fixturenames:
        metafunc.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available() and INFO["cuda"]:
        return
    reason = "no GPU" if INFO["cuda"] else "built without CUDA"
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)
