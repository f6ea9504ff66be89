"""One global mean under PyTorch's own engines: FSDP2, and a pipeline of two stages. Two processes, gloo."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import cudaloss
from cudaloss import distributed
from processes import found_by_all

BAR = 1e-6  # of the largest element
SHARES = (0.9, 0.1, 0.5, 0.0)  # of the elements, what each micro-batch selects
FIRST_STAGE = 2  # of the network's layers


def micro_batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(8, 20, generator=generator).split([16, 4], dim=1) for _ in SHARES]
    return [(x, y, torch.rand(8, 4, generator=generator) < share) for (x, y), share in zip(drawn, SHARES, strict=True)]


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 4))


def gradient(parameters) -> Tensor:
    return torch.cat([p.grad.flatten() for p in parameters])


def whole() -> tuple[nn.Sequential, Tensor]:
    """The network with the gradient of the mean over everything, by plain PyTorch, and that mean."""
    model, (x, y, mask) = network(), map(torch.cat, zip(*micro_batches(), strict=True))
    value = torch.nn.functional.mse_loss(model(x)[mask], y[mask])
    value.backward()
    return model, value.detach()


def difference(found: Tensor, wanted: Tensor) -> float:
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def sharded(rank: int) -> dict[str, float]:
    """FSDP2 over both processes, two micro-batches each; one of the second process has nothing in play."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, own = network(), micro_batches()[2 * rank : 2 * rank + 2]
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    normalizer = distributed.normalizer(*(distributed.in_play(y, mask=mask) for _, y, mask in own))
    losses = []
    for index, (x, y, mask) in enumerate(own):
        model.set_requires_gradient_sync(index + 1 == len(own))
        losses.append(cudaloss.mse_loss(model(x), y, mask=mask, normalizer=normalizer))
        losses[-1].backward()
    reference, value = whole()
    found = torch.cat([p.grad.full_tensor().flatten() for p in model.parameters()])
    return {
        "gradient": difference(found, gradient(reference.parameters())),
        "value": difference(distributed.total(*losses), value),
    }


def piped(rank: int) -> dict[str, float]:
    """Only the last stage knows the targets: the count is over its group."""
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    own_group = [dist.new_group([each]) for each in range(2)][rank]
    x, y, mask = map(torch.cat, zip(*micro_batches(), strict=True))
    normalizer = distributed.normalizer(distributed.in_play(y, mask=mask), group=own_group)

    def loss(output: Tensor, wanted: Tensor) -> Tensor:
        y, mask = wanted.split([4, 4], dim=1)
        return cudaloss.mse_loss(output, y, mask=mask.bool(), normalizer=normalizer)

    layers = slice(None, FIRST_STAGE) if rank == 0 else slice(FIRST_STAGE, None)
    stage = network()[layers]
    schedule = ScheduleGPipe(
        PipelineStage(stage, rank, 2, torch.device("cpu")), len(SHARES), loss_fn=loss, scale_grads=False
    )
    losses: list[Tensor] = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=torch.cat([y, mask.float()], dim=1), losses=losses)
    reference, value = whole()
    found = {"gradient": difference(gradient(stage.parameters()), gradient(reference[layers].parameters()))}
    return found | ({"value": difference(distributed.total(*losses, group=own_group), value)} if rank else {})


ENGINES = {"fsdp2": sharded, "pipeline": piped}


def find() -> dict[str, dict[str, float]]:
    return {name: engine(dist.get_rank()) for name, engine in ENGINES.items()}


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> list[dict[str, dict[str, float]]]:
    return found_by_all(tmp_path_factory, 2, find)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_global_mean_trains_as_one_process_does(engine, found):
    for of_process in found:
        assert max(of_process[engine].values()) <= BAR
    assert "value" in found[1][engine]
