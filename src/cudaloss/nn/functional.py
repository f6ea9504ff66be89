"""The functions under ``torch.nn.functional``'s name: ``import cudaloss.nn.functional as F``."""

from .. import functional as _functional
from .. import of_torch as _of_torch
from ..functional import *  # noqa: F403
from ..of_torch import *  # noqa: F403

__all__: list[str] = []
__all__ += _functional.__all__
__all__ += _of_torch.__all__
