"""Fused loss functions for PyTorch: one pass over memory, with autograd and ``torch.compile``, for CPU and CUDA.

``torch.ops.cudaloss.smooth_l1(input, target)`` and its siblings are registered on import; the functions and modules
here replace ``torch.nn.functional``'s and ``torch.nn``'s of the same names.
"""

import typing as _typing
from importlib import import_module as _import_module
from importlib import metadata as _metadata

from ._install import build as _build  # first: it reports a problem with the binary or with torch

try:
    from . import functional, modules, of_torch
except Exception as _error:
    if _build.FAULT is None or _build.FAULT.cause != "torch":
        raise
    raise ImportError(f"cudaloss cannot run here: {_build.FAULT.reason}. {_build.FAULT.remedy}") from _error
from ._version import VERSION as _VERSION
from .functional import *  # noqa: F403
from .modules import *  # noqa: F403
from .of_torch import *  # noqa: F403
from .patching import patch
from .patching_transformers import patch_transformers

try:
    __version__ = _metadata.version(__name__)  # with the build's local part, for example +cpu
except _metadata.PackageNotFoundError:  # a checkout on the path, or a copy under another name
    __version__ = _VERSION
__all__ = ["functional", "modules", "patch", "patch_transformers"]
__all__ += functional.__all__
__all__ += modules.__all__
__all__ += of_torch.__all__

_LATER = ("distributed", "nn")  # imported at the first use: most programs need neither

if _typing.TYPE_CHECKING:  # a type checker that sees __getattr__ takes every name for one of ours
    from . import distributed as distributed
    from . import nn as nn
else:

    def __getattr__(name: str):
        if name in _LATER:
            return _import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
