"""The origin of a figure: machine, versions, date, and the hash of the compiled kernels' source."""

from __future__ import annotations

import datetime
import platform
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from .._install.build import INFO


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def environment() -> dict[str, Any]:
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cudaloss": __version__,
        "csrc_tree": INFO.get("csrc_tree"),
        "build": INFO,
        "gpu": gpu.name if gpu else None,
        "gpu_capability": f"{gpu.major}.{gpu.minor}" if gpu else None,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "python": platform.python_version(),
        "processor": _processor(),
        "threads": torch.get_num_threads(),
    }
