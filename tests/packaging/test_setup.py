"""What setup.py decides and says. Whatever it says has its row in docs/building.md."""

from __future__ import annotations

import os
import re
import sys

import pytest

from building import PAGE, ROOT, documented, nvcc, run_setup, stopped
from cudaloss import _C


def test_cuda_home_is_used(toolkit, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path)))
    assert toolkit.choose() == (tmp_path, "12.8")
    assert f"building the CPU and CUDA kernels, with CUDA 12.8 in {tmp_path}" in documented(capsys.readouterr().err)


def test_an_nvcc_on_path_is_asked_where_it_is_from(toolkit, monkeypatch, tmp_path):
    real = nvcc(tmp_path / "real")
    wrapper = nvcc(tmp_path / "wrapper", top=real)
    monkeypatch.setenv("PATH", f"{wrapper / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert toolkit.find_root() == real
    nvcc(wrapper, top=tmp_path)  # with no nvcc in it
    assert toolkit.find_root() == wrapper


def test_the_usual_place_is_looked_at_last(toolkit, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(toolkit, "DEFAULT_ROOT", tmp_path)
    assert toolkit.find_root() is None
    nvcc(tmp_path)
    assert toolkit.find_root() == tmp_path


def test_without_a_toolkit_the_cpu_kernels_are_built(toolkit, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert toolkit.choose() is None
    said = documented(capsys.readouterr().err)
    assert "CPU kernels only, because no CUDA toolkit was found" in said and "CUDA_HOME for the CUDA kernels" in said


def test_cuda_can_be_left_out(toolkit, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path)))
    monkeypatch.setenv("CUDALOSS_CUDA", "0")
    assert toolkit.choose() is None
    assert "because CUDALOSS_CUDA=0" in documented(capsys.readouterr().err)


@pytest.mark.parametrize("home", [None, "empty"])
def test_cuda_can_be_demanded(toolkit, monkeypatch, tmp_path, home):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDALOSS_CUDA", "1")
    if home:
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert "CUDALOSS_CUDA=1 demands CUDA kernels, but no " in stopped(toolkit.choose)


def test_a_wrong_wish_is_an_error(toolkit, monkeypatch):
    monkeypatch.setenv("CUDALOSS_CUDA", "yes")
    assert "CUDALOSS_CUDA must be 0 or 1, got 'yes'" in stopped(toolkit.choose)


def test_an_old_toolkit_is_an_error(toolkit, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path, "11.8")))
    said = stopped(toolkit.choose)
    assert "is CUDA 11.8" in said and "12.0 or newer" in said and "CUDALOSS_CUDA=0" in said
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path, "12.0")))
    assert toolkit.choose() == (tmp_path, "12.0")


def test_a_torch_for_rocm_gets_the_cpu_kernels(toolkit, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(nvcc(tmp_path)))
    assert toolkit.choose("7.1") is None
    assert "this torch is made for ROCm 7.1" in documented(capsys.readouterr().err)
    monkeypatch.setenv("CUDALOSS_CUDA", "1")
    assert "Install a torch made for CUDA" in stopped(toolkit.choose, "7.1")


def test_a_toolkit_of_another_major_is_explained(toolkit, tmp_path, capsys):
    found = toolkit.Toolkit(tmp_path, "13.0")
    for torch_cuda in (None, "13.2"):
        toolkit.compare(found, torch_cuda)
        assert not capsys.readouterr().err
    toolkit.compare(found, "12.6")
    assert "this torch comes with CUDA 12.6 and the kernels with 13.0" in documented(capsys.readouterr().err)


def test_a_driver_too_old_for_the_toolkit_is_told(toolkit, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(toolkit, "driver_cuda", lambda: (12, 4))
    toolkit.compare(toolkit.Toolkit(tmp_path, "12.8"), "12.8")  # of the same major: it runs
    assert not capsys.readouterr().err
    toolkit.compare(toolkit.Toolkit(tmp_path, "13.0"), "13.0")
    assert "the driver here knows CUDA 12.4 at most" in documented(capsys.readouterr().err)
    monkeypatch.setattr(toolkit, "driver_cuda", lambda: (12, 2))
    toolkit.compare(toolkit.Toolkit(tmp_path, "12.6"), "12.8")
    assert not capsys.readouterr().err
    toolkit.compare(toolkit.Toolkit(tmp_path, "12.9"), "12.8")  # whose compression it does not know
    assert "the driver here knows CUDA 12.2 at most" in documented(capsys.readouterr().err)


@pytest.mark.parametrize("cuda", ["12.0", "12.6", "12.8", "12.9", "13.0", "13.2"])
def test_a_build_warns_of_the_drivers_that_a_launch_refuses(toolkit, monkeypatch, tmp_path, capsys, cuda):
    for driver in ((11, 8), (12, 0), (12, 2), (12, 4), (12, 9), (13, 0)):
        monkeypatch.setattr(toolkit, "driver_cuda", lambda driver=driver: driver)
        toolkit.compare(toolkit.Toolkit(tmp_path, cuda), cuda)
        refused = _C.is_old_driver(driver[0] * 1000 + driver[1] * 10, cuda)
        assert ("the driver here knows" in capsys.readouterr().err) == refused, driver


def test_conda_toolkits_have_folders_of_their_own(toolkit, monkeypatch, tmp_path):
    found = toolkit.Toolkit(tmp_path, "13.0")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert found.folders("include") == []
    include = tmp_path / "targets" / "sbsa-linux" / "include"
    include.mkdir(parents=True)
    assert found.folders("include") == [str(include)]
    assert found.folders("lib") == []


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        ("12.6", "7.0;7.5;8.0;9.0"),
        ("12.8", "7.0;7.5;8.0;9.0;10.0;12.0"),
        ("12.10", "7.0;7.5;8.0;9.0;10.0;12.0"),
        ("13.0", "7.5;8.0;9.0;10.0;12.0"),
    ],
)
def test_architectures_are_those_the_toolkit_knows(setup, monkeypatch, tmp_path, cuda, expected):
    found = setup.toolkit.Toolkit(nvcc(tmp_path, cuda), cuda)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert ";".join(setup.architectures(found)) == expected
    monkeypatch.setattr("platform.machine", lambda: "aarch64")  # Jetsons
    assert ";".join(setup.architectures(found)) == expected.replace("8.0", "8.0+PTX")


@pytest.mark.parametrize(
    ("wish", "expected"),
    [("8.9", "8.9"), ("9.0 8.0+PTX", "8.0+PTX;9.0"), ("12.0;9.0a;7.5", "7.5;9.0a;12.0"), ("Ampere", "8.0;8.6+PTX")],
)
def test_architectures_that_are_asked_for(setup, monkeypatch, tmp_path, wish, expected):
    found = setup.toolkit.Toolkit(nvcc(tmp_path, codes="sm_75 sm_80 sm_86 sm_89 sm_90 sm_120"), "12.8")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wish)
    assert ";".join(setup.architectures(found)) == expected


def test_architectures_that_no_compiler_knows(setup, monkeypatch, tmp_path):
    found = setup.toolkit.Toolkit(nvcc(tmp_path, "13.0", codes="sm_75 sm_80 sm_100"), "13.0")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0;7.5")
    said = stopped(setup.architectures, found)
    assert "TORCH_CUDA_ARCH_LIST asks for 7.0, for which CUDA 13.0 does not" in said and "7.5, 8.0, 10.0" in said
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "Hoper")
    assert "must be a list as '8.0+PTX;9.0', got 'Hoper'" in stopped(setup.architectures, found)


def test_architectures_of_the_gpus_here(setup, monkeypatch, tmp_path):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda i: [(9, 0), (7, 0), (9, 0)][i])
    nvcc(tmp_path, codes="sm_70 sm_90")
    assert setup.architectures(setup.toolkit.Toolkit(tmp_path, "12.8")) == ["7.0", "9.0"]
    nvcc(tmp_path, codes="sm_75 sm_90")
    assert "the GPUs here are of 7.0" in stopped(setup.architectures, setup.toolkit.Toolkit(tmp_path, "13.0"))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["7.0", "7.5", "8.0+PTX", "8.6", "9.0", "10.0", "12.0"],
            ["70,code=[sm_70]", "75,code=[sm_75]", "80,code=[sm_80,compute_80,sm_86]", "90,code=[sm_90,sm_100,sm_120]"],
        ),
        (["8.9"], ["80,code=[sm_89]"]),
        (["6.1"], ["61,code=[sm_61]"]),  # before all front ends that are shared
        (["8.6+PTX", "9.0a"], ["86,code=[sm_86,compute_86]", "90a,code=[sm_90a]"]),
    ],
)
def test_architectures_share_front_ends(setup, monkeypatch, names, expected):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")  # torch must add none of it
    flags = setup.gencode(names)
    assert flags == [f"-gencode=arch=compute_{text}" for text in expected]
    assert setup.cpp_extension._get_cuda_arch_flags(flags) == []


def test_a_binary_shows_what_python_loads(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "GENERATED", tmp_path)
    monkeypatch.setattr(sys, "platform", "linux")
    (flag,) = setup.exports()
    assert (ROOT / flag.rpartition("=")[2]).read_text() == "{ global: PyInit__C; local: *; };\n"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert setup.exports() == ["-Wl,-exported_symbol,_PyInit__C"]


def test_a_cuda_build_shares_nothing_with_torchs_cuda(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(setup.cpp_extension, "CUDA_HOME", None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    for options in ("--compress-mode [default,size]", ""):
        module = setup.extension(setup.toolkit.Toolkit(nvcc(tmp_path, "13.0", options=options), "13.0"))
        assert ("--compress-mode=size" in module.extra_compile_args["nvcc"]) == bool(options)
        assert "cudart_static" in module.libraries
        assert not {"cudart", "c10_cuda", "torch_cuda", "torch_python"} & set(module.libraries)
        macros = dict(module.define_macros)
        assert macros["CUDALOSS_CUDA_ARCHITECTURES"] == '"7.5;8.0;9.0;10.0;12.0"'
        assert macros["CUDALOSS_CUDA_VERSION"] == '"13.0"'


@pytest.mark.parametrize(("wish", "one"), [("8.0;9.0", True), ("9.0", False)])
def test_cuda_sources_are_one_where_architectures_are_several(setup, monkeypatch, tmp_path, wish, one):
    monkeypatch.setattr(setup, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(setup.cpp_extension, "CUDA_HOME", None)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wish)
    found = setup.toolkit.Toolkit(nvcc(tmp_path, "13.0", codes="sm_80 sm_90"), "13.0")
    sources = [source for source in setup.extension(found).sources if source.endswith(".cu")]
    assert setup.compiling.kind_of(sources) == ("architectures" if one else "one architecture")
    texts = [(setup.ROOT / source).read_text() for source in sources]
    most = max(text.count("void pass<losses::") for text in texts)
    assert most == (len(setup.LOSSES) if one else setup.LOSSES_A_SOURCE)
    text = "".join(texts)
    assert all(text.count(f"void pass<losses::{loss}, ") == 1 for loss in setup.LOSSES)
    assert all(text.count(f"void row_pass<losses::{loss}>(") == 1 for loss in setup.ROW_LOSSES)


def test_a_build_on_macos_has_none_of_linuxs_flags(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(sys, "platform", "linux")
    module = setup.extension(None)
    assert "-s" in module.extra_link_args and setup.compiling.kind_of(module.sources) == "cpu"
    monkeypatch.setattr(sys, "platform", "darwin")
    module = setup.extension(None)
    assert module.extra_link_args == ["-Wl,-x", *setup.exports()]
    assert not module.runtime_library_dirs


def test_links_of_the_readme_hold_elsewhere(setup):
    links = re.findall(r"\]\(([^)]+)\)", setup.readme())
    assert len(links) > 5 and all(link.startswith("https://") for link in links), links
    ours = r"https://(?:raw\.githubusercontent|github)\.com/\w+/cudaloss/(?:blob/)?HEAD/([^#]+)"
    for link in links:
        if found := re.match(ours, link):
            assert (setup.ROOT / found[1]).exists(), link
            assert link.startswith("https://raw.") == link.endswith(".png")


def test_the_version_has_the_label_that_is_asked_for(setup, monkeypatch):
    release = setup.version()
    assert re.fullmatch(r"\d+\.\d+\.\d+", release)
    for label in ("cu130", "cpu", "cu126.ci1"):
        monkeypatch.setenv("CUDALOSS_LOCAL_VERSION", label)
        assert setup.version() == f"{release}+{label}"
    for label in ("+cu130", "cu-130", "CU130", "cu130.", "1.0 b"):
        monkeypatch.setenv("CUDALOSS_LOCAL_VERSION", label)
        assert f"got {label!r}" in stopped(setup.version)


def test_the_least_torch_is_one(setup):
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert set(re.findall(r'"torch>=([^"]+)"', text)) == {"{}.{}".format(*setup.TORCH_TARGET)}


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("sys.platform = 'win32'", "win32 with 64 bits is not supported: 64-bit Linux (on Windows in WSL 2) and macOS"),
        ("sys.maxsize = 2**31 - 1", "with 32 bits is not supported"),
        ("sys.modules['torch'] = None", "building needs torch. Either let pip fetch"),
        ("sys.modules['pybind11'] = None", "building needs pybind11. Either let pip fetch"),
        ("import torch; torch.__version__ = '2.9.1+cu128'", "building needs torch 2.10 or newer, this is 2.9.1+cu128"),
    ],
)
def test_what_a_build_needs(before, expected):
    pytest.importorskip("pybind11")
    done = run_setup(before, "--version")
    assert done.returncode != 0
    assert expected in documented(done.stderr)


def test_the_pages_table_of_variables_is_setup_pys() -> None:
    docstring = (ROOT / "setup.py").read_text(encoding="utf-8").split('"""')[1]
    variables = re.findall(r"^  (\S.*?)  +(\S.*)$", docstring, re.MULTILINE)
    assert len(variables) > 4
    for names, text in variables:
        cells = ", ".join(f"`{name}`" for name in names.split(", "))
        meaning, _, unset = text.partition("; unset: ")
        assert f"| {cells} | {meaning} | {unset} |" in PAGE
