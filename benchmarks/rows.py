"""The cost of a training step of cross-entropy and the other losses of rows beside PyTorch's, eager and compiled, in
turns in one process: the shapes of classifiers, segmentation and language models; the loss's own arguments; small
calls; memory; on a GPU the throughput over numbers of classes. ``python benchmarks/rows.py --device cuda``,
``--device cpu`` (2 minutes on 2 cores), ``--json FILE``."""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._reference import boxes
from cudaloss.bench import measure

Loss = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Case:
    """Logits with the classes in the second dimension; or vectors or boxes, with a gradient for the first one, or for
    all."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    forward_alone: bool = False
    loss: str = "cross_entropy"
    all_gradients: bool = False
    of_probabilities: bool = False

    @property
    def name(self) -> str:
        loss = "of probabilities " if self.of_probabilities else ""
        loss = loss if self.loss == "cross_entropy" else f"{self.loss} "
        what = " forward" if self.forward_alone else " all gradients" if self.all_gradients else ""
        return f"{loss}{self.shape} {str(self.dtype).removeprefix('torch.')}{what}"

    @property
    def rows(self) -> int:
        return math.prod(self.shape) // self.shape[1]

    def moved(self) -> int:
        """The bytes that a call must move: the input, its gradient, the targets; of nll_loss's input 32 bytes a row; of
        vectors all of them, and the gradients."""
        if self.loss in VECTORS:
            count = VECTORS[self.loss].vectors
            written = 0 if self.forward_alone else count if self.all_gradients else 1
            return math.prod(self.shape) * self.dtype.itemsize * (count + written)
        if self.loss == "nll_loss":
            return (0 if self.forward_alone else math.prod(self.shape) * self.dtype.itemsize) + (8 + 32) * self.rows
        of_targets = math.prod(self.shape) * self.dtype.itemsize if self.of_probabilities else 8 * self.rows
        return math.prod(self.shape) * self.dtype.itemsize * (1 if self.forward_alone else 2) + of_targets

    def operands(self, device: str) -> tuple[torch.Tensor, ...]:
        if self.loss in VECTORS:
            return VECTORS[self.loss].operands(self, device)
        input = torch.randn(self.shape, device=device, dtype=self.dtype).requires_grad_(not self.forward_alone)
        if self.of_probabilities:
            return input, torch.softmax(torch.randn(self.shape, device=device), 1).to(self.dtype)
        return input, torch.randint(self.shape[1], (self.shape[0], *self.shape[2:]), device=device)


class Vectors(NamedTuple):
    """A loss of rows of vectors, of two distributions, or of boxes; the users' way to write it, and whether it has
    labels."""

    eager: Loss
    vectors: int
    has_labels: bool = False
    of_boxes: bool = False

    def operands(self, case: Case, device: str) -> tuple[torch.Tensor, ...]:
        wanted = 0 if case.forward_alone else self.vectors if case.all_gradients else 1
        made = (self.drawn(case, device) for _ in range(self.vectors))
        found = [x.requires_grad_(place < wanted) for place, x in enumerate(made)]
        labels = [torch.randint(2, case.shape[:1], device=device) * 2 - 1] if self.has_labels else []
        return *found, *labels

    def drawn(self, case: Case, device: str) -> torch.Tensor:
        if not self.of_boxes:
            return torch.randn(case.shape, device=device, dtype=case.dtype)
        made = torch.rand(case.shape, device=device, dtype=case.dtype)
        made[:, 2:] += made[:, :2]
        return made


def _jsd(input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    log_q, log_p = F.log_softmax(input, 1), F.log_softmax(target, 1)
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return sum(F.kl_div(log_m, x, reduction="batchmean", log_target=True) for x in (log_p, log_q)) / 2


def _boxes(name: str) -> Vectors:
    return Vectors(lambda a, b: boxes.value(name, (a, b), 1, 1e-7).mean(), 2, of_boxes=True)


VECTORS = {
    "cosine_similarity_loss": Vectors(lambda a, b: (1 - F.cosine_similarity(a, b)).mean(), 2),
    "cosine_embedding_loss": Vectors(F.cosine_embedding_loss, 2, True),
    "triplet_margin_loss": Vectors(F.triplet_margin_loss, 3),
    "kl_div_with_logits": Vectors(
        lambda x, t: F.kl_div(F.log_softmax(x, 1), F.log_softmax(t, 1), reduction="batchmean", log_target=True), 2
    ),
    "jsd_with_logits": Vectors(_jsd, 2),
    **{f"{name}_loss": _boxes(name) for name in ("generalized_box_iou", "distance_box_iou", "complete_box_iou")},
}
BF16 = torch.bfloat16
CASES = {
    "cuda": (
        Case((32768, 4096)),
        Case((32768, 4096), forward_alone=True),
        Case((32768, 3072)),
        Case((32768, 4099)),
        Case((16384, 8192)),
        Case((8192, 16384)),
        Case((65536, 1024)),
        Case((65536, 1024), forward_alone=True),
        Case((131072, 1000)),
        Case((524288, 256)),
        Case((1 << 20, 128)),
        Case((1 << 21, 64)),
        Case((8192, 32768)),
        Case((8192, 32768), forward_alone=True),
        Case((1 << 24, 10)),
        *(Case(((1 << 27) // classes, classes)) for classes in (2, 4, 8, 16, 21)),
        Case((16, 19, 1024, 1024)),
        Case((16384, 8192), BF16),
        Case((8192, 16384), BF16),
        Case((8192, 32768), BF16),
        Case((4096, 131072), BF16),
        Case((2048, 262144), BF16),
        Case((65536, 1024), BF16),
        Case((131072, 1000), BF16),
        Case((524288, 256), BF16),
        Case((32768, 4096), of_probabilities=True),
        Case((131072, 1001), of_probabilities=True),
        Case((131072, 1001), BF16, of_probabilities=True),
        Case((1 << 22, 10), of_probabilities=True),
        Case((1 << 22, 10), BF16, of_probabilities=True),
        Case((1 << 24, 2), of_probabilities=True),
        Case((16, 19, 512, 512), of_probabilities=True),
        Case((16, 4, 512, 512), BF16, of_probabilities=True),
        Case((4, 150, 256, 256), of_probabilities=True),
        Case((1024, 128256), of_probabilities=True),
        Case((16384, 8192), BF16, of_probabilities=True),
        Case((2048, 128256), BF16, of_probabilities=True),
        Case((32768, 4096), loss="nll_loss"),
        Case((16, 19, 1024, 1024), loss="nll_loss"),
        Case((32768, 8192), loss="triplet_margin_loss"),
        Case((32768, 8192), loss="triplet_margin_loss", forward_alone=True),
        Case((32768, 8192), loss="triplet_margin_loss", all_gradients=True),
        Case((32768, 8192), loss="cosine_similarity_loss"),
        Case((32768, 8192), loss="cosine_similarity_loss", all_gradients=True),
        Case((65536, 4096), BF16, loss="cosine_similarity_loss"),
        Case((1 << 20, 128), loss="triplet_margin_loss"),
        Case((1 << 18, 512), loss="cosine_embedding_loss"),
        Case((1 << 18, 301), loss="cosine_similarity_loss"),
        Case((1 << 18, 301), BF16, loss="cosine_similarity_loss"),
        Case((65536, 2047), loss="triplet_margin_loss"),
        Case((1 << 18, 511), loss="triplet_margin_loss"),
        Case((16, 64, 256, 256), loss="cosine_similarity_loss"),
        Case((32768, 4096), loss="kl_div_with_logits"),
        Case((32768, 4096), loss="kl_div_with_logits", forward_alone=True),
        Case((32768, 4096), loss="kl_div_with_logits", all_gradients=True),
        Case((65536, 1024), loss="kl_div_with_logits"),
        Case((1 << 22, 10), loss="kl_div_with_logits"),
        Case((16, 19, 512, 512), loss="kl_div_with_logits"),
        Case((16384, 8192), BF16, loss="kl_div_with_logits"),
        Case((2048, 128256), BF16, loss="kl_div_with_logits"),
        Case((32768, 4096), loss="jsd_with_logits"),
        Case((32768, 4096), loss="jsd_with_logits", forward_alone=True),
        Case((16384, 8192), BF16, loss="jsd_with_logits"),
        Case((2048, 128256), BF16, loss="jsd_with_logits"),
        Case((1 << 20, 4), loss="generalized_box_iou_loss"),
        Case((1 << 20, 4), loss="complete_box_iou_loss"),
    ),
    "cpu": (
        Case((4096, 1000)),
        Case((16, 19, 256, 256)),
        Case((8, 4, 256, 256)),
        Case((8, 4, 256, 256), of_probabilities=True),
        Case((1 << 16, 10), of_probabilities=True),
        Case((16, 19, 256, 256), loss="nll_loss"),
        Case((4096, 1024), loss="cosine_similarity_loss"),
        Case((4096, 1024), loss="cosine_embedding_loss"),
        Case((4096, 1024), loss="triplet_margin_loss"),
        Case((4096, 1000), loss="kl_div_with_logits"),
        Case((16, 19, 256, 256), loss="kl_div_with_logits"),
        Case((4096, 1000), loss="jsd_with_logits"),
        Case((1 << 16, 4), loss="complete_box_iou_loss"),
    ),
}
SMALL = (
    Case((8, 10)),
    Case((64, 1000)),
    Case((1024, 1000)),
    Case((64, 1000), loss="nll_loss"),
    *(Case((64, 4 if kind.of_boxes else 1000), loss=loss) for loss, kind in VECTORS.items()),
)
# The numbers of classes of a course, each with this many elements.
CLASSES = (4, 10, 19, 32, 64, 128, 256, 512, 1000, 2048, 3072, 4096, 5000, 8192, 16384, 32768, 50257, 131072, 262144)
COURSE_ELEMENTS = 1 << 27
# True: a tensor of that meaning.
OWN = {
    "label_smoothing": {"label_smoothing": 0.1},
    "weight": {"weight": True},
    "z_loss": {"z_loss": 1e-4},
    "sample_weight": {"sample_weight": True},
    "weight and label_smoothing": {"weight": True, "label_smoothing": 0.1},
    "softcap": {"softcap": 30.0},
    "softcap and label_smoothing": {"softcap": 30.0, "label_smoothing": 0.1},
}


def work_of(loss: Loss, case: Case, operands: tuple[torch.Tensor, ...], **own: Any) -> measure.Work:
    wanted = [x for x in operands if x.requires_grad]
    if case.forward_alone:
        return lambda: loss(*operands, **own)
    return lambda: torch.autograd.grad(loss(*operands, **own), wanted)


def rivals(case: Case, device: str, compiles: bool) -> dict[str, measure.Work]:
    operands = case.operands(device)
    theirs = VECTORS[case.loss].eager if case.loss in VECTORS else getattr(F, case.loss)
    ours = getattr(cudaloss, case.loss)
    if case.loss in VECTORS and VECTORS[case.loss].of_boxes:
        ours = functools.partial(ours, reduction="mean")  # their default is "none"
    losses: dict[str, Loss] = {"cudaloss": ours, "eager": theirs}
    if compiles:
        torch.compiler.reset()  # otherwise the next shape is compiled for all shapes, which is slower
        losses["compile"] = torch.compile(lambda *operands: theirs(*operands), dynamic=False)
    works = {name: work_of(loss, case, operands) for name, loss in losses.items()}
    for work in works.values():
        work()
    return works


def measured(case: Case, device: str, rounds: int, compiles: bool) -> dict[str, Any]:
    works = rivals(case, device, compiles)
    found = measure.throughput(works, device, rounds, before=measure.before_call(device, case.moved())[0])
    row: dict[str, Any] = {"case": case.name, "rows": case.rows}
    row["ms"] = {name: round(timing.median * 1e3, 4) for name, timing in found.items()}
    row["gigabytes_per_second"] = round(found["cudaloss"].gigabytes_per_second(case.moved()))
    row["ratio"] = {name: round(t.median / found["cudaloss"].median, 2) for name, t in found.items()}
    if device == "cuda":
        before = torch.cuda.memory_allocated()
        gradients = 0 if case.forward_alone else VECTORS[case.loss].vectors if case.all_gradients else 1
        gradient = math.prod(case.shape) * case.dtype.itemsize
        row["bytes_beyond"] = measure.peak_bytes(works["cudaloss"]) - before - gradients * gradient
        replay = measure.graph_replay({"cudaloss": works["cudaloss"]}, rounds, 10)["cudaloss"]
        row["share_of_add"] = round(replay.gigabytes_per_second(case.moved()) / add_rate(rounds), 2)
    return row


@functools.cache
def add_rate(rounds: int) -> float:
    """GB/s of torch.add of 2^28 elements, as what a pass can reach: a call's share of it is by graph replay, where the
    host's time does not count."""
    a, b = (torch.randn(1 << 28, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    found = measure.throughput({"add": lambda: torch.add(a, b, out=out)}, "cuda", rounds)
    return found["add"].gigabytes_per_second(3 * a.numel() * a.itemsize)


def own_arguments(case: Case, device: str, rounds: int) -> dict[str, float]:
    """The cost of the loss's own arguments, as multiples of the plain call's time."""
    operands = case.operands(device)
    rows = (case.shape[0], *case.shape[2:])
    made = {"weight": torch.rand(case.shape[1], device=device), "sample_weight": torch.rand(rows, device=device)}
    given = {
        "plain": {},
        **{name: {k: made[k] if v is True else v for k, v in own.items()} for name, own in OWN.items()},
    }
    works = {name: work_of(cudaloss.cross_entropy, case, operands, **own) for name, own in given.items()}
    for work in works.values():
        work()
    found = measure.throughput(works, device, rounds, before=measure.before_call(device, case.moved())[0])
    return {name: round(found[name].median / found["plain"].median, 3) for name in OWN}


def small(case: Case, device: str) -> dict[str, Any]:
    """A small call's time over eager's: on the host, and on a GPU that replays it from a graph."""
    row: dict[str, Any] = {"case": case.name}
    for what, one in (("step", case), ("forward", replace(case, forward_alone=True))):
        works = rivals(one, device, False)
        ways = {"host": measure.latency(works)}
        if device == "cuda":
            ways["replay"] = measure.graph_replay(works)
        for way, found in ways.items():
            row[f"{what} {way}"] = round(found["cudaloss"].median / found["eager"].median, 2)
    return row


def course(
    device: str, rounds: int, dtype: torch.dtype, classes: tuple[int, ...] = CLASSES, elements: int = COURSE_ELEMENTS
) -> list[dict[str, Any]]:
    """GB/s of cross-entropy's training step over numbers of classes, beside eager's and what torch.add moves."""
    made = []
    for count in classes:
        case = Case((elements // count, count), dtype)
        works = rivals(case, device, False)
        logits = torch.empty(case.shape, device=device, dtype=dtype)
        other, out = torch.empty_like(logits), torch.empty_like(logits)
        works["add"] = lambda logits=logits, other=other, out=out: torch.add(logits, other, out=out)
        moved = {name: case.moved() for name in works} | {"add": 3 * logits.numel() * dtype.itemsize}
        found = measure.throughput(works, device, rounds, before=measure.before_call(device, case.moved())[0])
        rates = {name: round(timing.gigabytes_per_second(moved[name])) for name, timing in found.items()}
        made.append({"classes": count, "dtype": str(dtype).removeprefix("torch."), "gigabytes_per_second": rates})
        print(json.dumps(made[-1]), flush=True)
    return made


def report(device: str, rounds: int, compiles: bool, chosen: str) -> dict[str, Any]:
    found: dict[str, Any] = {"device": device, "cases": []}
    for case in CASES[device]:
        if chosen not in case.name:
            continue
        found["cases"].append(measured(case, device, rounds, compiles))
        print(json.dumps(found["cases"][-1]), flush=True)
    found["times_of_plain"] = own_arguments(CASES[device][0], device, rounds)
    if not chosen and device == "cuda":
        found["course"] = [row for dtype in (torch.float32, BF16) for row in course(device, max(3, rounds // 2), dtype)]
    found["small_times_of_eager"] = [small(case, device) for case in SMALL if chosen in case.name]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", default="", help="of these losses, or shapes, alone: part of a case's name")
    parser.add_argument("--no-compile", action="store_true", help="eager alone")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found = report(arguments.device, arguments.rounds, not arguments.no_compile, arguments.cases)
    print("own arguments, times of the plain call:", found["times_of_plain"])
    for row in found["small_times_of_eager"]:
        print("our time over eager's:", row)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
