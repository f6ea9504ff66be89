"""Checks of a wheel file that need no installation: each returns what it found, or raises Wrong."""

from __future__ import annotations

import functools
import importlib.metadata
import io
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import torch_abi_audit
from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from packaging.requirements import Requirement
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from tools.matrix import DEFAULT, PROJECT, VARIANTS, Variant
from tools.toolkit import default_architectures

PTX_SHARE = 0.25  # of a wheel without it: of one source 199 KB are PTX and 770 five cubins (csrc 9fcc2f1, huber)
BINARY = re.compile(rf"{PROJECT}/_C\.[\w-]+\.so")
# The libraries that torch brings, and those that manylinux expects on every machine.
INIT = "PyInit__C"  # what Python looks for when it imports the extension
NEEDED = re.compile(
    r"lib(torch|torch_cpu|c10)\.so|lib(stdc\+\+|m|gcc_s|c|dl|rt|pthread)\.so\.\d+|ld-linux-[\w-]+\.so\.\d+"
)
# A path in a string, except paths of the running system, which cudart reads.
ABSOLUTE = re.compile(rb"(?<![\w./+-])/(?!(?:dev|etc|proc|sys)/)[\w.+-]+(?:/[\w.+-]+)+")


class Wrong(Exception):
    """What is wrong with a wheel, and what would be right."""


@dataclass(frozen=True)
class Wheel:
    """A wheel file, `folder` with its contents, and the architectures that it must have if not the release's."""

    path: Path
    folder: Path
    architectures: str | None = None

    @functools.cached_property
    def libraries(self) -> list[str]:
        files = (path for path in self.folder.rglob("*") if re.search(r"\.(so|dylib|dll|pyd)(\.|$)", path.name))
        return sorted(path.relative_to(self.folder).as_posix() for path in files)

    @functools.cached_property
    def binary(self) -> Path:
        found = [name for name in self.libraries if BINARY.fullmatch(name)]
        if len(found) != 1:
            raise Wrong(f"{len(found)} binaries {PROJECT}/_C.*.so, a wheel has one")
        return self.folder / found[0]

    @functools.cached_property
    def elf(self) -> ELFFile:
        try:
            return ELFFile(io.BytesIO(self.binary.read_bytes()))
        except ELFError as error:
            raise Wrong(f"{self.binary.name} is no ELF file: {error}") from None

    @functools.cached_property
    def metadata(self) -> Message:
        found = list(self.folder.glob("*.dist-info/METADATA"))
        if len(found) != 1:
            raise Wrong(f"{len(found)} files *.dist-info/METADATA, a wheel has one")
        return HeaderParser().parsestr(found[0].read_text(encoding="utf-8"))

    @property
    def variant(self) -> Variant:
        """The variant that the version's local label names, or the default one."""
        label = parse_wheel_filename(self.path.name)[1].local or DEFAULT
        if label not in VARIANTS:
            raise Wrong(f"its local version {label} is no variant: those are {', '.join(VARIANTS)} (tools/matrix.py)")
        return VARIANTS[label]

    @functools.cached_property
    def least_torch(self) -> str:
        """``"2.10"``, as its metadata says."""
        for requirement in map(Requirement, self.metadata.get_all("Requires-Dist", [])):
            for bound in requirement.specifier:
                if requirement.name == "torch" and bound.operator == ">=":
                    return bound.version
        raise Wrong("its metadata has no Requires-Dist: torch>=..., the least torch")

    def dynamic(self, *tags: str) -> list[str]:
        section = self.elf.get_section_by_name(".dynamic")
        entries = section.iter_tags() if isinstance(section, DynamicSection) else ()
        return [getattr(entry, entry.entry.d_tag[3:].lower()) for entry in entries if entry.entry.d_tag in tags]


def tool(module: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Wrong((done.stdout + done.stderr).strip())
    return done.stdout.strip()


def name(wheel: Wheel) -> str:
    """The file's name agrees with its metadata, and its platform is one that an index takes."""
    project, version, _, tags = parse_wheel_filename(wheel.path.name)
    said = wheel.metadata["Name"], Version(wheel.metadata["Version"])
    if (project, version) != said:
        raise Wrong(f"named {project} {version}, its metadata says {said[0]} {said[1]}")
    for tag in tags:
        if not re.match(r"manylinux_2_\d+_|manylinux20\d\d_", tag.platform):
            raise Wrong(f"tagged {tag.platform}, which package indexes refuse: auditwheel repair gives a manylinux tag")
    return f"{said[0]} {said[1]}, {', '.join(sorted({tag.platform for tag in tags}))}"


def size(wheel: Wheel) -> str:
    megabytes, largest = wheel.path.stat().st_size / 1e6, wheel.variant.megabytes
    if "+PTX" in expected(wheel):
        largest += PTX_SHARE * largest
    if megabytes >= largest:
        raise Wrong(f"{megabytes:.2f} MB, it must be less than {largest} MB")
    return f"{megabytes:.2f} MB"


def metadata(wheel: Wheel) -> str:
    return tool("twine", "--no-color", "check", "--strict", wheel.path).rpartition(": ")[2]


def contents(wheel: Wheel) -> str:
    return tool("check_wheel_contents", "--no-config", "--toplevel", PROJECT, wheel.path).rpartition(": ")[2]


def bundled(wheel: Wheel) -> str:
    extra = [name for name in wheel.libraries if wheel.folder / name != wheel.binary]
    if extra:
        raise Wrong(f"bundles {', '.join(extra)}: torch and the machine bring all that it needs")
    return f"{wheel.binary.name} alone"


def stable_abi(wheel: Wheel) -> str:
    verdict = torch_abi_audit.inspect_extension(wheel.binary)
    if verdict.error:
        raise Wrong(verdict.error)
    if not verdict.torch.uses_torch:
        raise Wrong("uses nothing of libtorch, its ops are in another file")
    if not verdict.torch.stable:
        raise Wrong(f"uses more of libtorch than the stable ABI: {', '.join(verdict.torch.unstable_symbols[:5])}")
    needs = Version(verdict.torch.min_torch_version or "0")
    if needs > Version(wheel.least_torch):
        symbols = ", ".join(verdict.torch.version_defining_symbols)
        raise Wrong(f"needs torch {needs} ({symbols}), its metadata says torch>={wheel.least_torch}")
    return f"STABLE, torch {needs} and newer; its metadata says {wheel.least_torch}"


def linked(wheel: Wheel) -> str:
    needed = wheel.dynamic("DT_NEEDED")
    others = [name for name in needed if not NEEDED.fullmatch(name)]
    if others:
        raise Wrong(f"needs {', '.join(others)}, which neither torch nor every machine has")
    if "libtorch.so" not in needed:
        raise Wrong("does not need libtorch.so: without it the current CUDA stream is not found")
    return ", ".join(needed)


def run_paths(wheel: Wheel) -> str:
    found = wheel.dynamic("DT_RPATH", "DT_RUNPATH")
    if found:
        raise Wrong(f"has RPATH {', '.join(found)}: torch is loaded before it, no path is needed")
    return "no RPATH, no RUNPATH"


def symbols(wheel: Wheel) -> str:
    """There is nothing to read for a debugger, and nothing to link to but what Python loads."""
    table = wheel.elf.get_section_by_name(".dynsym")
    assert isinstance(table, SymbolTableSection)
    shown = {symbol.name for symbol in table.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF" and symbol.name}
    if shown != {INIT}:
        others = sorted(shown - {INIT})
        raise Wrong(f"exports {len(others)} symbols beside {INIT}: {', '.join(others[:5])}")
    names = [section.name for section in wheel.elf.iter_sections()]
    found = [name for name in names if re.match(r"\.(symtab|debug|zdebug)", name)]
    if found:
        raise Wrong(f"not stripped, it has {', '.join(found)}: link with -s")
    return f"{INIT} alone, no symbol table, no debug sections"


def strings(wheel: Wheel) -> Iterator[bytes]:
    """The sections in which a compiler puts text: not code, nor the GPU's code, which is compressed."""
    for section in wheel.elf.iter_sections():
        if re.match(r"\.(rodata|data|dynstr|comment|note)", section.name) and section["sh_type"] != "SHT_NOBITS":
            yield section.data()


def places(wheel: Wheel) -> str:
    """There is no folder name of the build machine: users would see it in error messages."""
    found = sorted({path.decode() for text in strings(wheel) for path in ABSOLUTE.findall(text)})
    if found:
        raise Wrong(f"has absolute paths: {', '.join(found[:5])}{' and others' * (len(found) > 5)}")
    return "none absolute"


def cuobjdump() -> Path:
    files = importlib.metadata.files("nvidia-cuda-cuobjdump") or []
    return next(Path(str(file.locate())) for file in files if file.name == "cuobjdump")


def listed(binary: Path) -> Counter[str]:
    """How often the binary has code for each architecture: ``{"8.0": 6, "8.0+PTX": 6}``."""
    found: Counter[str] = Counter()
    for option, suffix in (("--list-elf", ""), ("--list-ptx", "+PTX")):
        done = subprocess.run([cuobjdump(), option, binary], capture_output=True, text=True)
        for major, minor in re.findall(r"\.sm_(\d+)(\d)[af]?\.(?:cubin|ptx)$", done.stdout, re.MULTILINE):
            found[f"{major}.{minor}{suffix}"] += 1
    return found


def as_list(found: Counter[str]) -> str:
    """In the format of TORCH_CUDA_ARCH_LIST, where ``8.0+PTX`` means both: ``7.5;8.0+PTX;9.0``."""
    names = sorted((name for name in found if "+" not in name), key=Version)
    return ";".join(f"{name}+PTX" if f"{name}+PTX" in found else name for name in names)


def expected(wheel: Wheel) -> str:
    if wheel.architectures is not None:
        return wheel.architectures
    cuda, machine = wheel.variant.cuda, "aarch64" if wheel.path.name.endswith("aarch64.whl") else "x86_64"
    return ";".join(default_architectures(cuda, machine)) if cuda else ""


def gpu_code(wheel: Wheel) -> str:
    """Every source has kernels for every architecture of the list, and the binary reports the same list."""
    has_code = wheel.elf.get_section_by_name(".nv_fatbin") is not None
    found = listed(wheel.binary) if has_code else Counter[str]()
    ours = as_list(found)
    if ours != expected(wheel):
        raise Wrong(f"has kernels for {ours or 'no architecture'}, it must have {expected(wheel) or 'none'}")
    if len(set(found.values())) > 1:
        raise Wrong(f"not every source was compiled for every architecture: {dict(found)}")
    if has_code and not any(b"\0%s\0" % ours.encode() in text for text in strings(wheel)):
        raise Wrong(f"does not say {ours} of itself, which its kernels are for")
    return ours or "no kernels for GPUs"


Check = Callable[[Wheel], str]
CHECKS: dict[str, Check] = {
    "name": name,
    "size": size,
    "metadata (twine)": metadata,
    "contents (check-wheel-contents)": contents,
    "bundled libraries": bundled,
    "stable ABI (torch-abi-audit)": stable_abi,
    "linked libraries": linked,
    "run paths": run_paths,
    "symbols": symbols,
    "paths in the binary": places,
    "architectures (cuobjdump)": gpu_code,
}


def check(
    path: Path, folder: Path, architectures: str | None = None, checks: Mapping[str, Check] = CHECKS
) -> dict[str, dict[str, object]]:
    """The checks' outcomes; the wheel is unpacked into the empty `folder`."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    wheel = Wheel(path, folder, architectures)
    rows: dict[str, dict[str, object]] = {}
    for title, one in checks.items():
        try:
            rows[title] = {"passed": True, "found": one(wheel)}
        except Wrong as wrong:
            rows[title] = {"passed": False, "found": str(wrong)}
    return rows
