"""``python -m cudaloss``: what it reports, what it finds wrong, its exit code; and what an import costs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cudaloss
from cudaloss import _C
from cudaloss.__main__ import main
from cudaloss._install import build
from cudaloss._install.least_torch import LEAST_TORCH
from cudaloss._losses.table import PUBLIC
from cudaloss.diagnostics import facts, fit, report, selftest
from cudaloss.diagnostics.coverage import codes, covering
from cudaloss.diagnostics.facts import Driver, Gpu
from cudaloss.diagnostics.text import rendered
from processes import printed_by

ROOT = Path(__file__).resolve().parents[2]
WHEEL = "7.5;8.0+PTX;9.0;10.0;12.0"  # of aarch64
TORCH = {"version": "2.13.0", "cuda": "13.0", "rocm": None}
H100 = Gpu("cuda:0", "NVIDIA H100", (9, 0))
NEW = Driver("580.65.06", 13000, 1)


@pytest.mark.parametrize(
    ("built", "gpu", "by"),
    [
        (WHEEL, (7, 5), "SASS 7.5"),
        (WHEEL, (8, 0), "SASS 8.0"),
        (WHEEL, (8, 6), "SASS 8.0"),
        (WHEEL, (8, 7), "PTX 8.0"),  # Orin, a Tegra: no desktop's SASS
        (WHEEL, (8, 9), "SASS 8.0"),
        (WHEEL, (10, 0), "SASS 10.0"),
        (WHEEL, (10, 3), "SASS 10.0"),
        (WHEEL, (11, 0), "PTX 8.0"),  # Thor, a Tegra
        (WHEEL, (12, 1), "SASS 12.0"),
        (WHEEL, (13, 0), "PTX 8.0"),
        (WHEEL, (7, 0), None),
        (WHEEL, (6, 1), None),
        ("8.7", (8, 9), None),  # a Tegra's SASS on a desktop GPU
        ("8.7", (8, 7), "SASS 8.7"),
        ("8.9", (8, 6), None),  # newer than the GPU
        ("9.0", (10, 0), None),
        ("9.0a", (9, 0), "SASS 9.0a"),
        ("9.0a+PTX", (10, 0), None),  # an architecture's own PTX stays there
        ("10.0f", (10, 3), "SASS 10.0f"),
        ("10.0f+PTX", (12, 0), None),
        ("7.0 7.5,8.0+PTX", (12, 0), "PTX 8.0"),  # as torch splits it
        ("8.0+PTX;9.0+PTX", (12, 0), "PTX 9.0"),
        ("", (8, 0), None),
        ("Hopper", (9, 0), None),
    ],
)
def test_coverage(built, gpu, by):
    code = covering(codes(built), gpu)
    assert (code and f"{code.kind} {code}") == by


def here(cuda: str | None = "13.0", built: str = WHEEL, gpus: Any = (H100,), driver: Any = NEW, **facts: Any):
    info = {"losses": [spec.name for spec in PUBLIC], "cuda": cuda, "cuda_architectures": built}
    base = {"info": info, "fault": None, "binary": _C, "torch": TORCH, "torch_says": "", "hidden": False}
    return fit.Here(**{**base, "gpus": list(gpus), "driver": driver, **facts})


@pytest.fixture(autouse=True)
def no_mps(monkeypatch):
    """Apple's GPU, which is no device of ours, and which torch lists on machines that cannot use it."""
    if sys.platform == "darwin":
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)


V100, SPARK, THOR = (Gpu("cuda:0", name, of) for name, of in (("V100", (7, 0)), ("GB10", (12, 1)), ("Thor", (11, 0))))
FITTING = {
    "no GPU": here(gpus=(), driver=None),
    "no GPU, CPU-only": here(None, "", gpus=(), driver=None),
    "SASS": here(),
    "minor version of the driver": here("13.2"),
    "a driver that undoes compression": here("12.9", driver=Driver("550.54", 12040, 1)),
    "a driver for 12.6": here("12.6", driver=Driver("535.1", 12020, 1)),
    "a driver of a newer major": here("12.6", driver=Driver("580.65.06", 13000, 1)),
    "PTX": here(gpus=[THOR]),
    "GPUs hidden on purpose": here(gpus=(), hidden=True),
    "a torch without CUDA": here(gpus=(), torch={**TORCH, "cuda": None}),
    "another accelerator": here(gpus=[Gpu("mps:0", "mps", None)], driver=None),
    "no driver's library to ask": here(driver=None),
}


@pytest.mark.parametrize("name", FITTING)
def test_what_fits(name):
    assert fit.problems(FITTING[name]) == []


MISFITS = {
    "uncovered": (
        here(gpus=[V100]),
        "uncovered",
        ["capability 7.0", WHEEL, "for CUDA 12", "TORCH_CUDA_ARCH_LIST=7.0", "--no-cache-dir"],
    ),
    "newer than the build": (here(built="8.0;9.0", gpus=[SPARK]), "uncovered", ["12.1", "8.0;9.0", "--upgrade"]),
    "driver": (here(driver=Driver("550.54", 12040, 1)), "driver", ["up to 12.4", "driver 580", "an older CUDA"]),
    "driver for 12": (here("12.6", driver=Driver("470.1", 11040, 1)), "driver", ["up to 11.4", "driver 525"]),
    "driver for 12.9": (here("12.9", driver=Driver("535.1", 12020, 1)), "driver", ["up to 12.2", "driver 550"]),
    "ptx": (here("13.2", gpus=[THOR]), "ptx", ["11.0", "CUDA 13.2", "up to 13.0", "Update the driver"]),
    "CPU-only build": (here(None, ""), "cpu-build", ["1 NVIDIA GPU(s)", "CUDALOSS_CUDA=1", "--force-reinstall"]),
    "torch's CUDA": (here(gpus=(), torch_says="too old"), "torch-cuda", ["1 GPU(s)", "too old", "pytorch.org"]),
    "not hidden, but unusable": (here(gpus=(), torch_says="too old", hidden=True), "torch-cuda", ["too old"]),
    "ROCm": (here(gpus=[Gpu("cuda:0", "MI300", None)], torch={**TORCH, "rocm": "6.4"}), "rocm", ["CUDALOSS_CUDA=0"]),
}


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit(name):
    facts, cause, words = MISFITS[name]
    ((found, message),) = fit.problems(facts)
    assert found == cause
    for word in words:
        assert word in message, message


def test_a_driver_is_named_once():
    facts = here(driver=Driver("550.54", 12040, 2), gpus=[H100, H100._replace(device="cuda:1")])
    assert [problem.cause for problem in fit.problems(facts)] == ["driver"]


def test_notes():
    assert "has no CUDA" in fit.notes(FITTING["a torch without CUDA"])[0]
    assert "CUDA_VISIBLE_DEVICES" in fit.notes(FITTING["GPUs hidden on purpose"])[0]
    assert fit.notes(here()) == []


def test_paths():
    assert fit.path(here(), "cpu", None, True).name == fit.CPU_KERNELS
    assert fit.path(here(), "cuda:0", H100, True) == (fit.CUDA_KERNELS, "SASS of 9.0")
    assert fit.path(here(gpus=[THOR]), "cuda:0", THOR, True) == (fit.CUDA_KERNELS, "PTX of 8.0")
    assert fit.path(here(None, ""), "cuda:0", H100, False).name == fit.PLAIN
    assert fit.path(here(), "mps:0", Gpu("mps:0", "mps", None), False).name == fit.PLAIN
    name, reason = fit.path(here(gpus=[V100]), "cuda:0", V100, True)
    assert name == fit.NONE and reason == fit.problems(here(gpus=[V100]))[0].message


def pretend(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> None:
    """A CUDA build of WHEEL's architectures on a machine with `gpu`, whose tensors are the CPU's."""
    monkeypatch.setattr(build, "INFO", {**build.INFO, "cuda": "13.0", "cuda_architectures": WHEEL})
    monkeypatch.setattr(facts, "INFO", build.INFO)
    monkeypatch.setattr(facts, "gpus", lambda: ([gpu], ""))
    monkeypatch.setattr(facts, "driver", lambda: NEW)
    monkeypatch.setattr(torch._C, "_dispatch_has_kernel_for_dispatch_key", lambda *_: True)
    run, usable = selftest.run, selftest.usable
    monkeypatch.setattr(selftest, "run", lambda spec, _: {**run(spec, "cpu"), "device": _})
    monkeypatch.setattr(selftest, "usable", lambda _: usable("cpu"))


def test_an_uncovered_gpu(monkeypatch, capsys):
    pretend(monkeypatch, V100)
    assert main([]) == 1
    printed = capsys.readouterr().out
    assert "cuda:0                V100, 7.0, covered by nothing" in printed
    assert "cuda:0: an error" in printed and printed.count("not run") == len(PUBLIC)
    assert "Problem (uncovered): cuda:0: this GPU has compute capability 7.0" in printed
    assert main(["--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"] == [{"device": "cuda:0", "name": "V100", "capability": "7.0", "covered_by": None}]
    assert {row["device"] for row in found["self_test"]["results"]} == {"cpu"}


def test_a_covered_gpu(monkeypatch, capsys):
    pretend(monkeypatch, H100)
    assert main([]) == 0
    printed = capsys.readouterr().out
    assert "NVIDIA driver         580.65.06, supports CUDA up to 13.0" in printed
    assert "cuda:0: compiled CUDA kernels (SASS of 9.0)" in printed and "All fits." in printed
    assert printed.count("passed") == 2 * len(PUBLIC)


@pytest.mark.any_numbers
@pytest.mark.rows_too
def test_a_wrong_result_is_seen(monkeypatch, spec):
    right = getattr(cudaloss, spec.function)
    for wrong, message in (
        (lambda *call, **options: right(*call, **options) * 1.0001, "off by 1.0e-04 of the exact result"),
        (lambda *call, **options: right(*call, **options) * float("nan"), "the result has NaN"),
    ):
        monkeypatch.setattr(cudaloss.functional, spec.function, wrong)
        result = selftest.run(spec, "cpu")
        assert not result["passed"] and message in result["message"]
        found = report()
        tested = {row["device"] for row in found["self_test"]["results"]}  # a GPU too, where one is
        assert [problem["cause"] for problem in found["problems"]] == ["self-test"] * len(tested) and not found["ok"]
        json.dumps(found, allow_nan=False)


def test_a_device_that_torch_cannot_use(monkeypatch):
    pretend(monkeypatch, H100)
    monkeypatch.setattr(selftest, "usable", lambda device: None if device == "cpu" else "RuntimeError: no kernel image")
    ((cause, message),) = [problem.values() for problem in report()["problems"]]
    assert cause == "torch-device" and "itself fails on cuda:0: RuntimeError: no kernel image" in message


def test_facts_do_not_raise(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 1)

    def fails(_):
        raise RuntimeError("CUDA driver initialization failed")

    monkeypatch.setattr(torch.cuda, "get_device_properties", fails)
    assert facts.gpus() == ([], "RuntimeError: CUDA driver initialization failed")


NUMBER, TEXT = (int, float), (str,)
SCHEMA = {
    "ok": (bool,),
    "problems": [{"cause": TEXT, "message": TEXT}],
    "notes": [TEXT],
    "cudaloss": {
        "version": TEXT,
        "folder": TEXT,
        "compiled": (bool,),
        "cuda": (str, type(None)),
        "architectures": TEXT,
        "sass": [TEXT],
        "ptx": [TEXT],
        "torch_target": (str, type(None)),
        "compiler": (str, type(None)),
        "csrc_tree": (str, type(None)),
        "losses": [TEXT],
    },
    "python": {"version": TEXT, "implementation": TEXT, "extension_suffix": TEXT},
    "platform": TEXT,
    "torch": {"version": TEXT, "cuda": (str, type(None)), "rocm": (str, type(None))},
    "driver": {"version": (str, type(None)), "cuda": TEXT, "gpus": (int,)},
    "gpus": [{"device": TEXT, "name": TEXT, "capability": (str, type(None)), "covered_by": (str, type(None))}],
    "paths": [{"loss": TEXT, "device": TEXT, "path": TEXT, "reason": TEXT}],
    "self_test": {
        "tolerance": NUMBER,
        "results": [
            {
                "loss": TEXT,
                "device": TEXT,
                "passed": (bool,),
                "error": (*NUMBER, type(None)),
                "message": (str, type(None)),
            }
        ],
    },
}


def conforms(value: Any, schema: Any, where: str = "report") -> None:
    if isinstance(schema, dict):
        if where == "report.driver" and value is None:
            return
        assert value.keys() == schema.keys(), where
        for name, inner in schema.items():
            conforms(value[name], inner, f"{where}.{name}")
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for item in value:
            conforms(item, schema[0], f"{where}[]")
    else:
        assert isinstance(value, schema), f"{where}: {value!r}"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "cudaloss", *arguments], capture_output=True, text=True)


def test_json_is_all_that_is_printed():
    done = run("--json")
    found = json.loads(done.stdout)
    conforms(found, SCHEMA)
    assert done.returncode == (0 if found["ok"] else 1)
    assert found["cudaloss"]["version"] == cudaloss.__version__
    tested = {(row["loss"], row["device"]) for row in found["self_test"]["results"]}
    assert {(spec.name, "cpu") for spec in PUBLIC} <= tested
    assert next(row["path"] for row in found["paths"] if row["device"] == "cpu") == fit.CPU_KERNELS


def test_the_schema_is_checked(monkeypatch):
    pretend(monkeypatch, H100)
    found = report()
    conforms(found, SCHEMA)
    with pytest.raises(AssertionError, match=r"report\.gpus\[\]\.name: 3"):
        conforms({**found, "gpus": [{**found["gpus"][0], "name": 3}]}, SCHEMA)


@pytest.mark.cuda
def test_on_a_gpu():
    """The self-test passes there, on the compiled kernels."""
    found = report()
    assert found["ok"], rendered(found)
    tests = {row["device"]: row for row in found["self_test"]["results"] if row["device"].startswith("cuda")}
    assert len(tests) == torch.cuda.device_count()
    assert {row["path"] for row in found["paths"]} == {fit.CPU_KERNELS, fit.CUDA_KERNELS}
    assert found["driver"]["cuda"] and all(gpu["covered_by"] for gpu in found["gpus"])


def test_the_words_are_those_of_a_launch():
    """For this build, if the arguments describe no other."""
    info = build.INFO
    text = _C.explain_uncovered(3, 5)
    assert f"with CUDA {info['cuda'] or 'none'}, has kernels for {info['cuda_architectures'] or 'none'}," in text
    assert "no NVIDIA driver was found" in _C.explain_old_driver(0)
    assert "one that supports CUDA 14.0" in _C.explain_old_driver(13000, "14.0")


def test_every_cause_is_documented():
    page = (ROOT / "docs" / "diagnostics.md").read_text()
    folder = ROOT / "src" / "cudaloss"
    sources = [folder / "_install/binary.py", *sorted((folder / "diagnostics").glob("*.py"))]
    causes = {cause for path in sources for cause in re.findall(r'(?:Fault|Problem)\(\s*"([\w-]+)"', path.read_text())}
    assert len(causes) > 12
    assert causes == set(re.findall(r"^\| `([\w-]+)` \|", page, re.MULTILINE))


def test_the_least_torch_is_said_once(monkeypatch):
    least = "{}.{}".format(*LEAST_TORCH)
    assert build.INFO["torch_target"] == least
    requirements = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert requirements and set(requirements) == {least}


def test_version_without_metadata(monkeypatch):
    code = (
        "from importlib import metadata\n"
        "def version(name): raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
        "import cudaloss, cudaloss._version\n"
        "print(cudaloss.__version__ == cudaloss._version.VERSION)\n"
    )
    assert printed_by(code) == "True\n"


def test_an_import_costs_little(tmp_path):
    """Above torch's own, in processor time, which other processes disturb less than the clock, but only ever lengthen:
    the least of six, forked from a process that has imported torch; from the second on Python has kept what it
    compiled, also where the environment tells it not to."""
    code = (
        "import gc, os, sys, time, torch\n"
        "gc.collect()\n"  # of torch's objects: it takes 0.09 s, and with torch 2.10 falls due during the next import
        "sys.pycache_prefix, sys.dont_write_bytecode = sys.argv[1], False\n"
        "for _ in range(6):\n"
        "    if not os.fork():\n"
        "        start = time.process_time()\n"
        "        import cudaloss\n"
        "        print(time.process_time() - start, flush=True)\n"
        "        assert not any(name.startswith('cudaloss.diagnostics') for name in sys.modules)\n"
        "        os._exit(0)\n"
        "    assert os.wait()[1] == 0\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    costs = done.stdout.split()
    assert len(costs) == 6 and min(map(float, costs)) < 0.1
