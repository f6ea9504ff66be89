"""Losses of vectors under autograd, transforms and graphs: the contract of the pointwise ones."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from exact_vectors import LOSSES, OF_DIM, drawn

SHAPE = (6, 5)
of_losses = pytest.mark.parametrize("name", LOSSES)
OWN = {
    "cosine_similarity": {"dim": -1, "eps": 1e-4},
    "cosine_embedding": {"margin": 0.25},
    "triplet_margin": {"margin": 0.7, "eps": 1e-3, "swap": True},
    "kl_div_with_logits": {"temperature": 2.5, "dim": -1},
    "jsd_with_logits": {"beta": 0.25, "temperature": 2.5, "dim": -1},
}


def options(name, device="cpu", dtype=torch.float32):
    """What a call may say, by name."""
    beside = {
        "weight": torch.linspace(0.5, 1.5, SHAPE[0], device=device, dtype=dtype),
        "mask": torch.arange(SHAPE[0], device=device) != 2,
    }
    return {
        "plain": {},
        "none": {"reduction": "none"},
        "weights and mask": {**beside, "scale": 0.5},
        "all": {"normalizer": torch.tensor(3.0, device=device, dtype=dtype), **beside, **OWN[name]},
        "per row": {"batch_dims": 1, "reduction": "sum"},
    }


of_options = pytest.mark.parametrize("option", options("cosine_similarity"))


def spelled_out(name, *operands, reduction="mean", weight=None, mask=None, normalizer=None, scale=1.0, **own):
    """The same from PyTorch's loss of that name and its other ops."""
    batch_dims = own.pop("batch_dims", 0)
    value = LOSSES[name].theirs(*operands, reduction="none", **own) * scale
    counts = torch.ones_like(value)
    for factor in (weight, mask):
        value, counts = (value, counts) if factor is None else (value * factor, counts * factor)
    if reduction == "none" or batch_dims:
        return value
    return value.sum() if reduction == "sum" else value.sum() / (counts.sum() if normalizer is None else normalizer)


def leaves_of(name, operands):
    """Vectors as leaves, labels as they are."""
    return [x.detach().clone().requires_grad_(i < LOSSES[name].vectors) for i, x in enumerate(operands)]


def gradients_of(value, leaves):
    wanted = [x for x in leaves if x.requires_grad]
    return value.detach(), *torch.autograd.grad(value, wanted, torch.full_like(value, 3.0))


@of_losses
@of_options
def test_value_and_gradients(device, name, option):
    operands, given = drawn(name, SHAPE, torch.float32, device), options(name, device)[option]
    for change in (lambda x: x, lambda x: x.exp(), lambda x: x + x * x):
        found = []
        for function in (LOSSES[name].ours, lambda *x, **named: spelled_out(name, *x, **named)):
            leaves = leaves_of(name, operands)
            found.append(gradients_of(change(function(*leaves, **given)), leaves))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@of_losses
@of_options
def test_derivatives_of_any_order(device, name, option):
    if device != "cpu":
        pytest.skip("PyTorch's own numeric derivatives take seconds there")
    operands, given = drawn(name, (6, 2), torch.float64), options(name, dtype=torch.float64)[option]
    tensors = [key for key in ("weight", "normalizer") if key in given]
    count = LOSSES[name].vectors
    leaves = [x.clone().requires_grad_() for x in (*operands[:count], *(given[key] for key in tensors))]

    def call(*leaves):
        named = given | dict(zip(tensors, leaves[count:], strict=True))
        return LOSSES[name].ours(*leaves[:count], *operands[count:], **named)

    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, leaves, check_fwd_over_rev=True)


@of_losses
def test_derivatives_where_it_bends(name):
    """For vectors of zeros and equal vectors, rows that do not count and inactive ones: no second derivative is NaN."""
    operands = drawn(name, (6, 4), torch.float64)
    operands[0][1], operands[1][2] = 0, 0
    operands[1][3] = operands[0][3]
    if name == "triplet_margin":
        operands[2][4] = operands[0][4] + 100
    leaves = leaves_of(name, operands)
    mask = torch.arange(6) != 5
    own = {"eps": 0.0} if name == "triplet_margin" else {}
    value = LOSSES[name].ours(*leaves, mask=mask, reduction="sum", **own)
    wanted = leaves[: LOSSES[name].vectors]
    first = torch.autograd.grad(value, wanted, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), wanted)
    assert all(x.isfinite().all() and x.any() and not x[5].any() for x in (*first, *second))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # PyTorch's own
@of_losses
def test_transforms(device, name):
    loss, operands = LOSSES[name], drawn(name, SHAPE, torch.float32, device)
    ours, theirs = loss.ours, loss.theirs
    if name in OF_DIM:
        ours, theirs = (lambda x, t: loss.ours(x, t, dim=0)), (lambda x, t: loss.theirs(x, t, dim=0))
    torch.testing.assert_close(torch.func.vmap(ours)(*operands), torch.func.vmap(theirs)(*operands))
    which = tuple(range(loss.vectors))
    found, expected = (torch.func.vmap(torch.func.grad(f, which))(*operands) for f in (ours, theirs))
    torch.testing.assert_close(found, expected)
    vectors, rest = tuple(operands[: loss.vectors]), operands[loss.vectors :]
    tangents = tuple(torch.randn_like(x) for x in vectors)
    for transform in (
        lambda f: torch.func.jvp(lambda *x: f(*x, *rest), vectors, tangents),
        lambda f: torch.func.hessian(lambda x: f(x, *vectors[1:], *rest))(vectors[0]),
    ):
        torch.testing.assert_close(transform(loss.ours), transform(loss.theirs), rtol=1e-4, atol=1e-5)


@of_losses
@of_options
def test_a_second_backward(device, name, option):
    operands, given = drawn(name, SHAPE, torch.float32, device), options(name, device)[option]
    leaves = leaves_of(name, operands)
    wanted = leaves[: LOSSES[name].vectors]
    value = LOSSES[name].ours(*leaves, **given).sum()
    first = torch.autograd.grad(value, wanted, retain_graph=True)
    kept = [x.clone() for x in first]
    for x in first:
        x.mul_(5)  # what was handed out is the receiver's
    second = torch.autograd.grad(value * 3, wanted)
    torch.testing.assert_close(list(second), [x * 3 for x in kept])


@of_losses
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_some_operands_want_a_gradient(device, name, dtype):
    """With a float32 loss each gradient has the bits that it has beside the others."""
    operands, loss, of_loss = drawn(name, SHAPE, dtype, device), LOSSES[name], {"dtype": torch.float32}
    leaves = leaves_of(name, operands)
    expected = torch.autograd.grad(loss.ours(*leaves, **of_loss), leaves[: loss.vectors])
    for wants in range(1, 2**loss.vectors):
        leaves = [x.clone().requires_grad_(bool(wants >> i & 1)) for i, x in enumerate(operands[: loss.vectors])]
        loss.ours(*leaves, *operands[loss.vectors :], **of_loss).backward()
        for i, (leaf, gradient) in enumerate(zip(leaves, expected, strict=True)):
            assert torch.equal(leaf.grad, gradient) if wants >> i & 1 else leaf.grad is None


@of_losses
def test_one_tensor_in_many_places(device, name):
    loss, operands = LOSSES[name], drawn(name, SHAPE, torch.float32, device)
    found = []
    for function in (loss.ours, loss.theirs):
        leaf = operands[0].clone().requires_grad_()
        places = (leaf.tanh(), leaf.flip(0), leaf + operands[1])
        value = function(*places[: loss.vectors], *operands[loss.vectors :])
        found.append((value.detach(), *torch.autograd.grad(value, leaf)))
    torch.testing.assert_close(*found)


@of_losses
@pytest.mark.parametrize("option", ["plain", "weights and mask", "none"])
def test_hooks_on_saved_tensors(device, name, option):
    operands, given = drawn(name, SHAPE, torch.float32, device), options(name, device)[option]
    leaves = leaves_of(name, operands)
    expected = gradients_of(LOSSES[name].ours(*leaves, **given), leaves)
    with saved_tensors_hooks(lambda x: x.cpu(), lambda x: x.to(device)):
        value = LOSSES[name].ours(*leaves, **given)
    torch.testing.assert_close(gradients_of(value, leaves), expected)
    value = checkpoint(lambda x, *y: LOSSES[name].ours(x * 1, *y, **given), *leaves, use_reentrant=False)
    torch.testing.assert_close(gradients_of(value, leaves), expected)


@of_losses
def test_inference_mode_no_grad_and_meta(device, name):
    operands, loss = drawn(name, SHAPE, torch.float32, device), LOSSES[name]
    with torch.inference_mode():
        torch.testing.assert_close(loss.ours(*operands), loss.theirs(*operands))
    with torch.no_grad():
        assert not loss.ours(*leaves_of(name, operands)).requires_grad
    single = loss.ours(*(x.to("meta") for x in operands), reduction="none")
    assert single.is_meta and single.shape == SHAPE[:1]
    narrow = [x.to(torch.float8_e5m2) if x.is_floating_point() else x for x in operands]
    wide = [x.float() if x.is_floating_point() else x for x in narrow]
    torch.testing.assert_close(loss.ours(*narrow, dtype=torch.float32), loss.theirs(*wide))
