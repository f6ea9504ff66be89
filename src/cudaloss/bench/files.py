"""Rows in files: JSON unchanged, CSV flat."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from .cases import Row


def write_json(path: Path, environment: dict[str, Any], rows: list[Row]) -> None:
    path.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


def flat(row: Row) -> dict[str, Any]:
    """A row with nested names joined: ``seconds.eager.median``."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= {f"{key}.{inner}": one for inner, one in flat(value).items()}
        else:
            found[key] = " ".join(map(str, value)) if isinstance(value, list) else value
    return found


def write_csv(path: Path, rows: list[Row]) -> None:
    lines = [flat(row) for row in rows]
    columns = dict.fromkeys(name for line in lines for name in line)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(lines)
