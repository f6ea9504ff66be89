"""The gradients of a loss of three vectors: one pass makes all that are wanted, and each is what it is without the
others."""

from __future__ import annotations

import itertools

import pytest
import torch

import cudaloss
from capturing import private_calls
from cudaloss._install.build import DEVICES
from oracle import DTYPES

SHAPE = (9, 21)
WANTED = [wanted for wanted in itertools.product((False, True), repeat=3) if any(wanted)]
ALL = (True, True, True)


def vectors(device, dtype=torch.float32, shape=SHAPE):
    """Rows of every kind, of which some have no loss: with equal vectors, without a distance, equally far."""
    anchor, positive, negative = torch.randn(3, *shape, device=device).to(dtype).unbind()
    positive[0] = negative[0]
    positive[1] = anchor[1]
    negative[2] = positive[2] = anchor[2]
    negative[3] = anchor[3] + 100
    return anchor.clone(), positive.clone(), negative.clone()


def options(device, dtype=torch.float32):
    rows = torch.arange(SHAPE[0], device=device)
    mask, weight = rows % 4 != 1, torch.linspace(0.5, 1.5, SHAPE[0], device=device).to(dtype)
    return {
        "plain": {},
        "numbers": {"margin": 0.3, "eps": 1e-2, "scale": 0.7},
        "swap": {"swap": True, "reduction": "sum"},
        "no eps": {"swap": True, "eps": 0.0, "mask": mask},
        "mask": {"mask": mask},
        "weight": {"weight": weight},
        "all": {"mask": mask, "weight": weight, "margin": 2.0, "normalizer": torch.tensor(3.0, device=device)},
        "per row": {"batch_dims": 1, "mask": mask, "reduction": "sum"},
        "none": {"reduction": "none", "weight": weight, "swap": True},
        "norm": {"p": 1.5, "mask": mask},
    }


OPTIONS = list(options("cpu"))


def leaves_of(operands, wanted=ALL):
    return [x.detach().requires_grad_(wants) for x, wants in zip(operands, wanted, strict=True)]


def loss_of(operands, wanted=ALL, **given):
    leaves = leaves_of(operands, wanted)
    return cudaloss.triplet_margin_loss(*leaves, **given), [x for x in leaves if x.requires_grad]


def gradients(operands, wanted, factor, **given):
    """The gradients of two backwards, of which the first keeps the graph."""
    value, leaves = loss_of(operands, wanted, **given)
    incoming = torch.full_like(value, factor)
    first = torch.autograd.grad(value, leaves, incoming, retain_graph=True)
    return [*zip(first, torch.autograd.grad(value, leaves, incoming), strict=True)]


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_one_pass_makes_all_gradients(device, wanted):
    if device not in DEVICES:
        pytest.skip("no kernels")
    operands, factor = vectors(device), torch.tensor(3.0, device=device)
    step = ["forward_with_grads"] if device == "cpu" else ["forward_with_grads", "rescale_"]  # on the CPU a 1 is seen

    def backward(given, *incoming, **named):
        value, leaves = loss_of(operands, wanted, **given)
        return torch.autograd.grad(value, leaves, *incoming, **named)

    for name in ("plain", "swap", "all"):
        given = options(device)[name]
        assert private_calls(lambda given=given: backward(given)) == step
        assert private_calls(lambda given=given: backward(given, factor)) == ["forward_with_grads", "rescale_"]
    ones = torch.ones(SHAPE[0], device=device)
    assert private_calls(lambda: backward({"reduction": "none"}, ones)) == ["forward", "gradients"]
    value, leaves = loss_of(operands, wanted)
    torch.autograd.grad(value, leaves, retain_graph=True)
    assert private_calls(lambda: torch.autograd.grad(value, leaves, factor)) == ["gradients"]


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_gradient_is_what_it_is_without_the_others(device, dtype, option):
    operands, given = vectors(device, dtype), options(device, dtype)[option]
    for factor in (1.0, -2.5):
        alone = [gradients(operands, [i == which for i in range(3)], factor, **given)[0] for which in range(3)]
        for wanted in WANTED:
            expected = [x for x, wants in zip(alone, wanted, strict=True) if wants]
            for found, separate in zip(gradients(operands, wanted, factor, **given), expected, strict=True):
                assert all(torch.equal(*pair) for pair in zip(found, separate, strict=True))
                torch.testing.assert_close(*found)


@pytest.mark.parametrize("option", OPTIONS)
def test_gradients_add_up_to_nothing(device, option):
    """A shift of all three vectors changes no loss."""
    found = gradients(vectors(device, torch.float64), ALL, 3.0, **options(device, torch.float64)[option])
    for of_backward in zip(*found, strict=True):
        assert all(x.any() for x in of_backward)
        total = sum(of_backward)
        torch.testing.assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-14)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("length", [5, 8, 21, 64, 1030])
def test_a_gradient_lies_as_its_operand(device, which, length):
    """Each with strides and a place in memory of its own."""
    operands = vectors(device, shape=(9, length))
    expected = gradients(operands, ALL, 3.0)
    for strange in (
        operands[which].t().contiguous().t(),
        torch.cat([torch.zeros(1, device=device), operands[which].flatten()])[1:].view(9, length),
        torch.stack([operands[which]] * 2, -1)[..., 1],
    ):
        others = [strange if i == which else x for i, x in enumerate(operands)]
        for found, same in zip(gradients(others, ALL, 3.0), expected, strict=True):
            torch.testing.assert_close(found, same, rtol=1e-6, atol=1e-9)
        (own, _), dense = gradients(others, ALL, 3.0)[which], strange.stride()[1] != 2
        assert own.stride() == (strange.stride() if dense else (length, 1))


@pytest.mark.parametrize("wide", range(3))
def test_mixed_dtypes(device, wide):
    operands = vectors(device, torch.bfloat16)
    mixed = [x.float() if i == wide else x for i, x in enumerate(operands)]
    expected = gradients([x.float() for x in operands], ALL, 3.0)
    for i, (found, truth) in enumerate(zip(gradients(mixed, ALL, 3.0), expected, strict=True)):
        for ours, theirs in zip(found, truth, strict=True):
            assert ours.dtype == mixed[i].dtype
            torch.testing.assert_close(ours, theirs.to(ours.dtype))


@pytest.mark.parametrize("wanted", WANTED, ids=str)
def test_a_compiled_step_is_one_pass(device, wanted):
    if device not in DEVICES:
        pytest.skip("no kernels")
    torch._dynamo.reset()
    operands = vectors(device)
    compiled = torch.compile(cudaloss.triplet_margin_loss, fullgraph=True, backend="aot_eager")

    def step():
        leaves = leaves_of(operands, wanted)
        return torch.autograd.grad(compiled(*leaves) * 3, [x for x in leaves if x.requires_grad])

    step()
    assert private_calls(step) == ["compiled_forward_with_grads", "compiled_finish_grads"]
    for ours, (theirs, _) in zip(step(), gradients(operands, wanted, 3.0), strict=True):
        torch.testing.assert_close(ours, theirs)
