"""docs/cudaloss.yml: the rules of ast-grep find the forms that docs/moving-from-pytorch.md has beside ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TOOL = Path(sys.executable).with_name("ast-grep")
# What of ours a rule tells of.
TOLD = {
    "mask": "mask=|ignore_nan=",
    "weight": "weight=|mask=",
    "batch_dims": "batch_dims=",
    "scale": "scale=|normalizer=|temperature=",
    "dtype": r"cudaloss\.\w+\([^)]*(half|bfloat16)",
    "head": "linear_cross_entropy",
    "kl_div_with_logits": "kl_div_with_logits",
    "token_log_prob": "token_log_prob",
}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Of each row of the table both sides, and the rules that match PyTorch's."""
    if not TOOL.exists():
        pytest.skip("ast-grep-cli is not installed")
    page = (DOCS / "moving-from-pytorch.md").read_text()
    rows = re.findall(r"^\| `([^`]*)`(?: \(.*\))? \| `(cudaloss\.[^`]*)` \|$", page, re.MULTILINE)
    file = tmp_path_factory.mktemp("idioms") / "theirs.py"
    file.write_text("\n".join(theirs for theirs, _ in rows))
    command = [str(TOOL), "scan", "--rule", str(DOCS / "cudaloss.yml"), "--json=compact", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rules = defaultdict(set)
    for match in json.loads(said):
        rules[match["range"]["start"]["line"]].add(match["ruleId"])
    return [(theirs, ours, rules[line]) for line, (theirs, ours) in enumerate(rows)]


def test_every_rule_tells_of_ours(found):
    assert len(found) > 40 and {rule for *_, rules in found for rule in rules} == set(TOLD)
    wrong = [(theirs, rule) for theirs, ours, rules in found for rule in rules if not re.search(TOLD[rule], ours)]
    assert not wrong


def test_a_changed_import_is_no_finding(found):
    alike = [rules for theirs, ours, rules in found if ours.replace("cudaloss.", "F.") == theirs]
    assert len(alike) > 8 and not any(alike)


def test_forms_of_single_losses_and_copies_are_found(found):
    forms = r'^\(?F\.\w+\((?!.*where).*reduction="none"|^F\.\w+\(\w+\[|\.float\(\)|^F\.\w+\([^()]*\) [*/] '
    assert [theirs for theirs, _, rules in found if re.search(forms, theirs) and not rules] == []
