"""Compiling: how many sources at a time, torch's build command, and what a failed compilation means."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import torch
from torch.utils import cpp_extension

from tools.toolkit import say

# The memory of one compilation, with a margin. Measured: at most 0.38 GiB for g++, 0.55 for a compiler that nvcc runs
# for one architecture, and 4.6 in all where two compile the one source of several architectures.
GIB_A_JOB = {"cpu": 0.5, "one architecture": 1.0, "architectures": 2.5}
LEAST_GCC = 9  # the first whose C++17 is not experimental
INSTALL_A_COMPILER = (
    "Install one (apt install g++, dnf install gcc-c++, xcode-select --install) or name one with CC and CXX."
)
NEWER_COMPILER = f"The sources are C++17: g++ {LEAST_GCC} or newer. Name one with CC and CXX."
# What a failed compilation's output contains, and what to do about it; the first match counts.
MEANINGS = {
    r"Killed|signal 9\b|\[code=137\]": (
        "a compiler was killed, as Linux does when memory runs out. MAX_JOBS=1 compiles one source at a time, in "
        f"{GIB_A_JOB['one architecture']} GiB for one architecture, {GIB_A_JOB['architectures']} for several; "
        f"CUDALOSS_CUDA=0 builds the CPU kernels alone, in {GIB_A_JOB['cpu']}."
    ),
    r"No space left on device": "the disk is full. TMPDIR names another place for temporary files.",
    r"unsupported (GNU|clang) version|than the (max|min)imum required version by CUDA": (
        "this nvcc does not take this host compiler; the message above says which it takes. Name one of them with "
        "both CC and CXX (CC=gcc-13 CXX=g++-13), or another toolkit with CUDA_HOME."
    ),
    r"Unsupported gpu architecture": (
        "this nvcc does not compile for one of the architectures. TORCH_CUDA_ARCH_LIST names others, CUDA_HOME "
        "another toolkit."
    ),
    r"option .*-std=|invalid value 'c\+\+17'": f"the C++ compiler is too old. {NEWER_COMPILER}",
    r"cannot execute .?cc1plus|\b(g\+\+|gcc|c\+\+|clang\+\+|clang|cc)(-\d+)?: (command )?not found"
    r"|command '[^']*(cc|\+\+|clang)(-\d+)?' failed: No such file": f"there is no C++ compiler. {INSTALL_A_COMPILER}",
    r"Python\.h.? (file )?not found|Python\.h: No such file": (
        "Python's own headers are missing. Install them (apt install python3-dev, dnf install python3-devel)."
    ),
    r"(cuda_runtime\w*\.h|host_config\.h|nv/target|cuda_fp16\.h)\S* (file )?not found"
    r"|(cuda_runtime\w*\.h|host_config\.h|nv/target|cuda_fp16\.h): No such file|(cicc|ptxas|fatbinary).*not found"
    r"|(find|for) -lcudart_static": (
        "the CUDA toolkit is incomplete. It needs the compiler, its headers (crt, cccl) and the runtime with "
        "libcudart_static.a, all of one version; docs/building.md lists the packages."
    ),
}


def meaning(output: str) -> str | None:
    return next((text for pattern, text in MEANINGS.items() if re.search(pattern, output)), None)


def free_gib() -> float | None:
    """GiB of memory for this build: what the kernel can free, within a container's limit. None on systems other than
    Linux."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    free = int(found[1]) / 2**20 if found else None
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            free = min(free, int(Path(limit).read_text()) / 2**30) if free else None
    return free


def kind_of(sources: list[str]) -> str:
    """The kind of GIB_A_JOB: setup.py puts the CUDA code of several architectures into one source."""
    count = sum(source.endswith(".cu") for source in sources)
    return "one architecture" if count > 1 else "architectures" if count else "cpu"


def bound_jobs(kind: str) -> int:
    """Limits parallel compilers to the number of cores and to the memory. Sets MAX_JOBS, for torch."""
    wish, each = os.environ.get("MAX_JOBS"), GIB_A_JOB[kind]
    if wish:
        if not (wish.isdigit() and int(wish)):
            sys.exit(f"cudaloss: MAX_JOBS must be a whole number of at least 1, got {wish!r}")
        return int(wish)
    free = free_gib()
    if free is None:
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    jobs = max(1, min(cores, int(free / each)))
    os.environ["MAX_JOBS"] = str(jobs)
    if free < each:
        say(f"warning: {free:.1f} GiB of memory are free, and one compilation takes up to {each}: it may be killed.")
    if jobs < cores:
        say(
            f"compiling {jobs} at a time on {cores} cores, because {free:.1f} GiB of memory are free and each takes up "
            f"to {each}. MAX_JOBS sets another number."
        )
    return jobs


def check_compiler() -> None:
    """Ends the build if there is no C++ compiler, or if GCC is too old."""
    command = cpp_extension.get_cxx_compiler()
    if not shutil.which(command):  # torch also takes CXX as one program's name, without arguments
        sys.exit(f"cudaloss: there is no C++ compiler {command!r}. {INSTALL_A_COMPILER}")
    answer = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
    if "clang" in answer or "Free Software Foundation" not in answer:
        return
    version = subprocess.run([command, "-dumpversion"], capture_output=True, text=True).stdout.strip()
    if int(version.partition(".")[0] or LEAST_GCC) < LEAST_GCC:
        sys.exit(f"cudaloss: the C++ compiler {command} is GCC {version}, which is too old. {NEWER_COMPILER}")


@contextlib.contextmanager
def kept(descriptor: int, chunks: list[bytes]) -> Iterator[None]:
    """Copies what this process and its children write to a file descriptor into `chunks`, and passes it on."""
    saved = os.dup(descriptor)
    read, write = os.pipe()

    def pass_on() -> None:
        while chunk := os.read(read, 1 << 16):
            chunks.append(chunk)
            os.write(saved, chunk)

    thread = threading.Thread(target=pass_on)
    os.dup2(write, descriptor)
    os.close(write)
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved, descriptor)  # closes the pipe's last writing end, which ends the thread
        thread.join()
        os.close(read)
        os.close(saved)


class Build(cpp_extension.BuildExtension):
    """Torch's build command, which also explains a failure.

    Torch's command refuses a toolkit whose major version is not that of torch's CUDA, because most extensions share
    torch's CUDA libraries. Ours shares none of them, so torch is made to look like a build for the toolkit's CUDA. The
    host compiler is then checked against the toolkit, and nvcc records the headers it reads, also with a CPU-only
    torch. Torch's own flags for nvcc are left out: setup.py gives all that the sources need.
    """

    cuda: str | None = None  # the toolkit's version, None without CUDA kernels

    def finalize_options(self) -> None:
        super().finalize_options()
        if self.editable_mode:  # else everything is compiled again: setuptools' folder is gone after the build
            usual = self.distribution.get_command_class("build")(self.distribution)
            usual.ensure_finalized()
            self.build_temp = usual.build_temp

    def build_extensions(self) -> None:
        if not cpp_extension.is_ninja_available():
            sys.exit("cudaloss: building needs ninja. Install it (pip install ninja).")
        check_compiler()
        jobs = bound_jobs(kind_of([source for extension in self.extensions for source in extension.sources]))
        for extension in self.extensions:
            if self.cuda:
                extension.extra_compile_args["nvcc"].append(f"--threads={jobs}")  # architectures of a source at a time
        chunks: list[bytes] = []
        try:
            with contextlib.ExitStack() as patched:
                patched.enter_context(kept(1, chunks))
                patched.enter_context(kept(2, chunks))
                patched.enter_context(mock.patch.object(torch.version, "cuda", self.cuda))
                patched.enter_context(mock.patch.object(cpp_extension, "COMMON_NVCC_FLAGS", []))
                super().build_extensions()
        except Exception as error:
            text = meaning(b"".join(chunks).decode(errors="replace") + str(error))
            if text is None:
                raise
            sys.exit(f"cudaloss: the build failed, because {text}")
