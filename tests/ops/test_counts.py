"""The denominators of means by themselves: the kernels count like the reference; a captured count keeps gradients."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from cudaloss._call.modes import INTEGERS, pack
from cudaloss._losses.options import Options
from cudaloss._ops import dispatch, private
from cudaloss._reference import definition
from oracle import DTYPES

SHAPE = (6, 5, 8)
LIES = {
    "full": lambda make: make(SHAPE),
    "rows": lambda make: make((6, 1, 1)),
    "columns": lambda make: make((8,)),
    "one": lambda make: make(()),
    "transposed": lambda make: make(SHAPE[::-1]).permute(2, 1, 0),
    "expanded": lambda make: make((6, 1, 8)).expand(SHAPE),
}


def both(input, target, weight, options):
    ours = dispatch.in_play(input, target, weight, options)
    theirs = definition.in_play(torch.broadcast_shapes(input.shape, target.shape), target, weight, options)
    return ours, theirs


@pytest.mark.parametrize("of_weight", [None, *LIES])
@pytest.mark.parametrize("of_mask", [None, *LIES])
def test_counts_are_the_references(device, of_mask, of_weight):
    for ignore_nan, batch_dims in itertools.product((False, True), (0, 1, 3)):
        assert_counted(device, of_mask, of_weight, ignore_nan, batch_dims)


def assert_counted(device, of_mask, of_weight, ignore_nan, batch_dims):
    x, t = torch.randn(SHAPE, device=device), torch.randn(5, 8, device=device)
    t[::2, ::3] = torch.nan
    mask = None if of_mask is None else LIES[of_mask](lambda shape: torch.rand(shape, device=device) < 0.6)
    weight = None if of_weight is None else LIES[of_weight](lambda shape: torch.randn(shape, device=device))
    ours, theirs = both(x, t, weight, Options(mask=mask, batch_dims=batch_dims, ignore_nan=ignore_nan))
    if theirs is None:
        assert ours is None
        return
    assert (ours.shape, ours.dtype) == (theirs.shape, torch.float64) == (SHAPE[:batch_dims], torch.float64)
    torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("dtype", [*DTYPES, *INTEGERS], ids=str)
def test_any_target(device, dtype):
    t = torch.ones(4099, device=device).to(dtype)
    mask, weight = torch.rand(4099, device=device) < 0.6, torch.rand(4099, device=device, dtype=torch.float16)
    for given in (None, weight):
        ours, theirs = both(t, t, given, Options(mask=mask, ignore_nan=True))
        torch.testing.assert_close(ours, theirs, rtol=1e-14, atol=0)


def test_the_reference_counts_what_the_kernels_do_not(device):
    x, weight = torch.randn(8, device=device), torch.rand(8, device=device, requires_grad=True)
    dispatch.in_play(x, x, weight, Options()).backward()
    assert torch.equal(weight.grad, torch.ones_like(weight))
    many = torch.randn(1, 2, 1, 2, 1, 2, 2, device=device)
    assert dispatch.in_play(many, many, None, Options(mask=many > 0)) == (many > 0).sum()


def test_a_captured_count_keeps_the_gradient_of_a_weight(device):
    x, weight = torch.randn(8, device=device), torch.rand(8, device=device)
    how = pack("mean", torch.float64)
    count = lambda weight: private.op("denominators")(x, x, how, 1.0, 1.0, weight)[:, 0].sum()  # noqa: E731
    graph = make_fx(count)(weight)
    leaf = weight.clone().requires_grad_()
    found = graph(leaf)
    found.backward()
    torch.testing.assert_close(found.detach(), weight.double().sum())
    assert torch.equal(leaf.grad, torch.ones_like(leaf))
    per_sample = torch.func.vmap(count)(torch.stack([weight, 2 * weight]))
    torch.testing.assert_close(per_sample, torch.stack([weight, 2 * weight]).double().sum(1))
