"""What is compiled: loads ``cudaloss._C``, and explains itself where that fails."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch  # noqa: F401  (its libraries must be in the process before _C, which links to them)


def _load() -> dict[str, Any]:
    try:
        from . import _C  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError as error:
        message = (
            f"cudaloss's compiled kernels could not be loaded ({error}), so every loss runs as plain PyTorch, slower. "
            "Reinstall a wheel for this Python and platform (pip install --force-reinstall --no-deps cudaloss), or "
            "build from source (pip install --no-build-isolation .)."
        )
        if os.environ.get("CUDALOSS_REQUIRE_COMPILED") == "1":
            raise ImportError(message) from error
        warnings.warn(message, RuntimeWarning, stacklevel=2)
        return {"losses": [], "cuda": None}
    return _C.build_info()


INFO = _load()

# Device types whose tensors the compiled kernels take.
DEVICES = frozenset(["cpu", *(["cuda"] if INFO["cuda"] else [])] if INFO["losses"] else [])
