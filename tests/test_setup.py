"""What setup.py decides and says. Whatever it says has its row in docs/building.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "building.md").read_text(encoding="utf-8")
VARIABLES = ("CUDALOSS_CUDA", "CUDALOSS_LOCAL_VERSION", "CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST")
# Of the page's table: a message as code, with ... for what differs, and what to do.
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|$", PAGE, re.MULTILINE)


def documented(message: str) -> str:
    """The message, on one line, which a row of docs/building.md must show."""
    line = " ".join(message.split())
    patterns = [".*?".join(re.escape(part) for part in row.split("...")) for row, _ in ROWS]
    assert any(re.search(pattern, line) for pattern in patterns), f"no row of docs/building.md shows: {line}"
    return line


@pytest.fixture
def setup(monkeypatch):
    pytest.importorskip("pybind11")
    monkeypatch.syspath_prepend(str(ROOT))
    for variable in VARIABLES:
        monkeypatch.setenv(variable, "")  # and what a test sets itself is taken back
        monkeypatch.delenv(variable)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    import setup

    monkeypatch.setattr(setup.toolkit, "DEFAULT_ROOT", Path("/nonexistent/cuda"))
    monkeypatch.setattr(setup.toolkit, "driver_cuda", lambda: None)
    return setup


@pytest.fixture
def toolkit(setup):
    return setup.toolkit


@pytest.fixture
def compiling(setup):
    return setup.compiling


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def nvcc(folder: Path, version: str = "12.8", codes: str = "", options: str = "", top: Path | None = None) -> Path:
    """A folder with an nvcc that answers as one of `version` does."""
    answers = {
        "--version": f"Cuda compilation tools, release {version}, V0",
        "--list-gpu-code": codes,
        "--help": options,
    }
    cases = "".join(f"{option}) echo '{answer}';;\n" for option, answer in answers.items())
    dryrun = f"--dryrun) echo '#$ TOP={top}' >&2;;\n" if top else ""
    program(folder / "bin" / "nvcc", f'case "$1" in\n{cases}{dryrun}esac')
    return folder


def stopped(call, *arguments) -> str:
    with pytest.raises(SystemExit) as raised:
        call(*arguments)
    return documented(str(raised.value))


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
        ("12.6", "7.0;7.5;8.0+PTX;8.6;8.9;9.0"),
        ("12.8", "7.0;7.5;8.0+PTX;8.6;8.9;9.0;10.0;12.0"),
        ("12.10", "7.0;7.5;8.0+PTX;8.6;8.9;9.0;10.0;12.0"),
        ("13.0", "7.5;8.0+PTX;8.6;8.9;9.0;10.0;12.0"),
    ],
)
def test_architectures_are_those_the_toolkit_knows(setup, tmp_path, cuda, expected):
    assert ";".join(setup.architectures(setup.toolkit.Toolkit(nvcc(tmp_path, cuda), cuda))) == expected


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


def test_a_cuda_build_shares_nothing_with_torchs_cuda(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "GENERATED", tmp_path / "generated")
    monkeypatch.setattr(setup.cpp_extension, "CUDA_HOME", None)
    for options in ("--compress-mode [default,size]", ""):
        module = setup.extension(setup.toolkit.Toolkit(nvcc(tmp_path, "13.0", options=options), "13.0"))
        assert ("--compress-mode=size" in module.extra_compile_args["nvcc"]) == bool(options)
        assert "cudart_static" in module.libraries
        assert not {"cudart", "c10_cuda", "torch_cuda", "torch_python"} & set(module.libraries)
        macros = dict(module.define_macros)
        assert macros["CUDALOSS_CUDA_ARCHITECTURES"] == '"7.5;8.0+PTX;8.6;8.9;9.0;10.0;12.0"'
        assert macros["CUDALOSS_CUDA_VERSION"] == '"13.0"'


def test_a_build_on_macos_has_none_of_linuxs_flags(setup, monkeypatch, tmp_path):
    monkeypatch.setattr(setup, "GENERATED", tmp_path / "generated")
    assert "-s" in setup.extension(None).extra_link_args
    monkeypatch.setattr(sys, "platform", "darwin")
    module = setup.extension(None)
    assert module.extra_link_args == ["-Wl,-x"]
    assert not module.runtime_library_dirs


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


def run_setup(before: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """setup.py in a process of its own, after the Python `before`."""
    code = f"import runpy, sys, setuptools\n{before}\nsys.argv = {['setup.py', *arguments]}\n"
    code += "runpy.run_path('setup.py', run_name='__main__')"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
    )


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


@pytest.mark.parametrize(
    ("kind", "gib", "jobs"), [("cuda", 0.9, 1), ("cuda", 9.5, 9), ("cuda", 1000, 64), ("cpu", 0.9, 1), ("cpu", 9.4, 18)]
)
def test_jobs_are_bounded_by_memory_and_cores(compiling, monkeypatch, capsys, kind, gib, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(compiling, "free_gib", lambda: float(gib))
    compiling.bound_jobs(kind)
    assert os.environ["MAX_JOBS"] == str(jobs)
    said = capsys.readouterr().err
    assert (f"compiling {jobs} at a time on 64 cores, because {gib:.1f} GiB" in said) == (jobs < 64)
    assert ("it may be killed" in said) == (gib < 1 and kind == "cuda")
    for line in said.splitlines():
        documented(line)


def test_jobs_that_are_asked_for(compiling, monkeypatch):
    monkeypatch.setattr(compiling, "free_gib", lambda: 1.0)
    monkeypatch.setenv("MAX_JOBS", "3")
    compiling.bound_jobs("cuda")
    assert os.environ["MAX_JOBS"] == "3"
    for wrong in ("0", "-1", "two"):
        monkeypatch.setenv("MAX_JOBS", wrong)
        assert f"MAX_JOBS must be a whole number of at least 1, got '{wrong}'" in stopped(compiling.bound_jobs, "cpu")


def test_a_containers_limit_bounds_memory(compiling, monkeypatch):
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   16777216 kB\n"}

    def read_text(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(compiling.Path, "read_text", read_text)
    assert compiling.free_gib() == 16
    files["/sys/fs/cgroup/memory.max"] = "max\n"
    assert compiling.free_gib() == 16
    files["/sys/fs/cgroup/memory.max"] = f"{3 * 2**30}\n"
    assert compiling.free_gib() == 3
    files.clear()
    assert compiling.free_gib() is None


GCC = "Copyright (C) Free Software Foundation, Inc."


def test_compilers_that_do_not_serve(compiling, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    assert "there is no C++ compiler '/nonexistent/g++'" in stopped(compiling.check_compiler)
    for version in ("8.5.0", "8"):
        compiler = program(tmp_path / "c++", f'[ "$1" = --version ] && echo "{GCC}" || echo {version}')
        monkeypatch.setenv("CXX", str(compiler))
        assert f"{compiler} is GCC {version}, which is too old" in stopped(compiling.check_compiler)
    program(compiler, f'[ "$1" = --version ] && echo "{GCC}" || echo 11')
    compiling.check_compiler()
    program(compiler, "echo clang version 4.2.1")
    compiling.check_compiler()


# What compilers and linkers say, each with a word of the remedy.
FAILURES = {
    "g++: fatal error: Killed signal terminated program cc1plus": "MAX_JOBS=1",
    "nvcc error   : 'cicc' died due to signal 9 (Kill signal)": "MAX_JOBS=1",
    "FAILED: [code=137] build/a.o": "MAX_JOBS=1",
    "/tmp/cc1.s: No space left on device": "TMPDIR",
    "host_config.h:164:2: error: #error -- unsupported GNU version! gcc versions later than 15": "CC=",
    "The current installed version of g++ (16.1.0) is greater than the maximum required version by CUDA 13.0.": "CC=",
    "nvcc fatal   : Unsupported gpu architecture 'compute_70'": "TORCH_CUDA_ARCH_LIST",
    "g++: error: unrecognized command line option '-std=c++17'; did you mean '-std=c++14'?": "g++ 9",
    "error: invalid value 'c++17' in '-std=c++17'": "g++ 9",
    "/bin/sh: 1: c++: not found": "apt install g++",
    "sh: x86_64-linux-gnu-g++-13: command not found": "apt install g++",
    "gcc: fatal error: cannot execute 'cc1plus': execvp: No such file or directory": "apt install g++",
    "error: command 'gcc' failed: No such file or directory": "apt install g++",
    "pybind11/detail/common.h:266:10: fatal error: Python.h: No such file or directory": "python3-dev",
    "fatal error: 'Python.h' file not found": "python3-dev",
    "csrc/cuda/engine.h:3:10: fatal error: cuda_runtime_api.h: No such file or directory": "libcudart_static.a",
    "cuda_fp16.h:91:10: fatal error: nv/target: No such file or directory": "libcudart_static.a",
    "sh: 1: cicc: not found": "libcudart_static.a",
    "/usr/bin/ld: cannot find -lcudart_static: No such file or directory": "libcudart_static.a",
}


@pytest.mark.parametrize("output", FAILURES)
def test_what_a_failed_compilation_means(compiling, output):
    found = compiling.meaning(f"[1/9] c++ -O3 -std=c++17 -c a.cpp\n{output}\nninja: build stopped")
    assert found and FAILURES[output] in documented(f"the build failed, because {found}")


def test_other_failures_are_left_as_they_are(compiling):
    assert compiling.meaning("[1/9] c++ -O3 -std=c++17 -c a.cpp\na.cpp:1: error: expected ';'") is None


def test_torchs_own_check_lets_any_toolkit_pass(compiling, monkeypatch, tmp_path):
    from setuptools import Distribution

    monkeypatch.setattr(compiling.cpp_extension, "CUDA_HOME", str(nvcc(tmp_path, "12.8")))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    seen = []

    def check(self: object) -> None:
        compiling.cpp_extension._check_cuda_version("g++", torch.torch_version.TorchVersion("12.2.0"))
        seen.append(torch.version.cuda)

    monkeypatch.setattr(compiling.cpp_extension.BuildExtension, "build_extensions", check)
    with pytest.raises(RuntimeError, match="mismatches"):
        check(None)
    build = compiling.Build(Distribution())
    build.cuda = "12.8"
    build.build_extensions()
    assert seen == ["12.8"]
    assert torch.version.cuda == "13.0"


def test_ninja_is_needed(compiling, monkeypatch):
    from setuptools import Distribution

    monkeypatch.setattr(compiling.cpp_extension, "is_ninja_available", lambda: False)
    assert "building needs ninja" in stopped(compiling.Build(Distribution()).build_extensions)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("kill -9 $$", "the build failed, because a compiler was killed"),
        ("echo 'a.cpp:1: error: of the source' >&2; exit 1", "Error compiling objects for extension"),
    ],
)
def test_a_build_that_fails_says_why_and_shows_everything(tmp_path, script, expected):
    pytest.importorskip("pybind11")
    if not shutil.which("ninja"):
        pytest.skip("no ninja")
    version = f'case "$1" in\n--version) echo "{GCC}";;\n-dump*) echo 12.2.0;;\n'
    compiler = program(tmp_path / "g++", f"{version}*) {script};;\nesac")
    done = run_setup(
        "",
        *("build_ext", "--build-temp", str(tmp_path / "temp"), "--build-lib", str(tmp_path / "lib")),
        CUDALOSS_CUDA="0",
        MAX_JOBS="1",
        CXX=str(compiler),
    )
    assert done.returncode != 0
    assert expected in done.stderr.strip().splitlines()[-1]
    assert "FAILED: " in done.stdout and f"{compiler} -MMD" in done.stdout
    assert ("error: of the source" in done.stdout) == ("source" in script)


def test_the_pages_table_of_variables_is_setup_pys() -> None:
    docstring = (ROOT / "setup.py").read_text(encoding="utf-8").split('"""')[1]
    variables = re.findall(r"^  (\S.*?)  +(\S.*)$", docstring, re.MULTILINE)
    assert len(variables) > 4
    for names, text in variables:
        cells = ", ".join(f"`{name}`" for name in names.split(", "))
        meaning, _, unset = text.partition("; unset: ")
        assert f"| {cells} | {meaning} | {unset} |" in PAGE
