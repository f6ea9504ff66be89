#!/usr/bin/env bash
# The test suite of the checkout $1 over an installed wheel, in cibuildwheel's test environment: with the torch that
# requirements/least-torch.txt has let in, and again with the newest that this Python gets. The file is not rebuilt.
set -euo pipefail

project=$1

suite() {
  CUDALOSS_REQUIRE_COMPILED=1 python - <<'PY'
import torch

import cudaloss
from cudaloss._install.build import INFO

assert "site-packages" in cudaloss.__file__, f"{cudaloss.__file__} is not the wheel's"
print(f"cudaloss {cudaloss.__version__}: {INFO}, torch {torch.__version__}")
PY
  python -m pytest -q -n auto "$project/tests"
}

suite
PIP_CONSTRAINT='' python -m pip install --upgrade torch
suite
