"""What the tests iterate over: every loss of the registry, every device of this machine."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

# Compiled graphs of an earlier state of the package must not be found. One folder for all processes of a run: the first
# compilation in a new folder takes 10 s. Read when PyTorch's compiler is imported.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="cudaloss-tests-", ignore_cleanup_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = _CACHE.name
# A thread that waits must not keep its core busy, which another test's process needs: 1,335 tests take 37 s instead of
# 61 in 2 processes on 2 cores (kernels/test_weights, test_batch_dims, test_rounding, ops/test_opinfo).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
# As many threads as there are cores in all: at d64d1b0 the examples took 127 s, not 140, in 2 processes on 2 cores.
_PROCESSES = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // _PROCESSES)))
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # starts no processes, each of which would import torch

import pytest
import torch
from hypothesis import settings

import oracle
from cudaloss._install.build import INFO
from cudaloss._losses.table import OF_ROWS, SPECS, VARIANTS, LossSpec, OfDifference, OfTwo

NO_GPU = None if torch.cuda.is_available() and INFO["cuda"] else "no GPU" if INFO["cuda"] else "built without CUDA"

# Losses whose operands can be any numbers, and that need no further arguments; and the others, with their variants by
# flags, whose operands the tests that are marked `every_loss` or `domains` draw within their domains.
ANY_NUMBERS = [spec for spec in SPECS if not oracle.has_domain(spec)]
DOMAINS = [spec for spec in VARIANTS if not spec.of_rows and oracle.has_domain(spec)]
EVERY_LOSS = [*ANY_NUMBERS, *DOMAINS]

# One loss of each kind: of the difference or of two operands; with a third operand and all kernels, or with neither.
# They test what losses share: the op layer, and the engines' templates. What is a loss's own (its functor in each
# arithmetic, its formulas, its functions) is tested with every loss: `any_numbers`, `every_loss`.
KINDS = [
    next(spec for spec in ANY_NUMBERS if (type(spec.terms), bool(spec.parameter), spec.kernels) == (terms, *tier))
    for terms in (OfDifference, OfTwo)
    for tier in ((True, "all"), (False, "general"))
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kinds", action="store_true", help="of all tests, those of one loss of each kind")
    parser.addoption("--whole", action="store_true", help="all losses take also the tests of what they share")
    parser.addoption("--part", help="2/3: of the chosen tests every third, from the second on")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("cudaloss", max_examples=300 if config.getoption("whole") else 100, deadline=None)
    settings.load_profile("cudaloss")


def _id(spec: LossSpec) -> str:
    return "-".join([spec.name, *(name for name, value in spec.flag_values.items() if value)])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "spec" in metafunc.fixturenames:
        marked, config = metafunc.definition.get_closest_marker, metafunc.config
        specs = ANY_NUMBERS if marked("any_numbers") or config.getoption("whole") else KINDS
        specs = EVERY_LOSS if marked("every_loss") else DOMAINS if marked("domains") else specs
        if config.getoption("kinds"):
            specs = [spec for spec in SPECS if spec in DOMAINS] if specs is DOMAINS else KINDS
        metafunc.parametrize("spec", [*specs, *(OF_ROWS if marked("rows_too") else ())], ids=_id)
    if "device" in metafunc.fixturenames:  # without the GPU's, 11,000 tests, where they would only be skipped
        of_gpu = [] if NO_GPU else [pytest.param("cuda", marks=pytest.mark.cuda)]
        metafunc.parametrize("device", ["cpu", *of_gpu])


def pytest_report_header() -> str | None:
    return NO_GPU and f"{NO_GPU}: without the tests on it"


@pytest.hookimpl(trylast=True)  # of the tests that -k and -m leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("part"):
        place, count = map(int, config.getoption("part").split("/"))
        config.hook.pytest_deselected(items=[x for i, x in enumerate(items) if i % count != place - 1])
        items[:] = items[place - 1 :: count]
    for item in items if NO_GPU else []:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def suiting(request: pytest.FixtureRequest) -> None:
    """Makes the helpers' operands those of the test's loss."""
    oracle.suited[0] = request.getfixturevalue("spec") if "spec" in request.fixturenames else None


@pytest.fixture
def backend(spec: LossSpec) -> str:
    """Of torch.compile. Inductor, which takes seconds, for one loss: it sees the same opaque ops of the others."""
    return "inductor" if spec is KINDS[0] else "aot_eager"


@pytest.fixture
def large() -> Iterator[None]:
    """One such test at a time, of all processes, and nothing left in its process's cache: they take many GB."""
    with (Path(tempfile.gettempdir()) / "cudaloss-large-tests").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        torch.cuda.empty_cache()
        yield
        torch.cuda.empty_cache()


BUILD_VARIABLES = (
    "CUDALOSS_CUDA",
    "CUDALOSS_LOCAL_VERSION",
    "CUDA_HOME",
    "CUDA_PATH",
    "MAX_JOBS",
    "TORCH_CUDA_ARCH_LIST",
)


@pytest.fixture
def uninitialized_is_nan() -> Iterator[None]:
    """torch.empty makes tensors of NaN."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def setup(monkeypatch):
    """setup.py as a module, as on a machine without a toolkit, GPU or driver."""
    pytest.importorskip("pybind11")
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent))
    for variable in BUILD_VARIABLES:
        monkeypatch.setenv(variable, "")  # also undoes what a test sets itself
        monkeypatch.delenv(variable)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    import setup

    monkeypatch.setattr(setup.toolkit, "DEFAULT_ROOT", Path("/nonexistent/cuda"))
    monkeypatch.setattr(setup.toolkit, "driver_cuda", lambda: None)
    return setup


@pytest.fixture
def toolkit(setup):
    return setup.toolkit


@pytest.fixture
def compiling(setup):
    return setup.compiling
