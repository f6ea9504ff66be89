"""Builds ``cudaloss._C``: the variant (CUDA or CPU only), the architectures, the sources.

Environment:
  CUDALOSS_CUDA           1 demands CUDA kernels, 0 leaves them out; unset: built where a toolkit is found
  CUDA_HOME               the toolkit's root; unset: asked of the nvcc on PATH, else /usr/local/cuda
  TORCH_CUDA_ARCH_LIST    GPU architectures, as "8.0+PTX;9.0"; unset: the GPUs of this machine, else all
  MAX_JOBS                parallel compilations; unset: bounded by cores and by memory
  CC, CXX                 the host compilers, CC nvcc's too; unset: cc and c++, and nvcc's own choice
  CUDALOSS_LOCAL_VERSION  the version's local label, as cu130; unset: none
"""

import functools
import importlib
import os
import re
import runpy
import sys
from pathlib import Path
from typing import NamedTuple

from setuptools import setup

ROOT = Path(__file__).resolve().parent


def said(module, name):
    """The contents of a module of facts, without importing the package, which would load the extension."""
    return runpy.run_path(str(ROOT / "src" / "cudaloss" / f"{module}.py"))[name]


TORCH_TARGET = said("_install/least_torch", "LEAST_TORCH")
tree_hash = said("_install/source_tree", "tree_hash")

if sys.platform not in ("linux", "darwin") or sys.maxsize < 2**32:
    sys.exit(
        f"cudaloss: {sys.platform} with {sys.maxsize.bit_length() + 1} bits is not supported: 64-bit Linux (on Windows "
        "in WSL 2) and macOS are."
    )
try:
    import pybind11
    import torch
    from torch.utils import cpp_extension
except ImportError as error:
    sys.exit(
        f"cudaloss: building needs {error.name}. Either let pip fetch what the build needs (pip install .), or install "
        "it first (pip install torch ninja 'pybind11>=3' 'setuptools>=77') and use pip install --no-build-isolation ."
    )
if tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2]) < TORCH_TARGET:
    sys.exit(
        "cudaloss: building needs torch {}.{} or newer".format(*TORCH_TARGET)
        + f", this is {torch.__version__}. Upgrade it (pip install --upgrade torch)."
    )
sys.path.insert(0, str(ROOT))  # a build backend does not put it there
from tools import compiling, specs, toolkit  # noqa: E402

sys.path.remove(str(ROOT))
GENERATED = ROOT / "build" / "generated"
# The front end runs once for the GPUs from each of these to the next: no kernel asks for more of a later one.
FRONT_ENDS = (70, 75, 80, 90)
# A new loss needs no line here: its header in csrc/losses, or in csrc/losses/rows for a loss of rows, puts it on the
# source list.
LOSSES = sorted(path.stem for path in (ROOT / "csrc" / "losses").glob("*.h"))
ROW_LOSSES = sorted(path.stem for path in (ROOT / "csrc" / "losses" / "rows").glob("*.h"))
# The sources that serve all losses.
CPU_SOURCES = "blocks", "class_block", "count", "each", "gather", "row_tiles", "vocabulary", "overlap"
CUDA_SOURCES = "fold", "count", "each", "strided", "vectors", "boxes", "vocabulary", "class_block", "overlap"
# A source of CUDA code takes 4.5 s before its first kernel, and a loss of elements then takes 6.5 s (one architecture).
LOSSES_A_SOURCE = 5


def version():
    """The release's version, and the local label of a wheel for its own index."""
    label = os.environ.get("CUDALOSS_LOCAL_VERSION", "")
    if label and not re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)*", label):
        sys.exit(
            "cudaloss: CUDALOSS_LOCAL_VERSION must be a local version label of lower-case letters and digits, with "
            f"dots between parts, as cu130 or cpu, got {label!r}"
        )
    release = said("_version", "VERSION")
    return f"{release}+{label}" if label else release


def readme():
    """README.md, with links into the repository that also work elsewhere, for example on PyPI."""
    (project,) = re.findall(r'^Repository = "https://github\.com/(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!https?:)", rf"\1https://raw.githubusercontent.com/{project}/HEAD/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!https?:|#)", rf"\1https://github.com/{project}/blob/HEAD/", text)


def plain(wish):
    """A list as torch takes it ("Ampere 9.0", "native"), sorted and in plain names: ["8.0", "8.6+PTX", "9.0"]."""
    os.environ["TORCH_CUDA_ARCH_LIST"] = wish
    try:
        flags = cpp_extension._get_cuda_arch_flags()
    except ValueError as error:
        sys.exit(f"cudaloss: TORCH_CUDA_ARCH_LIST must be a list as '8.0+PTX;9.0', got {wish!r}: {error}")
    codes = sorted(
        (int(a), int(b), c, kind) for kind, a, b, c in re.findall(r"code=(sm|compute)_(\d+)(\d)([af]?)", str(flags))
    )
    with_ptx = {code[:3] for code in codes if code[3] == "compute"}
    return [
        f"{major}.{minor}{suffix}" + "+PTX" * ((major, minor, suffix) in with_ptx)
        for major, minor, suffix, kind in codes
        if kind == "sm"
    ]


def architectures(found):
    """The list in ``TORCH_CUDA_ARCH_LIST``, otherwise the GPUs here, otherwise all that we ship for the toolkit."""
    wish = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if wish:
        names = plain(wish)
        toolkit.check_architectures(found, names, "TORCH_CUDA_ARCH_LIST asks for")
    elif torch.cuda.is_available():
        present = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
        names = [f"{major}.{minor}" for major, minor in sorted(present)]
        toolkit.check_architectures(found, names, "the GPUs here are of")
    else:
        names = toolkit.default_architectures(found.version)
    return names


def gencode(names):
    """nvcc's flags for these architectures, with as few front ends as serve them. Torch's would run one for each."""
    codes = {}
    for name in names:
        ((major, minor, suffix, ptx),) = re.findall(r"^(\d+)\.(\d)([af]?)(\+PTX)?$", name)
        number = int(major + minor)
        is_own = suffix or ptx  # what another GPU does not run, and what all newer ones are to run
        front = number if is_own else max((front for front in FRONT_ENDS if front <= number), default=number)
        of_front = codes.setdefault(f"compute_{front}{suffix}", [])
        of_front.append(f"sm_{number}{suffix}")
        if ptx:
            of_front.append(f"compute_{front}{suffix}")
    return [f"-gencode=arch={front},code=[{','.join(of_front)}]" for front, of_front in codes.items()]


def exports():
    """The linker's flags by which the binary exports what Python loads, and none of its templates."""
    if sys.platform == "darwin":
        return ["-Wl,-exported_symbol,_PyInit__C"]
    script = write_if_changed(GENERATED / "exports.map", "{ global: PyInit__C; local: *; };\n")
    return [f"-Wl,--version-script={script}"]


def write_if_changed(path, text):
    """Keeps an unchanged file's time stamp, so that a rebuild compiles only changed files."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return os.path.relpath(path, ROOT)


@functools.cache
def rows():
    """The losses' rows by name."""
    with specs.without_init():
        return {spec.name: spec for spec in importlib.import_module("cudaloss._losses.table").VARIANTS}


def has_all_kernels(loss):
    """Whether the loss has all CUDA kernels, or only those of the commonest calls: ``true`` or ``false``."""
    return str(rows()[loss].kernels == "all").lower()


def write_losses():
    """Writes the list of losses for the C++ code, with their ids and kernels; the list of their headers; and the name
    of the source."""
    unknown = [loss for loss in (*LOSSES, *ROW_LOSSES) if loss not in rows()]
    if unknown:
        folder = "csrc/losses/rows" if unknown[0] in ROW_LOSSES else "csrc/losses"
        sys.exit(f"cudaloss: {folder} has {unknown[0]}.h, but src/cudaloss/_losses has no row of that name.")
    lines = (f"CUDALOSS_LOSS({loss}, {rows()[loss].id}, {has_all_kernels(loss)})\n" for loss in LOSSES)
    write_if_changed(GENERATED / "losses.inc", "".join(lines))
    lines = (f"CUDALOSS_ROW_LOSS({loss}, {rows()[loss].id}, {rows()[loss].reads.title()})\n" for loss in ROW_LOSSES)
    write_if_changed(GENERATED / "row_losses.inc", "".join(lines))
    write_if_changed(GENERATED / "csrc_tree.h", f'#define CUDALOSS_CSRC_TREE "{tree_hash(ROOT / "csrc")}"\n')
    for file, folder, losses in (("losses.h", "losses", LOSSES), ("row_losses.h", "losses/rows", ROW_LOSSES)):
        lines = (f'#include "{folder}/{loss}.h"\n' for loss in losses)
        write_if_changed(GENERATED / file, "#pragma once\n" + "".join(lines))


class Engine(NamedTuple):
    """What goes into a backend's sources: the engine's header, the last arguments of its functions."""

    name: str
    header: str
    arguments: str
    names: str
    suffix: str

    def header_of(self, loss):
        if loss not in ROW_LOSSES:
            return self.header
        return f"{self.name}/rows_of_{rows()[loss].reads}{Path(self.header).suffix}"

    def instantiate(self, loss):
        if loss in ROW_LOSSES:
            return (
                f"template <>\nvoid row_pass<losses::{loss}>(const Pass& pass, {self.arguments}) {{\n"
                f"  {rows()[loss].reads}_pass<losses::{loss}>(pass, {self.names});\n}}\n"
            )
        kernels = f", {has_all_kernels(loss)}" if self.name == "cuda" else ""
        return f"template void pass<losses::{loss}{kernels}>(const Pass&, {self.arguments});\n"


CPU = Engine("cpu", "cpu/engine_impl.h", "ParallelFor parallel_for", "parallel_for", ".cpp")
CUDA = Engine("cuda", "cuda/engine_impl.cuh", "const Memory& memory, Stream stream", "memory, stream", ".cu")


def write_source(name, engine, losses, includes=()):
    """A source that instantiates an engine over losses' functors."""
    headers = [f"losses/rows/{loss}.h" if loss in ROW_LOSSES else f"losses/{loss}.h" for loss in losses]
    headers += [engine.header_of(loss) for loss in losses]
    headers = list(dict.fromkeys([*headers, *includes]))
    text = "".join(f'#include "{header}"\n' for header in headers) + f"\nnamespace cudaloss::{engine.name} {{\n"
    text += "".join(engine.instantiate(loss) for loss in losses) + f"}}  // namespace cudaloss::{engine.name}\n"
    return write_if_changed(GENERATED / f"{name}_{engine.name}{engine.suffix}", text)


def generate_sources(engine, count=1):
    """Sources of up to `count` losses each, which include the same header of the engine."""
    by_header = {}
    for loss in (*LOSSES, *ROW_LOSSES):
        by_header.setdefault(engine.header_of(loss), []).append(loss)
    groups = [losses[i : i + count] for losses in by_header.values() for i in range(0, len(losses), count)]
    return [write_source("_to_".join(dict.fromkeys([group[0], group[-1]])), engine, group) for group in groups]


def one_source(shared):
    """All CUDA code in one source. nvcc compiles several architectures at a time, so that it takes no longer. The
    common code of the losses is compressed once: 1.09 MB for sm_90, with a source for each loss 1.44."""
    return write_source("all", CUDA, [*LOSSES, *ROW_LOSSES], shared)


def without_places(folders):
    """Flags that keep absolute paths out of the binary; its errors then name sources by the same paths."""
    return [f"-ffile-prefix-map={folder}/=" for folder in dict.fromkeys([str(ROOT), *folders])]


def extension(found):
    """The extension with CUDA kernels from the toolkit `found`, or without CUDA kernels."""
    include_dirs = [pybind11.get_include(), str(ROOT / "csrc"), str(GENERATED)]
    sources = ["csrc/binding.cpp", "csrc/torch/ops.cpp"]
    sources += [f"csrc/cpu/{name}.cpp" for name in CPU_SOURCES]
    target = f"0x{TORCH_TARGET[0]:02x}{TORCH_TARGET[1]:02x}000000000000"
    macros = [
        ("TORCH_TARGET_VERSION", target),
        ("CUDALOSS_TORCH_TARGET", '"{}.{}"'.format(*TORCH_TARGET)),
    ]
    # -ffp-contract=off: the same bits at every x86-64 level. -g0: the interpreter's own flags may ask for symbols.
    # The C++ standard is ours, not torch's, which differs between versions and demands more of the compiler.
    cxx = ["-std=c++17", "-O3", "-g0", "-fvisibility=hidden", "-Wall"]
    cxx += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    # GCC's: no second vector loop for a loop's last elements. The binary without CUDA then has 7.7 MB, not 8.3, in a
    # wheel 3.1, not 3.5.
    if sys.platform == "linux":
        cxx.append("--param=vect-epilogues-nomask=0")
    cxx += without_places([pybind11.get_include(), *cpp_extension.include_paths()])
    # libtorch must stay in NEEDED: the weak reference to the current stream is not enough to keep it.
    link = ["-Wl,--no-as-needed", "-ltorch", "-Wl,--as-needed", "-s"] if sys.platform == "linux" else ["-Wl,-x"]
    link += exports()
    if found is None:
        sources += generate_sources(CPU)
        module = cpp_extension.CppExtension(
            "cudaloss._C",
            sources,
            include_dirs=include_dirs,
            define_macros=macros,
            extra_compile_args={"cxx": cxx},
            extra_link_args=link,
        )
    else:
        names = architectures(found)
        cpp_extension.CUDA_HOME = str(found.root)  # a CPU-only torch leaves it None, for any environment
        sources += generate_sources(CPU)
        shared = [f"cuda/{name}.cu" for name in CUDA_SOURCES]
        if len(names) > 1:
            sources += [one_source(shared)]
        else:
            sources += [f"csrc/{source}" for source in shared] + generate_sources(CUDA, LOSSES_A_SOURCE)
        macros += [
            ("CUDALOSS_WITH_CUDA", "1"),
            ("CUDALOSS_CUDA_VERSION", f'"{found.version}"'),
            ("CUDALOSS_CUDA_ARCHITECTURES", '"{}"'.format(";".join(names))),
        ]
        # -O2: of the code that launches kernels. With -O3 it has a fifth more bytes and compiles for a third longer.
        nvcc = ["-std=c++17", "-O2", "-Xcompiler=-g0,-fvisibility=hidden", *gencode(names)]
        if found.knows("--compress-mode"):
            nvcc.append("--compress-mode=size")
        module = cpp_extension.CUDAExtension(
            "cudaloss._C",
            sources,
            include_dirs=include_dirs + found.folders("include"),
            library_dirs=found.folders("lib"),
            define_macros=macros,
            extra_compile_args={"cxx": cxx, "nvcc": nvcc},
            extra_link_args=link,
        )
        # Links cudart statically and none of torch's CUDA libraries: so the binary also loads on a CPU-only torch.
        module.libraries = [name for name in module.libraries if name not in ("cudart", "c10_cuda", "torch_cuda")]
        module.libraries += ["cudart_static", "rt", "dl", "pthread"]
    module.libraries = [name for name in module.libraries if name != "torch_python"]
    return module


def main():
    write_losses()
    found = toolkit.choose(torch.version.hip)
    if found:
        toolkit.compare(found, torch.version.cuda)
    build = type("build_ext", (compiling.Build,), {"cuda": found and found.version})
    setup(
        version=version(),
        long_description=readme(),
        long_description_content_type="text/markdown",
        ext_modules=[extension(found)],
        cmdclass={"build_ext": build},
    )


if __name__ == "__main__":
    main()
