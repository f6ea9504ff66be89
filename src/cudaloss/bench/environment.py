"""Where a figure comes from: machine, versions, date, and the state of the kernels' source."""

from __future__ import annotations

import datetime
import hashlib
import platform
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._build import INFO


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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def environment(csrc: Path | None = None) -> dict[str, Any]:
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cudaloss": __version__,
        "csrc_tree": tree_hash(csrc) if csrc and csrc.is_dir() else None,
        "build": INFO,
        "gpu": gpu.name if gpu else None,
        "gpu_capability": f"{gpu.major}.{gpu.minor}" if gpu else None,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
