"""The functions under ``torch.nn.functional``'s name: ``import cudaloss.nn.functional as F``."""

from .. import functional as _functional
from ..functional import *  # noqa: F403

__all__: list[str] = []
__all__ += _functional.__all__
