"""The layout for the `kernels` package: what is in it, and that `kernels` loads it from a folder, without a network."""

from __future__ import annotations

import dataclasses
import json
import shutil
import zipfile
from pathlib import Path

import pytest

import cudaloss
from cudaloss._install.build import FAULT
from processes import printed_by
from tools import kernels_layout
from tools.matrix import VARIANTS
from tools.toolkit import default_architectures

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(cudaloss.__file__).parent
BUILT = pytest.mark.skipif(FAULT is not None, reason="needs the compiled kernels")

# In one process without a network: the copy at argv[1], the installed package if argv[2] says "first" or "second" or
# not at all, and further copies. Each computes the same losses, in eager code and compiled.
SESSION = """
import json, os, pickle, socket, sys
from pathlib import Path

def refuse(*_, **__):
    raise OSError("a test without a network")

socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
os.environ["HF_HUB_OFFLINE"] = "1"
import torch
from kernels import get_local_kernel

place, order, *others = sys.argv[1:]
if order == "first":
    import cudaloss
copies = [get_local_kernel(Path(path), backend="cpu") for path in (place, *others)]
assert order == "first" or "cudaloss" not in sys.modules
if order == "second":
    import cudaloss

def graph_of(call, *operands):
    text = []
    def backend(module, _):
        text.append(module.code)
        return module
    torch.compile(call, backend=backend, fullgraph=True)(*operands)
    return text[0]

def numbers(package):
    torch.manual_seed(0)
    x, y, labels = torch.randn(64, 33), torch.randn(64, 33), torch.randint(0, 33, (64,))
    found = []
    for name, target in (("smooth_l1_loss", y), ("cross_entropy", labels)):
        loss = getattr(package, name)
        for call in (loss, torch.compile(lambda a, b: loss(a, b), fullgraph=True)):
            input = x.clone().requires_grad_()
            value = call(input, target)
            value.backward()
            found += [value.item(), input.grad.tolist()]
    layer = pickle.loads(pickle.dumps(package.SmoothL1Loss(beta=0.5)))
    assert package.nn.SmoothL1Loss is type(layer)
    return [*found, layer(x, y).item()]

packages = {package.__name__: package for package in copies}
if order != "alone":
    packages["cudaloss"] = cudaloss
x = torch.randn(8, requires_grad=True)
print(json.dumps({
    name: {
        "file": package.__file__,
        "binary": getattr(sys.modules.get(f"{name}._C"), "__file__", None),
        "version": package.__version__,
        "fault": sys.modules[f"{name}._install.build"].FAULT,
        "registered": torch._C._dispatch_has_kernel_for_dispatch_key(f"{name}::_pointwise_loss", "CPU"),
        "graph": graph_of(package.mse_loss, x, torch.randn(8)),
        "numbers": numbers(package),
    }
    for name, package in packages.items()
}))
"""


@pytest.fixture(scope="module")
def package() -> kernels_layout.Build:
    return kernels_layout.of_package(PACKAGE)


@pytest.fixture(scope="module")
def built(package: kernels_layout.Build) -> kernels_layout.Build:
    """The package that is tested, as one without CUDA kernels: `kernels` then takes it with every torch."""
    return dataclasses.replace(package, cuda="", architectures=())


@pytest.fixture(scope="module")
def out(built: kernels_layout.Build, tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not of the package itself: a folder of tests has its name.
    pytest.importorskip("kernels.variants", reason="needs kernels, of requirements/wheels.txt")
    folder = tmp_path_factory.mktemp("kernels")
    kernels_layout.write([built], folder)
    return folder


def variant_of(out: Path) -> Path:
    (path,) = (out / "build").iterdir()
    return path


def said(variant: Path) -> dict:
    return json.loads((variant / "metadata.json").read_text())


@BUILT
@pytest.mark.parametrize("order", ["first", "second"])
def test_it_loads_beside_the_installed_package(out: Path, order: str) -> None:
    name = said(variant_of(out))["id"]
    found = json.loads(printed_by(SESSION, out, order))
    assert found.keys() == {name, "cudaloss"}
    assert Path(found[name]["file"]) == variant_of(out) / "__init__.py"
    assert Path(found[name]["binary"]).parent == variant_of(out)
    assert Path(found["cudaloss"]["file"]).parent == PACKAGE
    for package, of in found.items():
        assert of["fault"] is None
        assert of["registered"]
        assert f"ops.{package}." in of["graph"]
    assert found[name]["numbers"] == found["cudaloss"]["numbers"]


@BUILT
def test_two_versions_load_without_the_installed_package(
    out: Path, built: kernels_layout.Build, tmp_path: Path
) -> None:
    """The second's binary is a link to the first's, as where a cache holds equal files once."""
    other = tmp_path / "cudaloss"
    shutil.copytree(PACKAGE, other, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "_version.py").write_text('VERSION = "7.8.9"\n')
    (second,) = kernels_layout.write([dataclasses.replace(built, folder=other)], tmp_path)
    (binary,) = variant_of(out).glob("_C.*")
    (second / binary.name).unlink()
    (second / binary.name).symlink_to(binary)
    found = json.loads(printed_by(SESSION, out, "alone", tmp_path))
    names = [said(variant_of(out))["id"], said(second)["id"]]
    assert list(found) == names
    assert [of["version"] for of in found.values()][1] == "7.8.9"
    assert said(second)["version"] == 7
    assert all(of["registered"] and of["fault"] is None for of in found.values())
    assert found[names[0]]["numbers"] == found[names[1]]["numbers"]


@BUILT
def test_the_metadata_is_what_kernels_reads(out: Path) -> None:
    rust = pytest.importorskip("kernels._rust")
    variants = pytest.importorskip("kernels.variants")
    folder = variant_of(out)
    read = rust.Metadata.read_from_file(folder / "metadata.json")
    assert (read.name.python_name, read.version, read.license) == ("cudaloss", 0, "bsd-3-clause")
    assert read.id.isidentifier()
    assert read.digest.files == rust.Digest.hash_variant(rust.DigestAlgorithm.SHA256, folder).files
    assert read.backend.backend_type == rust.Backend.CPU
    assert variants.parse_variant(folder.name).variant_str == folder.name


@BUILT
def test_older_versions_find_the_package_in_its_own_folder(out: Path) -> None:
    code = """
import importlib.util, sys
file = sys.argv[1] + "/cudaloss/__init__.py"
spec = importlib.util.spec_from_file_location("older", file)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(module.mse_loss.__module__)
"""
    assert printed_by(code, variant_of(out)).strip() == said(variant_of(out))["id"] + ".functional"


@BUILT
def test_the_command_takes_a_built_package(
    package: kernels_layout.Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["kernels_layout", str(tmp_path), str(PACKAGE)])
    assert kernels_layout.main() == 0
    folder = variant_of(tmp_path)
    assert capsys.readouterr().out == f"{folder}: 1 binary, for one Python each\n"
    assert folder.name == package.variant
    assert said(folder)["backend"].get("archs", []) == list(package.architectures)
    assert not list(folder.rglob("__pycache__"))


def pack(folder: Path, name: str, **files: str) -> Path:
    """A wheel with a package of four files; its binary is of no system."""
    python, platform = name.split("-")[2], name.rpartition("-")[2]
    contents = {
        "__init__": "",
        "_version": 'VERSION = "1.2"\n',
        "_install/least_torch": "LEAST_TORCH = (2, 10)\n",
        **files,
    }
    with zipfile.ZipFile(folder / name, "w") as archive:
        for file, text in contents.items():
            archive.writestr(f"cudaloss/{file}.py", text)
        archive.writestr(f"cudaloss/_C.{python}-{platform}.so", name)
        archive.writestr("cudaloss-1.2.dist-info/METADATA", "Name: cudaloss\n")
    return folder / name


def lay_out(folder: Path, *wheels: Path) -> list[Path]:
    builds = [kernels_layout.of_wheel(wheel, folder / "unpacked" / wheel.name) for wheel in wheels]
    return kernels_layout.write(builds, folder / "out")


@pytest.mark.parametrize(
    ("name", "variant", "cuda"),
    [
        ("1.2-cp311-cp311-manylinux_2_28_x86_64", "torch-stable-abi210-cu130-x86_64-linux", "13.0"),
        ("1.2+cu126-cp311-cp311-manylinux_2_28_aarch64", "torch-stable-abi210-cu126-aarch64-linux", "12.6"),
        ("1.2+cpu-cp311-cp311-manylinux_2_34_x86_64", "torch-stable-abi210-cpu-x86_64-linux", ""),
        ("1.2+cpu-cp311-cp311-linux_x86_64", "torch-stable-abi210-cpu-x86_64-linux", ""),
        ("1.2-cp311-cp311-macosx_11_0_arm64", "torch-stable-abi210-cpu-aarch64-darwin", ""),
    ],
)
def test_a_wheel_goes_to_the_folder_of_its_variant(tmp_path: Path, name: str, variant: str, cuda: str) -> None:
    (folder,) = lay_out(tmp_path, pack(tmp_path, f"cudaloss-{name}.whl"))
    assert folder == tmp_path / "out" / "build" / variant
    found = said(folder)
    assert (found["name"], found["version"]) == ("cudaloss", 1)
    assert found["id"].startswith("_cudaloss_cuda_" if cuda else "_cudaloss_cpu_")
    expected = (
        {"type": "cuda", "archs": default_architectures(cuda, variant.split("-")[-2])} if cuda else {"type": "cpu"}
    )
    assert found["backend"] == expected
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert not list(folder.glob("*.dist-info"))


def test_every_variant_of_the_release_has_a_folder_of_its_own(tmp_path: Path) -> None:
    tag = "cp314-cp314-manylinux_2_28_x86_64"
    folders = lay_out(tmp_path, *(pack(tmp_path, f"cudaloss-1.2+{name}-{tag}.whl") for name in VARIANTS))
    assert [folder.name.split("-")[3] for folder in folders] == list(VARIANTS)
    assert len({said(folder)["id"] for folder in folders}) == len(VARIANTS)


def test_wheels_of_several_pythons_share_a_folder(tmp_path: Path) -> None:
    names = [f"cudaloss-1.2+cpu-cp3{minor}-cp3{minor}-manylinux_2_28_x86_64.whl" for minor in (10, 14)]
    (folder,) = lay_out(tmp_path, *(pack(tmp_path, name) for name in names))
    assert len(list(folder.glob("_C.*.so"))) == 2
    (again,) = lay_out(tmp_path, tmp_path / names[0])
    assert again == folder
    assert len(list(folder.glob("_C.*.so"))) == 1, "an earlier layout's files stay"


def test_wheels_of_different_sources_are_refused(tmp_path: Path) -> None:
    first = pack(tmp_path, "cudaloss-1.2+cpu-cp310-cp310-manylinux_2_28_x86_64.whl")
    second = pack(tmp_path, "cudaloss-1.2+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", __init__="1")
    with pytest.raises(ValueError, match=r"cpu-x86_64-linux: two builds differ in __init__\.py"):
        lay_out(tmp_path, first, second)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cudaloss-1.2+rocm-cp311-cp311-manylinux_2_28_x86_64.whl", "its local version rocm is no variant of cu126"),
        ("cudaloss-1.2-cp311-cp311-win_amd64.whl", "is for win_amd64: neither Linux nor macOS"),
        ("cudaloss-1.2.zip", "is not named"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels_layout.of_wheel(tmp_path / name, tmp_path)


def test_a_package_without_kernels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cudaloss").mkdir()
    (tmp_path / "cudaloss" / "__init__.py").touch()
    with pytest.raises(ValueError, match="has no compiled kernels that this Python can load"):
        kernels_layout.of_package(tmp_path / "cudaloss")
