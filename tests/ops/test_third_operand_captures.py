"""Losses with a tensor as their third operand under compilers, captures, transforms, autocast and PyTorch's own checks
of ops."""

from __future__ import annotations

import functools
import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import capturing
import cudaloss
from oracle import leaf
from thirds import BCE, THIRDS, results

SHAPE = (4, 6)
of_each = pytest.mark.parametrize("third", THIRDS.values(), ids=lambda third: third.name)
of_shapes = pytest.mark.parametrize("shape", [(), (6,), (4, 1), SHAPE], ids=str)


def compiled(call, **options):
    torch._dynamo.reset()
    return torch.compile(call, fullgraph=True, **options)


CAPTURES = {**capturing.CAPTURES, "compile": lambda call, tensors: compiled(call, backend="aot_eager")}
del CAPTURES["compiled make_fx"]


def of_both(third, shape, device="cpu"):
    return *third.operands(SHAPE, device), third.third(shape, device)


def both_calls(third, **options):
    """Ours and the formula, as functions of only tensors: a trace takes defaults for operands."""

    def call(x, t, p, *mask):
        return third.call(x, t, p, mask=mask[0] if mask else None, **options)

    def plain(x, t, p, *mask):
        return third.spelled_out(x, t, p, mask=mask[0] if mask else None, **options)

    return call, plain


def assert_same(found, expected, rtol=2e-5, atol=2e-6):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)


def by_operands(call, tensors, third_too):
    """The value and gradients of input and target, and of the third operand where it requires one."""
    count = 3 if third_too else 2
    return results(lambda *leaves: call(*leaves, *tensors[count:]), tensors[:count])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@of_each
@pytest.mark.parametrize("shape", [(), (6,)], ids=str)
@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_graphs_keep_values_and_gradients(third, device, shape, capture):
    mask = (torch.rand(SHAPE, device=device) < 0.7,)
    for options, beside in (({"reduction": "none"}, ()), ({}, ()), ({"batch_dims": 1}, mask)):
        call, plain = both_calls(third, **options)
        replayed = CAPTURES[capture](call, (*of_both(third, shape, device), *beside))
        others = (*of_both(third, shape, device), *beside)  # not those that it was captured with
        for third_too in (False, True):
            assert_same(by_operands(replayed, others, third_too), by_operands(plain, others, third_too))


@of_each
@pytest.mark.parametrize("shape", [(), (6,)], ids=str)
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_captured_backwards(third, device, shape, mode):
    def step(call):
        def run(x, t, p):
            x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
            return torch.autograd.grad((call(x, t, p) * 2).sum(), (x, t))

        return run

    for reduction in ("mean", "none"):
        call, plain = both_calls(third, reduction=reduction)
        graph = make_fx(step(call), tracing_mode=mode)(*of_both(third, shape, device))
        others = of_both(third, shape, device)
        assert_same(graph(*others), step(plain)(*others))
        gradient = torch.func.grad(lambda *tensors: call(*tensors).sum(), argnums=(0, 1, 2))  # noqa: B023
        graph = make_fx(gradient, tracing_mode=mode)(*of_both(third, shape, device))
        expected = torch.func.grad(lambda *tensors: plain(*tensors).sum(), argnums=(0, 1, 2))(*others)  # noqa: B023
        assert_same(graph(*others), expected)


@of_each
def test_compiled_steps(third, device):
    step = compiled(lambda x, t, p: third.call(x * 2, t, p, reduction="mean") * 3)
    plain = lambda x, t, p: third.spelled_out(x * 2, t, p) * 3  # noqa: E731
    tensors = of_both(third, (6,), device)
    for third_too in (False, True):
        assert_same(by_operands(step, tensors, third_too), by_operands(plain, tensors, third_too))


@of_each
def test_numbers_in_graphs(third):
    """A number is a constant of the graph, whichever way it goes to the op."""
    x, t, _ = of_both(third, ())

    def call(x, t):
        return third.call(x, t, 0.75)

    for replayed in (
        make_fx(call)(x, t),
        capturing.exported(call, (x, t)).module(),
        capturing.traced_with_grad(call, (x, t)),
        compiled(call, backend="aot_eager"),
    ):
        assert_same(results(replayed, (x * 2, t)), results(lambda x, t: third.spelled_out(x, t, 0.75), (x * 2, t)))


@of_each
def test_vmap(third, device):
    """Over the third operand alone, and over all operands: what batch_dims and broadcasting give."""
    x, t, p = (*third.operands((5, *SHAPE), device), third.third((5, 6), device))
    for reduction in ("mean", "sum"):
        call, _ = both_calls(third, reduction=reduction)
        found = torch.func.vmap(call)(x, t, p)
        assert_same([found], [third.call(x, t, p[:, None], reduction=reduction, batch_dims=1)])
        found = torch.func.vmap(call, in_dims=(None, None, 0))(x[0], t[0], p)
        assert_same([found], [torch.stack([call(x[0], t[0], row) for row in p])])
        gradients = torch.func.vmap(torch.func.grad(call, argnums=(0, 2)))(x, t, p)
        whole = (leaf(x), t, leaf(p))
        value = third.spelled_out(whole[0], t, whole[2][:, None], reduction=reduction, batch_dims=1).sum()
        assert_same(gradients, torch.autograd.grad(value, (whole[0], whole[2])))


@of_each
def test_forward_mode(third, device):
    tensors = of_both(third, (6,), device)
    tangents = [torch.randn_like(x) for x in tensors]
    expected = torch.func.jvp(third.spelled_out, tensors, tuple(tangents))
    assert_same(torch.func.jvp(third.call, tensors, tuple(tangents)), expected)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(tensors, tangents, strict=True)]
        assert_same(forward_ad.unpack_dual(third.call(*duals)), expected)


@of_each
@of_shapes
def test_gradcheck(third, shape):
    x, t = third.operands(SHAPE, "cpu", torch.float64)
    tensors = [leaf(y) for y in (x, t, third.third(shape, "cpu", torch.float64))]
    mask = torch.rand(SHAPE) < 0.7
    for options in ({}, {"reduction": "none"}, {"mask": mask, "batch_dims": 1}):
        call = functools.partial(third.call, **options)
        assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, tensors)


@of_each
@pytest.mark.parametrize("requires_grad", [False, True])
def test_pytorchs_checks_of_ops(third, device, requires_grad):
    x, t, p = of_both(third, (6,), device)
    x, t = x.requires_grad_(requires_grad), t.requires_grad_(requires_grad)
    op = getattr(torch.ops.cudaloss, third.name).default
    for options in ({"reduction": "none"}, {"mask": torch.rand(SHAPE, device=device) < 0.7, "batch_dims": 1}):
        torch.library.opcheck(op, (x, t), {third.keyword: p, **options})


@of_each
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(third, device, dtype):
    x, t, p = of_both(third, (6,), device)
    expected = results(lambda x, t: third.call(x.to(dtype).float(), t, p), (x, t))
    with torch.autocast(device, dtype):
        narrow = leaf(x.to(dtype))
        value = third.call(narrow, t, p)
        assert value.dtype == torch.float32 == third.call(narrow, t.to(dtype), p.to(dtype)).dtype
    torch.testing.assert_close(value.detach(), expected[0])
    value.backward()
    assert narrow.grad.dtype == dtype


@of_each
def test_saved_tensors_and_second_backwards(third, device):
    x, t, p = of_both(third, (6,), device)
    one = leaf(x)
    value = third.call(one, t, p)
    first = torch.autograd.grad(value, one, retain_graph=True)
    assert_same(torch.autograd.grad(value, one), first)
    wide = lambda y: y.double() if y.is_floating_point() else y  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(wide, lambda y: y.float() if y.dtype == torch.float64 else y):
        one = leaf(x)
        value = third.call(one, t, p)
    assert_same(torch.autograd.grad(value, one), first)
    (once,) = torch.autograd.grad(third.call(one, t, p), one, create_graph=True)
    other = leaf(x)
    (expected,) = torch.autograd.grad(third.spelled_out(other, t, p), other, create_graph=True)
    if expected.requires_grad and third.name != "quantile":  # whose curvature is 0
        assert_same(torch.autograd.grad(once.square().sum(), one), torch.autograd.grad(expected.square().sum(), other))


def test_label_smoothing_in_graphs(device):
    x, t = torch.randn(SHAPE, device=device), torch.rand(SHAPE, device=device)
    p = torch.rand(6, device=device) + 0.5

    def call(x, t, p):
        return getattr(cudaloss, BCE)(x, t, pos_weight=p, label_smoothing=0.2)

    def plain(x, t, p):
        return THIRDS[BCE].spelled_out(x, t * 0.8 + 0.1, p)

    for capture in ("make_fx, fake", "export", "compile", "jit.trace"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            replayed = CAPTURES[capture](call, (x, t, p))
        for third_too in (False, True):
            assert_same(by_operands(replayed, (2 * x, t, p), third_too), by_operands(plain, (2 * x, t, p), third_too))
