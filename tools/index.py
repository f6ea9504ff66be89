"""A package index (PEP 503) for every variant, over the wheels that releases have as assets.

python -m tools.index manifest FOLDER URL  what the index says of FOLDER's wheels, found under URL, as JSON
python -m tools.index site FOLDER FILE...  the index of all releases, in FOLDER, from their manifests

A release keeps its manifest as an asset: an index of every release is then made from these, without their wheels.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import json
import sys
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import quote

from tools.matrix import PROJECT, Wheel

PAGE = """<!DOCTYPE html>
<html lang="en">
  <head>
    <meta charset="utf-8">
    <meta name="pypi:repository-version" content="1.0">
    <title>{title}</title>
  </head>
  <body>
    <h1>{title}</h1>
{lines}
  </body>
</html>
"""


def requires_python(wheel: Path) -> str:
    """The Python versions in the wheel's metadata, which pip reads from the index."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        if len(names) != 1:
            raise ValueError(f"{wheel.name} has {len(names)} files *.dist-info/METADATA, a wheel has one")
        return HeaderParser().parsestr(archive.read(names[0]).decode()).get("Requires-Python", "")


def manifest(folder: Path, url: str) -> list[dict[str, str]]:
    """An entry for each wheel of `folder`; each wheel is an asset under `url`."""
    return [
        {
            "filename": wheel.name,
            "variant": Wheel.named(wheel.name).variant,
            "url": f"{url.rstrip('/')}/{quote(wheel.name)}",
            "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
            "requires_python": requires_python(wheel),
        }
        for wheel in sorted(folder.glob("*.whl"))
    ]


def merged(manifests: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    """The entries of all releases. A file name means the same file for ever: pip relies on its hash."""
    entries: dict[str, dict[str, str]] = {}
    for entry in (entry for entries_of_one in manifests for entry in entries_of_one):
        other = entries.setdefault(entry["filename"], entry)
        if other != entry:
            raise ValueError(f"{entry['filename']} is in two releases, and not the same: {other}, {entry}")
    if not entries:
        raise ValueError("the manifests hold no wheel: an index of none would take every wheel from its users")
    return [entries[name] for name in sorted(entries)]


def link(url: str, text: str, attributes: str = "") -> str:
    return f'    <a href="{html.escape(url)}"{attributes}>{html.escape(text)}</a><br>'


def wheel_link(entry: dict[str, str]) -> str:
    """A link with the hash that pip checks, and the Python versions that it is for."""
    python = entry["requires_python"]
    attributes = f' data-requires-python="{html.escape(python)}"' if python else ""
    return link(f"{entry['url']}#sha256={entry['sha256']}", entry["filename"], attributes)


def page(title: str, lines: list[str]) -> str:
    return PAGE.format(title=html.escape(title), lines="\n".join(lines))


def site(entries: list[dict[str, str]]) -> dict[str, str]:
    """The pages by their paths: all variants, the one project of each variant, and the wheels of that project."""
    variants = sorted({entry["variant"] for entry in entries})
    pages = {"whl/index.html": page(f"{PROJECT}'s wheels", [link(f"{name}/", name) for name in variants])}
    for variant in variants:
        of_variant = [wheel_link(entry) for entry in entries if entry["variant"] == variant]
        pages[f"whl/{variant}/index.html"] = page(variant, [link(f"{PROJECT}/", PROJECT)])
        pages[f"whl/{variant}/{PROJECT}/index.html"] = page(f"{PROJECT}, {variant}", of_variant)
    return pages


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_release = commands.add_parser("manifest")
    of_release.add_argument("folder", type=Path)
    of_release.add_argument("url")
    of_all = commands.add_parser("site")
    of_all.add_argument("folder", type=Path)
    of_all.add_argument("manifests", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "manifest":
        print(json.dumps(manifest(arguments.folder, arguments.url), indent=1))
        return 0
    manifests = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.manifests]
    for path, text in site(merged(manifests)).items():
        target = arguments.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
