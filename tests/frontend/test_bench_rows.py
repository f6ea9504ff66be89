"""benchmarks/rows.py: what it measures, and the table that benchmarks/readme.py makes of it."""

import re
import runpy
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_a_report_and_its_table():
    rows = runpy.run_path(str(BENCHMARKS / "rows.py"))
    case = rows["Case"]((6, 5, 2))
    assert (case.rows, case.moved()) == (12, 6 * 5 * 2 * 4 * 2 + 8 * 12)
    soft = rows["Case"]((6, 5, 2), of_probabilities=True)
    assert soft.moved() == 6 * 5 * 2 * 4 * 3 and set(rows["measured"](soft, "cpu", 3, False)["ratio"]) == {
        "cudaloss",
        "eager",
    }
    measured = rows["measured"](case, "cpu", 3, False)
    assert set(measured["ratio"]) == {"cudaloss", "eager"}
    own = rows["own_arguments"](case, "cpu", 3)
    assert set(own) == set(rows["OWN"])
    assert all(times > 0 for times in own.values())
    small = rows["small"](rows["Case"]((2, 3)), "cpu")
    assert set(small) == {"case", "step host", "forward host"}
    table = runpy.run_path(str(BENCHMARKS / "readme.py"))["rows_table"]
    report = {"cases": [measured], "times_of_plain": own, "small_times_of_eager": [small]}
    made = table({"rows": {"report": report}})
    assert "| (6, 5, 2) float32 |" in made
    assert "| (2, 3) float32 |" in made
    assert table({}) is None


def test_the_table_of_overlap():
    table = runpy.run_path(str(BENCHMARKS / "readme.py"))["overlap_table"]
    case = {"step": {"ours": 1, "eager": 2, "compiled": 3}, "forward": {"ours": 0.5, "eager": 2, "compiled": 1}}
    case["MiB"] = {"ours": 0, "eager": 8, "compiled": 4}
    made = table({"overlap": {"report": {"ms": {"dice": case}}}})
    assert "| dice | 1.000 | 2.00x | 3.00x | 0.500 | 4.00x | 2.00x | 0, 8, 4 |" in made
    assert table({}) is None


def test_a_course_and_its_picture(tmp_path):
    pytest.importorskip("matplotlib")
    rows, plot = (runpy.run_path(str(BENCHMARKS / f"{name}.py")) for name in ("rows", "plot"))
    course = rows["course"]("cpu", 3, torch.float32, (4, 100), 4000)
    assert [row["classes"] for row in course] == [4, 100]
    assert all(set(row["gigabytes_per_second"]) == {"cudaloss", "eager", "add"} for row in course)
    plot["course"](course, {"gpu": "a GPU", "torch": "2.13"}).savefig(tmp_path / plot["COURSE"])
    assert (tmp_path / plot["COURSE"]).stat().st_size > 10_000


def test_every_picture_of_the_page_is_drawn_from_a_report():
    pytest.importorskip("matplotlib")
    page = (BENCHMARKS.parent / "docs" / "performance.md").read_text()
    drawn = runpy.run_path(str(BENCHMARKS / "plot.py"))["FIGURES"]
    assert sorted(re.findall(r"!\[.*\]\((.*)\)", page)) == sorted(drawn)
