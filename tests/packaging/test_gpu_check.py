"""benchmarks/gpu_check.py: a long file's tests are shared out to several sanitizers, each of them to one."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import conftest

ROOT = Path(__file__).parents[2]


class _Test:
    def get_closest_marker(self, name: str) -> None:
        """None of these needs a GPU."""


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_test_is_in_one_part(count: int) -> None:
    every, chosen, left_out = [_Test() for _ in range(10)], [], []
    hook = SimpleNamespace(pytest_deselected=lambda items: left_out.extend(items))
    for place in range(1, count + 1):
        items: list[Any] = list(every)
        config: Any = SimpleNamespace(getoption=lambda _, place=place: f"{place}/{count}", hook=hook)
        conftest.pytest_collection_modifyitems(config, items)
        chosen += items
    assert len(chosen) == len(every) and set(chosen) == set(every)
    assert len(left_out) == (count - 1) * len(every)


def test_files_with_parts_exist() -> None:
    check = runpy.run_path(str(ROOT / "benchmarks" / "gpu_check.py"))
    sanitized = {*check["SANITIZED_TESTS"], *check["MEMCHECKED_TESTS"]}
    assert check["PARTS"].keys() <= sanitized and all((ROOT / "tests" / file).exists() for file in sanitized)
    assert check["parts_of"]("rows/test_heads.py") == ["rows/test_heads.py:1/2", "rows/test_heads.py:2/2"]
    assert check["parts_of"]("rows/test_nll.py") == ["rows/test_nll.py"]
