"""The CUDA toolkit of a build: where it is, what it supports, and whether it fits this torch and this driver."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

LEAST_CUDA = (12, 0)  # no torch that we build against (2.10 and later) comes with an older major
# For a machine without a GPU: each architecture with the first CUDA that supports it and the first that no longer does.
# Within a major version a GPU runs the kernels of an older minor: 8.6 and 8.9 run those of 8.0, 10.3 those of 10.0,
# 12.1 those of 12.0.
DEFAULT_ARCHITECTURES: dict[str, tuple[tuple[int, int], tuple[int, int] | None]] = {
    "7.0": ((9, 0), (13, 0)),
    "7.5": ((10, 0), None),
    "8.0": ((11, 0), None),
    "9.0": ((11, 8), None),
    "10.0": ((12, 8), None),
    "12.0": ((12, 8), None),
}
DEFAULT_ROOT = Path("/usr/local/cuda")  # NVIDIA's installers leave a link here, even if PATH has none
CPU_ONLY = "or set CUDALOSS_CUDA=0 for the CPU kernels alone"


def say(message: str) -> None:
    print(f"cudaloss: {message}", file=sys.stderr)


def number(version: str) -> tuple[int, ...]:
    """``(12, 8)`` for ``"12.8"``: as a float 12.10 would be less than 12.9."""
    return tuple(int(part) for part in version.split("."))


def default_architectures(version: str, machine: str = "") -> list[str]:
    """The architectures of :data:`DEFAULT_ARCHITECTURES` for which the toolkit of this version compiles.

    On aarch64 (`machine`; empty: this one) with PTX of 8.0. Jetsons need it: they run no SASS of other GPUs. On x86-64
    every GPU has SASS, and PTX would be a sixth of the wheel.
    """
    cuda = number(version)
    names = [
        name for name, (first, end) in DEFAULT_ARCHITECTURES.items() if first <= cuda and not (end and end <= cuda)
    ]
    has_jetsons = (machine or platform.machine()) == "aarch64"
    return [f"{name}+PTX" if has_jetsons and name == "8.0" else name for name in names]


class Toolkit(NamedTuple):
    root: Path
    version: str  # "13.0"

    def ask(self, *arguments: str) -> str:
        return subprocess.run([self.root / "bin" / "nvcc", *arguments], capture_output=True, text=True).stdout

    def knows(self, option: str) -> bool:
        return option in self.ask("--help")

    def capabilities(self) -> set[str]:
        """``{"7.5", "8.0", ...}``: what this nvcc compiles for."""
        return {f"{major}.{minor}" for major, minor in re.findall(r"\bsm_(\d+)(\d)\b", self.ask("--list-gpu-code"))}

    def folders(self, kind: str) -> list[str]:
        """conda-forge's toolkits have headers and libraries in targets/, without NVIDIA's links to them."""
        target = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}.get(platform.machine(), "")
        folder = self.root / "targets" / target / kind
        return [str(folder)] if target and folder.is_dir() else []


def find_root() -> Path | None:
    """The toolkit's root, or None. An nvcc on PATH may be a wrapper in another place, so nvcc itself is asked."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return DEFAULT_ROOT if (DEFAULT_ROOT / "bin" / "nvcc").exists() else None
    answer = subprocess.run([nvcc, "--dryrun", "cudaloss.cu"], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", answer.stderr, re.MULTILINE)
    if top and (Path(top[1]) / "bin" / "nvcc").exists():  # conda-forge's may point to targets/, which has no bin
        return Path(top[1]).resolve()
    return Path(nvcc).resolve().parent.parent


def at(root: Path) -> Toolkit | None:
    """The toolkit at `root`, or None if no nvcc answers."""
    try:
        release = re.search(r"release (\d+\.\d+)", Toolkit(root, "").ask("--version"))
    except OSError:
        return None
    return Toolkit(root, release[1]) if release else None


def choose(rocm: str | None = None) -> Toolkit | None:
    """The toolkit to build with, or None for a CPU-only build; prints which and why. `rocm`: torch is made for ROCm."""
    wish = os.environ.get("CUDALOSS_CUDA", "")
    if wish not in ("", "0", "1"):
        sys.exit(f"cudaloss: CUDALOSS_CUDA must be 0 or 1, got {wish!r}")
    if wish == "0":
        say("building the CPU kernels only, because CUDALOSS_CUDA=0")
        return None
    root = None if rocm else find_root()
    found = root and at(root)
    if found:
        if number(found.version) < LEAST_CUDA:
            least = "{}.{}".format(*LEAST_CUDA)
            sys.exit(
                f"cudaloss: the toolkit in {root} is CUDA {found.version}, and the kernels need CUDA {least} or newer. "
                f"Name a newer one with CUDA_HOME, {CPU_ONLY}."
            )
        say(f"building the CPU and CUDA kernels, with CUDA {found.version} in {root}")
        return found
    remedy = "Install a CUDA toolkit and name its root with CUDA_HOME"
    if rocm:
        reason, remedy = f"this torch is made for ROCm {rocm}", "Install a torch made for CUDA"
    elif root:
        reason = f"no nvcc answers in {root}"
    else:
        reason = f"no CUDA toolkit was found (CUDA_HOME is unset, no nvcc on PATH, no {DEFAULT_ROOT})"
    if wish == "1":
        sys.exit(f"cudaloss: CUDALOSS_CUDA=1 demands CUDA kernels, but {reason}. {remedy}.")
    say(f"building the CPU kernels only, because {reason}. {remedy} for the CUDA kernels.")
    return None


def driver_cuda() -> tuple[int, ...] | None:
    """``(12, 4)`` for a driver that supports CUDA up to 12.4; None without a driver, as on most build machines."""
    version = ctypes.c_int()
    try:
        answer = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return (version.value // 1000, version.value % 1000 // 10) if answer == 0 else None


def compare(toolkit: Toolkit, torch_cuda: str | None) -> None:
    """Prints a note if the toolkit's major version is not torch's own, or if the driver here is too old for it."""
    major = number(toolkit.version)[0]
    if torch_cuda and number(torch_cuda)[0] != major:
        say(
            f"this torch comes with CUDA {torch_cuda} and the kernels with {toolkit.version}. They share no CUDA "
            f"library, so that is sound, as long as the driver knows CUDA {major}."
        )
    driver = driver_cuda()
    # Kernels compressed by 12.8 and 12.9 need a driver for 12.4 (csrc/core/compatibility.h), others one for their major
    # version.
    least = (12, 4) if (12, 8) <= number(toolkit.version) < (13, 0) else (major, 0)
    if driver and driver < least:
        say(
            "warning: the driver here knows CUDA {}.{} at most".format(*driver)
            + f", so kernels built with CUDA {toolkit.version} will not run on this machine. Update the driver, name "
            f"an older toolkit with CUDA_HOME, {CPU_ONLY}."
        )


def check_architectures(toolkit: Toolkit, names: list[str], asker: str) -> None:
    """Ends the build if `asker` wants an architecture that this nvcc cannot compile for."""
    known = toolkit.capabilities()
    unknown = [name for name in names if re.sub(r"[af]?(\+PTX)?$", "", name) not in known]
    if known and unknown:
        listed = ", ".join(sorted(known, key=number))
        sys.exit(
            f"cudaloss: {asker} {', '.join(unknown)}, for which CUDA {toolkit.version} does not compile. It knows "
            f"{listed}. Name some of these in TORCH_CUDA_ARCH_LIST, or another toolkit with CUDA_HOME, {CPU_ONLY}."
        )
