"""One mean over the elements of all micro-batches and all processes, where each of them has another number in play.

A network fills in hidden pixels of scikit-learn's handwritten digits. The loss counts the hidden pixels alone, and each
micro-batch hides another share of them. A batch of 256 images is then trained on in three layouts:

* 8 micro-batches in one process (gradient accumulation);
* 2 processes (gloo, DistributedDataParallel) of one micro-batch each;
* 2 processes of 4 micro-batches each.

At every step each layout's gradient is compared with PyTorch's own of the whole batch at once: that of cudaloss with
the count over everything as ``normalizer`` must be the same to 1e-6 of its largest element, else an error is raised;
that of the usual mean of local means differs by the printed figure. Needs the package's demo requirements::

    python examples/data_parallel.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.multiprocessing import spawn  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

import cudaloss
from scaffold import digits, options, relative_difference, require, save, say, seeded, show_digits, show_table

GRADIENT_BAR = 1e-6  # of the gradient's largest element: 8 units in the last place of float32
MICRO_BATCHES = 8  # of a whole batch
IMAGES = 32  # of a micro-batch
SHARES = (0.02, 0.9)  # of the pixels that a micro-batch hides, lowest and highest
BETA = 0.1  # of smooth L1; pixels are 0..1
PORTION = 0.5  # the held-out loss must fall below this portion of the untrained network's
TIMEOUT = timedelta(seconds=60)  # a lost process ends the run, not the patience of who waits
SHOWN = 10  # digits in the picture


class Batch(NamedTuple):
    images: Tensor  # rows of 64 pixels
    hidden: Tensor  # bool, of the same shape: what is to be filled in

    @property
    def visible(self) -> Tensor:
        """What the network is given: the pixels that are not hidden, and which those are."""
        return torch.cat([self.images.masked_fill(self.hidden, 0), self.hidden.float()], dim=1)


Loss = Callable[[Tensor, Batch], Tensor]  # of a prediction for the batch


@dataclass(frozen=True)
class Layout:
    processes: int
    micro_batches: int  # of each process

    def __str__(self) -> str:
        return f"{self.processes} x {self.micro_batches}"


@dataclass
class Result:
    """What a layout's training steps gave, as the first process saw them."""

    layout: Layout
    global_mean: list[float]  # difference from the whole batch's gradient, of its largest element, at each step
    local_means: list[float]
    model: dict[str, Tensor]


LAYOUTS = (Layout(1, 8), Layout(2, 1), Layout(2, 4))


def hide(images: Tensor, share: float, generator: torch.Generator) -> Batch:
    return Batch(images, torch.rand(images.shape, generator=generator) < share)


def micro_batches(images: Tensor, generator: torch.Generator) -> list[Batch]:
    """Those of one step. Every process draws all of them, since the first one tells the whole batch's gradient."""
    lowest, highest = SHARES
    shares = lowest + (highest - lowest) * torch.rand(MICRO_BATCHES, generator=generator)
    chosen = torch.randint(len(images), (MICRO_BATCHES, IMAGES), generator=generator)
    return [hide(images[rows], share, generator) for rows, share in zip(chosen, shares.tolist(), strict=True)]


def joined(batches: list[Batch]) -> Batch:
    return Batch(torch.cat([batch.images for batch in batches]), torch.cat([batch.hidden for batch in batches]))


def own_part(batches: list[Batch], layout: Layout, rank: int) -> list[Batch]:
    """The micro-batches of process `rank`."""
    own = batches[rank * len(batches) // layout.processes :][: len(batches) // layout.processes]
    size = len(own) // layout.micro_batches
    return [joined(own[start : start + size]) for start in range(0, len(own), size)]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64))


def global_normalizer(masks: list[Tensor]) -> Tensor:
    """What each micro-batch's sum is divided by: the count over all micro-batches of all processes, over their number.

    DistributedDataParallel divides the sum of the processes' gradients by their number; dividing the count by it too
    leaves the whole sum over the whole count. Stays on the masks' device: nothing waits for its value.
    """
    count = torch.stack([mask.sum() for mask in masks]).sum()
    if dist.is_initialized():
        dist.all_reduce(count)
        return count.clamp(min=1) / dist.get_world_size()
    return count.clamp(min=1)


def accumulate(model: nn.Module, batches: list[Batch], loss: Loss) -> None:
    """Adds up the batches' gradients; the processes exchange them once, after the last batch."""
    for index, batch in enumerate(batches):
        last = index + 1 == len(batches)
        waits = model.no_sync() if isinstance(model, DistributedDataParallel) and not last else nullcontext()
        with waits:
            loss(model(batch.visible), batch).backward()


def accumulate_global_mean(model: nn.Module, batches: list[Batch]) -> None:
    normalizer = global_normalizer([batch.hidden for batch in batches])

    def loss(prediction: Tensor, batch: Batch) -> Tensor:
        return cudaloss.smooth_l1_loss(prediction, batch.images, beta=BETA, mask=batch.hidden, normalizer=normalizer)

    accumulate(model, batches, loss)


def selected_mean(prediction: Tensor, batch: Batch) -> Tensor:
    """The mean over one batch's hidden pixels, in plain PyTorch."""
    return F.smooth_l1_loss(prediction[batch.hidden], batch.images[batch.hidden], beta=BETA)


def accumulate_local_means(model: nn.Module, batches: list[Batch]) -> None:
    """As it is usually written: each micro-batch's own mean, over the number of micro-batches."""
    accumulate(model, batches, lambda prediction, batch: selected_mean(prediction, batch) / len(batches))


def gradient(model: nn.Module) -> Tensor:
    """All parameters' gradients as one vector."""
    return nn.utils.parameters_to_vector(
        parameter.grad for parameter in model.parameters() if parameter.grad is not None
    )


def whole_gradient(model: nn.Module, batches: list[Batch]) -> Tensor:
    """Plain PyTorch's of all micro-batches at once, in this process alone."""
    whole = joined(batches)
    gradients = torch.autograd.grad(selected_mean(model(whole.visible), whole), list(model.parameters()))
    return nn.utils.parameters_to_vector(gradients)


def train(layout: Layout, rank: int, steps: int, seed: int) -> Result:
    """Trains with the global mean, and looks at each step what the mean of local means would have given."""
    images, plain = digits().images, seeded(network, seed)
    model = DistributedDataParallel(plain) if layout.processes > 1 else plain
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(seed)
    result = Result(layout, [], [], {})
    for _ in range(steps):
        batches = micro_batches(images, generator)
        own = own_part(batches, layout, rank)
        accumulate_local_means(model, own)
        local_means = gradient(model)
        optimizer.zero_grad()
        accumulate_global_mean(model, own)
        if rank == 0:
            reference = whole_gradient(plain, batches)
            result.local_means.append(relative_difference(local_means, reference).item())
            result.global_mean.append(relative_difference(gradient(model), reference).item())
        optimizer.step()
        optimizer.zero_grad()
    result.model = plain.state_dict()
    return result


def work(rank: int, processes: int, folder: str, steps: int, seed: int) -> None:
    """One of `processes`: trains each of their layouts; the first one leaves the results in the folder."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"  # no port that somebody else might hold
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=processes, timeout=TIMEOUT)
    try:
        results = [train(layout, rank, steps, seed) for layout in LAYOUTS if layout.processes == processes]
        if rank == 0:
            torch.save([vars(result) for result in results], f"{folder}/results.pt")
        dist.barrier()  # the other one must not be gone while the first still writes
    finally:
        dist.destroy_process_group()


def train_in_processes(processes: int, steps: int, seed: int) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="cudaloss-") as folder:
        spawn(work, (processes, folder, steps, seed), nprocs=processes)
        return [Result(**found) for found in torch.load(f"{folder}/results.pt", weights_only=False)]


def held_out_loss(model: nn.Module, batch: Batch) -> float:
    with torch.no_grad():
        return cudaloss.smooth_l1_loss(model(batch.visible), batch.images, beta=BETA, mask=batch.hidden).item()


def draw(results: list[Result], batch: Batch, restored: Tensor) -> Figure:
    figure = Figure(figsize=(11, 7), layout="constrained")
    curves, shown = figure.subfigures(2, 1, height_ratios=[1.2, 1], squeeze=False).flat
    for axes, result in zip(curves.subplots(1, len(results), sharey=True), results, strict=True):
        axes.plot(result.local_means, ".", color="tab:orange", markersize=3, label="mean of local means")
        axes.plot(result.global_mean, ".", color="tab:blue", markersize=3, label="global mean")
        axes.axhline(GRADIENT_BAR, color="tab:red", linestyle="--", label=f"bar: {GRADIENT_BAR:g}")
        axes.set(title=f"{result.layout} (processes x micro-batches)", xlabel="step", yscale="log")
    figure.axes[0].set_ylabel("difference from the whole batch's gradient")
    figure.axes[0].legend()
    rows = {"visible": batch.images.masked_fill(batch.hidden, 0.5), "restored": restored, "image": batch.images}
    show_digits(shown, rows, SHOWN)
    return figure


def main() -> None:
    arguments = options(__file__, "Compare global means with means of local means, in two processes.", 100)
    steps, seed = arguments.steps, arguments.seed
    alone = [train(layout, 0, steps, seed) for layout in LAYOUTS if layout.processes == 1]
    results = alone + train_in_processes(2, steps, seed)
    medians = [torch.tensor(result.local_means).median().item() for result in results]
    rows = [
        (str(result.layout), f"{max(result.global_mean):.1e}", f"{median:.3f}, {max(result.local_means):.3f}")
        for result, median in zip(results, medians, strict=True)
    ]
    columns = "processes x\nmicro-batches", "global mean:\nlargest", "mean of local means:\nmedian, largest"
    show_table(f"difference from the whole batch's gradient, over {steps} steps", columns, rows)

    test = hide(digits().held_out, 0.5, torch.Generator().manual_seed(seed + 1))
    model = seeded(network, seed)
    before, losses = held_out_loss(model, test), []
    for result in results:
        model.load_state_dict(result.model)
        losses.append(held_out_loss(model, test))
    say(f"held-out loss: {before:.5f} untrained, {', '.join(f'{loss:.5f}' for loss in losses)} trained")
    with torch.no_grad():
        restored = torch.where(test.hidden, model(test.visible), test.images)
    save(draw(results, test, restored), arguments.output)

    for result, median, loss in zip(results, medians, losses, strict=True):
        equal = max(result.global_mean) <= GRADIENT_BAR
        require(equal, f"{result.layout}: the global mean's gradient is the whole batch's to {GRADIENT_BAR:g}")
        require(median > 1000 * GRADIENT_BAR, f"{result.layout}: the mean of local means is another one")
        require(loss < PORTION * before, f"{result.layout}: the held-out loss falls below {PORTION} of the untrained")


if __name__ == "__main__":
    main()
