"""The check of the built documentation sees what a reader would: where a browser and its driver are installed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright")
from tools import docs_check

pytestmark = pytest.mark.skipif(not docs_check.browser_path(), reason="no browser")

PAGE = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>page</title>
<h1 id="first">Page</h1>{body}"""


def pages(folder: Path, **bodies: str) -> Path:
    for name, body in bodies.items():
        (folder / f"{name}.html").write_text(PAGE.format(body=body))
    return folder


def test_whole_pages_pass_and_a_search_without_results_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = '<a href="other.html#first">there</a><a href="https://example.org/x">away</a>'
    monkeypatch.setattr(docs_check, "PATIENCE", 100)
    assert docs_check.check(pages(tmp_path, index=body, other="", search="")) == ["search: finds nothing for 'mask'"]


def test_a_folder_without_pages_is_seen(tmp_path: Path) -> None:
    assert docs_check.check(tmp_path) == [f"{tmp_path} has no pages"]


BROKEN = {
    '<a href="none.html">there</a>': "none.html, which is not there",
    '<a href="other.html#second">there</a>': "other.html#second, which has no such heading",
    '<img src="none.png">': "picture does not load",
    '<script src="none.js"></script>': "404 (File not found)",
    "<script>console.error('no')</script>": "console: no",
    "<script>nothing()</script>": "nothing is not defined",
    '<div style="width: 600px">wide</div>': "wider than the window",
    '<img src="http://192.0.2.1/x.png">': "asks for http://192.0.2.1/x.png",
}


def test_what_is_broken_is_said_of_its_page(tmp_path: Path) -> None:
    bodies = {f"page{index}": body for index, body in enumerate(BROKEN)}
    found = docs_check.check(pages(tmp_path, **bodies, other=""))
    for name, said in zip(bodies, BROKEN.values(), strict=True):
        assert any(said in text for text in found if text.startswith(f"{name}.html")), found
    assert not [text for text in found if text.startswith("other.html")]
