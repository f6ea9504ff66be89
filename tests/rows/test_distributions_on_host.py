"""The arithmetic of the CUDA kernels of kl_div_with_logits, run on the host: what they make of a row, without a GPU."""

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


@pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a long double of 64 digits")
@pytest.mark.parametrize("contracted", ["off", "fast"])
def test_rows_on_the_host(tmp_path, contracted):
    """A compiler may make fused operations of a product and a sum, or not: the bounds hold for both."""
    program, source = tmp_path / "rows", Path(__file__).with_name("distributions_on_host.cpp")
    flags = ["-std=c++17", "-O2", f"-ffp-contract={contracted}", f"-I{ROOT / 'csrc'}"]
    subprocess.run([str(COMPILER), *flags, str(source), "-o", str(program)], check=True)
    found = json.loads(subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout)
    assert found["rows"] == 480
    assert max(found["floats"]) <= 3, found
    assert max(found["halves"]) <= 0.01, found
    assert found["ruled_out"]
    assert found["impossible"] == pytest.approx(0.2806779534014078, rel=1e-7)
    assert found["neither"] == 0
