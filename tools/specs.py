"""The rows of the losses, without an import of the package, which would load the extension and the generated files."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "cudaloss"


@contextlib.contextmanager
def without_init() -> Iterator[Path]:
    """Within it an import of ``cudaloss._losses`` does not run ``cudaloss/__init__.py``. Gives the package's folder."""
    ours = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "cudaloss"}  # a test's
    for name in ours:
        del sys.modules[name]
    package = types.ModuleType("cudaloss")
    package.__path__ = [str(PACKAGE)]
    sys.modules["cudaloss"] = package
    try:
        yield PACKAGE
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "cudaloss"]:
            del sys.modules[name]
        sys.modules.update(ours)
