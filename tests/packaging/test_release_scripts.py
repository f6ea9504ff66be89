"""What a release runs: its notes, the package index, the toolkit's installation."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tools import changelog, index, matrix

ROOT = Path(__file__).resolve().parents[2]
URL = "https://example.org/releases/download/v0.1.0"
LOG = "# Changelog\n\n## 0.2.0 (2026-12-01)\n\n- New.\n- More.\n\n## 0.1.0 (2026-11-21)\n\n- First.\n"


# The notes


def test_a_section_is_the_text_under_its_heading() -> None:
    assert changelog.section(LOG, "0.2.0") == "- New.\n- More."
    assert changelog.section(LOG, "0.1.0") == "- First."


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (LOG.replace("2026-12-01", "unreleased"), "dates 0.2.0 'unreleased': write the day"),
        (LOG.replace("2026-12-01", "2026-13-01"), "dates 0.2.0 '2026-13-01'"),
        (LOG.replace("## 0.2.0 (2026-12-01)", "## 0.2.0"), "has 0 sections '## 0.2.0 "),
        (LOG.replace("## 0.1.0", "## 0.2.0"), "has 2 sections"),
        (LOG.replace("- New.\n- More.\n", ""), "section of 0.2.0 is empty"),
    ],
)
def test_a_section_that_cannot_be_released_is_refused(log: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        changelog.section(log, "0.2.0")


@pytest.mark.parametrize("tag", ["v9.9.9", matrix.version(), f"v{matrix.version()}.post1"])
def test_a_tag_of_another_version_is_refused(tag: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.changelog", tag], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the tag '{tag}' is not the version's: src/cudaloss/_version.py says {matrix.version()}" in done.stderr


def test_a_release_of_a_project_that_says_it_has_none_is_refused(tmp_path: Path, monkeypatch) -> None:
    pages = *("installing", "quick-start", "wheels"), "recipes/hugging-face"
    for name in (*changelog.NAMES_OWNER, "README.md", *(f"docs/{page}.md" for page in pages)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert not list(changelog.unreleased(tmp_path))
    (tmp_path / "pyproject.toml").write_text('Repository = "https://github.com/OWNER/cudaloss"')
    (tmp_path / "docs/wheels.md").write_text("gh attestation verify FILE --repo OWNER/cudaloss")
    (tmp_path / "docs/installing.md").write_text("There is no release yet: 0.1.0 is unreleased")
    monkeypatch.setattr(changelog, "ROOT", tmp_path)
    found = r"pyproject.toml has 'OWNER'; docs/wheels.md has 'OWNER'; docs/installing.md has 'There is"
    with pytest.raises(ValueError, match=found):
        changelog.notes(f"v{matrix.version()}")


def test_the_words_that_a_release_is_refused_for_are_the_pages_own() -> None:
    found = " ".join(changelog.unreleased(ROOT))  # nothing, after the first release
    pages = *changelog.NAMES_OWNER, "README.md", "docs/recipes/hugging-face.md has 'before"
    pages += tuple(f"docs/{page}.md has 'There is" for page in ("installing", "quick-start", "wheels"))
    assert not found or all(page in found for page in pages)


def test_the_changelog_knows_the_version() -> None:
    log = (ROOT / "CHANGELOG.md").read_text()
    assert [heading["version"] for heading in changelog.HEADING.finditer(log)].count(matrix.version()) == 1
    dated = log.replace(f"## {matrix.version()} (unreleased)", f"## {matrix.version()} (2026-11-21)")
    assert "\n- " in changelog.section(dated, matrix.version())


# The index


def wheel(folder: Path, name: str, python: str = ">=3.10", body: bytes = b"") -> Path:
    """A wheel that pip takes: metadata, and nothing to import but `body`."""
    parsed = matrix.Wheel.named(name)
    version = name.split("-")[1]
    info = f"cudaloss-{version}.dist-info"
    path = folder / name
    with zipfile.ZipFile(path, "w") as archive:
        requires = f"Requires-Python: {python}\n" if python else ""
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: cudaloss\nVersion: {version}\n{requires}")
        tags = "".join(f"Tag: {parsed.python}-{parsed.abi}-{tag}\n" for tag in parsed.tags)
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: false\n{tags}")
        archive.writestr("cudaloss/body", body)
        archive.writestr(f"{info}/RECORD", "")
    return path


class Links(HTMLParser):
    """Every anchor of a page: (text, attributes)."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found.append(("", dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.lasttag == "a" and data.strip():
            self.found[-1] = (data, self.found[-1][1])


def release(folder: Path, version: str = "0.1.0", tag: str = "cp312-cp312") -> list[str]:
    folder.mkdir()
    names = [
        f"cudaloss-{version}{local}-{tag}-{platform}.whl"
        for local, platform in (
            ("", "macosx_11_0_arm64"),
            ("", "manylinux_2_28_x86_64"),
            ("+cpu", "manylinux_2_28_x86_64"),
            ("+cu126", "manylinux_2_28_x86_64"),
        )
    ]
    for name in names:
        wheel(folder, name)
    return names


def test_every_variant_has_a_page_of_its_wheels(tmp_path: Path) -> None:
    mac, plain, cpu, cu126 = release(tmp_path / "dist")
    pages = index.site(index.merged([index.manifest(tmp_path / "dist", URL + "/")]))
    assert {path: [text for text, _ in Links(page).found] for path, page in pages.items()} == {
        "whl/index.html": ["cpu", "cu126", "cu130"],
        "whl/cpu/index.html": ["cudaloss"],
        "whl/cpu/cudaloss/index.html": [cpu, mac] if cpu < mac else [mac, cpu],
        "whl/cu126/index.html": ["cudaloss"],
        "whl/cu126/cudaloss/index.html": [cu126],
        "whl/cu130/index.html": ["cudaloss"],
        "whl/cu130/cudaloss/index.html": [plain],
    }
    assert [at["href"] for _, at in Links(pages["whl/index.html"]).found] == ["cpu/", "cu126/", "cu130/"]
    assert [at["href"] for _, at in Links(pages["whl/cu126/index.html"]).found] == ["cudaloss/"]


def test_a_link_has_the_asset_its_hash_and_its_pythons(tmp_path: Path) -> None:
    *_, cu126 = release(tmp_path / "dist")
    page = index.site(index.manifest(tmp_path / "dist", URL))["whl/cu126/cudaloss/index.html"]
    ((text, attributes),) = Links(page).found
    digest = hashlib.sha256((tmp_path / "dist" / cu126).read_bytes()).hexdigest()
    assert attributes == {
        "href": f"{URL}/cudaloss-0.1.0%2Bcu126-cp312-cp312-manylinux_2_28_x86_64.whl#sha256={digest}",
        "data-requires-python": ">=3.10",
    }
    assert 'data-requires-python="&gt;=3.10"' in page
    assert text == cu126 == unquote(urldefrag(str(attributes["href"])).url.rpartition("/")[2])


def test_releases_are_listed_together(tmp_path: Path) -> None:
    old, new = release(tmp_path / "old"), release(tmp_path / "new", "0.2.0")
    manifests = [index.manifest(tmp_path / name, f"{URL}/{name}") for name in ("new", "old")]
    page = index.site(index.merged([*manifests, manifests[0]]))["whl/cu130/cudaloss/index.html"]
    assert [text for text, _ in Links(page).found] == [old[1], new[1]]


def test_a_name_is_one_file(tmp_path: Path) -> None:
    name = release(tmp_path / "dist")[0]
    first = index.manifest(tmp_path / "dist", URL)
    wheel(tmp_path / "dist", name, body=b"another")
    with pytest.raises(ValueError, match=f"{name} is in two releases, and not the same"):
        index.merged([first, index.manifest(tmp_path / "dist", URL)])


def test_an_empty_index_is_refused() -> None:
    with pytest.raises(ValueError, match="hold no wheel"):
        index.merged([[]])


def test_a_wheel_without_metadata_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cudaloss-0.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    zipfile.ZipFile(path, "w").close()
    with pytest.raises(ValueError, match="has 0 files"):
        index.manifest(tmp_path, URL)


def test_a_wheel_for_any_python_says_nothing_of_it(tmp_path: Path) -> None:
    name = "cudaloss-0.1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    wheel(tmp_path, name, python="")
    page = index.site(index.manifest(tmp_path, URL))["whl/cu130/cudaloss/index.html"]
    assert [text for text, _ in Links(page).found] == [name]
    assert "requires-python" not in page


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_pip_installs_from_the_index(tmp_path: Path) -> None:
    """The scripts as release.yml runs them, and pip as its user does, over files in the place of the network."""
    # uv's environments have none. Looking for the module would make setuptools load Python's own, deprecated distutils.
    if not any(importlib.metadata.distributions(name="pip")):
        pytest.skip("needs pip")
    _, plain, _, cu126 = release(tmp_path / "dist")
    written = run(sys.executable, "-m", "tools.index", "manifest", str(tmp_path / "dist"), (tmp_path / "dist").as_uri())
    (tmp_path / "v0.1.0.json").write_text(written.stdout)
    assert len(json.loads(written.stdout)) == 4, written.stderr
    site = run(sys.executable, "-m", "tools.index", "site", str(tmp_path), str(tmp_path / "v0.1.0.json"))
    assert site.returncode == 0, site.stderr

    def download(variant: str, python: str = "3.12") -> subprocess.CompletedProcess[str]:
        where = [f"--index-url={(tmp_path / 'whl' / variant).as_uri()}", f"--dest={tmp_path / 'got'}"]
        what = ["--no-deps", "--only-binary=:all:", "--platform=manylinux_2_28_x86_64", f"--python-version={python}"]
        isolated = ["--isolated", "--no-cache-dir", "--disable-pip-version-check"]
        return run(sys.executable, "-m", "pip", "download", *isolated, *where, *what, "cudaloss")

    for variant, name in (("cu126", cu126), ("cu130", plain)):
        done = download(variant)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "got" / name).read_bytes() == (tmp_path / "dist" / name).read_bytes()
        (tmp_path / "got" / name).unlink()
    assert "No matching distribution" in download("cu126", "3.11").stderr

    wheel(tmp_path / "dist", cu126, body=b"not what was released")
    tampered = download("cu126")
    assert tampered.returncode != 0
    assert "DO NOT MATCH THE HASHES" in tampered.stderr


# The wheels' tests


@pytest.mark.parametrize(("fails", "suites"), [(0, 2), (1, 1)])
def test_a_wheel_is_tested_with_both_torches(tmp_path: Path, fails: int, suites: int) -> None:
    (tmp_path / "python").write_text(
        f'#!/bin/sh\necho "${{PIP_CONSTRAINT-}} $@" >> {tmp_path}/calls\ncase "$2" in pytest) exit {fails};; esac\n'
    )
    (tmp_path / "python").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = run("bash", "tools/test_wheel.sh", "/project", PIP_CONSTRAINT="least.txt", PATH=path)
    assert done.returncode == fails, done.stderr
    suite = ["least.txt -", "least.txt -m pytest -q -n auto /project/tests"]
    upgrade = [" -m pip install --upgrade torch"]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ([*suite, *upgrade, *suite] if suites == 2 else suite)


# The toolkit


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A folder of commands that write down how they are called, in the place of a container's."""
    for name, script in {
        "dnf": f'echo "dnf $@" >> {tmp_path}/calls',
        "ln": f'echo "ln $@" >> {tmp_path}/calls',
        "uname": 'echo "$MACHINE"',
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "calls").touch()
    return tmp_path


def install(container: Path, toolkit: str, machine: str = "x86_64") -> subprocess.CompletedProcess[str]:
    path = f"{container}{os.pathsep}{os.environ['PATH']}"
    return run("bash", "tools/install_cuda.sh", CUDALOSS_TOOLKIT=toolkit, MACHINE=machine, PATH=path)


@pytest.mark.parametrize(("machine", "repository"), [("x86_64", "x86_64"), ("aarch64", "sbsa")])
def test_the_toolkit_of_every_variant_is_installed(container: Path, machine: str, repository: str) -> None:
    for variant in matrix.VARIANTS.values():
        (container / "calls").write_text("")
        done = install(container, variant.cuda, machine)
        assert done.returncode == 0, done.stderr
        calls = (container / "calls").read_text().splitlines()
        if not variant.cuda:
            assert calls == []
            continue
        repository_call, install_call, link = calls
        assert repository_call.endswith(f"/rhel8/{repository}/cuda-rhel8.repo")
        assert f" cuda-nvcc-{variant.cuda.replace('.', '-')} " in install_call
        assert link == f"ln -sfn /usr/local/cuda-{variant.cuda} /usr/local/cuda"


def test_a_wrong_toolkit_or_machine_is_refused(container: Path) -> None:
    wrong = install(container, "cu130")
    assert wrong.returncode == 1
    assert "CUDALOSS_TOOLKIT must be a toolkit's version, as 13.0, or empty for none, got 'cu130'" in wrong.stderr
    assert "no toolkit for riscv64" in install(container, "13.0", "riscv64").stderr
    assert (container / "calls").read_text() == ""
