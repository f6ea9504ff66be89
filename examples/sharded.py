"""A tensor-parallel network and a sharded loss: two processes train as one does.

A network fills in hidden pixels of scikit-learn's handwritten digits; the loss counts the hidden pixels alone. Each of
two processes (gloo) has half of every layer. The network's output stays sharded by pixels, a DTensor that no process
ever has whole, and the loss takes it as it is: it moves two numbers, the sum and the count of the hidden pixels.

At every step the loss and the gradient of each layer are compared with PyTorch's own of the whole network in one
process: they must be the same to 1e-5 of the largest element, and a held-out loss must fall to a half. Else an error is
raised::

    python examples/sharded.py
"""

from __future__ import annotations

import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.multiprocessing import spawn  # pyright: ignore[reportPrivateImportUsage]

import cudaloss
import scaffold
from scaffold import require

BAR = 1e-5  # of the largest element: 84 units in the last place of float32, after matrix products in another order
IMAGES, BETA = 256, 0.1  # of a batch; of smooth L1, where pixels are 0..1
# Half of a layer's outputs on each process, then half of the next one's inputs, whose sum is shared out by outputs.
PARALLEL = {
    "0": ColwiseParallel(),
    "2": RowwiseParallel(output_layouts=Shard(-1), use_local_output=False),
}


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 64))


def draw_batch(images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images, and which of their pixels are hidden: from few to most."""
    chosen = images[torch.randint(len(images), (IMAGES,), generator=generator)]
    return chosen, torch.rand(chosen.shape, generator=generator) < torch.rand(IMAGES, 1, generator=generator)


def visible(images: Tensor, hidden: Tensor) -> Tensor:
    """What the network is given: the pixels that are not hidden, and which those are."""
    return torch.cat([images.masked_fill(hidden, 0), hidden.float()], dim=1)


def loss_of(predicted: Tensor, images: Tensor, hidden: Tensor) -> Tensor:
    """The recipe: everything lies as the prediction does, and the rest is a loss as ever."""
    if isinstance(predicted, DTensor):
        mesh, placements = predicted.device_mesh, predicted.placements
        images, hidden = (distribute_tensor(whole, mesh, placements) for whole in (images, hidden))
    return cudaloss.smooth_l1_loss(predicted, images, beta=BETA, mask=hidden)


def reference(model: nn.Module, images: Tensor, hidden: Tensor) -> list[Tensor]:
    """The loss and the gradients of the whole network, in plain PyTorch."""
    predicted = model(visible(images, hidden))
    loss = F.smooth_l1_loss(predicted[hidden], images[hidden], beta=BETA)
    return [loss.detach(), *torch.autograd.grad(loss, list(model.parameters()))]


def whole_of(part: Tensor | None) -> Tensor:
    assert isinstance(part, DTensor)
    return part.full_tensor()


def train(model: nn.Module, steps: int, seed: int) -> tuple[nn.Module, Tensor]:
    """The whole network as the sharded one leaves it, and the largest difference at each step."""
    images, whole = scaffold.digits().images, scaffold.seeded(network, seed)
    optimizer, generator = torch.optim.Adam(model.parameters(), lr=2e-3), torch.Generator().manual_seed(seed)
    differences = []
    for _ in range(steps):
        batch = draw_batch(images, generator)
        whole.load_state_dict({name: whole_of(part) for name, part in model.state_dict().items()})
        wanted = reference(whole, *batch)
        loss = loss_of(model(visible(*batch)), *batch)
        optimizer.zero_grad()
        loss.backward()
        found = loss.detach(), *(part.grad for part in model.parameters())
        pairs = zip(map(whole_of, found), wanted, strict=True)
        differences.append(torch.stack([scaffold.relative_difference(*pair) for pair in pairs]).max())
        optimizer.step()
    return whole, torch.stack(differences)


def work(rank: int, folder: str, steps: int, seed: int) -> None:
    """One of two processes; the first one leaves the results in the folder."""
    torch.set_num_threads(1)
    timeout = timedelta(seconds=60)  # a lost process ends the run, not the patience of who waits
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timeout)
    try:
        model = parallelize_module(scaffold.seeded(network, seed), init_device_mesh("cpu", (2,)), PARALLEL)
        whole, differences = train(model, steps, seed)
        if rank == 0:
            torch.save((whole.state_dict(), differences), f"{folder}/results.pt")
        dist.barrier()  # the other one must not be gone while the first still writes
    finally:
        dist.destroy_process_group()


def main() -> None:
    arguments = scaffold.options(__file__, "Train a tensor-parallel network on a sharded loss, in two processes.", 100)
    model, images = scaffold.seeded(network, arguments.seed), scaffold.digits().held_out
    hidden = torch.rand(images.shape, generator=torch.Generator().manual_seed(arguments.seed + 1)) < 0.5
    before = loss_of(model(visible(images, hidden)), images, hidden).item()
    with tempfile.TemporaryDirectory(prefix="cudaloss-") as folder:
        spawn(work, (folder, arguments.steps, arguments.seed), nprocs=2)
        parameters, differences = torch.load(f"{folder}/results.pt")
    model.load_state_dict(parameters)
    after = loss_of(model(visible(images, hidden)), images, hidden).item()
    scaffold.say(
        f"largest difference from the whole in {arguments.steps} steps: {differences.max():.1e} ({BAR:g} is demanded)"
    )
    scaffold.say(f"held-out loss: {after:.5f} trained, {before:.5f} untrained")
    require(bool(differences.max() <= BAR), "loss and gradients are those of the whole network in one process")
    require(after < before / 2, "the held-out loss falls below half the untrained network's")
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(differences, ".", markersize=3)
    axes.axhline(BAR, color="tab:red", linestyle="--", label=f"bar: {BAR:g}")
    axes.set(title="sharded loss and gradients", xlabel="step", ylabel="difference from the whole's", yscale="log")
    axes.legend()
    scaffold.save(figure, arguments.output)


if __name__ == "__main__":
    main()
