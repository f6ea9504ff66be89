"""How many sources compile at a time, which compilers serve, and what a failed compilation is said to mean."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

from building import documented, nvcc, program, run_setup, stopped


@pytest.mark.parametrize(
    ("kind", "gib", "jobs"),
    [
        ("one architecture", 0.9, 1),
        ("one architecture", 9.5, 9),
        ("one architecture", 1000, 64),
        ("architectures", 9.5, 3),
        ("cpu", 0.9, 1),
        ("cpu", 9.4, 18),
    ],
)
def test_jobs_are_bounded_by_memory_and_cores(compiling, monkeypatch, capsys, kind, gib, jobs):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    monkeypatch.setattr(compiling, "free_gib", lambda: float(gib))
    compiling.bound_jobs(kind)
    assert os.environ["MAX_JOBS"] == str(jobs)
    said = capsys.readouterr().err
    assert (f"compiling {jobs} at a time on 64 cores, because {gib:.1f} GiB" in said) == (jobs < 64)
    assert ("it may be killed" in said) == (gib < 1 and kind != "cpu")
    for line in said.splitlines():
        documented(line)


def test_jobs_that_are_asked_for(compiling, monkeypatch):
    monkeypatch.setattr(compiling, "free_gib", lambda: 1.0)
    monkeypatch.setenv("MAX_JOBS", "3")
    compiling.bound_jobs("one architecture")
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
        seen.append((torch.version.cuda, compiling.cpp_extension.COMMON_NVCC_FLAGS))

    monkeypatch.setattr(compiling.cpp_extension.BuildExtension, "build_extensions", check)
    with pytest.raises(RuntimeError, match="mismatches"):
        check(None)
    build = compiling.Build(Distribution())
    build.cuda, build.extensions = "12.8", []
    build.build_extensions()
    assert seen == [("12.8", [])]
    assert torch.version.cuda == "13.0" and compiling.cpp_extension.COMMON_NVCC_FLAGS


def test_an_editable_build_compiles_in_the_folder_of_the_others(compiling, tmp_path):
    from setuptools import Distribution

    builds = [compiling.Build(Distribution({"name": "cudaloss", "ext_modules": []})) for _ in range(2)]
    builds[0].editable_mode, builds[0].build_temp = True, str(tmp_path)  # as `pip install --editable` asks for
    for build in builds:
        build.finalize_options()
    assert builds[0].build_temp == builds[1].build_temp


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
