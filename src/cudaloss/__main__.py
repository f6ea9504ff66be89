"""``python -m cudaloss``: what is built, what is here, whether they fit."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from .diagnostics import report
from .diagnostics.text import rendered


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m cudaloss", description="What is built, what is here, whether they fit, and a self-test."
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    options = parser.parse_args(arguments)
    found = report()
    print(json.dumps(found, indent=2) if options.json else rendered(found))
    return 0 if found["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
