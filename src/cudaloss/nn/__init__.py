"""The modules under ``torch.nn``'s name: ``from cudaloss import nn`` in place of ``from torch import nn``."""

from .. import modules as _modules
from .. import of_torch as _of_torch
from ..modules import *  # noqa: F403
from ..of_torch import *  # noqa: F403
from . import functional

__all__ = ["functional"]
__all__ += _modules.__all__
__all__ += _of_torch.__all__
