"""Faults that the op layer's tests must notice: ``make mutants``.

Each row of MUTANTS replaces one piece of text in a copy of the package and runs the tests that should fail. A mutant
that no test kills is printed, and the exit code is 1: write the test, or remove the code that nothing needs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "build" / "mutants"


class Mutant(NamedTuple):
    file: str  # in src/cudaloss
    text: str  # that stands in it once
    instead: str
    tests: str  # files below tests, or tests in them


MUTANTS = (
    # Which calls the kernels serve, and in how many passes.
    Mutant(
        "_ops/dispatch.py",
        "rest.are_default() and not call.spec.of_rows",
        "rest.are_default()",
        "rows/test_row_contract.py",
    ),
    Mutant("_ops/dispatch.py", "        and not transformed()\n", "", "ops/test_transforms.py"),
    Mutant("_ops/dispatch.py", "        and rank <= MAX_DIMS\n", "", "kernels/test_layouts.py ops/test_opinfo.py"),
    Mutant("_ops/dispatch.py", "x.shape == first.shape and x.is_contiguous()", "True", "kernels/test_layouts.py"),
    Mutant("_ops/private.py", " and not torch.compiler.is_exporting()", "", "ops/test_captures.py"),
    Mutant(
        "_ops/dispatch.py",
        "if decomposes or varies or not served:",
        "if decomposes or not served:",
        "ops/test_compile.py",
    ),
    Mutant("_ops/dispatch.py", " and private.keeps_what_it_saves()", "", "ops/test_compiled_steps.py"),
    Mutant("_ops/autograd.py", "FOR_THIRD | IGNORE_NAN", "FOR_THIRD", "ops/test_compiled_steps.py"),
    Mutant("_ops/dispatch.py", "bool(wanting) and whole and", "bool(wanting) and", "kernels/test_operands.py"),
    # The nodes of autograd's graph.
    Mutant("_ops/autograd.py", 'pop("unspent", False)', 'get("unspent", False)', "ops/test_one_pass.py"),
    Mutant("_ops/autograd.py", "if _keeps_graph():", "if False:", "ops/test_one_pass.py ops/test_saved_tensors.py"),
    Mutant("_ops/autograd.py", "ctx.held.get(i, x)", "x", "ops/test_inference_operands.py"),
    Mutant("_ops/autograd.py", "and denominators.shape[0] > 1", "and False", "kernels/test_batch_dims.py"),
    Mutant(
        "_call/call.py",
        "call.normalizer == 0, torch.inf",
        "call.normalizer == 0, 1.0",
        "ops/test_sharded_calls.py ops/test_sharded_eager.py",
    ),
    Mutant(
        "_ops/private.py",
        "            return losses if losses.stride() == wanted.stride() else wanted.copy_(losses)",
        "            return losses",
        "ops/test_compile.py",
    ),
    # Closed forms, on every route.
    Mutant(
        "_losses/closed_forms.py", "(tangent == 0) & ~slope.isfinite()", "False & slope.isnan()", "ops/test_routes.py"
    ),
    Mutant(
        "_losses/closed_forms.py",
        "layer.key() == _functorch.TransformType.Functionalize",
        "False",
        "ops/test_transforms.py",
    ),
    Mutant(
        "_losses/closed_forms.py",
        "x.clone() if x.is_inference()",
        "x if x.is_inference()",
        "ops/test_inference_operands.py",
    ),
    Mutant(
        "_reference/definition.py",
        "torch.where(empty, total.detach() / counted.detach(), ",
        "torch.where(empty, 0, ",
        "ops/test_transforms.py",
    ),
    Mutant("_reference/classes.py", "torch.where(selected, index, 0)", "index", "rows/test_row_contract.py"),
    Mutant(
        "_reference/vectors.py",
        "torch.where(p == 0, 0, of_target - of_input)",
        "of_target - of_input",
        "ops/test_routes.py",
    ),
    # Numbers that vary in a compiled step.
    Mutant("_call/varying.py", "NO_INDEX = -(2**63)", "NO_INDEX = -100", "ops/test_compile.py"),
    Mutant(
        "_call/varying.py",
        "like.new_ones((), dtype=widest(like.device)) * number",
        "like.new_full((), number, dtype=widest(like.device))",
        "ops/test_compile.py",
    ),
    # What the shortest way of a call lets through.
    Mutant(
        "_public/usual.py",
        "or not 0 < parameter <= largest",
        "or not 0 <= parameter",
        "ops/test_errors.py ops/test_numbers.py",
    ),
    Mutant(
        "_public/ops.py",
        "if batch_dims and batch_dims == input.dim() - lacking:",
        "if False:",
        "kernels/test_batch_dims.py",
    ),
    Mutant("_public/ops.py", "or forward_ad._current_level >= 0", "", "ops/test_transforms.py"),
    Mutant(
        "_public/usual.py",
        "            and not (ignore_index >= 0 and target.is_floating_point())\n",
        "",
        "rows/test_row_contract.py",
    ),
    Mutant(
        "_public/ops.py",
        " << 4 | mode & FOR_THIRD):",
        " << 4):",
        "rows/test_third_vectors.py",
    ),
)


def copied() -> Path:
    """The package with its binary, outside of the environment."""
    package = COPY / "cudaloss"
    shutil.rmtree(COPY, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "cudaloss", package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def is_killed(mutant: Mutant, package: Path, processes: str) -> bool:
    file = package / mutant.file
    text = file.read_text()
    if text.count(mutant.text) != 1:
        raise SystemExit(f"{mutant.file} must have this text once: {mutant.text!r}")
    file.write_text(text.replace(mutant.text, mutant.instead))
    try:
        tests = [f"tests/{test}" for test in mutant.tests.split()]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", processes, *tests]
        environment = {**os.environ, "PYTHONPATH": str(COPY), "PYTHONDONTWRITEBYTECODE": "1"}
        found = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        file.write_text(text)
    if found.returncode not in (0, 1, 2):  # 1: a test failed; 2: none could be imported
        raise SystemExit(found.stdout.decode()[-4000:])
    return found.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", default="auto", help="how many processes run tests")
    parser.add_argument("--only", default="", help="mutants whose file or text has this")
    arguments = parser.parse_args()
    package, survivors = copied(), []
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.file + mutant.text]
    for mutant in chosen:
        start = time.monotonic()
        killed = is_killed(mutant, package, arguments.n)
        survivors += [] if killed else [mutant]
        outcome = "killed" if killed else "SURVIVES"
        print(f"{outcome} ({time.monotonic() - start:.0f} s) {mutant.file}: {mutant.text.strip()!r}", flush=True)
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants killed")
    return bool(survivors)


if __name__ == "__main__":
    sys.exit(main())
