"""Calls with keywords under torch.func, forward-mode AD, inference mode and autocast."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap

from cudaloss._modes import REDUCTIONS
from oracle import op, operands, spelled_out

SHAPE = (6, 7)


@pytest.fixture
def pair(device):
    return operands(SHAPE, (torch.float32,) * 2, device)


@pytest.fixture
def mask(device):
    mask = torch.rand(SHAPE, device=device) < 0.6
    mask[:, 0] = True
    return mask


@pytest.fixture
def weight(device):
    return torch.rand(SHAPE, device=device) + 0.1


def same(spec, transformed, *arguments):
    """`transformed(function, ...)` of ours and of the spelled-out one."""
    torch.testing.assert_close(transformed(op(spec), *arguments), transformed(spelled_out(spec), *arguments))


# ---- torch.func ----


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_func_grad(spec, pair, mask, weight, reduction):
    normalizer = torch.tensor(7.0, device=weight.device)
    for given in ({"mask": mask}, {"weight": weight[0]}, {"mask": mask[:, :1], "weight": weight, "scale": 0.3}):
        same(spec, lambda f, a, b, g=given: grad(lambda a, b: f(a, b, reduction, **g), argnums=(0, 1))(a, b), *pair)
        keep = {**given, "batch_dims": 1}
        same(spec, lambda f, a, b, g=keep: grad(lambda a: f(a, b, reduction, **g).square().sum())(a), *pair)
    of_weight = lambda f, a, b, w: grad(lambda w: f(a, b, reduction, weight=w, mask=mask))(w)  # noqa: E731
    same(spec, of_weight, *pair, weight)
    of_normalizer = lambda f, a, b, n: grad(lambda n: f(a, b, normalizer=n, mask=mask))(n)  # noqa: E731
    same(spec, of_normalizer, *pair, normalizer)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("in_dims", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 0, None, None), (None, None, 0, None)], ids=str)
def test_func_vmap(spec, pair, mask, weight, reduction, in_dims):
    tensors = [x if dim is not None else x[0] for x, dim in zip((*pair, mask, weight), in_dims, strict=True)]
    # one value an example, where every argument has its own
    per_example = lambda a, b, m, w: op(spec)(a, b, reduction, mask=m, weight=w)  # noqa: E731
    found = vmap(per_example, in_dims=in_dims)(*tensors)
    count = next(x.shape[dim] for x, dim in zip(tensors, in_dims, strict=True) if dim is not None)
    rows = [
        per_example(*(x if dim is None else x.select(dim, i) for x, dim in zip(tensors, in_dims, strict=True)))
        for i in range(count)
    ]
    torch.testing.assert_close(found, torch.stack(rows))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_vmap_is_batch_dims(spec, pair, mask, weight, reduction):
    call = lambda a, b, m, w: op(spec)(a, b, reduction, mask=m, weight=w)  # noqa: E731
    kept = op(spec)(*pair, reduction, mask=mask, weight=weight, batch_dims=1)
    torch.testing.assert_close(vmap(call)(*pair, mask, weight), kept)
    nested = lambda a, b, m, w: op(spec)(a, b, reduction, mask=m, weight=w, batch_dims=1)  # noqa: E731
    deep = [x.view(2, 3, 7) for x in (*pair, mask, weight)]
    torch.testing.assert_close(vmap(nested)(*deep), kept.view(2, 3))


def test_per_sample_gradients(spec, pair, mask, weight):
    one = lambda f: grad(lambda a, b, m, w: f(a, b, mask=m, weight=w))  # noqa: E731
    same(spec, lambda f, *xs: vmap(one(f))(*xs), *pair, mask, weight)
    a = pair[0].clone().requires_grad_()
    op(spec)(a, pair[1], mask=mask, weight=weight, batch_dims=1).sum().backward()
    torch.testing.assert_close(vmap(one(op(spec)))(*pair, mask, weight), a.grad)


def test_nothing_leaks_under_a_transform(spec, pair, mask):
    input, target = (torch.where(mask, x, float("nan")) for x in pair)
    call = lambda a, b: op(spec)(a, b, mask=mask)  # noqa: E731
    for gradient, clean in zip(
        grad(call, argnums=(0, 1))(input, target), grad(call, argnums=(0, 1))(*pair), strict=True
    ):
        assert torch.equal(gradient, clean)
    value, slope = jvp(call, (input, target), (torch.ones_like(input),) * 2)
    assert value.isfinite() and slope.isfinite()
    value = vmap(grad(lambda a, b: op(spec)(a, b, "sum", ignore_nan=True)))(pair[0], target)
    assert value.isfinite().all() and (value[~mask] == 0).all()


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_jvp_and_forward_ad(spec, pair, mask, weight, reduction):
    tangents = torch.randn(3, *SHAPE, device=weight.device)

    def slopes(f):
        function = lambda a, b, w: f(a, b, reduction, mask=mask, weight=w, batch_dims=1)  # noqa: E731
        return jvp(function, (*pair, weight), tuple(tangents))

    torch.testing.assert_close(slopes(op(spec)), slopes(spelled_out(spec)))
    with forward_ad.dual_level():
        a = forward_ad.make_dual(pair[0], tangents[0])
        value = op(spec)(a, pair[1], reduction, mask=mask, weight=weight, batch_dims=1)
        found = forward_ad.unpack_dual(value).tangent
    expected = jvp(
        lambda a: spelled_out(spec)(a, pair[1], reduction, mask=mask, weight=weight, batch_dims=1),
        (pair[0],),
        (tangents[0],),
    )
    torch.testing.assert_close(found, expected[1])


def test_hessian(spec, pair, mask, weight):
    input, target, m, w = (x.flatten()[4:12].clone() for x in (*pair, mask, weight))
    m[:2] = torch.tensor([True, False])
    same(spec, lambda f, a: hessian(lambda a: f(a, target, mask=m, weight=w))(a), input)
    mixed = lambda f, a, w: hessian(lambda a, w: f(a, target, mask=m, weight=w), argnums=(0, 1))(a, w)  # noqa: E731
    same(spec, mixed, input, w)


def test_transforms_around_a_backward(spec, pair, mask):
    for reduction, batch_dims in (("none", 0), ("mean", 1)):

        def batched(f, reduction=reduction, batch_dims=batch_dims):
            a = pair[0].clone().requires_grad_()
            value = f(a, pair[1], reduction, mask=mask, batch_dims=batch_dims)
            ones = torch.ones_like(value)
            backward = lambda g: torch.autograd.grad(value, a, g, retain_graph=True)[0]  # noqa: E731
            both = vmap(backward)(torch.stack([ones, 2 * ones]))
            lists = torch.autograd.grad(
                value, a, torch.stack([ones, 3 * ones]), is_grads_batched=True, retain_graph=True
            )
            return both, lists[0]

        torch.testing.assert_close(batched(op(spec)), batched(spelled_out(spec)))


# ---- modes ----


def test_inference_mode_and_no_grad(spec, pair, mask, weight):
    given = {"mask": mask, "weight": weight, "batch_dims": 1}
    expected = op(spec)(*pair, **given)
    with torch.inference_mode():
        assert torch.equal(op(spec)(*pair, **given), expected)
        made_here = {**given, "mask": mask.clone(), "weight": weight.clone()}
        assert torch.equal(op(spec)(pair[0].clone(), pair[1].clone(), **made_here), expected)
    with torch.no_grad():
        value = op(spec)(pair[0].requires_grad_(), pair[1], **{**given, "weight": weight.requires_grad_()})
    assert torch.equal(value, expected) and not value.requires_grad


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_gives_float32(spec, device, low):
    input, target = (x.requires_grad_() for x in operands((5, 100), (low, torch.float32), device))
    mask, weight = torch.rand(5, 100, device=device) < 0.6, torch.rand(100, device=device).to(low)
    whole = torch.randint(0, 5, (5, 100), dtype=torch.uint8, device=device)
    for given in ({"mask": mask}, {"mask": mask, "weight": weight, "batch_dims": 1}, {"ignore_nan": True}):
        with torch.autocast(device, dtype=low):
            value = op(spec)(input, target, **given)
            assert op(spec)(input, target.to(low), **given).dtype == torch.float32
            assert op(spec)(input, whole, **given).dtype == torch.float32
            assert op(spec)(input, target, **given, dtype=low).dtype == low
            assert op(spec)(input, target.double(), **given).dtype == torch.float64
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, op(spec)(input.float(), target, **given))
        found = torch.autograd.grad(value.sum(), (input, target))
        assert [g.dtype for g in found] == [low, torch.float32]
