"""Builds ``cudaloss._C``: the variant (CUDA or CPU only), the architectures, the sources.

Environment:
  CUDALOSS_CUDA          1 demands CUDA kernels, 0 leaves them out; unset: built where a toolkit is found
  CUDA_HOME              the toolkit's root; unset: asked of the nvcc on PATH
  TORCH_CUDA_ARCH_LIST   GPU architectures; unset: the GPUs of this machine, else all
  MAX_JOBS               parallel compilations; unset: bounded by cores and by memory
"""

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import types
from pathlib import Path

from setuptools import setup

try:
    import pybind11
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    sys.exit(
        f"cudaloss: building needs {error.name}. Either let pip fetch what the build needs (pip install .), or install "
        "it first (pip install torch ninja 'pybind11>=3' 'setuptools>=77') and use pip install --no-build-isolation ."
    )

ROOT = Path(__file__).resolve().parent
GENERATED = ROOT / "build" / "generated"
TORCH_TARGET = runpy.run_path(str(ROOT / "src" / "cudaloss" / "_least_torch.py"))["LEAST_TORCH"]
# For a machine without a GPU, each with the least CUDA that knows it.
DEFAULT_ARCHITECTURES = {"7.5": 11, "8.0": 11, "8.6": 11.1, "8.9": 11.8, "9.0": 11.8, "10.0": 12.8, "12.0": 12.8}
GIB_A_JOB = 2  # nvcc's peak on one loss is 1.1 GiB for one architecture
# A new loss needs no line here: its header in csrc/losses is its line in the source list.
LOSSES = sorted(path.stem for path in (ROOT / "csrc" / "losses").glob("*.h"))


def cuda_root():
    """The toolkit's root, or None. An nvcc on PATH may be a wrapper far from it, so nvcc itself is asked."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            return Path(os.environ[variable])
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return None
    answer = subprocess.run([nvcc, "--dryrun", "cudaloss.cu"], capture_output=True, text=True)
    top = re.search(r"^#\$ TOP=(.+)$", answer.stderr, re.MULTILINE)
    return Path(top[1]).resolve() if top else Path(nvcc).resolve().parent.parent


def cuda_version(root):
    """``"13.0"`` for the toolkit at `root`, or None where no nvcc answers."""
    try:
        answer = subprocess.run([root / "bin" / "nvcc", "--version"], capture_output=True, text=True)
    except OSError:
        return None
    release = re.search(r"release (\d+\.\d+)", answer.stdout)
    return release and release[1]


def choose_toolkit():
    """(root, version) of the toolkit to build with, or None for a CPU-only build; says which and why."""
    wish = os.environ.get("CUDALOSS_CUDA", "")
    if wish not in ("", "0", "1"):
        sys.exit(f"cudaloss: CUDALOSS_CUDA must be 0 or 1, got {wish!r}")
    if wish == "0":
        print("cudaloss: building the CPU kernels only, because CUDALOSS_CUDA=0", file=sys.stderr)
        return None
    root = cuda_root()
    version = root and cuda_version(root)
    if version:
        print(f"cudaloss: building the CPU and CUDA kernels, with CUDA {version}", file=sys.stderr)
        return root, version
    reason = f"no nvcc answers in {root}" if root else "no CUDA toolkit was found (CUDA_HOME is unset, no nvcc on PATH)"
    if wish == "1":
        sys.exit(f"cudaloss: CUDALOSS_CUDA=1 demands CUDA kernels, but {reason}")
    print(f"cudaloss: building the CPU kernels only, because {reason}", file=sys.stderr)
    return None


def architectures(version):
    """What ``TORCH_CUDA_ARCH_LIST`` says, else the GPUs here, else all that CUDA `version` knows, and PTX for newer."""
    if os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return os.environ["TORCH_CUDA_ARCH_LIST"]
    if torch.cuda.is_available():
        present = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
        return ";".join(f"{major}.{minor}" for major, minor in sorted(present))
    return ";".join(name for name, least in DEFAULT_ARCHITECTURES.items() if least <= float(version)) + "+PTX"


def bound_jobs():
    """Compilers in parallel: as many as there are cores, and no more than memory holds."""
    if "MAX_JOBS" not in os.environ and sys.platform == "linux":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") / 2**30
        os.environ["MAX_JOBS"] = str(max(1, min(len(os.sched_getaffinity(0)), int(memory / GIB_A_JOB))))


def write_if_changed(path, text):
    """Keeps an unchanged file's time stamp, so that a rebuild compiles only what changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return os.path.relpath(path, ROOT)


def write_stubs():
    """The type stubs of the public functions and modules, from the package's own rows."""
    package = types.ModuleType("cudaloss")  # without its __init__, which would load the extension
    package.__path__ = [str(ROOT / "src" / "cudaloss")]
    sys.modules["cudaloss"] = package
    try:
        stubs = importlib.import_module("cudaloss._faces").stubs()
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "cudaloss"]:
            del sys.modules[name]
    for name, text in stubs.items():
        write_if_changed(ROOT / "src" / "cudaloss" / name, text)


def generate_sources(backends):
    """One small source a loss and backend, which instantiates the engine over the loss's functor."""
    write_if_changed(GENERATED / "losses.inc", "".join(f"CUDALOSS_LOSS({loss})\n" for loss in LOSSES))
    sources = []
    for backend, (engine, arguments, suffix) in backends.items():
        for loss in LOSSES:
            functor = f"losses::{loss}"
            text = (
                f'#include "losses/{loss}.h"\n#include "{engine}"\n\n'
                f"namespace cudaloss::{backend} {{\n"
                f"template void reduce<{functor}>(const Forward&, {arguments['reduce']});\n"
                f"template void elementwise<{functor}>(const Forward&, {arguments['map']});\n"
                f"template void train<{functor}>(const Training&, {arguments['reduce']});\n"
                f"template void backward<{functor}>(const Backward&, {arguments['map']});\n"
                f"template void pass<{functor}>(const Pass&, {arguments['reduce']});\n"
                f"}}  // namespace cudaloss::{backend}\n"
            )
            sources.append(write_if_changed(GENERATED / f"{loss}_{backend}{suffix}", text))
    return sources


CPU_ENGINE = ("cpu/engine_impl.h", {"reduce": "ParallelFor", "map": "ParallelFor"}, ".cpp")
CUDA_ENGINE = ("cuda/engine_impl.cuh", {"reduce": "const Workspace&, Stream", "map": "Stream"}, ".cu")


def extension():
    toolkit = choose_toolkit()
    include_dirs = [pybind11.get_include(), str(ROOT / "csrc"), str(GENERATED)]
    sources = ["csrc/binding.cpp", "csrc/torch/ops.cpp"]
    sources += [f"csrc/cpu/{name}.cpp" for name in ("blocks", "convert", "count", "gather")]
    target = f"0x{TORCH_TARGET[0]:02x}{TORCH_TARGET[1]:02x}000000000000"
    macros = [
        ("TORCH_TARGET_VERSION", target),
        ("CUDALOSS_TORCH_TARGET", '"{}.{}"'.format(*TORCH_TARGET)),
    ]
    # -ffp-contract=off: the same bits at every x86-64 level; -g0: an interpreter's own flags may ask for symbols.
    cxx = ["-O3", "-g0", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-Wall"]
    # libtorch must stay in NEEDED: the weak reference to the current stream alone would not keep it.
    link = ["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-s"] if sys.platform == "linux" else []
    if toolkit is None:
        sources += generate_sources({"cpu": CPU_ENGINE})
        module = cpp_extension.CppExtension(
            "cudaloss._C",
            sources,
            include_dirs=include_dirs,
            define_macros=macros,
            extra_compile_args={"cxx": cxx},
            extra_link_args=link,
        )
    else:
        root, version = toolkit
        os.environ["TORCH_CUDA_ARCH_LIST"] = architectures(version)
        cpp_extension.CUDA_HOME = str(root)  # a CPU-only torch leaves it None, whatever the environment says
        sources += [
            "csrc/cuda/fold.cu",
            "csrc/cuda/count.cu",
            *generate_sources({"cpu": CPU_ENGINE, "cuda": CUDA_ENGINE}),
        ]
        macros += [
            ("CUDALOSS_WITH_CUDA", "1"),
            ("CUDALOSS_CUDA_VERSION", f'"{version}"'),
            ("CUDALOSS_CUDA_ARCHITECTURES", '"{}"'.format(os.environ["TORCH_CUDA_ARCH_LIST"])),
        ]
        module = cpp_extension.CUDAExtension(
            "cudaloss._C",
            sources,
            include_dirs=include_dirs,
            define_macros=macros,
            extra_compile_args={"cxx": cxx, "nvcc": ["-O3", "--threads=1", "-Xcompiler=-g0,-fvisibility=hidden"]},
            extra_link_args=link,
        )
        # cudart linked statically, nothing of torch's CUDA libraries: the binary then loads on a CPU-only torch too.
        module.libraries = [name for name in module.libraries if name not in ("cudart", "c10_cuda", "torch_cuda")]
        module.libraries += ["cudart_static", "rt", "dl", "pthread"]
    module.libraries = [name for name in module.libraries if name != "torch_python"]
    return module


if __name__ == "__main__":
    bound_jobs()
    write_stubs()
    setup(ext_modules=[extension()], cmdclass={"build_ext": cpp_extension.BuildExtension})
