"""``python -m cudaloss.bench``."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("rich") is None:
        sys.exit("the benchmark prints with rich, which is missing: pip install rich")
    from .cli import main

    sys.exit(main())
