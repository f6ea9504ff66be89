"""Wheels in the layout of the `kernels` package, which loads them from a folder: OUT/build/<variant>.

python -m tools.kernels_layout OUT WHEEL...  wheels of several Pythons share the folder of their variant
python -m tools.kernels_layout OUT FOLDER    the package that is built in FOLDER, for example src/cudaloss

`kernels` imports the package under the `id` of its metadata, and that is the name of the copy's ops too
(csrc/binding.cpp): the installed package and copies of other versions can be in the same process.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.matrix import DEFAULT, PROJECT, ROOT, VARIANTS, Wheel
from tools.toolkit import default_architectures

LICENSE = "bsd-3-clause"  # as the Hub names it
SYSTEMS = {"linux": "linux", "macosx": "darwin"}  # of wheels' tags, as `kernels` calls them
MACHINES = {"arm64": "aarch64"}
PLATFORM = re.compile(r"(?:many)?(linux|macosx)_.*?(x86_64|aarch64|arm64)$")
SAY = "import json; from {0}._install import build; print(json.dumps({{**build.INFO, 'file': build.__file__}}))"
# The layout's rules ask for it.
FOR_OLDER = '''"""The package is the folder above; older versions of `kernels` look for it here."""

import importlib.util
import json
import sys
from pathlib import Path

_folder = Path(__file__).parent.parent
_name = json.loads((_folder / "metadata.json").read_text())["id"]
if _name not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_name, _folder / "__init__.py")
    sys.modules[_name] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_name])
globals().update(vars(sys.modules[_name]))
'''


@dataclass(frozen=True)
class Build:
    """A package with its binary in `folder`. `cuda` and `architectures` are empty without CUDA kernels."""

    folder: Path
    cuda: str
    architectures: tuple[str, ...]
    system: str  # "x86_64-linux"

    @property
    def backend(self) -> str:
        return f"cu{self.cuda.replace('.', '')}" if self.cuda else "cpu"

    @property
    def variant(self) -> str:
        """The name of its folder. `kernels` takes it for the least torch and every newer one."""
        major, minor = fact(self.folder, "_install/least_torch", "LEAST_TORCH")
        return f"torch-stable-abi{major}{minor}-{self.backend}-{self.system}"


def fact(package: Path, module: str, name: str) -> Any:
    """The value of a name in a module of facts, without an import of the package."""
    return runpy.run_path(str(package / f"{module}.py"))[name]


def system_of(wheel: Wheel) -> tuple[str, str]:
    """The wheel's system and processor, as `kernels` names them."""
    for tag in wheel.tags:
        if found := PLATFORM.match(tag):
            return SYSTEMS[found[1]], MACHINES.get(found[2], found[2])
    raise ValueError(f"{wheel} is for {'.'.join(wheel.tags)}: neither Linux nor macOS on a known processor")


def of_wheel(path: Path, folder: Path) -> Build:
    """The wheel, unpacked in `folder`. Its name tells its variant, whose architectures tools/wheel_static.py checks."""
    wheel = Wheel.named(path.name)
    system, machine = system_of(wheel)
    label = wheel.local or (DEFAULT if system == "linux" else "cpu")
    if label not in VARIANTS:
        raise ValueError(f"{path.name}: its local version {label} is no variant of {', '.join(VARIANTS)}")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    cuda = VARIANTS[label].cuda
    architectures = tuple(default_architectures(cuda, machine)) if cuda else ()
    return Build(folder / PROJECT, cuda, architectures, f"{machine}-{system}")


def of_package(package: Path) -> Build:
    """A package that is built for this Python and machine, which tells itself what its binary has."""
    package = package.resolve()
    command = [sys.executable, "-c", SAY.format(PROJECT)]
    done = subprocess.run(command, cwd=package.parent, capture_output=True, text=True)
    info = json.loads(done.stdout) if done.returncode == 0 else {}
    if not info.get("losses") or not Path(info["file"]).is_relative_to(package):
        raise ValueError(f"{package} has no compiled kernels that this Python can load: {done.stderr.strip()}")
    machine = MACHINES.get(platform.machine(), platform.machine())
    architectures = tuple(info["cuda_architectures"].split(";")) if info["cuda"] else ()
    return Build(package, info["cuda"] or "", architectures, f"{machine}-{platform.system().lower()}")


def files_of(folder: Path) -> Iterator[str]:
    """Paths in the folder, without what Python has cached."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path.relative_to(folder).as_posix()


def add(build: Build, target: Path) -> None:
    """Copies the package into its variant's folder. Builds for several Pythons differ only in the binary's name."""
    for name in files_of(build.folder):
        source, copy = build.folder / name, target / name
        if copy.exists() and copy.read_bytes() != source.read_bytes():
            raise ValueError(
                f"{target.name}: two builds differ in {name}; take builds of one version, one for each Python"
            )
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)


def digest(folder: Path) -> dict[str, str]:
    """SHA-256 of each file but the metadata."""
    return {
        name: base64.b64encode(hashlib.sha256((folder / name).read_bytes()).digest()).decode()
        for name in files_of(folder)
        if name != "metadata.json"
    }


def metadata(build: Build, files: dict[str, str]) -> dict[str, Any]:
    """What `kernels` reads before it imports. The id is unique to the files, and a name in Python and of ops."""
    kind = "cuda" if build.cuda else "cpu"
    content = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    backend: dict[str, Any] = {"type": kind}
    if build.cuda:
        backend["archs"] = list(build.architectures)
    return {
        "name": PROJECT,
        "id": f"_{PROJECT}_{kind}_{content[:12]}",
        "version": int(fact(build.folder, "_version", "VERSION").partition(".")[0]),
        "license": LICENSE,
        "python-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": files},
    }


def write(builds: Iterable[Build], out: Path) -> list[Path]:
    """The variants' folders in `out`, in place of earlier ones of their names."""
    written: dict[str, Build] = {}
    for build in builds:
        target = out / "build" / build.variant
        if build.variant not in written:
            shutil.rmtree(target, ignore_errors=True)
        written[build.variant] = build
        add(build, target)
    for variant, build in written.items():
        target = out / "build" / variant
        shutil.copyfile(ROOT / "LICENSE", target / "LICENSE")
        (target / PROJECT).mkdir()
        (target / PROJECT / "__init__.py").write_text(FOR_OLDER, encoding="utf-8")
        text = json.dumps(metadata(build, digest(target)), indent=2)
        (target / "metadata.json").write_text(f"{text}\n", encoding="utf-8")
    return [out / "build" / variant for variant in written]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder that `kernels` is given")
    parser.add_argument(
        "sources", type=Path, metavar="WHEEL", nargs="+", help="a wheel, or the folder of a built package"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        builds = [
            of_package(source) if source.is_dir() else of_wheel(source, Path(folder) / source.name)
            for source in options.sources
        ]
        for path in write(builds, options.out):
            binaries = len(list(path.glob("_C.*")))
            print(f"{path}: {binaries} binar{'y' if binaries == 1 else 'ies'}, for one Python each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
