"""The faults of ``make mutants`` still fit the code that they change."""

from __future__ import annotations

import pytest

from tools.mutants import MUTANTS, ROOT


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.text.strip()[:40]}")
def test_a_mutant_has_its_place_and_its_tests(mutant) -> None:
    assert (ROOT / "src" / "cudaloss" / mutant.file).read_text().count(mutant.text) == 1
    assert all((ROOT / "tests" / test.partition("::")[0]).exists() for test in mutant.tests.split())
