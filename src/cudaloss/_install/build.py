"""Loads the compiled ``cudaloss._C``, and explains the problem if that fails."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

try:
    import torch  # its libraries must be in the process before _C, which links to them
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("cudaloss needs torch, which is not installed: pip install torch") from error

from .._losses.table import PUBLIC
from . import binary

_NOTHING: dict[str, Any] = {"losses": [], "cuda": None}


def _load() -> tuple[dict[str, Any], binary.Fault | None]:
    """The binary's own facts, or what is wrong with it. A file that does not fit is not loaded."""
    fault = binary.torch_fault(torch.__version__) or binary.file_fault()
    if fault is None:
        try:
            from .. import _C  # pyright: ignore[reportAttributeAccessIssue]

            info = _C.build_info()
        except Exception as error:  # ImportError, OSError, or anything that a registration raises
            return _NOTHING, binary.load_fault(error, torch.__version__)
        fault = binary.source_fault(info["losses"], [spec.name for spec in PUBLIC])
        if fault is None:
            return info, None
    return _NOTHING, fault


def _is_diagnosing() -> bool:
    """Whether ``python -m cudaloss`` imports the package; it reports problems itself."""
    return sys.argv[:1] == ["-m"] and not {"cudaloss", "-mcudaloss"}.isdisjoint(sys.orig_argv)


def _tell(fault: binary.Fault) -> None:
    if os.environ.get("CUDALOSS_REQUIRE_COMPILED") == "1":
        raise ImportError(fault.message)
    warnings.warn(fault.message, RuntimeWarning, stacklevel=4)  # at the line that imports cudaloss


INFO, FAULT = _load()
if FAULT is not None and not _is_diagnosing():
    _tell(FAULT)

# Device types whose tensors the compiled kernels take.
DEVICES = frozenset(["cpu", *(["cuda"] if INFO["cuda"] else [])] if INFO["losses"] else [])
