"""The problems of the compiled binary ``_C``: found before it is loaded, or read from the error of loading it.

A truncated file must be found before: mapping it is not an error, but touching the missing part ends the process.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

from .least_torch import LEAST_TORCH

FOLDER = Path(__file__).parent.parent
_MAGIC = b"\x7fELF"
_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}  # of ELF headers
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # of 64-bit ELF, which all platforms of our wheels use
_SEGMENT = struct.Struct("<IIQQQQQQ")

# A variant from another index must be requested there, or pip takes PyPI's; and pip would reuse an earlier build.
AGAIN = "pip install --force-reinstall --no-deps cudaloss (with the --extra-index-url of its variant, where it has one)"
FROM_SDIST = "pip install --force-reinstall --no-deps --no-cache-dir --no-binary cudaloss cudaloss"
REINSTALL = f"Install a wheel for this Python and platform: {AGAIN}."
BUILD = "Build it: pip install --no-build-isolation . in the checkout (CUDALOSS_CUDA=0: without CUDA)."
ELSE = "If that does not help, build from source: add --no-cache-dir --no-binary cudaloss."
FROM_SOURCE = f"Build it from source: {FROM_SDIST}."


class Fault(NamedTuple):
    """Why the compiled kernels are not available."""

    cause: str  # one word; docs/diagnostics.md lists them
    reason: str
    remedy: str

    @property
    def text(self) -> str:
        return (
            f"cudaloss's compiled kernels could not be loaded: {self.reason}. Without them every loss runs as plain "
            f"PyTorch, slower. {self.remedy}"
        )

    @property
    def message(self) -> str:
        """The message at import."""
        return f"{self.text} `python -m cudaloss` says what fits."


def this_python() -> str:
    return f"Python {sys.version_info.major}.{sys.version_info.minor} ({EXTENSION_SUFFIXES[0]})"


def torch_fault(version: str) -> Fault | None:
    """Whether torch is older than the binary's target."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= LEAST_TORCH:
        return None
    least = "{}.{}".format(*LEAST_TORCH)
    return Fault(
        "torch",
        f"torch {version} is older than {least}, which they need",
        f"Install a newer one: pip install --upgrade 'torch>={least}'.",
    )


def file_fault(folder: Path = FOLDER) -> Fault | None:
    """What is wrong with the binary's file, before it is loaded; None if nothing."""
    path = _file(folder)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return _misfit(path, file.read(4096), os.fstat(file.fileno()).st_size)
    except OSError as error:
        return Fault("unreadable", f"{path} cannot be read ({error.strerror})", REINSTALL)


def _file(folder: Path) -> Path | None:
    """The file that this Python would load."""
    return next((path for suffix in EXTENSION_SUFFIXES if (path := folder / f"_C{suffix}").exists()), None)


def _absent(folder: Path) -> Fault:
    others = sorted(path.name for path in folder.glob("_C.*") if path.suffix in (".so", ".pyd", ".dylib"))
    if others:
        return Fault(
            "python",
            f"{folder} has {', '.join(others)}, built for another Python or platform than this, {this_python()}",
            REINSTALL,
        )
    if _is_checkout(folder):
        return Fault("missing", f"{folder} is a source checkout in which they were never built", BUILD)
    return Fault("missing", f"{folder} has no file _C{EXTENSION_SUFFIXES[0]}", REINSTALL)


def _is_checkout(folder: Path) -> bool:
    return (folder.parent.parent / "csrc").is_dir()


def _misfit(path: Path, head: bytes, size: int) -> Fault | None:
    """Whether a file of `size` bytes that begins with `head` is not a complete library for this machine. On systems
    other than Linux the loader checks that itself."""
    if not sys.platform.startswith("linux"):
        return None
    if not head.startswith(_MAGIC[: max(size, 1)]) and head:
        return Fault("format", f"{path} is no library of this platform: it begins with {head[:16]!r}", REINSTALL)
    if size < _HEADER.size:
        return _cut_short(path, size, _HEADER.size)
    ours = _interpreter() or head
    if head[4:6] != ours[4:6] or head[18:20] != ours[18:20]:  # bits and byte order; processor
        built, here = _machine(head), _machine(ours)
        return Fault("machine", f"{path} is built for {built}, and this Python runs on {here}", REINSTALL)
    least = _least_size(head)
    return _cut_short(path, size, least) if size < least else None


def _cut_short(path: Path, size: int, least: int) -> Fault:
    return Fault("truncated", f"{path} is cut short: {size:,} bytes, of {least:,} at least", REINSTALL)


def _interpreter() -> bytes | None:
    """The header of this Python's own file, which shows what it can load; None if the system hides it."""
    try:
        with open("/proc/self/exe", "rb") as file:
            return file.read(_HEADER.size)
    except OSError:
        return None


def _machine(head: bytes) -> str:
    number = int.from_bytes(head[18:20], sys.byteorder)
    return f"{_MACHINES.get(number, f'ELF machine {number}')}, {'64' if head[4] == 2 else '32'} bits"


def _least_size(head: bytes) -> int:
    """The least size in bytes of a 64-bit ELF file, from its own tables of segments and sections; 0 for other files."""
    if head[4] != 2:
        return 0
    fields = _HEADER.unpack_from(head)
    segments, sections, (segment_size, segment_count, section_size, section_count) = fields[5], fields[6], fields[9:13]
    ends = [segments + segment_size * segment_count, sections + section_size * section_count]
    for index in range(segment_count):
        if (at := segments + index * segment_size) + _SEGMENT.size <= len(head):
            _, _, offset, _, _, in_file, *_ = _SEGMENT.unpack_from(head, at)
            ends.append(offset + in_file)
    return max(ends)


def load_fault(error: Exception, torch_version: str, folder: Path = FOLDER) -> Fault:
    """What an error at loading says about the binary."""
    if _file(folder) is None:
        return _absent(folder)
    text = str(error)
    symbol = re.search(r"undefined symbol: (\w+)|Symbol not found: _?(\w+)", text)
    name = symbol and (symbol[1] or symbol[2])
    if "Python version mismatch" in text or (name and re.match(r"_?Py", name)):
        return Fault("python", f"they are built for another Python than this, {this_python()} ({text})", REINSTALL)
    if name:
        return Fault("symbol", f"they do not fit torch {torch_version} or this system ({text})", f"{REINSTALL} {ELSE}")
    if re.search(r"version `\S+' not found", text):
        return Fault("system", f"they are built for a newer system than this ({text})", FROM_SOURCE)
    if "cannot open shared object file" in text:
        return Fault("library", f"a library that they need is not here ({text})", f"{REINSTALL} {ELSE}")
    return Fault("load", f"{type(error).__name__}: {text}", f"{REINSTALL} {ELSE}")


def source_fault(built: list[str], rows: list[str]) -> Fault | None:
    """Whether the binary lacks a loss of the package: it was built from another state of the source."""
    lacking = [name for name in rows if name not in built]
    if not lacking:
        return None
    reason = f"they are built from other source than this package, with no {', '.join(lacking)}"
    return Fault("source", reason, BUILD if _is_checkout(FOLDER) else REINSTALL)
