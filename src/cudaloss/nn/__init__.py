"""The modules under ``torch.nn``'s name: ``from cudaloss import nn`` in place of ``from torch import nn``."""

from .. import modules as _modules
from ..modules import *  # noqa: F403
from . import functional

__all__ = ["functional"]
__all__ += _modules.__all__
