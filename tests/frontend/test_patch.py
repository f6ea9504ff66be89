"""cudaloss.patch: PyTorch's losses replaced in a program that is not changed, and put back."""

from __future__ import annotations

import sys
import types

import pytest
import torch
import torch.nn.functional as F

import cudaloss

torch.manual_seed(0)
X, Y = torch.randn(4, 5), torch.randn(4, 5)
P, SIGNS = torch.rand(4, 5) * 0.8 + 0.1, torch.where(torch.rand(4, 5) < 0.5, -1.0, 1.0)
CLASSES, WEIGHT = torch.randint(0, 5, (4,)), torch.randn(7, 5)
# Of each function of torch.nn.functional that we have, a call.
CALLS = {
    "smooth_l1_loss": (X, Y),
    "mse_loss": (X, Y),
    "huber_loss": (X, Y),
    "l1_loss": (X, Y),
    "binary_cross_entropy_with_logits": (X, P),
    "soft_margin_loss": (X, SIGNS),
    "kl_div": (P.log(), P),
    "binary_cross_entropy": (P, Y.sigmoid()),
    "poisson_nll_loss": (X, P),
    "gaussian_nll_loss": (X, Y, P),
    "hinge_embedding_loss": (X, SIGNS),
    "margin_ranking_loss": (X, Y, SIGNS),
    "cross_entropy": (X, CLASSES),
    "nll_loss": (X.log_softmax(1), CLASSES),
    "cosine_embedding_loss": (X, Y, torch.ones(4)),
    "triplet_margin_loss": (X, Y, P),
    **({"linear_cross_entropy": (X, WEIGHT, CLASSES)} if hasattr(F, "linear_cross_entropy") else {}),
}
OF_ELEMENTS = [name for name, call in CALLS.items() if call[-1].shape == X.shape and len(call) == 2]


@pytest.fixture
def patched():
    with cudaloss.patch() as patched:
        yield patched


def test_each_namesake_is_there():
    assert set(CALLS) == {name for name in cudaloss.functional.__all__ if hasattr(F, name)}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_ours_until_the_end(name):
    theirs, call = getattr(F, name), CALLS[name]
    with cudaloss.patch() as patched:
        assert getattr(F, name) is not theirs
        found = getattr(F, name)(*call)
    assert patched.calls == {name: 1}
    assert torch.equal(found, getattr(cudaloss, name)(*call))
    assert getattr(F, name) is theirs


def test_modules_of_torch(patched):
    torch.nn.CrossEntropyLoss(label_smoothing=0.1)(X, CLASSES)
    torch.nn.SmoothL1Loss(beta=0.5)(X, Y)
    assert patched.calls == {"cross_entropy": 1, "smooth_l1_loss": 1}


def test_names_that_other_modules_imported(monkeypatch):
    client = types.ModuleType("a_client")
    client.loss = theirs = F.mse_loss
    monkeypatch.setitem(sys.modules, "a_client", client)
    with cudaloss.patch() as patched:
        assert client.loss is F.mse_loss is not theirs
        later = types.ModuleType("a_later_client")
        later.mse_loss = F.mse_loss
        monkeypatch.setitem(sys.modules, "a_later_client", later)
        client.loss(X, Y)
    assert patched.calls["mse_loss"] == 1
    assert client.loss is later.mse_loss is theirs


def test_further_homes(monkeypatch):
    home = types.ModuleType("a_home")
    home.dice_loss = theirs = lambda input, target: None
    monkeypatch.setitem(sys.modules, "a_home", home)
    with cudaloss.patch(home) as patched:
        home.dice_loss(P, SIGNS.clamp(min=0))
    assert patched.calls == {"dice_loss": 1} and home.dice_loss is theirs
    with pytest.raises(TypeError, match="homes must be modules, got str"):
        cudaloss.patch("torchvision.ops")


def test_one_patch_at_a_time():
    first = cudaloss.patch()
    try:
        with pytest.raises(RuntimeError, match="in effect already"):
            cudaloss.patch()
    finally:
        first.restore()
    first.restore()  # does nothing
    with pytest.raises(ZeroDivisionError), cudaloss.patch():
        raise ZeroDivisionError
    with cudaloss.patch() as again:
        F.mse_loss(X, Y)
    assert again.calls == {"mse_loss": 1} and not first.calls


@pytest.mark.parametrize("name", OF_ELEMENTS)
def test_our_references_stay_pytorchs(name):
    """Calls that plain PyTorch serves; otherwise these would call themselves."""

    def found() -> list[torch.Tensor]:
        x, y = (z.clone() for z in CALLS[name])
        mapped = torch.func.vmap(getattr(cudaloss, name))(x, y)
        x.requires_grad_()
        (first,) = torch.autograd.grad(getattr(cudaloss, name)(x, y), x, create_graph=True)
        return [mapped, torch.autograd.grad(first.square().sum(), x, allow_unused=True)[0]]

    before = found()
    with cudaloss.patch() as patched:
        during = found()
    assert not patched.calls
    torch.testing.assert_close(during, before)


def test_references_of_overlap(patched):
    x = X.clone().requires_grad_()
    torch.func.vmap(cudaloss.dice_bce_loss)(x.expand(3, 4, 5), SIGNS.clamp(min=0).expand(3, 4, 5))
    assert not patched.calls


def test_compiled_functions(patched):
    torch._dynamo.reset()
    mask = SIGNS > 0  # which PyTorch's function does not take
    compiled = torch.compile(lambda x, y: F.mse_loss(x, y, mask=mask) + 1, fullgraph=True, backend="aot_eager")
    x = X.clone().requires_grad_()
    value = compiled(x, Y)
    value.backward()
    torch.testing.assert_close(value, cudaloss.mse_loss(X, Y, mask=mask) + 1)
    torch.testing.assert_close(x.grad, torch.where(mask, 2 * (X - Y) / mask.sum(), 0))
    torch._dynamo.reset()
