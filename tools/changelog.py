"""A release's section of CHANGELOG.md, for its notes: python -m tools.changelog v0.1.0

Fails if the tag is not the version's, if the section is missing, empty or not dated, and if the project's pages still
describe a project without a release.
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.matrix import ROOT, version

NAMES_OWNER = ("pyproject.toml", "CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml")
HEADING = re.compile(r"^## (?P<version>\S+) \((?P<date>[^)]*)\)\s*$", re.MULTILINE)


def section(changelog: str, release: str) -> str:
    """The text under `release`'s heading, which is ``## <version> (<year>-<month>-<day>)``."""
    headings = list(HEADING.finditer(changelog))
    found = [i for i, heading in enumerate(headings) if heading["version"] == release]
    if len(found) != 1:
        raise ValueError(f"CHANGELOG.md has {len(found)} sections '## {release} (<date>)', a release needs one")
    heading = headings[found[0]]
    try:
        datetime.date.fromisoformat(heading["date"])
    except ValueError:
        raise ValueError(
            f"CHANGELOG.md dates {release} {heading['date']!r}: write the day of the release, as 2026-11-21"
        ) from None
    end = headings[found[0] + 1].start() if found[0] + 1 < len(headings) else len(changelog)
    text = changelog[heading.end() : end].strip()
    if not text:
        raise ValueError(f"CHANGELOG.md's section of {release} is empty: say what changed")
    return text


def unreleased(root: Path) -> Iterator[str]:
    """The pages that must be rewritten before the first release: PyPI keeps them for ever."""
    pages = sorted(path.relative_to(root).as_posix() for path in (root / "docs").rglob("*.md"))
    for name, words in (
        *((name, "OWNER") for name in (*NAMES_OWNER, *pages)),
        ("README.md", "until the first release"),
        ("docs/installing.md", "There is no release yet"),
        ("docs/quick-start.md", "There is no release yet"),
        ("docs/wheels.md", "There is no release yet"),
        ("docs/recipes/hugging-face.md", "before the first release"),
    ):
        if words in (root / name).read_text(encoding="utf-8"):
            yield f"{name} has {words!r}"


def notes(tag: str) -> str:
    """The notes of the release that `tag` names."""
    release = version()
    if tag != f"v{release}":
        raise ValueError(
            f"the tag {tag!r} is not the version's: src/cudaloss/_version.py says {release}, whose tag is v{release}"
        )
    if found := list(unreleased(ROOT)):
        raise ValueError(f"{'; '.join(found)}: that holds before the first release alone")
    return section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), release)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tag", help="the release's tag")
    try:
        print(notes(parser.parse_args().tag))
    except ValueError as error:
        print(f"changelog: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
