"""Pythons of this machine and virtual environments of them, made and filled by uv.

uv links a package's files from its cache, so that environments with the same CUDA libraries hold them once: six
environments with five CUDA builds of torch take 21 GB instead of 29.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "build" / "wheel-envs"
# pip's settings for package sources, and the variables with which uv takes the same; uv reads no pip settings.
SETTINGS = {"find-links": "UV_FIND_LINKS", "index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}


def answer(python: str | Path, code: str) -> str | None:
    """What `python` prints for `code`; None if it does not run. A version manager's stand-in, for example, may not."""
    try:
        done = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def version(python: str | Path) -> str | None:
    """``"3.12"`` of the interpreter `python`."""
    return answer(python, "import sys; print('{}.{}'.format(*sys.version_info))")


def candidates(wish: str) -> list[str | Path]:
    number = wish.removeprefix("python")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    on_path = [path for path in (shutil.which(wish), shutil.which(f"python{number}")) if path]
    return [*on_path, *sorted(pyenv.glob(f"versions/{number}.*/bin/python"))]


def interpreter(wish: str) -> Path:
    """The Python named as a path, ``python3.12`` or ``3.12``: on PATH, or among pyenv's."""
    number = re.fullmatch(r"(?:python)?(\d+\.\d+)", wish)
    for candidate in candidates(wish):
        executable = answer(candidate, "import sys; print(sys.executable)")
        if executable and (number is None or version(candidate) == number[1]):
            return Path(executable)
    sys.exit(
        f"No Python {wish!r} answers, on PATH or among pyenv's. Name one that is installed: python3.12, 3.12 or a path."
    )


@functools.cache
def settings() -> dict[str, str]:
    """pip's settings here in uv's form. Settings for uv itself stay."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    found = re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", done.stdout, re.MULTILINE)
    variables = {SETTINGS[name]: value for name, value in found if name in SETTINGS}
    if "UV_FIND_LINKS" in variables:
        variables["UV_FIND_LINKS"] = ",".join(variables["UV_FIND_LINKS"].split())
    return {**variables, **os.environ}


def uv(*arguments: str | Path, check: bool = True) -> int:
    command = [find_uv_bin(), *map(str, arguments)]
    code = subprocess.run(command, cwd=ROOT, env=settings()).returncode
    if check and code:
        sys.exit(f"{' '.join(command)} failed with exit status {code}: see above.")
    return code


def create(name: str, python: Path, fresh: bool = False) -> Path:
    """The interpreter of the environment build/wheel-envs/`name`."""
    inside = ENVIRONMENTS / name / "bin" / "python"
    if fresh or version(inside) != version(python):
        uv("venv", "--quiet", "--clear", "--python", python, ENVIRONMENTS / name)
    return inside


def install(python: Path, *arguments: str | Path) -> None:
    uv("pip", "install", "--quiet", "--python", python, *arguments)


def install_torch(python: Path, requirement: str) -> None:
    """Takes a CPU-only build, for example ``torch==2.13.0+cpu``, from PyTorch's own index if pip's settings name
    none."""
    command = ["pip", "install", "--quiet", "--python", python, "--upgrade-package", "torch", requirement]
    if "+cpu" not in requirement or uv(*command, check=False):
        uv(*command, *(["--torch-backend", "cpu"] if "+cpu" in requirement else []))
