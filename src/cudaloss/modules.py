"""The losses as modules, which can replace ``torch.nn``'s by changing the import."""

from __future__ import annotations

import torch  # noqa: F401  (the generated code uses this and the other unused names)
from torch import Tensor  # noqa: F401
from torch.nn._reduction import legacy_get_string  # noqa: F401

from . import functional  # noqa: F401
from ._checks import check_size_average  # noqa: F401
from ._faces import changed_options, define_module, keep, shown  # noqa: F401
from ._specs import PUBLIC

__all__ = [spec.module for spec in PUBLIC]  # pyright: ignore[reportUnsupportedDunderAll]

for _spec in PUBLIC:
    define_module(_spec, globals())
