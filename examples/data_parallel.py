"""One mean over the elements of all micro-batches and all processes, where each of them has another number in play.

A network fills in hidden pixels of scikit-learn's handwritten digits. The loss counts the hidden pixels alone, and each
micro-batch hides another share of them. A batch of 256 images is then trained on in three layouts: 8 micro-batches in
one process (gradient accumulation), 2 processes (gloo, DistributedDataParallel) of one micro-batch each, and 2
processes of 4 micro-batches each.

At every step each layout's gradient is compared with PyTorch's own of the whole batch at once: that of cudaloss with
the count over everything as ``normalizer`` must be the same to 1e-6 of its largest element, that of the usual mean of
local means must differ, and a held-out loss must fall to a half. Else an error is raised::

    python examples/data_parallel.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.multiprocessing import spawn  # pyright: ignore[reportPrivateImportUsage]
from torch.nn.parallel import DistributedDataParallel

import cudaloss
import scaffold
from cudaloss import distributed
from scaffold import require

GRADIENT_BAR = 1e-6  # of the gradient's largest element: 8 units in the last place of float32
MICRO_BATCHES, IMAGES = 8, 32  # of a whole batch, of a micro-batch
BETA = 0.1  # of smooth L1; pixels are 0..1
LAYOUTS = ((1, 8), (2, 1), (2, 4))  # processes, micro-batches of each


def draw_batch(images: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Images and what is hidden of them, 2 to 90 % of a micro-batch; both (MICRO_BATCHES, IMAGES, 64)."""
    shares = 0.02 + 0.88 * torch.rand(MICRO_BATCHES, 1, 1, generator=generator)
    chosen = images[torch.randint(len(images), (MICRO_BATCHES, IMAGES), generator=generator)]
    return [chosen, torch.rand(chosen.shape, generator=generator) < shares]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 64))


def visible(images: Tensor, hidden: Tensor) -> Tensor:
    """What the network is given: the pixels that are not hidden, and which those are."""
    return torch.cat([images.masked_fill(hidden, 0), hidden.float()], dim=1)


def loss_of(predicted: Tensor, images: Tensor, hidden: Tensor, normalizer: Tensor | None = None) -> Tensor:
    """The recipe. Without a normalizer, the mean over the hidden pixels of these images."""
    return cudaloss.smooth_l1_loss(predicted, images, beta=BETA, mask=hidden, normalizer=normalizer)


def selected_mean(predicted: Tensor, images: Tensor, hidden: Tensor) -> Tensor:
    """The mean over one batch's hidden pixels, in plain PyTorch."""
    return F.smooth_l1_loss(predicted[hidden], images[hidden], beta=BETA)


def accumulate(model: nn.Module, images: Tensor, hidden: Tensor, loss: Callable[..., Tensor]) -> Tensor:
    """The gradient of a process's micro-batches, as one vector; exchanged once, after the last of them."""
    model.zero_grad()
    for index, batch in enumerate(zip(images, hidden, strict=True)):
        more = index + 1 < len(images)
        with model.no_sync() if more and isinstance(model, DistributedDataParallel) else nullcontext():
            loss(model(visible(*batch)), *batch).backward()
    return nn.utils.parameters_to_vector(p.grad for p in model.parameters() if p.grad is not None)


def train(processes: int, count: int, rank: int, steps: int, seed: int) -> tuple[dict[str, Any], Tensor]:
    """With the global mean: the network, and both means' differences from the whole batch's gradient at each step."""
    images, plain, differences = scaffold.digits().images, scaffold.seeded(network, seed), []
    model = DistributedDataParallel(plain) if processes > 1 else plain
    optimizer, generator = torch.optim.Adam(model.parameters(), lr=2e-3), torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = draw_batch(images, generator)  # every process draws all of it, to know the whole batch's gradient
        whole = [rows.flatten(0, 1) for rows in batch]
        loss = selected_mean(plain(visible(*whole)), *whole)
        reference = nn.utils.parameters_to_vector(torch.autograd.grad(loss, list(plain.parameters())))
        own, hidden = (rows.unflatten(0, (processes, count, -1))[rank].flatten(1, 2) for rows in batch)
        by_local_means = accumulate(model, own, hidden, lambda *three: selected_mean(*three) / count)  # as is usual
        normalizer = distributed.normalizer(distributed.in_play(own, mask=hidden))  # of all micro-batches and processes
        by_global_mean = accumulate(model, own, hidden, partial(loss_of, normalizer=normalizer))
        found = by_local_means, by_global_mean
        differences.append(torch.stack([scaffold.relative_difference(each, reference) for each in found]))
        optimizer.step()
    return plain.state_dict(), torch.stack(differences)


def work(rank: int, folder: str, steps: int, seed: int) -> None:
    """One of two processes: trains each of their layouts; the first one leaves the results in the folder."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"  # no port that somebody else might hold
    timeout = timedelta(seconds=60)  # a lost process ends the run, not the patience of who waits
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timeout)
    try:
        results = [train(*layout, rank, steps, seed) for layout in LAYOUTS if layout[0] == 2]
        if rank == 0:
            torch.save(results, f"{folder}/results.pt")
        dist.barrier()  # the other one must not be gone while the first still writes
    finally:
        dist.destroy_process_group()


def draw(differences: list[Tensor], path: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, layout, steps in zip(figure.subplots(1, 3, sharey=True), LAYOUTS, differences, strict=True):
        axes.plot(steps, ".", markersize=3, label=["mean of local means", "global mean"])
        axes.axhline(GRADIENT_BAR, color="tab:red", linestyle="--", label=f"bar: {GRADIENT_BAR:g}")
        axes.set(title="{} x {}".format(*layout), xlabel="step", ylabel="difference from the whole's", yscale="log")
    figure.axes[0].legend()
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Compare global means with means of local means, in two processes.", 100)
    steps, seed, images = arguments.steps, arguments.seed, scaffold.digits().held_out
    alone = [train(*layout, 0, steps, seed) for layout in LAYOUTS if layout[0] == 1]
    with tempfile.TemporaryDirectory(prefix="cudaloss-") as folder:
        spawn(work, (folder, steps, seed), nprocs=2)
        results = alone + torch.load(f"{folder}/results.pt")
    hidden = torch.rand(images.shape, generator=torch.Generator().manual_seed(seed + 1)) < 0.5
    model, rows = scaffold.seeded(network, seed), []
    before = loss_of(model(visible(images, hidden)), images, hidden).item()
    for (processes, count), (parameters, differences) in zip(LAYOUTS, results, strict=True):
        model.load_state_dict(parameters)
        after = loss_of(model(visible(images, hidden)), images, hidden).item()
        largest, median, name = differences.amax(0), differences[:, 0].median(), f"{processes} x {count}"
        rows.append((name, f"{largest[1]:.1e}", f"{median:.3f}, {largest[0]:.3f}", f"{after:.5f} of {before:.5f}"))
        require(bool(largest[1] <= GRADIENT_BAR), f"{name}: the global mean's gradient is the whole batch's")
        require(bool(median > 1000 * GRADIENT_BAR), f"{name}: the mean of local means is another one")
        require(after < before / 2, f"{name}: the held-out loss falls below half the untrained network's")
    columns = "layout", "global mean:\nlargest", "local means:\nmedian, largest", "held-out loss:\ntrained of untrained"
    scaffold.show_table(f"difference from the whole batch's gradient, over {steps} steps", columns, rows)
    draw([differences for _, differences in results], arguments.output)


if __name__ == "__main__":
    main()
