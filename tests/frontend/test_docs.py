"""The documentation's Python runs, and what its tables say holds."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from markdown_it import MarkdownIt

import cudaloss
from cudaloss._losses.table import PUBLIC

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_PYTHON = {"sh", "bash", "shell", "console", "text", "cpp", "toml", "yaml", "dockerfile"}
# Software that a page may import and that is not of the ordinary environment: `make clients` installs it.
CLIENTS = {"accelerate", "diffusers", "lightning", "transformers"}


def blocks(markdown: str, before: int = 0) -> Iterator[tuple[str, str, int]]:
    """The fenced blocks as (language, text, lines before the text), those within a directive's fence included."""
    for token in MarkdownIt().parse(markdown):
        if token.type != "fence":
            continue
        assert token.map
        language, first = token.info.strip(), before + token.map[0] + 1
        if language.startswith("{"):
            yield from blocks(token.content, first)
        else:
            yield language, token.content, first


def run_session(text: str, namespace: dict[str, Any], page: Path, before: int) -> None:
    """The examples of a block with prompts; what they print must be what the block shows."""
    failures: list[str] = []
    test = doctest.DocTestParser().get_doctest(text, namespace, page.name, str(page), before)
    test.globs = namespace  # not a copy: the next block goes on from here
    doctest.DocTestRunner().run(test, out=failures.append, clear_globs=False)
    assert not failures, "".join(failures)


def missing(text: str) -> set[str]:
    """Of CLIENTS, what a block imports and is not installed."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported.add(node.module or "")
    found = {name.partition(".")[0] for name in imported} & CLIENTS
    return {name for name in found if importlib.util.find_spec(name) is None}


def run(page: Path, namespace: dict[str, Any]) -> None:
    """Every Python block of a page, in order and in one namespace, up to one that imports what is missing."""
    for language, text, before in blocks(page.read_text()):
        assert language == "python" or language in NOT_PYTHON, f"{page}:{before}: a block of {language!r}"
        if language != "python":
            continue
        if text.lstrip().startswith(">>>"):
            run_session(text, namespace, page, before)
        elif absent := missing(text):
            pytest.skip(f"{page.name}:{before}: {', '.join(sorted(absent))} not installed")
        else:
            exec(compile("\n" * before + text, str(page), "exec"), namespace)


@pytest.fixture
def untouched() -> Iterator[None]:
    """What pages and the software that they use change in the process is as before, afterwards."""
    threads = torch.get_num_threads()
    with mock.patch.dict(os.environ):
        yield
    torch.set_num_threads(threads)
    if state := sys.modules.get("accelerate.state"):  # processes that another page forks would take over this one's
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.mark.usefixtures("untouched")
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning:lightning")  # of PyTorch, at Lightning's own call
@pytest.mark.filterwarnings("ignore:.*does not have many workers")  # Lightning's, on a machine with many cores
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run(page, {"__name__": page.stem})


def test_wrong_examples_are_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(":::{note}\n```python\nx = 1\n```\n:::\n\n````{tip}\n```python\n>>> x\n2\n```\n````\n")
    with pytest.raises(AssertionError, match=r"line 9(.|\n)*Got:\s+1"):
        run(page, {})
    page.write_text("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError) as raised:
        run(page, {})
    assert raised.traceback[-1].lineno == 5  # counted from 0
    page.write_text("```py\nx = 1\n```\n")
    with pytest.raises(AssertionError, match="a block of 'py'"):
        run(page, {})


def test_only_what_a_missing_client_needs_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    page, seen = tmp_path / "page.md", {"x": 0}
    page.write_text("```python\nx = 1\n```\n\n```python\nfrom diffusers.utils import logging\nx = 2\n```\n")
    with pytest.raises(pytest.skip.Exception, match=r"page.md:5: diffusers not installed"):
        run(page, seen)
    assert seen["x"] == 1
    page.write_text("```python\nassert False\n```\n\n```python\nimport lightning\n```\n")
    with pytest.raises(AssertionError):
        run(page, seen)
    page.write_text("```python\nimport nowhere_to_be_found\n```\n")
    with pytest.raises(ModuleNotFoundError, match="nowhere_to_be_found"):
        run(page, seen)


def test_the_projects_owner_is_one() -> None:
    owners = set()
    for page in [ROOT / "pyproject.toml", *PAGES]:
        owners |= set(re.findall(r"https://(?:github\.com/)?([\w-]+)(?:\.github\.io)?/cudaloss", page.read_text()))
    assert len(owners) == 1, owners


def test_idioms_of_pytorch_and_ours_agree() -> None:
    """Both cells of every row of the table, on the page's own tensors."""
    page = ROOT / "docs" / "moving-from-pytorch.md"
    namespace: dict[str, Any] = {}
    run(page, namespace)
    rows = re.findall(r"^\| `([^|]+)` \| `([^|]+)` \|", page.read_text(), re.MULTILINE)
    assert len(rows) > 10
    for theirs, ours in rows:
        expected, found = eval(theirs, namespace), eval(ours, namespace)
        torch.testing.assert_close(found, expected, msg=lambda text, row=ours: f"{row}: {text}")


@pytest.mark.parametrize("masked", [False, True])
def test_a_call_runs_the_files_that_the_architecture_names(masked: bool) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.partition("## The files of one call")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| (?:Python)? ?\| `([\w/]+\.py)`", table, re.MULTILINE))
    assert "`_ops/private.py`" in table
    input = torch.randn(8, requires_grad=True)
    mask = torch.ones(8, dtype=torch.bool) if masked else None

    def step() -> None:
        cudaloss.mse_loss(input, torch.zeros(8), mask=mask).backward()

    step()  # what a first call does once is not of each call
    found = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: found.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        step()
    finally:
        sys.setprofile(before)
    package = Path(cudaloss.__file__).parent
    ours = {str(path.relative_to(package)) for path in map(Path, found) if path.is_relative_to(package)}
    assert ours == named


def test_the_architecture_names_each_source_file() -> None:
    said = re.findall(r"`([\w./<>*-]+[\w>*])`", (ROOT / "docs" / "architecture.md").read_text())
    patterns = [re.sub(r"<\w+>", "*", name) for name in said if name != "*"]
    sources = {*ROOT.glob("csrc/**/*.[ch]*"), *ROOT.glob("src/cudaloss/**/*.py")}
    assert sources
    assert [str(path) for path in sources if not any(path.match(pattern) for pattern in patterns)] == []


def test_every_loss_is_on_one_page() -> None:
    """The pages name modules of rows; docs/_ext/catalogue.py writes each module's losses."""
    pages = (ROOT / "docs" / "losses").glob("*.md")
    marks = [mark for page in pages for mark in re.findall(r"<!-- losses: ([\w ]+) -->", page.read_text())]
    shown = [
        spec for name in " ".join(marks).split() for spec in importlib.import_module(f"cudaloss._losses.{name}").ROWS
    ]
    assert sorted(spec.id for spec in shown) == sorted(spec.id for spec in PUBLIC)
