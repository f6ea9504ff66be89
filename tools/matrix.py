"""Which wheels a release has: the one list that wheels.yml, the package index and docs/wheels.md follow.

python -m tools.matrix jobs [--few]   wheels.yml's jobs, as JSON; --few: those of a pull request
python -m tools.matrix table          the table of docs/wheels.md
python -m tools.matrix wheels FOLDER  whether FOLDER holds every wheel of the release and no other
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.toolkit import default_architectures

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "cudaloss"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True)
class Variant:
    """A build. `name` is its local version and its folder in the index, `driver` the oldest NVIDIA driver, `megabytes`
    (10^6 bytes) the limit for its wheels, without PTX."""

    name: str
    cuda: str = ""
    driver: str = ""
    megabytes: float = 0


# Drivers: NVIDIA's minor-version compatibility; kernels compressed by 12.8 or later need 550
# (csrc/core/compatibility.h). PTX needs a driver for the toolkit's own CUDA, 560 for 12.6 and 575 for 12.9.
#
# Sizes: 13.0 measured 26.73 MB at csrc 7a48ddc (CPython 3.11, x86-64); its limit is next to that. The goal is 13, for
# which rows and elements need fewer kernels. 12.9 compiles for one architecture more; 12.6 has no --compress-mode=size.
# Their limits are estimates until their first builds. Without CUDA, at three x86-64 levels, 2.2 MB were measured with
# the first 22 losses, 3.04 with those of heads, teachers and pairs (csrc e3702f9), 3.76 with those of boxes and overlap
# and three of elements more (csrc ac0f572), and 3.36 of these without GCC's vector loops for last elements (csrc
# 7a48ddc).
VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("cu126", "12.6", "525", 40),
        Variant("cu129", "12.9", "550", 31),
        Variant("cu130", "13.0", "580", 27),
        Variant("cpu", megabytes=3.5),
    )
}
DEFAULT = "cu130"  # no local version on Linux


@dataclass(frozen=True)
class Platform:
    """Where wheels run and are built. `default`: the variant without a local version, which is on PyPI."""

    system: str
    machine: str
    tag: str
    runner: str
    default: str
    variants: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{'macOS' if self.system == 'macosx' else 'Linux'} {self.machine}"


PLATFORMS = (
    Platform("manylinux", "x86_64", "manylinux_2_28_x86_64", "ubuntu-24.04", DEFAULT, tuple(VARIANTS)),
    Platform("manylinux", "aarch64", "manylinux_2_28_aarch64", "ubuntu-24.04-arm", DEFAULT, tuple(VARIANTS)),
    # macOS 11: torch 2.10 and 2.11 require it; later ones require 14.
    Platform("macosx", "arm64", "macosx_11_0_arm64", "macos-15", "cpu", ("cpu",)),
)
# The builds of a pull request: the oldest and the newest Python, without CUDA, with it, and on macOS.
FEW = (("x86_64", "cpu"), ("x86_64", "cu130"), ("arm64", "cpu"))


@dataclass(frozen=True)
class Wheel:
    """The parts of a wheel's name."""

    version: str
    local: str
    python: str
    abi: str
    tags: tuple[str, ...]

    @classmethod
    def named(cls, name: str) -> Wheel:
        parts = name.removesuffix(".whl").split("-")
        if not name.endswith(".whl") or len(parts) != 5 or parts[0] != PROJECT:
            raise ValueError(f"{name!r} is not named {PROJECT}-<version>-<python>-<abi>-<platform>.whl")
        version, _, local = parts[1].partition("+")
        return cls(version, local, parts[2], parts[3], tuple(parts[4].split(".")))

    @property
    def platform(self) -> Platform:
        for platform in PLATFORMS:
            if platform.tag in self.tags:
                return platform
        known = ", ".join(platform.tag for platform in PLATFORMS)
        raise ValueError(f"no platform of {'.'.join(self.tags)} is one of the release's: {known}")

    @property
    def variant(self) -> str:
        return self.local or self.platform.default

    def __str__(self) -> str:
        version = f"{self.version}+{self.local}" if self.local else self.version
        return f"{PROJECT}-{version}-{self.python}-{self.abi}-{'.'.join(self.tags)}.whl"


def version() -> str:
    return runpy.run_path(str(ROOT / "src" / PROJECT / "_version.py"))["VERSION"]


def python_tag(python: str) -> str:
    return "cp" + python.replace(".", "")


def local_version(platform: Platform, variant: str) -> str:
    return "" if variant == platform.default else variant


def identifiers(platform: Platform) -> list[str]:
    """cibuildwheel's names of the builds on `platform`, which are the same in every variant."""
    return [f"{python_tag(python)}-{platform.system}_{platform.machine}" for python in PYTHONS]


def wheels() -> list[Wheel]:
    """The wheels of the release, each with the one platform tag that it must have."""
    return [
        Wheel(version(), local_version(platform, variant), tag, tag, (platform.tag,))
        for platform in PLATFORMS
        for variant in platform.variants
        for tag in map(python_tag, PYTHONS)
    ]


def jobs(few: bool = False) -> list[dict[str, str]]:
    """wheels.yml's jobs: one for each variant and platform, which builds and tests the wheels of every Python."""
    between = " ".join(f"{python_tag(python)}-*" for python in PYTHONS[1:-1])
    return [
        {
            "name": f"{variant}, {platform.name}",
            "artifact": f"wheels-{variant}-{platform.tag}",
            "runner": platform.runner,
            "toolkit": VARIANTS[variant].cuda,
            "cuda": "1" if VARIANTS[variant].cuda else "0",
            "local": local_version(platform, variant),
            "skip": between if few else "",
        }
        for platform in PLATFORMS
        for variant in platform.variants
        if not few or (platform.machine, variant) in FEW
    ]


def table() -> str:
    """A row for each variant: what it is built with, where it runs and how to select it with pip."""
    rows = ["| variant | CUDA | NVIDIA driver | GPU architectures | platforms | from |", "|---|---|---|---|---|---|"]
    for variant in VARIANTS.values():
        platforms = [platform for platform in PLATFORMS if variant.name in platform.variants]
        plain = [platform.name for platform in platforms if not local_version(platform, variant.name)]
        sources = [f"PyPI ({', '.join(plain)})"] if plain else []
        sources.append(f"`whl/{variant.name}`")
        cells = [
            f"`{variant.name}`",
            variant.cuda or "none",
            f"{variant.driver} or newer" if variant.cuda else "none",
            ", ".join(default_architectures(variant.cuda, "x86_64")) if variant.cuda else "none",
            ", ".join(platform.name for platform in platforms),
            ", ".join(sources),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def misfits(names: list[str]) -> Iterator[str]:
    """What is wrong if `names` are the wheels of the release."""
    missing = {str(wheel) for wheel in wheels()}
    for name in names:
        if name in missing:
            missing.remove(name)
        else:
            yield f"{name}: not a wheel of the release"
    yield from (f"{name}: missing" for name in sorted(missing))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("jobs").add_argument("--few", action="store_true")
    commands.add_parser("table")
    commands.add_parser("wheels").add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "jobs":
        print(json.dumps({"include": jobs(arguments.few)}))
    elif arguments.command == "table":
        print(table())
    else:
        wrong = list(misfits(sorted(path.name for path in arguments.folder.glob("*.whl"))))
        print("\n".join(wrong) or f"{arguments.folder} holds the {len(wheels())} wheels of {version()}")
        return bool(wrong)
    return 0


if __name__ == "__main__":
    sys.exit(main())
