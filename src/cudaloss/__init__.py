"""Fused loss functions for PyTorch: one pass over memory, with autograd, ``torch.compile``, CPU and CUDA.

``torch.ops.cudaloss.smooth_l1(input, target)`` and its siblings are registered on import; the functions and modules
here replace ``torch.nn.functional``'s and ``torch.nn``'s of the same names.
"""

from importlib.metadata import version as _version

from . import functional, modules
from .functional import *  # noqa: F403
from .modules import *  # noqa: F403

__version__ = _version("cudaloss")
__all__ = ["functional", "modules"]
__all__ += functional.__all__
__all__ += modules.__all__
