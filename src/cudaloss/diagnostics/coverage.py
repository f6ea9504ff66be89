"""Which compiled code runs on which GPU.

SASS for X.Y runs on desktop and server GPUs with the same major version, from X.Y on. Tegra GPUs do not run it, and
SASS for Tegra runs on nothing else. The driver compiles PTX for X.Y for any GPU from X.Y on. Code for a specific
architecture (9.0a) runs only on X.Y; code for a family (10.0f) runs within its major version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

Capability = tuple[int, int]

# Orin, Thor (10.1 until CUDA 13) and their predecessors.
TEGRA = frozenset([(3, 2), (5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)])
_ENTRY = re.compile(r"(\d+)\.(\d)([af]?)(\+PTX)?", re.IGNORECASE)


class Code(NamedTuple):
    """Compiled code for one architecture."""

    kind: str  # SASS, PTX
    capability: Capability
    specific: str = ""  # a, f

    def __str__(self) -> str:
        return "{}.{}".format(*self.capability) + self.specific

    def runs_on(self, gpu: Capability) -> bool:
        if self.capability == gpu:
            return True
        if self.specific == "a" or gpu < self.capability:
            return False
        if self.kind == "PTX" and not self.specific:
            return True
        return gpu[0] == self.capability[0] and TEGRA.isdisjoint([gpu, self.capability])


def codes(architectures: str) -> list[Code]:
    """The compiled code of an architecture list in the format of TORCH_CUDA_ARCH_LIST; names (Hopper) are not known."""
    found = []
    for entry in re.split(r"[;,\s]+", architectures):
        if match := _ENTRY.fullmatch(entry):
            capability, specific = (int(match[1]), int(match[2])), match[3].lower()
            found += [Code(kind, capability, specific) for kind in (("SASS", "PTX") if match[4] else ("SASS",))]
    return found


def covering(built: Iterable[Code], gpu: Capability) -> Code | None:
    """The code that runs on `gpu`: the newest SASS that does, otherwise the newest PTX."""
    running = [code for code in built if code.runs_on(gpu)]
    return max(running, key=lambda code: (code.kind == "SASS", code.capability), default=None)
