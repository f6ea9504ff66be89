"""Broken installations, in copies of the package: the import says what is wrong, once, and the losses still work."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
from torch.multiprocessing import ProcessRaisedException  # pyright: ignore[reportPrivateImportUsage]

import cudaloss
from cudaloss import _C
from cudaloss._install import binary as _binary
from cudaloss._install.least_torch import LEAST_TORCH
from cudaloss._losses.table import LossSpec, OfDifference
from processes import printed_by
from tools.faces import source

SUFFIX = EXTENSION_SUFFIXES[0]
NAME = f"_C{SUFFIX}"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="of ELF files")

# In one process: the import with CUDALOSS_REQUIRE_COMPILED, the import without it, the losses, and the diagnostics.
SESSION = """
import contextlib, io, json, os, sys, warnings
import torch
if sys.platform == "darwin":  # whose MPS is no device of ours, and fails on machines without a screen
    torch.accelerator.is_available = lambda: False
{before}
found = {{}}
os.environ["CUDALOSS_REQUIRE_COMPILED"] = "1"
try:
    import cudaloss
except ImportError as error:
    found["strict"] = str(error)
for name in [name for name in sys.modules if name.partition(".")[0] == "cudaloss"]:
    del sys.modules[name]
del os.environ["CUDALOSS_REQUIRE_COMPILED"]
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import cudaloss
    from cudaloss._call.call import Call
    from cudaloss._losses.table import PUBLIC
    from cudaloss._reference import definition
found["warnings"] = [(w.category.__name__, str(w.message), w.filename) for w in said]
found["losses"] = []
for spec in PUBLIC:
    size = 4 if spec.reads == "boxes" else 30
    x, y = (0.05 + 0.9 * torch.rand(7, size) for _ in range(2))  # which every loss takes
    if spec.takes_indices_alone:
        y = torch.arange(7)
    x.requires_grad_()
    third = [torch.rand(7, size) if spec.differentiable_third else torch.ones(7)] * (len(spec.operands) - 2)
    value = getattr(cudaloss, spec.function)(x, y, *third, reduction="mean", **spec.needed)
    value.backward()
    expected = definition.loss(Call.usual(spec, x, y, "mean", torch.float32, third=third[0] if third else None))
    same = torch.equal(value, expected) and torch.equal(x.grad, torch.autograd.grad(expected, x)[0])
    found["losses"].append(same)
from cudaloss.__main__ import main
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    found["code"] = main(["--json"])
found["report"] = json.loads(printed.getvalue())
print(json.dumps(found))
"""


def package(folder: Path, binary: bytes | None = None, name: str = NAME) -> Path:
    """A copy of the package whose binary holds these bytes; None: without one. Returns what goes on the path."""
    source = Path(cudaloss.__file__).parent
    shutil.copytree(source, folder / "cudaloss", ignore=shutil.ignore_patterns("_C.*", "__pycache__"))
    if binary is not None:
        (folder / "cudaloss" / name).write_bytes(binary)
    return folder


def python(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CUDALOSS_")}
    env |= {"PYTHONPATH": str(path), **environment}
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=path, env=env)


def binary() -> bytes:
    return Path(_C.__file__).read_bytes()


def replaced(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data and len(old) == len(new)
    return data.replace(old, new)


def of_another_python(data: bytes) -> bytes:
    """pybind11 compares the version it was compiled for with the one that loads it."""
    major, minor = sys.version_info[:2]
    return replaced(data, f"{major}.{minor}\0".encode(), f"{major}.{'9' * len(str(minor))}\0".encode())


def of_another_machine(data: bytes) -> bytes:
    return data[:18] + (243).to_bytes(2, "little") + data[20:]


def session(path: Path, before: str = "") -> dict[str, Any]:
    return json.loads(printed_by(SESSION.format(before=before), path=path))


def check(found: dict[str, Any], cause: str, *words: str) -> None:
    """One warning at the line of the import; the error is the same text; every loss is the reference's, bit by bit."""
    ((category, message, filename),) = found["warnings"]
    assert category == "RuntimeWarning" and filename == "<string>"
    for word in ("compiled kernels could not be loaded", *words, "pip install", "`python -m cudaloss`"):
        assert word in message, message
    assert found["strict"] == message
    assert found["losses"] and all(found["losses"])
    report = found["report"]
    assert found["code"] == 1 and not report["ok"] and not report["cudaloss"]["compiled"]
    (problem,) = report["problems"]
    assert problem["cause"] == cause and message.startswith(problem["message"])
    assert {row["path"] for row in report["paths"]} == {"plain PyTorch"}
    assert all(result["passed"] for result in report["self_test"]["results"])


CASES: dict[str, tuple[str, Callable[[bytes], bytes], list[str]]] = {
    "truncated": ("truncated", lambda data: data[:-4096], ["is cut short", NAME]),
    "cut in half": ("truncated", lambda data: data[: len(data) // 2], ["is cut short", NAME]),
    "header only": ("truncated", lambda data: data[:20], ["is cut short: 20 bytes"]),
    "empty": ("truncated", lambda _: b"", ["is cut short: 0 bytes"]),
    "text": ("format", lambda _: b"version https://git-lfs", ["no library of this platform", "b'version https://'"]),
    "macOS": ("format", lambda _: b"\xcf\xfa\xed\xfe" + bytes(4096), ["no library of this platform"]),
    "processor": ("machine", of_another_machine, ["is built for riscv64", "this Python runs on"]),
    "python": ("python", of_another_python, ["built for another Python than this", f"Python {sys.version_info[0]}."]),
    "symbol": (
        "symbol",
        lambda data: replaced(data, b"torch_get_const_data_ptr", b"torch_was_const_data_ptr"),
        ["do not fit torch", "undefined symbol: torch_was_const_data_ptr", "--no-binary cudaloss"],
    ),
}


@LINUX
@pytest.mark.parametrize("case", CASES)
def test_broken_binary(case, tmp_path):
    cause, change, words = CASES[case]
    check(session(package(tmp_path, change(binary()))), cause, *words)


def test_no_binary(tmp_path):
    check(session(package(tmp_path)), "missing", f"has no file {NAME}", "--force-reinstall")


def test_a_checkout_that_was_not_built(tmp_path):
    (tmp_path / "csrc").mkdir()
    check(session(package(tmp_path / "src")), "missing", "never built", "pip install --no-build-isolation")


def test_a_binary_named_for_another_python(tmp_path):
    name = "_C.cpython-36m-x86_64-linux-gnu.so"
    check(session(package(tmp_path, binary(), name)), "python", f"has {name}, built for another Python", SUFFIX)


def test_torch_too_old(tmp_path):
    """Decided before the binary is loaded, which would find symbols missing."""
    found = session(package(tmp_path, binary()), 'torch.__version__ = "2.9.1+cu128"')
    least = "{}.{}".format(*LEAST_TORCH)
    check(found, "torch", f"torch 2.9.1+cu128 is older than {least}", f"'torch>={least}'")


def test_torch_too_old_for_any_loss(tmp_path):
    code = 'import torch; torch.__version__ = "2.0.1"; del torch.library.register_fake; import cudaloss'
    message = r"ImportError: cudaloss cannot run here: torch 2\.0\.1 is older than .*pip install --upgrade 'torch>="
    with pytest.raises(ProcessRaisedException, match=message):
        printed_by(code, path=package(tmp_path, binary()))


def test_no_torch(tmp_path):
    done = python(package(tmp_path), "-c", "import sys; sys.modules['torch'] = None; import cudaloss")
    assert "ImportError: cudaloss needs torch, which is not installed: pip install torch" in done.stderr


def test_a_loss_that_was_not_compiled(tmp_path):
    """The binary of another state of the source."""
    folder = package(tmp_path, binary())
    rows, functional = (folder / "cudaloss" / name for name in ("_losses/table.py", "functional.py"))
    of_d = 'terms=OfDifference((lambda d, _: d.cosh(),)), formula="cosh(d)", source="t"'
    row = f'LossSpec(id=63, name="cosh", module="CoshLoss", {of_d})'
    rows.write_text(f"{rows.read_text()}\nSPECS += ({row},)\nPUBLIC += SPECS[-1:]\n")
    function = source.function(eval(row, {"LossSpec": LossSpec, "OfDifference": OfDifference}))
    functional.write_text(f'{functional.read_text()}\n{function}\n__all__ += ["cosh_loss"]\n')
    check(session(folder), "source", "built from other source", "no cosh")


REFUSED = """
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name == "cudaloss._C":
            raise RuntimeError("no such dispatch key")
sys.meta_path.insert(0, Refusing())
"""


def test_whatever_a_registration_raises(tmp_path):
    check(session(package(tmp_path, binary()), REFUSED), "load", "RuntimeError: no such dispatch key")


def test_the_command_works_where_the_import_is_an_error(tmp_path):
    folder = package(tmp_path)
    done = python(folder, "-W", "error", "-m", "cudaloss", CUDALOSS_REQUIRE_COMPILED="1")
    assert done.returncode == 1 and done.stderr == ""
    assert "Problem (missing): " in done.stdout and "passed" in done.stdout
    done = python(folder, "-m", "cudaloss", "--json")
    assert done.returncode == 1 and done.stderr == ""
    assert json.loads(done.stdout)["problems"][0]["cause"] == "missing"


def test_what_loading_said_is_read():
    """Errors of loaders that cannot be had here."""
    for text, cause in (
        ("/lib/libc.so.6: version `GLIBC_2.38' not found (required by _C.so)", "system"),
        ("_C.so: undefined symbol: _PyThreadState_UncheckedGet", "python"),
        ("dlopen(_C.so, 0x0002): Symbol not found: _aoti_torch_library_impl", "symbol"),
        ("libtorch.so: cannot open shared object file: No such file or directory", "library"),
        ("out of cheese", "load"),
    ):
        fault = _binary.load_fault(ImportError(text), "2.13.0")
        assert fault.cause == cause and text in fault.message and "pip install" in fault.message
