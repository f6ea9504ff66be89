"""The checks of wheel files: each passes a good small wheel and fails one that has exactly its fault."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import importlib
import shutil
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

for tool in ("torch_abi_audit", "twine", "check_wheel_contents", "elftools"):
    pytest.importorskip(tool, reason=f"needs {tool}, of requirements/wheels.txt")
if sys.platform != "linux" or not shutil.which("cc"):
    pytest.skip("needs a C compiler for ELF files", allow_module_level=True)

matrix, wheel_static = (importlib.import_module(f"tools.{name}") for name in ("matrix", "wheel_static"))

NAME = "cudaloss-1.2-cp311-cp311-manylinux_2_28_x86_64.whl"
BINARY = "cudaloss/_C.cpython-311-x86_64-linux-gnu.so"
INFO = "cudaloss-1.2.dist-info"
# Of the stable ABI of torch 2.10, and of an op library's C++ interface.
# What follows it is not exported.
SOURCE = """void torch_library_impl(void); void PyInit__C(void) { torch_library_impl(); }
#pragma GCC visibility push(hidden)
"""
UNSTABLE = 'void f(void) __asm__("_ZN2at6Tensor3fooEv"); void g(void) { f(); }\n'
METADATA = """Metadata-Version: 2.4
Name: cudaloss
Version: 1.2
Summary: Losses
License-Expression: BSD-3-Clause
Requires-Dist: torch>=2.10
Description-Content-Type: text/markdown

Losses.
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: false\nTag: cp311-cp311-manylinux_2_28_x86_64\n"


def compile(folder: Path, source: str = SOURCE, *flags: str, strip: bool = True) -> Path:
    """A library that needs libtorch.so, as the extension does."""
    (folder / "torch.c").write_text("void torch_library_impl(void) {}\n")
    (folder / "binary.c").write_text(source)
    binary = folder / "binary.so"
    for command in (
        ["torch.c", "-o", "libtorch.so", "-Wl,-soname,libtorch.so"],
        ["binary.c", "-o", str(binary), "-L.", "-Wl,--no-as-needed", "-ltorch", *(["-s"] if strip else []), *flags],
    ):
        subprocess.run(["cc", "-shared", "-fPIC", *command], cwd=folder, check=True)
    return binary


@pytest.fixture(scope="module")
def binary(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return compile(tmp_path_factory.mktemp("good")).read_bytes()


@pytest.fixture
def files(binary: bytes) -> dict[str, bytes]:
    return {
        "cudaloss/__init__.py": b"",
        BINARY: binary,
        f"{INFO}/METADATA": METADATA.encode(),
        f"{INFO}/WHEEL": WHEEL.encode(),
    }


def pack(folder: Path, files: dict[str, bytes], name: str = NAME) -> Path:
    record = f"{INFO}/RECORD"
    lines = [f"{record},,\n"]
    with zipfile.ZipFile(folder / name, "w") as archive:
        for path, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{path},sha256={digest},{len(content)}\n")
            archive.writestr(path, content)
        archive.writestr(record, "".join(lines))
    return folder / name


TOOLS = ("metadata (twine)", "contents (check-wheel-contents)")  # programs that take a second each to start


def failures(path: Path, folder: Path, architectures: str = "", tools: tuple[str, ...] = ()) -> dict[str, str]:
    """The messages of the failing checks; of the checks that start a program, only `tools` run."""
    checks = {title: one for title, one in wheel_static.CHECKS.items() if title not in TOOLS or title in tools}
    rows = wheel_static.check(path, folder / "unpacked", architectures, checks)
    return {title: str(row["found"]) for title, row in rows.items() if not row["passed"]}


def test_a_good_wheel_passes(tmp_path, files):
    assert failures(pack(tmp_path, files), tmp_path, tools=TOOLS) == {}
    assert wheel_static.CHECKS.keys() > set(TOOLS)


def rebuild(files: dict[str, bytes], folder: Path, source: str = SOURCE, *flags: str, strip: bool = True) -> None:
    files[BINARY] = compile(folder, source, *flags, strip=strip).read_bytes()


def replace(files: dict[str, bytes], old: str, new: str) -> None:
    path = f"{INFO}/METADATA"
    assert old.encode() in files[path]
    files[path] = files[path].replace(old.encode(), new.encode())


def test_a_bundled_library_is_seen(tmp_path, files):
    files["cudaloss.libs/libc10-1a2b.so.1"] = files[BINARY]
    found = failures(pack(tmp_path, files), tmp_path)
    assert list(found) == ["bundled libraries"]
    assert "bundles cudaloss.libs/libc10-1a2b.so.1" in found["bundled libraries"]


def test_a_missing_binary_is_seen(tmp_path, files):
    del files[BINARY]
    found = failures(pack(tmp_path, files), tmp_path)
    assert found["bundled libraries"] == "0 binaries cudaloss/_C.*.so, a wheel has one"


def test_a_truncated_binary_is_seen(tmp_path, files):
    files[BINARY] = files[BINARY][:10]
    assert "is no ELF file" in failures(pack(tmp_path, files), tmp_path)["linked libraries"]


def test_libtorchs_own_cpp_interface_is_seen(tmp_path, files):
    rebuild(files, tmp_path, SOURCE + UNSTABLE)
    found = failures(pack(tmp_path, files), tmp_path)
    assert list(found) == ["stable ABI (torch-abi-audit)"]
    assert "at::Tensor::foo()" in found["stable ABI (torch-abi-audit)"]


def test_a_newer_torch_than_the_metadata_says_is_seen(tmp_path, files):
    replace(files, "torch>=2.10", "torch>=2.9")
    found = failures(pack(tmp_path, files), tmp_path)
    assert list(found) == ["stable ABI (torch-abi-audit)"]
    assert "needs torch 2.10.0 (torch_library_impl), its metadata says torch>=2.9" in found.popitem()[1]


def test_metadata_without_torch_is_seen(tmp_path, files):
    replace(files, "Requires-Dist: torch>=2.10\n", "")
    found = failures(pack(tmp_path, files), tmp_path)
    assert "no Requires-Dist: torch>=" in found["stable ABI (torch-abi-audit)"]


def test_metadata_that_an_index_refuses_is_seen(tmp_path, files):
    replace(files, "\nLosses.\n", "")
    found = failures(pack(tmp_path, files), tmp_path, tools=TOOLS[:1])
    assert list(found) == ["metadata (twine)"]
    assert "long_description" in found["metadata (twine)"]


def test_another_version_in_the_metadata_is_seen(tmp_path, files):
    replace(files, "Version: 1.2\n", "Version: 1.3\n")
    assert "named cudaloss 1.2, its metadata says cudaloss 1.3" in failures(pack(tmp_path, files), tmp_path)["name"]


def test_a_tag_that_an_index_refuses_is_seen(tmp_path, files):
    path = pack(tmp_path, files, NAME.replace("manylinux_2_28", "linux"))
    assert "auditwheel repair gives a manylinux tag" in failures(path, tmp_path)["name"]


def test_files_outside_the_package_are_seen(tmp_path, files):
    files["tests/test_it.py"] = b"x = 1\n"
    found = failures(pack(tmp_path, files), tmp_path, tools=TOOLS[1:])
    assert list(found) == ["contents (check-wheel-contents)"]
    assert "tests" in found.popitem()[1]


def test_a_wheel_that_is_too_large_is_seen(tmp_path, files):
    path, largest = pack(tmp_path, files), matrix.VARIANTS[matrix.DEFAULT].megabytes
    with path.open("r+b") as file:  # an archive is read from its end: what stands before it is left alone
        content = file.read()
        file.seek(0)
        file.write(bytes(largest * 1_000_000) + content)
    assert failures(path, tmp_path)["size"] == f"{path.stat().st_size / 1e6:.2f} MB, it must be less than {largest} MB"


def test_a_wheel_with_ptx_may_be_larger(tmp_path):
    path = tmp_path / NAME.replace("x86_64", "aarch64")
    for share, fits in ((1.1, True), (1.3, False)):
        with path.open("wb") as file:  # without contents: only its size is asked
            file.truncate(int(share * matrix.VARIANTS[matrix.DEFAULT].megabytes * 1_000_000))
        found = contextlib.nullcontext() if fits else pytest.raises(wheel_static.Wrong, match="must be less than")
        with found:
            wheel_static.size(wheel_static.Wheel(path, tmp_path))


def test_other_libraries_are_seen(tmp_path, files):
    rebuild(files, tmp_path, SOURCE, "-lcrypt")
    found = failures(pack(tmp_path, files), tmp_path)
    assert list(found) == ["linked libraries"]
    assert found["linked libraries"].startswith("needs libcrypt.so.")


def test_a_binary_that_does_not_need_libtorch_is_seen(tmp_path, files):
    command = ["cc", "-shared", "-fPIC", "-s", "binary.c", "-o", "alone.so"]
    (tmp_path / "binary.c").write_text(SOURCE)
    subprocess.run(command, cwd=tmp_path, check=True)
    files[BINARY] = (tmp_path / "alone.so").read_bytes()
    found = failures(pack(tmp_path, files), tmp_path)
    assert list(found) == ["linked libraries"]
    assert "does not need libtorch.so" in found["linked libraries"]


@pytest.mark.parametrize("flag", ["-Wl,--enable-new-dtags", "-Wl,--disable-new-dtags"])
def test_a_run_path_is_seen(tmp_path, files, flag):
    rebuild(files, tmp_path, SOURCE, "-Wl,-rpath,$ORIGIN/../torch/lib", flag)
    assert failures(pack(tmp_path, files), tmp_path).keys() == {"run paths"}


def test_symbols_are_seen(tmp_path, files):
    rebuild(files, tmp_path, strip=False)
    found = failures(pack(tmp_path, files), tmp_path)
    assert list(found) == ["symbols"]
    assert ".symtab" in found["symbols"]


def test_exported_symbols_are_seen(tmp_path, files):
    rebuild(files, tmp_path, f"void kernel(void) {{}}\n{SOURCE}")
    assert failures(pack(tmp_path, files), tmp_path) == {"symbols": "exports 1 symbols beside PyInit__C: kernel"}


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("/build/cudaloss/csrc/torch/ops.cpp", "/build/cudaloss/csrc/torch/ops.cpp"),
        ("failed at /opt/torch/include/a.h:3", "/opt/torch/include/a.h"),
        ("csrc/torch/ops.cpp", None),
        ("/proc/self/maps", None),
        ("https://example.org/a/b", None),
    ],
)
def test_folders_of_the_build_are_seen(tmp_path, files, text, seen):
    rebuild(files, tmp_path, f'{SOURCE}const char *text(void) {{ return "{text}"; }}\n')
    assert text.encode() in files[BINARY]
    found = failures(pack(tmp_path, files), tmp_path)
    assert found == ({"paths in the binary": f"has absolute paths: {seen}"} if seen else {})


def test_lists_of_architectures_are_setups():
    found = Counter({"12.0": 6, "8.0": 6, "8.0+PTX": 6, "7.5": 6})
    assert wheel_static.as_list(found) == "7.5;8.0+PTX;12.0"


def test_a_wheel_without_its_kernels_is_seen(tmp_path, files):
    found = failures(pack(tmp_path, files), tmp_path, "8.0+PTX;9.0")
    assert found == {"architectures (cuobjdump)": "has kernels for no architecture, it must have 8.0+PTX;9.0"}


@pytest.fixture(scope="module")
def device_code(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A binary with kernels for 8.0+PTX and 9.0 that says so, and one with a second source that lacks 9.0."""
    if not shutil.which("nvcc"):
        pytest.skip("needs nvcc")
    folder = tmp_path_factory.mktemp("cuda")
    compile(folder)
    (folder / "kernel.cu").write_text("__global__ void kernel(float *x) { *x = 1; }\n")
    (folder / "said.c").write_text(f'{SOURCE}const char *architectures(void) {{ return "8.0+PTX;9.0"; }}\n')
    eight, nine = "arch=compute_80,code=[sm_80,compute_80]", "arch=compute_90,code=sm_90"
    for name, codes in (("whole", [eight, nine]), ("part", [eight])):
        generate = [part for code in codes for part in ("-gencode", code)]
        command = ["nvcc", *generate, "-Xcompiler", "-fPIC", "-c", "kernel.cu", "-o", f"{name}.o"]
        subprocess.run(command, cwd=folder, check=True)
    said = ["said.c", "-L.", "-Wl,--no-as-needed", "-ltorch", "-s"]
    binaries = []
    for objects in (["whole.o"], ["whole.o", "part.o"]):
        command = ["cc", "-shared", "-fPIC", *objects, *said, "-Wl,--allow-multiple-definition", "-o", "out.so"]
        subprocess.run(command, cwd=folder, check=True)
        binaries.append((folder / "out.so").read_bytes())
    return binaries[0], binaries[1]


def gpu_code(folder: Path, binary: bytes, architectures: str) -> str:
    (folder / "cudaloss").mkdir(exist_ok=True)
    (folder / BINARY).write_bytes(binary)
    return wheel_static.gpu_code(wheel_static.Wheel(folder / NAME, folder, architectures))


def test_architectures_are_read_from_the_binary(tmp_path, device_code):
    whole, part = device_code
    assert gpu_code(tmp_path, whole, "8.0+PTX;9.0") == "8.0+PTX;9.0"
    with pytest.raises(wheel_static.Wrong, match=r"has kernels for 8\.0\+PTX;9\.0, it must have 8\.0\+PTX;9\.0;10\.0"):
        gpu_code(tmp_path, whole, "8.0+PTX;9.0;10.0")
    with pytest.raises(wheel_static.Wrong, match="it must have none"):
        gpu_code(tmp_path, whole, "")
    with pytest.raises(wheel_static.Wrong, match="not every source was compiled for every architecture"):
        gpu_code(tmp_path, part, "8.0+PTX;9.0")
    with pytest.raises(wheel_static.Wrong, match=r"does not say 8\.0\+PTX;9\.0 of itself"):
        gpu_code(tmp_path, whole.replace(b"8.0+PTX;9.0", b"8.0+PTX;8.6"), "8.0+PTX;9.0")


def test_a_release_wheel_has_its_variants_architectures(tmp_path):
    def wheel(version: str, machine: str = "x86_64") -> Any:
        return wheel_static.Wheel(tmp_path / NAME.replace("1.2", version).replace("x86_64", machine), tmp_path)

    assert wheel_static.expected(wheel("1.2+cpu")) == wheel_static.expected(wheel("1.2+cpu", "riscv64")) == ""
    assert wheel_static.expected(wheel("1.2")) == wheel_static.expected(wheel("1.2+cu130"))
    assert wheel_static.expected(wheel("1.2+cu129")).startswith("7.0;7.5;8.0;")
    assert wheel_static.expected(wheel("1.2+cu129", "aarch64")).startswith("7.0;7.5;8.0+PTX;")
    with pytest.raises(wheel_static.Wrong, match="local version cu128 is no variant"):
        wheel("1.2+cu128").variant  # noqa: B018
