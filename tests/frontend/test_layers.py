"""The package's files stand on each other: no circle of imports, and no folder imports from one above it."""

from __future__ import annotations

import ast
import re
from graphlib import TopologicalSorter
from pathlib import Path

import cudaloss

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(cudaloss.__file__).parent


def imports(path: Path) -> set[Path]:
    """The package's files that a file imports, also inside of functions; not those for a type checker alone."""
    tree, found = ast.parse(path.read_text()), set()
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level or node in skipped:
            continue
        folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for name in node.names:
            found |= {file for file in (folder / f"{name.name}.py", folder.with_suffix(".py")) if file.exists()}
    return found


FILES = {path: imports(path) for path in PACKAGE.rglob("*.py")}


def test_no_circle_of_imports() -> None:
    TopologicalSorter(FILES).prepare()  # raises CycleError


def test_no_folder_imports_from_one_above_it() -> None:
    """The order is that of the architecture's table."""
    page = (ROOT / "docs" / "architecture.md").read_text().partition("stand on each other")[2]
    order = list(dict.fromkeys(re.findall(r"^\| `(_[a-z]+)/", page, re.MULTILINE)))
    assert set(order) == {path.name for path in PACKAGE.glob("_*/") if path.name != "__pycache__"}
    places = {path: order.index(path.parent.name) if path.parent.name in order else len(order) for path in FILES}
    facts = ("least_torch", "source_tree")  # of the build, which import nothing
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {of.relative_to(PACKAGE)}"
        for path, found in FILES.items()
        for of in found
        if places[of] > places[path] and of.stem not in facts and path.name != "__init__.py"
    ]
    assert upwards == []
