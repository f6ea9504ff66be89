"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .._install.build import DEVICES
from . import files, plan, suites, tables
from .cases import COMPARABLE, Row
from .environment import environment
from .modes import FEATURES, OWN_FEATURES, TRAINING_MODES, Dtypes, Mode


def _listed(modes: Iterable[Mode]) -> str:
    return "\n".join(f"  {mode.name:20} {mode.meaning}" for mode in modes)


DESCRIPTION = f"""
Times cudaloss beside eager PyTorch and torch.compile, in turns in one process, and says where it is slower than eager.

suites:
  ceilings     GB/s of a copy, a sum (reads only) and an addition (two reads, one write)
  forward      a mean without grad, time on the device
  training     forward and backward of a mean; --modes has its variants
  family       both of the losses that have fewer kernels, at two sizes
  latency      the host's time of a call: function, op, training step
  graph        the GPU's time of a forward under CUDA graph replay
  memory       peak memory of forward and backward above the operands (CUDA)
  kernelbench  KernelBench's problems 94, 96, 98 and 100, at its sizes on a GPU
  features     forward and backward of what is used beside the plain loss, on images; of what single
               losses take of their own, on matrices; --modes chooses

modes of training:
{_listed(TRAINING_MODES)}

modes of features:
{_listed(FEATURES)}
{_listed(OWN_FEATURES)}
"""
EPILOG = """
Dtypes and modes of training that are not asked for are measured one at a time, at the largest size; all that is asked
for is crossed. Features that all losses have, and masked calls in latency and memory, are of smooth_l1 unless --losses
says otherwise. Where PyTorch lacks a loss, its rival is composed as users do; torchvision's and liger_kernel's losses
are timed too where they are installed. Suites of the commonest losses take the others too, where --losses names them.

CUDA_VISIBLE_DEVICES chooses among GPUs.
"""
PIPED_WIDTH = 230  # for tables that are not shown on a terminal


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cudaloss.bench",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add, losses = parser.add_argument, list(COMPARABLE)
    add("--suites", nargs="+", choices=plan.SUITE_NAMES, default=plan.SUITE_NAMES, metavar="SUITE", help="default: all")
    add("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    add(
        "--losses",
        nargs="+",
        choices=losses,
        metavar="LOSS",
        help=f"default: all, on the CPU one of a kind; of {', '.join(losses)}",
    )
    modes = "of training and of features; misaligned is one of forward too"
    add("--modes", nargs="+", choices=plan.MODE_NAMES, metavar="MODE", help=modes)
    dtypes = "each a dtype, or a pair input/target such as bfloat16/float32, which is called under autocast"
    add("--dtypes", nargs="+", type=Dtypes.parse, metavar="DTYPE", help=dtypes)
    add("--sizes", nargs="+", metavar="LOG2", help="of every suite, as powers of two or ranges of them: 6 10 20-24")
    add("--ceiling-size", type=int, metavar="LOG2", help="default: the largest size, 28 at most (24 on the CPU)")
    add("--rounds", type=int, default=30, help="timed calls of each, fewer where they take long (default: %(default)s)")
    add("--threads", type=int, help="of the CPU kernels")
    add("--no-compile", action="store_true", help="leave torch.compile out")
    add("--json", type=Path, metavar="FILE", help="where to write all rows")
    add("--csv", type=Path, metavar="FILE", help="where to write all rows, a line each")
    add("--plot", type=Path, metavar="FOLDER", help="where to draw figures (needs matplotlib)")
    add("--fail-if-slower", action="store_true", help="exit with 1 where cudaloss is slower than eager beyond noise")
    return parser


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, plan.Options]:
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        sizes = plan.parse_sizes(arguments.sizes) if arguments.sizes else None
    except argparse.ArgumentTypeError as error:
        parser.error(f"--sizes: {error}")
    if arguments.rounds < 2 or (arguments.ceiling_size or 0) < 0:
        parser.error("--rounds must be at least 2, --ceiling-size at least 0")
    if arguments.plot and find_spec("matplotlib") is None:
        parser.error("--plot draws with matplotlib, which is missing: pip install matplotlib")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: PyTorch finds no GPU")
    if arguments.device not in DEVICES:
        parser.error(f"cudaloss was built without kernels for {arguments.device}: it would be PyTorch against PyTorch")
    options = plan.Options(
        device=arguments.device,
        suites=tuple(arguments.suites),
        sizes=sizes,
        dtypes=tuple(arguments.dtypes) if arguments.dtypes else None,
        modes=tuple(arguments.modes) if arguments.modes else None,
        losses=tuple(arguments.losses) if arguments.losses else None,
        ceiling_size=arguments.ceiling_size,
        rounds=arguments.rounds,
        compile=not arguments.no_compile,
    )
    return arguments, options


def measure(options: plan.Options) -> Iterator[Row]:
    """All rows, with a progress bar on standard error."""
    cases, size = plan.cases(options), plan.ceiling_size(options)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    limits: suites.Ceilings = {}
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("ceilings", total=len(cases) + (size is not None))
        if size is not None:
            row = suites.ceilings(size, options)
            limits = row.get("gigabytes_per_second", {})
            progress.advance(task)
            yield row
        for case in cases:
            progress.update(task, description=tables.label(case.row()))
            row = suites.measured(case, options, limits)
            progress.advance(task)
            yield row
    yield from plan.skipped_suites(options)


def _show(rows: list[Row], console: Console) -> None:
    for table in tables.tables(rows):
        console.print(table)
    for line in (*tables.remarks(rows), *tables.verdict(rows)):
        console.print(line, markup=False, highlight=False)


def main(argv: Sequence[str] | None = None) -> int:
    arguments, options = _parse(argv)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    for path in filter(None, (arguments.json, arguments.csv)):
        path.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    where, interrupted = environment(), False
    try:
        for row in measure(options):
            rows.append(row)
    except KeyboardInterrupt:
        interrupted = True
    finally:  # also after an exception: the rows before it
        if arguments.json:
            files.write_json(arguments.json, where, rows)
        if arguments.csv:
            files.write_csv(arguments.csv, rows)
        _show(rows, console)
    if interrupted:
        planned = len(plan.cases(options)) + (plan.ceiling_size(options) is not None)
        console.print(f"interrupted after {len(rows)} of {planned} rows", highlight=False)
        return 130  # as a shell reports SIGINT
    if arguments.plot:
        from . import plots

        for path in plots.draw(plots.figures(rows, where), arguments.plot):
            console.print(path, highlight=False)
    beyond = tables.slower(rows, "beyond noise")
    return 1 if arguments.fail_if_slower and beyond else 0
