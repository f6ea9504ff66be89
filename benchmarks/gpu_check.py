"""Everything that only a GPU can show, in one command: ``make gpu-check``.

It builds the extension, or installs a wheel that was built elsewhere (``--wheel``), and prints its description. It
runs the whole test suite, compute-sanitizer's memcheck and racecheck over the tests of SANITIZED_TESTS, the accuracy
table up to 2^31 + 5 elements, the cost of calls outside the kernels, of a loss times a factor, of heads, of pairs and
of overlap, whole training steps, the benchmark suites, the KernelBench runner, and losses of DTensors if there are two
GPUs. It checks the error of a build for the wrong GPU. It writes one report to ``benchmarks/results/`` as the stages
end.
Stages that run separately (``--stages``), also on other days or at the same time, add to it if the kernels' source,
the GPU and the versions are the same. On a machine with two GPUs ``--stages bench overlap --beside rows heads`` runs
the second list on the second GPU and on cores of its own (``--cores``: how many the first list has). A sanitizer
leaves out the test files in which it has found nothing up to their end, the suite the parts that have passed.
An interrupt (``timeout -s INT 540 ...``, if time is short) ends the stage with the rows and the failures so far,
kills processes that do not end, and the report is written.
It needs no network: its imports must be installed (see ``requirements/dev.txt``).
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
tree_hash = runpy.run_path(str(ROOT / "src" / "cudaloss" / "_install/source_tree.py"))["tree_hash"]
RESULTS = ROOT / "benchmarks" / "results"
SCRATCH = ROOT / "build" / "gpu_check"
SITE = SCRATCH / "site"  # where a wheel is installed, outside the environment
# The sanitizer slows every launch that it watches. So it runs only our kernels and the tests that launch them, the
# longest under memcheck first (225 to 2 s on two H200 with 32 cores), and one loss of each kind, because others use the
# same templates.
SANITIZED_TESTS = (
    "kernels/test_values.py",
    "kernels/test_third_operands.py",
    "rows/test_vectors.py",
    "kernels/test_gradients.py",
    "rows/test_distributions.py",
    "kernels/test_domains.py",
    "rows/test_vector_lengths.py",
    "kernels/test_rounding.py",
    "rows/test_vector_rows.py",
    "ops/test_one_pass.py",
    "ops/test_expected_grad_outputs.py",
    "kernels/test_binary_cross_entropy_means.py",
    "ops/test_saved_tensors.py",
    "kernels/test_operands.py",
    "rows/test_row_values.py",
    "kernels/test_layouts.py",
    "kernels/test_binary_cross_entropy_with_logits.py",
    "kernels/test_weights.py",
    "kernels/test_batch_dims.py",
    "rows/test_nll.py",
    "kernels/test_selection.py",
    "kernels/test_determinism.py",
    "rows/test_vocabulary_parts.py",
    "rows/test_overlap.py",
    "rows/test_boxes.py",
    "kernels/test_margins.py",
    "kernels/test_varifocal.py",
    "ops/test_errors.py",
)
# Not by racecheck: under it a product of cuBLAS fails (H200, CUDA 13.0).
MEMCHECKED_TESTS = (
    "rows/test_heads.py",
    "rows/test_contrast.py",
    "rows/test_linear_jsd.py",
    "rows/test_token_log_prob.py",
)
# Tests of numbers and of bits, which launch the kernels of the other tests in the file: with them these files were not
# at their end after 570 s, every other after 373 (H200, 16 cores).
OF_NUMBERS = {
    "rows/test_distributions.py": [
        "halves",
        "temperatures",
        "offset",
        "never_negative",
        "large_logits",
        "not_finite",
        "any_size",
    ],
    "ops/test_expected_grad_outputs.py": ["test_bits", "changes_nothing"],
}
# In so many processes, each with some of the tests: memcheck of one was not at its end after 487 s (H200, 26 files).
PARTS = {
    "kernels/test_values.py": 2,
    "kernels/test_third_operands.py": 3,
    "rows/test_vectors.py": 2,
    "rows/test_heads.py": 2,
}
# Of the suite: the whole took 508 s (H200, 16 cores), and an interrupt leaves the parts that have passed.
SUITE = ("1/3", "2/3", "3/3")
# The tests that are sensitive to a change of one loss's functor.
OF_FUNCTORS = [
    f"tests/{file}.py"
    for file in (
        "kernels/test_domains",
        "kernels/test_properties",
        "kernels/test_values",
        "kernels/test_rounding",
        "kernels/test_gradients",
        "ops/test_one_pass",
        "ops/test_opinfo",
        "packaging/test_diagnostics",
    )
]
SANITIZERS = ("memcheck", "racecheck")
# How many test processes run at once; they take the GPUs in turn. CUDALOSS_PROCESSES: another number.
PROCESSES = int(os.environ.get("CUDALOSS_PROCESSES", max(1, (os.cpu_count() or 1) // 2)))
# A regular expression: the sanitizers run only such files, for example those that launch kernels that were changed.
CHANGED = os.environ.get("CUDALOSS_SANITIZED", "")
WATCHED = ThreadPoolExecutor(PROCESSES)  # of both sanitizers, whose longest files then run at once
SHARED = {"OMP_NUM_THREADS": "2", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
PIP = [sys.executable, "-m", "pip", "install"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
SANITIZER = ["compute-sanitizer", "--kernel-regex", "kns=cudaloss", "--error-exitcode", "9"]

STOPPED = threading.Event()  # by an interrupt
GRACE = 25  # seconds for the running process to report how far it came
RUNNING: set[subprocess.Popen[str]] = set()
BESIDE: list[subprocess.Popen[str]] = []  # this program, for the second GPU: it ends its own processes
EARLIER: dict[str, Any] = {}  # the stages of the report that this run adds to
SUMMARY = r"^(?:=+ )?(\d+ (?:passed|failed).*?)(?: =+)?$|ERROR SUMMARY: (.*)$|RACECHECK SUMMARY: (.*)$"
# A test file's line in a sanitizer's summary, if all tests passed and nothing was found.
CLEAN = r"(\S+): (?!.* failed).*(?<!\d)0 (?:errors$|hazards displayed)"
FAILED = r"^(?:FAILED|ERROR) (\S+::\S+)"
# What was wrong, and the random call with which it was.
WRONG = r"^E +(\w*Error\b.*|Draw \d+: .*(?:\nE +\w+=.*)*)"


def interrupt(*_: Any) -> None:
    STOPPED.set()
    signal_all(signal.SIGINT)
    for process in BESIDE:
        process.send_signal(signal.SIGINT)
    killer = threading.Timer(GRACE, signal_all, [signal.SIGKILL])
    killer.daemon = True
    killer.start()


def signal_all(number: int) -> None:
    for process in list(RUNNING):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def run(name: str, command: list[str], **environment: str) -> dict[str, Any]:
    """Runs `command`, showing its output and keeping it under SCRATCH; the outcome as a row of the report."""
    print(f"==== {name}: {' '.join(command)}", flush=True)
    start = time.monotonic()
    if STOPPED.is_set():
        return {"passed": False, "seconds": 0.0, "summary": ["interrupted before it began"]}
    if not shutil.which(command[0]):
        return {"passed": False, "seconds": 0.0, "summary": [f"{command[0]} is not on PATH"]}
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # its children hold the pipe too
    )
    assert process.stdout is not None
    RUNNING.add(process)
    lines = []
    with process.stdout, open(SCRATCH / f"{name}.log", "w", buffering=1) as log:
        for line in process.stdout:
            lines.append(line)
            log.write(line)
    code = process.wait()
    RUNNING.discard(process)
    print("".join(lines if code else lines[-12:]), flush=True)
    said = "".join(lines).replace(f"{ROOT}/", "")
    summary, failed, wrong = (re.findall(of, said, re.MULTILINE) for of in (SUMMARY, FAILED, WRONG))
    return {
        "passed": code == 0,
        "seconds": round(time.monotonic() - start, 1),
        "summary": ["".join(groups) for groups in summary],
        **({"failed": sorted(set(failed)), "wrong": wrong} if failed else {}),
    }


def ahead(folder: Path) -> str:
    """PYTHONPATH with `folder` first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def read_json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def build() -> dict[str, Any]:
    return run("build", [*PIP, "--no-build-isolation", "--no-deps", "-v", "-e", "."], CUDALOSS_CUDA="1")


def install(wheel: Path) -> dict[str, Any]:
    shutil.rmtree(SITE, ignore_errors=True)
    return run("install", [*PIP, "-q", "--no-index", "--no-deps", "--target", str(SITE), str(wheel)])


def diagnostics() -> dict[str, Any]:
    outcome = run("diagnostics", [sys.executable, "-m", "cudaloss", "--json"])
    said = (SCRATCH / "diagnostics.log").read_text().replace(f"{ROOT}/", "")
    return {**outcome, "report": json.loads(said[said.index("{") :]) if outcome["passed"] else None}


@functools.cache
def gpus() -> list[str]:
    """In the form of CUDA_VISIBLE_DEVICES."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return chosen.split(",")
    tool = shutil.which("nvidia-smi")
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True).stdout.splitlines() if tool else []
    return [str(index) for index in range(len(listed))] or [""]


def in_turn(index: int) -> str:
    return gpus()[index % len(gpus())]


def tests(name: str, marker: str, *files: str) -> dict[str, Any]:
    command = [*PYTEST, "-m", marker, "--durations=40", *files]
    # Without GPUs for the other tests: recipes fork processes, in which autograd refuses to work if it has found one.
    of_gpu = marker == "cuda"
    if not importlib.util.find_spec("xdist"):
        return run(name, command, **({} if of_gpu else {"CUDA_VISIBLE_DEVICES": ""}))
    # In parallel if there is pytest-xdist, which refuses pytest-benchmark.
    workers = [f"--tx=popen//env:CUDA_VISIBLE_DEVICES={in_turn(i) if of_gpu else ''}" for i in range(PROCESSES)]
    return run(name, [*command, "-p", "no:benchmark", "--dist=load", *workers], **SHARED)


def suite() -> dict[str, Any]:
    """All tests on the GPU, a part after the other."""
    ended = {place: line for line in EARLIER.get("tests", {}).get("summary", []) if (place := line.partition(": ")[0])}
    outcomes = []
    for place in SUITE:
        if "not passed" in ended.get(place, "not passed"):
            found = tests(f"tests-{place.replace('/', 'of')}", "cuda", "--part", place)
            said = "; ".join([*(["not passed"] if not found["passed"] else []), *found["summary"]])
            ended[place] = f"{place}: {said}"
            outcomes.append(found)
    return summed_up(outcomes, sum(outcome["seconds"] for outcome in outcomes), [ended[place] for place in SUITE])


def summed_up(outcomes: list[dict[str, Any]], seconds: float, summary: list[str]) -> dict[str, Any]:
    """The outcome of a stage of several runs."""
    return {
        "passed": all(outcome["passed"] for outcome in outcomes),
        "seconds": round(seconds, 1),
        "summary": summary,
        "failed": [test for outcome in outcomes for test in outcome.get("failed", [])],
        "wrong": [line for outcome in outcomes for line in outcome.get("wrong", [])],
    }


def parts_of(file: str) -> list[str]:
    """The file's name, or of a long file the name and the place of each part: ``rows/test_heads.py:1/2``."""
    count = PARTS.get(file, 1)
    return [file] if count == 1 else [f"{file}:{place}/{count}" for place in range(1, count + 1)]


def sanitize(tool: str) -> dict[str, Any]:
    # memcheck with memory directly from cudaMalloc: an access outside a tensor is then one outside its allocation.
    # Without the caching allocator graphs cannot be captured.
    no_caching = tool == "memcheck"
    left_out = ["compiled", "peak_memory", "to_the_31", "underflow"]  # not ours, or too large
    # racecheck loses a launch of several host threads at once, and then does not end (H200, CUDA 13.0).
    left_out += ["cuda_graph"] if no_caching else ["test_threads"]
    environment = {**SHARED, **({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if no_caching else {})}

    clean = {m[1]: m[0] for line in EARLIER.get(tool, {}).get("summary", []) if (m := re.match(f"{CLEAN}.*", line))}
    files = SANITIZED_TESTS if tool == "racecheck" else SANITIZED_TESTS + MEMCHECKED_TESTS
    files = sorted(files, key=lambda file: file not in PARTS)  # the longest first
    parts = [part for file in files if re.search(CHANGED, file) for part in parts_of(file) if part not in clean]

    def watched(part: str) -> dict[str, Any]:
        file, _, place = part.partition(":")
        chosen = " and ".join(f"not {name}" for name in [*left_out, *OF_NUMBERS.get(file, [])])
        chosen_tests = ["-m", "cuda", "-k", chosen, *(["--part", place] if place else []), f"tests/{file}"]
        command = [*SANITIZER, "--tool", tool, *PYTEST, "-x", "--kinds", *chosen_tests]
        name = f"{tool}-{Path(file).stem}{place.replace('/', 'of')}"
        return run(name, command, **environment, CUDA_VISIBLE_DEVICES=in_turn(parts.index(part)))

    start = time.monotonic()
    # A process for each file: memcheck took 336 s (H100, 16 cores). With an eighth of all tests in each of eight
    # processes it took 589 s, and one was not at its end. Probably each process then prepares every kernel for the
    # sanitizer.
    outcomes = list(WATCHED.map(watched, parts))
    ended = [f"{name}: {'; '.join(o['summary'])}" for name, o in zip(parts, outcomes, strict=True)]
    return summed_up(outcomes, time.monotonic() - start, [*clean.values(), *ended])


def uncovered() -> dict[str, Any]:
    """A build without kernels for this GPU says so at first use; it does not compute, nor show CUDA's own message."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    other = "9.0" if major != 9 else "12.0"
    folder = SCRATCH / "uncovered"
    command = [*PIP, "-q", "--no-build-isolation", "--no-deps", "--upgrade", "--target", str(folder), "."]
    outcome = run("uncovered-build", command, CUDALOSS_CUDA="1", TORCH_CUDA_ARCH_LIST=other)
    words = f"GPU has compute capability {major}.{minor}, and this build of cudaloss, with CUDA "
    code = f"""
import torch, cudaloss
assert cudaloss.__file__.startswith({str(folder)!r}), cudaloss.__file__
for size in (3, 5000, 10**7, 5000):
    x = torch.ones(size, device="cuda", requires_grad=True)
    try:
        cudaloss.mse_loss(x, torch.zeros_like(x))
    except RuntimeError as error:
        assert {words!r} in str(error) and "has kernels for {other}" in str(error), error
        assert "TORCH_CUDA_ARCH_LIST={major}.{minor}" in str(error), error
    else:
        raise SystemExit("no error")
print("1 passed")
"""
    found = run("uncovered", [sys.executable, "-c", code], PYTHONPATH=ahead(folder))
    return {**found, "passed": outcome["passed"] and found["passed"], "seconds": outcome["seconds"] + found["seconds"]}


def sharded() -> dict[str, Any]:
    """Losses of DTensors over NCCL, if there are two GPUs: their tests, and their cost."""
    if len(gpus()) < 2:
        return {"passed": True, "seconds": 0.0, "summary": ["needs two GPUs"]}
    tested = run("sharded-tests", [*PYTEST, "-m", "cuda", "tests/ops/test_sharded_calls.py"])
    found = script("sharded", "benchmarks/sharded.py")
    passed, seconds = tested["passed"] and found["passed"], tested["seconds"] + found["seconds"]
    return {**found, "passed": passed, "seconds": round(seconds, 1), "summary": tested["summary"]}


def script(name: str, *arguments: str) -> dict[str, Any]:
    path = SCRATCH / f"{name}.json"
    path.unlink(missing_ok=True)
    outcome = run(name, [sys.executable, *arguments, "--json", str(path)])
    return {**outcome, "report": read_json(path)}


STAGES = {
    "build": build,
    "diagnostics": diagnostics,
    "tests": suite,
    "tests_of_functors": lambda: tests("tests_of_functors", "cuda", *OF_FUNCTORS),
    "host_tests": lambda: tests("host_tests", "not cuda"),
    "accuracy": lambda: script("accuracy", "benchmarks/accuracy.py"),
    "cliffs": lambda: script("cliffs", "benchmarks/cliffs.py"),
    "scaled": lambda: script("scaled", "benchmarks/scaled.py"),
    "heads": lambda: script("heads", "benchmarks/heads.py"),
    "contrast": lambda: script("contrast", "benchmarks/contrast.py"),
    "overlap": lambda: script("overlap", "benchmarks/overlap.py"),
    "endtoend": lambda: script("endtoend", "benchmarks/endtoend.py"),
    "rows": lambda: script("rows", "benchmarks/rows.py"),
    "bench": lambda: script("bench", "-m", "cudaloss.bench", "--ceiling-size", "30", "--rounds", "20"),
    "kernelbench": lambda: script("kernelbench", "examples/kernelbench/run.py"),
    "sharded": sharded,
    "memcheck": lambda: sanitize("memcheck"),
    "racecheck": lambda: sanitize("racecheck"),
    "uncovered": uncovered,
}


def dated(outcome: dict[str, Any]) -> dict[str, Any]:
    return {"date": time.strftime("%Y-%m-%d", time.gmtime()), **outcome}


def described(wheel: Path | None) -> dict[str, Any]:
    """The machine and the versions, from a new process: only an interpreter that starts later finds an editable
    install. The binary names its source; for another source no report is written."""
    code = "import json; from cudaloss.bench.environment import environment as e; print(json.dumps(e()))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    environment: dict[str, Any] = json.loads(found.stdout)
    here = tree_hash(ROOT / "csrc")
    if environment["csrc_tree"] != here:
        sys.exit(
            f"gpu_check: what is installed was built from csrc {environment['csrc_tree']}, this checkout has {here}: "
            "no report is filed. Build it (--stages build), or check out the source of the wheel."
        )
    if wheel:
        environment["wheel"] = {"name": wheel.name, "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
    return environment


SAME = ("csrc_tree", "wheel", "torch", "torch_cuda", "python")  # the same in one report


def report_of(name: str, environment: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The report of these kernels, and the same wheel if there is one, and its stages so far.

    A report for other kernels stays: if it has the name, the new name ends with the kernels' tree.
    """
    gpu = re.sub(r"\W+", "-", (environment["gpu"] or "cpu").lower()).strip("-")
    for path in sorted(RESULTS.glob(f"{name}-{gpu}-*.json"), reverse=True):
        found = read_json(path)
        if all(found["environment"].get(key) == environment.get(key) for key in SAME):
            return path, found
    path = RESULTS / f"{name}-{gpu}-{environment['date'][:10]}.json"
    return path.with_stem(f"{path.stem}-{environment['csrc_tree'][:7]}") if path.exists() else path, {}


def add_to_report(name: str, environment: dict[str, Any], outcomes: dict[str, Any]) -> Path:
    """Adds the stages' outcomes. Other processes may add theirs at the same time."""
    with open(SCRATCH / "report.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path, report = report_of(name, environment)
        path.write_text(json.dumps({**report, "environment": environment, **outcomes}, indent=1) + "\n")
    return path


def start_beside(stages: list[str], arguments: argparse.Namespace) -> subprocess.Popen[str]:
    """Another process of this program for `stages`, on the second GPU and the cores that this one leaves."""
    devices = gpus()
    cores = sorted(os.sched_getaffinity(0))
    own = cores[: arguments.cores or len(cores) // 2]
    command = [sys.executable, __file__, "--name", arguments.name, "--stages", *stages]
    os.sched_setaffinity(0, cores[len(own) :])  # the new process inherits them
    process = subprocess.Popen(
        command, env={**os.environ, "CUDA_VISIBLE_DEVICES": devices[1]}, text=True, start_new_session=True
    )
    os.sched_setaffinity(0, own)
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[0]
    BESIDE.append(process)
    return process


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), help="all, unless some are named")
    parser.add_argument("--beside", nargs="+", choices=list(STAGES), help="stages for the second GPU, at the same time")
    parser.add_argument("--cores", type=int, help="how many the first stages have beside the others (half of them)")
    parser.add_argument("--name", default="gpu_check", help="what the report's file name begins with")
    parser.add_argument("--wheel", type=Path, help="a wheel of this source, installed instead of a build")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, interrupt)
    SCRATCH.mkdir(parents=True, exist_ok=True)
    RESULTS.mkdir(parents=True, exist_ok=True)
    stages = dict(STAGES)
    chosen = arguments.stages or [stage for stage in STAGES if stage != "tests_of_functors"]
    beside = None
    if arguments.beside:
        every = [*chosen, *arguments.beside]
        if len(gpus()) < 2 or arguments.wheel or "build" in every or len(set(every)) < len(every):
            parser.error("--beside needs two GPUs, what is built already, and --stages without those of --beside")
        beside = start_beside(arguments.beside, arguments)
    if arguments.wheel:
        chosen = ["build", *(stage for stage in chosen if stage != "build")]
        stages["build"] = lambda: install(arguments.wheel)
        os.environ["PYTHONPATH"] = ahead(SITE)

    outcomes: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    # One after the other, except the two sanitizers: their work is on the host, and they measure no time.
    for _, group in itertools.groupby(chosen, lambda stage: "sanitizer" if stage in SANITIZERS else stage):
        together = list(group)
        if "build" not in together:  # before it there could be nothing to import
            environment = environment or described(arguments.wheel)
            EARLIER.update(report_of(arguments.name, environment)[1])
        with ThreadPoolExecutor(len(together)) as pool:
            outcomes.update(zip(together, pool.map(lambda stage: dated(stages[stage]()), together), strict=True))
        if not outcomes.get("build", {"passed": True})["passed"]:
            return 1
        environment = environment or described(arguments.wheel)
        path = add_to_report(arguments.name, environment, outcomes)
    for stage, outcome in outcomes.items():
        verdict = "passed" if outcome["passed"] else "FAILED"
        print(f"{stage:12} {verdict:7} {outcome['seconds']:7.1f} s  {'; '.join(outcome['summary'])}")
    print(f"report: {path.relative_to(ROOT)}")
    failed_beside = bool(beside and beside.wait())
    return 0 if all(outcome["passed"] for outcome in outcomes.values()) and not failed_beside else 1


if __name__ == "__main__":
    sys.exit(main())
