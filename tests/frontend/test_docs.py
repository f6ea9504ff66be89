"""The documentation's Python runs, and what its tables say holds."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_PYTHON = {"sh", "bash", "shell", "console", "text", "cpp", "toml", "yaml", "dockerfile"}


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


def run(page: Path, namespace: dict[str, Any]) -> None:
    """Every Python block of a page, in order and in one namespace."""
    for language, text, before in blocks(page.read_text()):
        assert language == "python" or language in NOT_PYTHON, f"{page}:{before}: a block of {language!r}"
        if language != "python":
            continue
        if text.lstrip().startswith(">>>"):
            run_session(text, namespace, page, before)
        else:
            exec(compile("\n" * before + text, str(page), "exec"), namespace)


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
