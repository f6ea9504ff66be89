"""The matrix of wheels: what cibuildwheel would build, what the workflows run, what the documentation says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cudaloss import _C
from cudaloss._install.build import INFO
from tools import matrix

ROOT = Path(__file__).resolve().parents[2]
EVERYWHERE = [f"cp3{minor}-{{}}" for minor in range(10, 15)]


def text(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("variant", [variant for variant in matrix.VARIANTS.values() if variant.cuda])
def test_a_variants_driver_is_the_one_that_a_launch_asks_for(variant: matrix.Variant) -> None:
    assert f"needs driver {variant.driver} or newer" in _C.explain_old_driver(0, variant.cuda)


@pytest.mark.parametrize("platform", matrix.PLATFORMS, ids=lambda platform: platform.tag)
def test_cibuildwheel_builds_the_matrix(platform: matrix.Platform) -> None:
    pytest.importorskip("cibuildwheel")
    system = "macos" if platform.system == "macosx" else "linux"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "cibuildwheel",
            "--print-build-identifiers",
            f"--platform={system}",
            f"--archs={platform.machine}",
        ],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("CIBW_")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == matrix.identifiers(platform)
    assert matrix.identifiers(platform) == [name.format(f"{platform.system}_{platform.machine}") for name in EVERYWHERE]


@pytest.mark.parametrize("platform", ["x86_64", "aarch64"])
def test_images_are_those_that_cibuildwheel_pins(platform: str) -> None:
    resources = pytest.importorskip("cibuildwheel.util.resources")
    import configparser

    pins = configparser.ConfigParser(inline_comment_prefixes=("#",))
    pins.read(resources.PINNED_DOCKER_IMAGES)
    ours = re.findall(rf'^manylinux-{platform}-image = "(.*)"$', text("pyproject.toml"), re.MULTILINE)
    assert ours == [pins[platform]["manylinux_2_28"]]
    assert re.search(r"@sha256:[0-9a-f]{64}$", ours[0])


def test_the_documentation_has_the_matrix() -> None:
    page = text("docs/wheels.md")
    assert f"\n\n{matrix.table()}\n\n" in page, "docs/wheels.md needs what `python -m tools.matrix table` prints"
    *all_but_last, last = matrix.PYTHONS
    assert f"CPython {', '.join(all_but_last)} and {last}" in " ".join(page.split())
    assert "(manylinux_2_28: " in page
    assert "macOS 11 or newer" in page
    assert all(platform.tag.startswith(("manylinux_2_28_", "macosx_11_0_")) for platform in matrix.PLATFORMS)


def test_the_table_has_a_row_a_variant() -> None:
    rows = matrix.table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(matrix.VARIANTS)
    assert rows[0].startswith("| `cu126` | 12.6 | 525 or newer | 7.0, 7.5, 8.0, 9.0 | Linux x86_64, ")
    assert "| 7.0, 7.5, 8.0, 9.0, 10.0, 12.0 |" in rows[1]
    assert rows[2].endswith("| PyPI (Linux x86_64, Linux aarch64), `whl/cu130` |")
    assert "7.0" not in rows[2]
    assert rows[3] == (
        "| `cpu` | none | none | none | Linux x86_64, Linux aarch64, macOS arm64 | PyPI (macOS arm64), `whl/cpu` |"
    )


def test_jobs_are_the_variants_on_their_platforms() -> None:
    jobs = matrix.jobs()
    assert len({job["artifact"] for job in jobs}) == len({job["name"] for job in jobs}) == len(jobs) == 9
    by_name = {job["name"]: job for job in jobs}
    assert by_name["cu130, Linux aarch64"] == {
        "name": "cu130, Linux aarch64",
        "artifact": "wheels-cu130-manylinux_2_28_aarch64",
        "runner": "ubuntu-24.04-arm",
        "toolkit": "13.0",
        "cuda": "1",
        "local": "",
        "skip": "",
    }
    assert by_name["cpu, Linux x86_64"]["cuda"] == "0"
    assert {name: job["local"] for name, job in by_name.items() if name.startswith(("cpu", "cu126"))} == {
        "cu126, Linux x86_64": "cu126",
        "cu126, Linux aarch64": "cu126",
        "cpu, Linux x86_64": "cpu",
        "cpu, Linux aarch64": "cpu",
        "cpu, macOS arm64": "",
    }


def test_a_pull_request_builds_some_of_the_jobs() -> None:
    few = matrix.jobs(few=True)
    assert [job["name"] for job in few] == ["cu130, Linux x86_64", "cpu, Linux x86_64", "cpu, macOS arm64"]
    assert {job["skip"] for job in few} == {"cp311-* cp312-* cp313-*"}
    without_skip = [{**job, "skip": ""} for job in few]
    assert all(job in matrix.jobs() for job in without_skip)


def test_the_workflow_reads_what_a_job_has() -> None:
    """Every field is used and every used field is there: GitHub takes a missing one for an empty text."""
    workflow = text(".github/workflows/wheels.yml")
    used = set(re.findall(r"(?<!needs\.)\bmatrix\.(\w+)", workflow.partition("  wheels:\n")[2]))
    assert used == set(matrix.jobs()[0])
    passed = re.search(r"environment-pass = (\[.*\])", text("pyproject.toml"))
    assert passed
    assert set(json.loads(passed[1])) == set(re.findall(r"^ +(CUDALOSS_\w+):", workflow, re.MULTILINE))


def test_the_release_has_every_wheel_once() -> None:
    names = [str(wheel) for wheel in matrix.wheels()]
    assert len(names) == len(set(names)) == 5 * 9
    version = matrix.version()
    assert f"cudaloss-{version}-cp310-cp310-manylinux_2_28_x86_64.whl" in names
    assert f"cudaloss-{version}+cpu-cp314-cp314-manylinux_2_28_aarch64.whl" in names
    assert f"cudaloss-{version}-cp312-cp312-macosx_11_0_arm64.whl" in names
    assert [str(matrix.Wheel.named(name)) for name in names] == names
    assert list(matrix.misfits(names)) == []


def test_missing_doubled_and_foreign_wheels_are_named(tmp_path: Path) -> None:
    first, second, *others = [str(wheel) for wheel in matrix.wheels()]
    foreign = second.replace("manylinux_2_28", "manylinux_2_34")
    assert list(matrix.misfits([second, *others])) == [f"{first}: missing"]
    assert list(matrix.misfits([first, foreign, *others])) == [
        f"{foreign}: not a wheel of the release",
        f"{second}: missing",
    ]
    for name in (first, second, *others):
        (tmp_path / name).touch()
    assert script("wheels", str(tmp_path)).returncode == 0
    (tmp_path / first).unlink()
    done = script("wheels", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, f"{first}: missing\n")


def script(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tools.matrix", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_jobs_are_printed_for_the_workflow() -> None:
    assert json.loads(script("jobs").stdout) == {"include": matrix.jobs()}
    assert json.loads(script("jobs", "--few").stdout) == {"include": matrix.jobs(few=True)}
    assert script("table").stdout == matrix.table() + "\n"


@pytest.mark.parametrize(
    ("name", "variant", "platform"),
    [
        ("cudaloss-0.1.0+cu126-cp310-cp310-manylinux_2_28_x86_64.whl", "cu126", "Linux x86_64"),
        ("cudaloss-0.1.0-cp310-cp310-manylinux_2_28_aarch64.whl", "cu130", "Linux aarch64"),
        ("cudaloss-0.1.0-cp314-cp314-macosx_11_0_arm64.whl", "cpu", "macOS arm64"),
    ],
)
def test_a_wheels_variant_is_in_its_name(name: str, variant: str, platform: str) -> None:
    wheel = matrix.Wheel.named(name)
    assert (wheel.variant, wheel.platform.name) == (variant, platform)


@pytest.mark.parametrize("name", ["cudaloss-0.1.0.tar.gz", "torch-2.10.0-cp310-cp310-any.whl", "cudaloss-0.1.0.whl"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{re.escape(name)}' is not named cudaloss-"):
        matrix.Wheel.named(name)


def test_an_unknown_platform_is_refused() -> None:
    with pytest.raises(ValueError, match="win_amd64 is one of the release's: manylinux_2_28_x86_64, "):
        matrix.Wheel.named("cudaloss-0.1.0-cp310-cp310-win_amd64.whl").platform  # noqa: B018


def test_the_least_torch_is_one() -> None:
    least = re.findall(r"^torch==(\d+)\.(\d+)\.\*$", text("requirements/least-torch.txt"), re.MULTILINE)
    needed = re.findall(r'"torch>=(\d+)\.(\d+)"', text("pyproject.toml"))
    assert len(least) == 1
    assert needed == [*least, *least], "what the build and what the package asks for"
    assert INFO["torch_target"] == ".".join(least[0])


def test_pythons_are_the_metadatas() -> None:
    classifiers = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text("pyproject.toml"))
    assert classifiers == list(matrix.PYTHONS)
    assert f'requires-python = ">={matrix.PYTHONS[0]}"' in text("pyproject.toml")
