"""What the binary is made of, and the package's message if it is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.multiprocessing import ProcessRaisedException  # pyright: ignore[reportPrivateImportUsage]

from cudaloss._install import build
from processes import printed_by


def test_the_binary_names_no_place_of_the_build() -> None:
    if not build.INFO["losses"]:
        pytest.skip("no binary")
    binary = Path(sys.modules["cudaloss._C"].__file__ or "").read_bytes()
    assert b"csrc/torch/ops.cpp" in binary  # errors name the source and the line
    for place in (b"/csrc/torch/ops.cpp", b"/torch/csrc/stable/", b"site-packages", bytes(Path(torch.__file__).parent)):
        assert place not in binary


BLOCK = "import os, sys; sys.modules['cudaloss._C'] = None; sys.stderr = sys.stdout; "


def test_a_missing_binary_leaves_the_reference():
    code = (
        "import torch, cudaloss; x = torch.ones(3, requires_grad=True); "
        "loss = cudaloss.smooth_l1_loss(x, torch.zeros(3)); loss.backward(); print(loss.item(), x.grad.sum().item())"
    )
    *warned, printed = printed_by(BLOCK + code).splitlines()
    assert printed == "0.5 1.0"
    assert "\n".join(warned).count("compiled kernels could not be loaded") == 1
    assert "pip install" in "\n".join(warned)


def test_a_missing_binary_is_an_error_where_it_is_required():
    message = "ImportError: cudaloss's compiled kernels could not be loaded"
    with pytest.raises(ProcessRaisedException, match=message):
        printed_by(BLOCK + "os.environ['CUDALOSS_REQUIRE_COMPILED'] = '1'; import cudaloss")


def test_the_sdist_has_what_a_build_reads_and_no_tests(tmp_path: Path) -> None:
    """Tests would need benchmarks, examples and workflows beside them."""
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True, env={**os.environ, "CUDALOSS_CUDA": "0"})
    (listed,) = tmp_path.glob("*.egg-info/SOURCES.txt")
    names = set(listed.read_text().split())
    assert not [name for name in names if name.startswith("tests/")]
    tracked = [*(root / "csrc").rglob("*.[ch]*"), *(root / "tools").glob("*.py"), *(root / "src").rglob("*.py")]
    assert {path.relative_to(root).as_posix() for path in tracked} <= names
