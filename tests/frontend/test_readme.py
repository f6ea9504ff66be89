"""The tables of the README and of docs/performance.md, from a report of the GPU check."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bench_rows import case, made_up
from cudaloss._losses.table import SPECS
from cudaloss.bench.modes import MASKED


def script(name: str) -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report() -> dict[str, Any]:
    kernelbench = {"suite": "kernelbench", "problem": 94, "shape": [4, 16]}
    rows = [
        {"suite": "ceilings", "dtype": "float32", "size": 64, "gigabytes_per_second": {}},
        {"suite": "graph", "skipped": "needs a CUDA device"},
        made_up((1.0, 0.9, 1.1)),
        made_up((0.5, 0.4, 0.6), mode="scaled"),
        made_up((0.001, 0.0009, 0.0011), **kernelbench, mode="forward"),
        made_up((1e-6, 1e-6, 1e-6), (3e-6, 3e-6, 3e-6), suite="latency", mode="forward", size=4096),
        {**case(suite="memory").row(), "peak_bytes": {"cudaloss": 256, "eager": 512}},
        {**case(MASKED, suite="memory").row(), "peak_bytes": {"cudaloss": 128, "eager": 512}},
    ]
    return {"environment": {"gpu": "a GPU", "torch": "2.13"}, "bench": {"report": {"rows": rows}}}


def test_readme_has_the_reports_rows() -> None:
    lines = script("readme").block(report()).splitlines()
    assert lines[0].startswith("a GPU, torch 2.13: ")
    assert "| KernelBench, fp32 | forward | forward + backward |" in lines
    assert "| problem 94, mse, 4 x 16 | 1.00 ms: 2000.00x eager |  |" in lines
    header = next(line for line in lines if line.startswith("| speed-up over eager, over compile, 2^6 elements"))
    assert header.endswith(" | training fp32 |")  # columns that nothing was measured of are left out
    assert "| mse | 2.00x |" in lines
    assert "| training: speed-up over eager, over compile, 2^6 elements | fp32, loss scaled |" in lines
    assert "| mse | 4.00x |" in lines
    assert "| host's time of a call on 4,096 elements, times as fast as eager | function |" in lines
    assert "| mse | 1.0 us: 3.00x |" in lines
    assert "| fp32; memory in bytes an element | peak memory of a training step |" in lines
    assert "| mse | 4.0 (eager 8.0) |" in lines
    assert not any("misaligned" in line or "graph" in line for line in lines)


def test_stages_of_an_earlier_report_have_its_caption() -> None:
    readme, times = script("readme"), {"ours": 1, "eager": 2, "compiled": 3}
    case = {"step": times, "forward": times, "MiB": times}
    earlier = {"environment": {"gpu": "an older GPU"}, "overlap": {"report": {"ms": {"dice": case}}}}
    tables = readme.block(report(), earlier=earlier).split("\n\n")
    assert tables[:-2] == readme.block(report()).split("\n\n")
    assert tables[-2].startswith("an older GPU: ") and "| dice | 1.000 |" in tables[-1]
    both = {**report(), "overlap": earlier["overlap"]}
    assert readme.block(both, earlier=earlier) == readme.block(both)
    assert readme.block(report(), readme.README, earlier) == readme.block(report(), readme.README)
    assert readme.block(earlier, earlier=report()).split("\n\n") == [*tables[-2:], *tables[:-2]]
    assert readme.block(earlier, readme.README, report()) == readme.block(report(), readme.README)


def test_readme_itself_has_the_first_tables() -> None:
    readme = script("readme")
    whole, first = readme.block(report()).split("\n\n"), readme.block(report(), readme.README).split("\n\n")
    assert first == whole[:3]  # the caption, KernelBench's problems, a line a loss
    names = {spec.name for spec in SPECS}
    assert set(readme.SHOWN) < names and len(readme.SHOWN) < len(names)
    left_out = next(name for name in sorted(names) if name not in readme.SHOWN)
    other = report()
    for row in other["bench"]["report"]["rows"]:
        row["loss"] = left_out
    assert f"| {left_out} |" in readme.block(other) and f"| {left_out} |" not in readme.block(other, readme.README)


def test_readme_has_the_features_that_are_in_the_report() -> None:
    readme, with_features = script("readme"), report()
    assert "| ms |" not in readme.block(with_features)
    image = {"suite": "features", "shape": [64, 16, 512, 512], "size": 1 << 28, "loss": "smooth_l1"}
    rows = [
        made_up((0.5, 0.4, 0.6), **image, mode="masked"),
        made_up((0.001, 0.0009, 0.0011), **image, mode="sliced"),
        made_up((0.1, 0.09, 0.11), **{**image, "size": 1 << 20}, mode="weighted"),
        made_up((0.1, 0.09, 0.11), **{**image, "loss": "mse"}, mode="nhwc"),
    ]
    rows[0]["speedup"] |= {"compile": 2.5, "indexed": 30.0}
    with_features["bench"]["report"]["rows"] += rows
    tables = readme.block(with_features).split("\n\n")
    assert tables[:-1] == readme.block(report()).split("\n\n")
    assert tables[-1].splitlines() == [
        "| smooth_l1, forward + backward, 64 x 16 x 512 x 512 | ms | x eager | x compile |",
        "| --- | --- | --- | --- |",
        "| masked: a bool mask that selects half of the elements | 500.00 | 4.00x | 2.50x |",
        "| sliced: both operands slices x[..., :-8] of wider tensors | 1.00 | 2000.00x |  |",
    ]


def test_readme_has_every_problem_at_its_largest_size() -> None:
    readme, two = script("readme"), report()
    fields = {"suite": "kernelbench", "mode": "forward", "speedup": {"eager": 2.0}}
    small, large = {"shape": [4, 4], "size": 16}, {"shape": [8, 8], "size": 64}
    two["bench"]["report"]["rows"] += [
        made_up((0.004, 0.003, 0.005), **fields, **shape, problem=98, loss="kl_div") for shape in (small, large, small)
    ]
    lines = readme.block(two).splitlines()
    assert "| problem 94, mse, 4 x 16 | 1.00 ms: 2000.00x eager |  |" in lines
    assert [line for line in lines if "98" in line] == ["| problem 98, kl_div, 8 x 8 | 4.00 ms: 2.00x eager |  |"]


def test_readme_has_the_family_at_its_largest_size() -> None:
    readme, more = script("readme"), report()
    fields = {"suite": "family", "loss": "kl_div"}
    more["bench"]["report"]["rows"] += [
        made_up((0.001, 0.001, 0.001), **fields, mode="forward"),
        made_up((0.002, 0.002, 0.002), **fields, mode="step") | {"of_ceiling": 0.971},
        made_up((0.004, 0.004, 0.004), **fields, mode="step") | {"dtype": "bfloat16"},
        made_up((0.004, 0.004, 0.004), **fields, mode="step", size=4),
        made_up((0.004, 0.004, 0.004), suite="family", loss="hinge", mode="step", size=4),  # at no large size
    ]
    table = next(table for table in readme.block(more).split("\n\n") if "kl_div" in table)
    header, _, *body = table.splitlines()
    assert header.endswith(
        "| forward fp32 | training fp32 | training bf16 | training fp32, of `torch.add`'s throughput |"
    )
    assert body == ["| mse |  | 2.00x |  |  |", "| kl_div | 2000.00x | 1000.00x | 500.00x | 0.97 |"]


def test_readme_shows_the_rivals_that_its_headers_name() -> None:
    row = made_up((1.0, 0.9, 1.1))
    row["speedup"] |= {"torchvision": 9.0, "compile": 3.0}
    assert script("readme").ratios(row) == "2.00x, 3.00x"


def test_readme_needs_some_rows() -> None:
    empty = report()
    del empty["bench"]["report"]["rows"][2:]
    with pytest.raises(ValueError, match="no rows"):
        script("readme").block(empty)


def test_readme_replaces_the_marked_part_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = script("readme")
    before, after = "# a\n\n| old |\n", "\ntext <!-- other -->\n\n| old |\n"
    source, *pages = tmp_path / "report.json", tmp_path / "README.md", tmp_path / "performance.md"
    source.write_text(json.dumps(report()))
    for page in pages:
        page.write_text(f"{before}{readme.BEGIN}\n| old |\n{readme.END}{after}")
    monkeypatch.setattr("sys.argv", ["readme.py", str(source), *map(str, pages)])
    for _ in range(2):  # the second time nothing changes
        assert readme.main() == 0
        for page, tables in zip(pages, (readme.README, readme.PERFORMANCE), strict=True):
            new = readme.block(report(), tables)
            assert page.read_text() == f"{before}{readme.BEGIN}\n\n{new}\n\n{readme.END}{after}"


@pytest.mark.parametrize("text", ["", "{0}", "{1} {0}", "{0} {0} {1}", "{0} {1} {1}"])
def test_readme_without_its_comments_is_refused(text: str) -> None:
    readme = script("readme")
    with pytest.raises(ValueError, match="once each"):
        readme.replaced(text.format(readme.BEGIN, readme.END), "new")
