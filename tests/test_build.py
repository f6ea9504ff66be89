"""What setup.py decides, and what the package says where its binary is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def setup(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    for variable in ("CUDALOSS_CUDA", "CUDA_HOME", "CUDA_PATH", "MAX_JOBS", "TORCH_CUDA_ARCH_LIST"):
        monkeypatch.delenv(variable, raising=False)
    import setup

    return setup


def toolkit(folder: Path, version: str = "12.8") -> Path:
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V0'\n")
    nvcc.chmod(0o755)
    return folder


def test_cuda_home_is_used(setup, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path)))
    assert setup.choose_toolkit() == (tmp_path, "12.8")
    assert "building the CPU and CUDA kernels, with CUDA 12.8" in capsys.readouterr().err


def test_without_a_toolkit_the_cpu_kernels_are_built(setup, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert setup.choose_toolkit() is None
    assert "CPU kernels only, because no CUDA toolkit was found" in capsys.readouterr().err


def test_cuda_can_be_left_out(setup, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("CUDA_HOME", str(toolkit(tmp_path)))
    monkeypatch.setenv("CUDALOSS_CUDA", "0")
    assert setup.choose_toolkit() is None
    assert "because CUDALOSS_CUDA=0" in capsys.readouterr().err


@pytest.mark.parametrize("home", [None, "empty"])
def test_cuda_can_be_demanded(setup, monkeypatch, tmp_path, home):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDALOSS_CUDA", "1")
    if home:
        monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="CUDALOSS_CUDA=1 demands CUDA kernels, but no "):
        setup.choose_toolkit()


def test_a_wrong_wish_is_an_error(setup, monkeypatch):
    monkeypatch.setenv("CUDALOSS_CUDA", "yes")
    with pytest.raises(SystemExit, match="CUDALOSS_CUDA must be 0 or 1, got 'yes'"):
        setup.choose_toolkit()


@pytest.mark.parametrize(("cuda", "newest"), [("11.8", "9.0+PTX"), ("12.6", "9.0+PTX"), ("12.8", "12.0+PTX")])
def test_architectures_are_those_the_toolkit_knows(setup, monkeypatch, cuda, newest):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert setup.architectures(cuda).startswith("7.5;8.0;")
    assert setup.architectures(cuda).endswith(f";{newest}")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.9")
    assert setup.architectures(cuda) == "8.9"


def test_jobs_are_bounded_by_memory_and_cores(setup, monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    for gib, jobs in ((1, "1"), (9, "4"), (1000, "64")):
        monkeypatch.delenv("MAX_JOBS", raising=False)
        monkeypatch.setattr(os, "sysconf", lambda name, gib=gib: 4096 if name == "SC_PAGE_SIZE" else gib * 2**18)
        setup.bound_jobs()
        assert os.environ["MAX_JOBS"] == jobs
    monkeypatch.setenv("MAX_JOBS", "3")
    setup.bound_jobs()
    assert os.environ["MAX_JOBS"] == "3"


def run_without_binary(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    block = "import sys; sys.modules['cudaloss._C'] = None; "
    return subprocess.run(
        [sys.executable, "-c", block + code], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_a_missing_binary_leaves_the_reference():
    code = (
        "import torch, cudaloss; x = torch.ones(3, requires_grad=True); "
        "loss = cudaloss.smooth_l1_loss(x, torch.zeros(3)); loss.backward(); print(loss.item(), x.grad.sum().item())"
    )
    done = run_without_binary(code)
    assert done.stdout.strip() == "0.5 1.0", done.stderr
    assert done.stderr.count("compiled kernels could not be loaded") == 1
    assert "pip install" in done.stderr


def test_a_missing_binary_is_an_error_where_it_is_required():
    done = run_without_binary("import cudaloss", CUDALOSS_REQUIRE_COMPILED="1")
    assert done.returncode != 0
    assert "ImportError: cudaloss's compiled kernels could not be loaded" in done.stderr
