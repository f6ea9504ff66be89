"""Two processes with other counts in play train as one does on the whole batch, where the normalizer is the global one.

The processes are started once, for all losses; each leaves the gradients that it ended with.
"""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from conftest import KINDS
from cudaloss import distributed
from oracle import op, torch_op
from processes import found_by_all

BAR = 1e-6  # of the gradient's largest element
PROCESSES = 2
MICRO_BATCHES = 3  # of each process
ROWS, FEATURES, OUTPUTS = 8, 16, 12  # of a micro-batch
PARAMETER = 0.5
# Of the elements, what each micro-batch selects; one has none, and so have all of the second process in the last row.
SHARES = {
    "mask": ((0.9, 0.05, 0.4), (0.3, 0.0, 0.8)),
    "weight": ((1.0,) * 3, (1.0,) * 3),
    "weight and mask": ((0.7, 0.2, 0.9), (0.1, 0.5, 0.0)),
    "one process with nothing": ((0.9, 0.05, 0.4), (0.0, 0.0, 0.0)),
    "nothing anywhere": ((0.0,) * 3, (0.0,) * 3),
}
NO_GRADIENT = ("nothing anywhere",)
MEANS = ("local", "averaged", "summed")


class Batch(NamedTuple):
    data: Tensor
    target: Tensor
    mask: Tensor | None
    weight: Tensor | None

    @property
    def in_play(self) -> Tensor:
        """What a mean divides by: the sum of the weights that are selected."""
        return distributed.in_play(self.target, weight=self.weight, mask=self.mask)


def make_batches(case: str, device: str) -> list[list[Batch]]:
    """The batches of every process, the same wherever they are made. The weights of two of them differ 100-fold."""
    generator = torch.Generator().manual_seed(3)
    found = []
    for rank, shares in enumerate(SHARES[case]):
        found.append([])
        for share in shares:
            data = torch.randn(ROWS, FEATURES, generator=generator)
            target = torch.randn(ROWS, OUTPUTS, generator=generator)
            mask = torch.rand(ROWS, OUTPUTS, generator=generator) < share
            weight = torch.rand(ROWS, OUTPUTS, generator=generator) * 10 ** (2 * rank)
            options = mask if case != "weight" else None, weight if "weight" in case else None
            tensors = (x if x is None else x.to(device) for x in (data, target, *options))
            found[-1].append(Batch(*tensors))
    return found


def network(device: str) -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(FEATURES, 32), nn.SiLU(), nn.Linear(32, OUTPUTS)).to(device)


def gradient(model: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def train_own_part(model: DistributedDataParallel, own: list[Batch], loss, mean: str) -> tuple[Tensor, Tensor]:
    """The gradient of one optimizer step and the value to log: of the local means, or of one global mean, by gradients
    that DistributedDataParallel averages or that are summed by hand."""
    gradients = "summed" if mean == "summed" else "averaged"
    normalizer, scale = None, 1 / len(own)
    if mean != "local":
        normalizer, scale = distributed.normalizer(*(batch.in_play for batch in own), gradients=gradients), 1.0
    model.zero_grad()
    losses = []
    for index, (data, target, mask, weight) in enumerate(own):
        averages = mean != "summed" and index + 1 == len(own)
        with nullcontext() if averages else model.no_sync():
            options = {"mask": mask, "weight": weight, "normalizer": normalizer, "scale": scale}
            losses.append(loss(model(data), target, "mean", PARAMETER, **options))
            losses[-1].backward()
    found = gradient(model)
    if mean == "summed":
        dist.all_reduce(found)
    return found, distributed.total(*losses, gradients=gradients)


def find(device: str) -> dict[tuple[str, str, str], list[Tensor]]:
    found, model = {}, DistributedDataParallel(network(device))
    for case in SHARES:
        own = make_batches(case, device)[dist.get_rank()]
        for spec in KINDS:
            for mean in MEANS:
                found[spec.name, case, mean] = [x.cpu() for x in train_own_part(model, own, op(spec), mean)]
    return found


@pytest.fixture
def found(device: str, tmp_path_factory) -> list[dict]:
    """The gradient and the value of each process by loss, case and kind of mean."""
    return found_by_all(tmp_path_factory, PROCESSES, find, device)


def whole(spec, case: str, device: str) -> tuple[Tensor, Tensor]:
    """Gradient and value of one process, by PyTorch's own losses over the whole batch, in float64."""
    model = network(device).double()
    batches = [batch for own in make_batches(case, device) for batch in own]
    total = torch.zeros((), dtype=torch.float64, device=device)
    for batch in batches:
        terms = torch_op(spec)(model(batch.data.double()), batch.target.double(), "none", PARAMETER)
        terms = terms if batch.weight is None else terms * batch.weight
        total = total + (terms if batch.mask is None else terms[batch.mask]).sum()
    count = sum(batch.in_play.double() for batch in batches)
    value = total / (count or 1)
    value.backward()
    return gradient(model).cpu(), value.detach().cpu()


def difference(found: Tensor, reference: Tensor) -> float:
    """Of the largest element; the smallest number that divides, where that is 0."""
    largest = reference.abs().max().clamp(min=torch.finfo(torch.float64).tiny)
    return ((found - reference).abs().max() / largest).item()


@pytest.mark.parametrize("case", SHARES)
def test_processes_and_micro_batches_train_as_one_batch(spec, device, case, found):
    reference, value = whole(spec, case, device)
    for of_process, mean in itertools.product(found, ("averaged", "summed")):
        found_gradient, logged = of_process[spec.name, case, mean]
        assert difference(found_gradient, reference) <= BAR
        assert difference(logged, value) <= BAR


@pytest.mark.parametrize("case", [case for case in SHARES if case not in NO_GRADIENT])
def test_local_means_are_another_mean(spec, device, case, found):
    """Otherwise the test above would show nothing: these cases tell the two means apart."""
    reference, _ = whole(spec, case, device)
    assert difference(found[0][spec.name, case, "local"][0], reference) > 0.01


@pytest.mark.parametrize("case", NO_GRADIENT)
def test_nothing_in_play_anywhere_gives_zero(spec, device, case, found):
    for of_process in found:
        assert not of_process[spec.name, case, "averaged"][0].any()
