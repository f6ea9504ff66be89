"""CUDA graphs of calls with keywords: whole training steps, and each loss alone, replayed over new data."""

from __future__ import annotations

import copy

import pytest
import torch

from calls import Call
from cudaloss._losses.options import Options
from oracle import op, operands, spelled_out

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),  # of warm-ups on a side stream
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]
BATCH, FEATURES, OUTPUTS = 64, 24, 40


def warmed_up(work, repeats=3):
    """`work` on a side stream, as capture asks for: allocations and lazy initialisations are over after it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(repeats):
            work()
    torch.cuda.current_stream().wait_stream(side)


def captured(work):
    """A graph of `work`, and what the call that was captured returned."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return graph, result


# ---- whole training steps ----


class Training:
    """A small model, its optimizer and the static buffers that a graph's replays read."""

    def __init__(self, spec, ours=True):
        self.model = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 64), torch.nn.Tanh(), torch.nn.Linear(64, OUTPUTS)
        ).cuda()
        # PyTorch's huber_loss takes no mixed dtypes
        self.loss = op(spec) if ours else lambda input, *rest, **given: spelled_out(spec)(input.float(), *rest, **given)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.static = batch(0)

    def copy_of(self, spec, ours):
        """The same state, for an eager run beside it."""
        other = Training(spec, ours)
        other.model.load_state_dict(self.model.state_dict())
        other.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        return other

    def step(self, low, given):
        """Forward, backward and the update from the static buffers; the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        x, y, mask, weight, normalizer = self.static
        # Without its cache: a graph would keep the casts of the weights that were current when it was captured.
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=low, cache_enabled=False):
            keywords = {"mask": mask, "weight": weight, "scale": 0.5}
            if given == "normalizer":
                keywords["normalizer"] = normalizer
            value = self.loss(self.model(x), y, "mean", **keywords)
        value.backward()
        self.optimizer.step()
        return value

    def load(self, fresh):
        for buffer, values in zip(self.static, fresh, strict=True):
            buffer.copy_(values)


def batch(seed):
    """Inputs, targets with rubbish behind the mask, mask, weight and normalizer."""
    generator = torch.Generator("cuda").manual_seed(seed)
    draw = {"device": "cuda", "generator": generator}
    mask = torch.rand(BATCH, OUTPUTS, **draw) < 0.3 + 0.1 * (seed % 6)
    target = torch.where(mask, torch.randn(BATCH, OUTPUTS, **draw), float("nan"))
    weight = torch.rand(OUTPUTS, **draw) + 0.1
    return torch.randn(BATCH, FEATURES, **draw), target, mask, weight, mask.sum().float() + seed


@pytest.mark.parametrize("given", ["normalizer", "counted"])
@pytest.mark.parametrize("low", [False, True], ids=["float32", "bfloat16"])
def test_a_masked_training_step(spec, low, given):
    training = Training(spec)
    warmed_up(lambda: training.step(low, given))
    eager, plain = training.copy_of(spec, ours=True), training.copy_of(spec, ours=False)
    training.optimizer.zero_grad(set_to_none=True)  # so that the gradients are made in the graph's own memory
    graph, value = captured(lambda: training.step(low, given))
    losses = []
    for seed in range(1, 7):
        for run in (training, eager, plain):
            run.load(batch(seed))
        graph.replay()
        losses.append(value.item())
        torch.testing.assert_close(value, eager.step(low, given), rtol=1e-5, atol=0)
        # In bfloat16 the gradient that enters the model is rounded: the plain-PyTorch run drifts from ours by that.
        tolerance = {"rtol": 2e-2, "atol": 2e-3} if low else {"rtol": 1e-4, "atol": 1e-6}
        torch.testing.assert_close(value, plain.step(low, given), **tolerance)
        for found, same, other in zip(*(x.model.parameters() for x in (training, eager, plain)), strict=True):
            torch.testing.assert_close(found, same, rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(found, other, **tolerance)
    assert len(set(losses)) == len(losses) and all(map(torch.isfinite, map(torch.tensor, losses)))


# ---- losses alone ----

KEYWORDS = {
    "mask": lambda s: {"mask": s["mask"]},
    "mask and weight": lambda s: {"mask": s["mask"], "weight": s["weight"]},
    "normalizer": lambda s: {"mask": s["mask"], "normalizer": s["normalizer"], "scale": 0.3},
    "per sample": lambda s: {"mask": s["mask"], "weight": s["weight"], "batch_dims": 1},
    "ignore_nan": lambda s: {"ignore_nan": True},
}


def buffers(shape, seed):
    torch.manual_seed(seed)
    input, target = operands(shape, (torch.bfloat16, torch.float32), "cuda")
    mask = torch.rand(shape, device="cuda") < 0.2 + 0.1 * seed
    mask[:, 0] = True
    return {
        "input": input,
        "target": torch.where(mask, target, float("nan")),
        "mask": mask,
        "weight": torch.rand(shape, device="cuda") + 0.1,
        "normalizer": torch.tensor(10.0 + seed, device="cuda"),
    }


def call_of(spec, tensors, reduction, given):
    return Call(spec, tensors["input"], tensors["target"], reduction, options=Options(**given))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("keywords", KEYWORDS)
@pytest.mark.parametrize("shape", [(4, 250), (3, 100_003)], ids=str)
def test_a_forward(spec, shape, keywords, reduction):
    if keywords == "normalizer" and reduction != "mean":
        pytest.skip("a normalizer is of a mean")
    static = buffers(shape, 0)
    given = KEYWORDS[keywords](static)
    forward = lambda: op(spec)(static["input"], static["target"], reduction, **given)  # noqa: E731
    warmed_up(forward)
    graph, value = captured(forward)
    for seed in range(1, 4):
        for name, fresh in buffers(shape, seed).items():
            static[name].copy_(fresh)
        graph.replay()
        expected = forward()
        assert torch.equal(value, expected)
        if shape[1] < 1000:  # the same call is judged once, eagerly
            call_of(spec, static, reduction, given).assert_right()
    assert value.isfinite().all()


@pytest.mark.parametrize("keywords", KEYWORDS)
@pytest.mark.parametrize("number", [None, 0.3])
def test_a_forward_and_its_backward(spec, keywords, number):
    shape = (3, 10_007)
    static = buffers(shape, 0)
    static["input"].requires_grad_()
    given = KEYWORDS[keywords](static)

    def step():
        value = op(spec)(static["input"], static["target"], **given)
        incoming = torch.ones_like(value) if number is None else torch.full_like(value, number)
        return value.detach(), torch.autograd.grad(value, static["input"], incoming)[0]

    warmed_up(step)
    graph, found = captured(step)
    for seed in range(1, 4):
        with torch.no_grad():
            for name, fresh in buffers(shape, seed).items():
                static[name].copy_(fresh)
        for _ in range(2):  # a replay must not scale what the last one left
            graph.replay()
        for ours, expected in zip(found, step(), strict=True):
            assert torch.equal(ours, expected)
        assert (found[1][~static["mask"]] == 0).all()
