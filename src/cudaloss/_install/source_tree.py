"""The hash that git gives a folder of sources. The build writes that of csrc into the binary, so that a figure can name
it."""

import hashlib
from pathlib import Path


def tree_hash(folder: Path) -> str:
    """What ``git rev-parse HEAD:<folder>`` prints once `folder` is committed as it is, computed without git."""

    def hashed(kind: str, data: bytes) -> bytes:
        return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).digest()

    def tree(path: Path) -> bytes:
        # git sorts a folder as if its name ended in a slash
        entries = sorted(path.iterdir(), key=lambda entry: entry.name + ("/" if entry.is_dir() else ""))
        return hashed(
            "tree",
            b"".join(
                (f"40000 {e.name}\0".encode() + tree(e))
                if e.is_dir()
                else (f"100644 {e.name}\0".encode() + hashed("blob", e.read_bytes()))
                for e in entries
            ),
        )

    return tree(folder).hex()
