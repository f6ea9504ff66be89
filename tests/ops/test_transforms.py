"""torch.func, forward-mode AD, inference mode, autocast, subclasses: the same numbers everywhere, with keywords and
without."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.func import grad, hessian, jvp, vmap

import cudaloss
from cudaloss._call.call import Call
from cudaloss._call.modes import REDUCTIONS
from cudaloss._reference import definition
from oracle import op, operands, spelled_out, torch_op

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
    for given in ({}, {"mask": mask}, {"weight": weight[0]}, {"mask": mask[:, :1], "weight": weight, "scale": 0.3}):
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
    for per_example in (
        lambda a, b, m, w: op(spec)(a, b, reduction, mask=m, weight=w),
        lambda a, b, m, w: op(spec)(a, b, reduction) + 0 * w.sum(),
    ):
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
    same(spec, lambda f, *xs: vmap(grad(lambda a, b: f(a, b)))(*xs), *pair)
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
    for given in ({}, {"mask": mask, "weight": weight, "batch_dims": 1}):
        with forward_ad.dual_level():
            a = forward_ad.make_dual(pair[0], tangents[0])
            found = forward_ad.unpack_dual(op(spec)(a, pair[1], reduction, **given))
        plain = lambda a, given=given: spelled_out(spec)(a, pair[1], reduction, **given)  # noqa: E731
        torch.testing.assert_close(tuple(found), jvp(plain, (pair[0],), (tangents[0],)))


def test_hessian(spec, pair, mask, weight):
    input, target, m, w = (x.flatten()[4:12].clone() for x in (*pair, mask, weight))
    m[:2] = torch.tensor([True, False])
    for given in ({}, {"mask": m, "weight": w}):
        same(spec, lambda f, a, given=given: hessian(lambda a: f(a, target, **given))(a), input)
    mixed = lambda f, a, w: hessian(lambda a, w: f(a, target, mask=m, weight=w), argnums=(0, 1))(a, w)  # noqa: E731
    same(spec, mixed, input, w)


def test_batched_backwards(spec, pair, mask):
    for reduction, batch_dims, chosen in (("none", 0, None), ("none", 0, mask), ("mean", 1, mask)):

        def batched(f, reduction=reduction, batch_dims=batch_dims, mask=chosen):
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
    expected, plain = op(spec)(*pair, **given), op(spec)(*pair)
    with torch.inference_mode():
        assert torch.equal(op(spec)(*pair), plain)
        assert torch.equal(op(spec)(pair[0].clone(), pair[1].clone()), plain)
        assert torch.equal(op(spec)(*pair, **given), expected)
        made_here = {**given, "mask": mask.clone(), "weight": weight.clone()}
        assert torch.equal(op(spec)(pair[0].clone(), pair[1].clone(), **made_here), expected)
    with torch.no_grad():
        assert not op(spec)(pair[0].clone().requires_grad_(), pair[1]).requires_grad
        value = op(spec)(pair[0].requires_grad_(), pair[1], **{**given, "weight": weight.requires_grad_()})
    assert torch.equal(value, expected) and not value.requires_grad


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_gives_float32(spec, device, low):
    input, target = (x.requires_grad_() for x in operands((5, 100), (low, torch.float32), device))
    mask, weight = torch.rand(5, 100, device=device) < 0.6, torch.rand(100, device=device).to(low)
    whole = torch.randint(0, 5, (5, 100), dtype=torch.uint8, device=device)
    for given in ({}, {"mask": mask}, {"mask": mask, "weight": weight, "batch_dims": 1}, {"ignore_nan": True}):
        with torch.autocast(device, dtype=low):
            value = op(spec)(input, target, **given)
            assert op(spec)(input, target.to(low), **given).dtype == torch.float32
            assert getattr(cudaloss, spec.function)(input, target, **given).dtype == torch.float32
            assert op(spec)(input, whole, **given).dtype == torch.float32
            assert op(spec)(input, target, **given, dtype=low).dtype == low
            assert op(spec)(input, target.double(), **given).dtype == torch.float64
        assert value.dtype == torch.float32
        torch.testing.assert_close(value, op(spec)(input.float(), target, **given))
        found = torch.autograd.grad(value.sum(), (input, target))
        assert [g.dtype for g in found] == [low, torch.float32]


# ---- transforms around the backward of a graph that was built outside of them ----


def batched_backward(function, pair, transform, options):
    """What `transform` makes of the backward of a graph that was built outside of it."""
    input, target = (x.detach().requires_grad_() for x in pair)
    value = function(input, target, "none")

    def backward(grad_output):
        return torch.autograd.grad(value, (input, target), grad_output, retain_graph=True, **options)[0]

    return transform(backward, torch.ones_like(value))


BACKWARD_TRANSFORMS = {
    "vmap": lambda f, g: torch.func.vmap(f)(torch.stack([g, 2 * g])),
    "vmap of another layout": lambda f, g: torch.func.vmap(f, in_dims=2)(torch.stack([g, 2 * g], dim=2)),
    "jvp": lambda f, g: torch.func.jvp(f, (g,), (3 * g,)),
    "grad": lambda f, g: torch.func.grad(lambda x: f(x).square().sum())(g),
}


@pytest.mark.parametrize("options", [{}, {"create_graph": True}], ids=["", "create_graph"])
@pytest.mark.parametrize("transform", BACKWARD_TRANSFORMS)
def test_transforms_around_a_backward(spec, pair, transform, options):
    def plain(input, target, reduction):  # PyTorch's own huber_loss_backward has no forward-mode AD
        return definition.loss(Call.usual(spec, input, target, reduction, input.dtype))

    ours, expected = (batched_backward(f, pair, BACKWARD_TRANSFORMS[transform], options) for f in (op(spec), plain))
    torch.testing.assert_close(ours, expected)


def test_functionalize(spec, pair):
    """PyTorch has no autograd.Function under it: the formulas are plain ops there."""
    ours = torch.func.functionalize(lambda a, b: op(spec)(a * 2, b))(*pair)
    torch.testing.assert_close(ours, op(spec)(pair[0] * 2, pair[1]))


def test_a_mean_of_nothing_under_transforms(spec, pair):
    """NaN, as in the kernels, with gradients of 0; also where the data that is left out is NaN."""
    input, mask = torch.full_like(pair[0], torch.nan), torch.zeros_like(pair[0], dtype=torch.bool)
    value, gradient = torch.func.vjp(lambda a: op(spec)(a, pair[1], mask=mask), input)
    assert value.isnan() and gradient(torch.ones_like(value))[0].eq(0).all()


@pytest.mark.any_numbers
def test_modules_and_deepcopy_and_state(spec):
    module = getattr(cudaloss, spec.module)()
    assert copy.deepcopy(module).reduction == "mean"
    assert module.state_dict() == {}


def test_exotic_dtypes_run_the_reference(spec, device):
    input = torch.randn(20, device=device).to(torch.float8_e4m3fn)
    target = torch.randn(20, device=device)
    torch.testing.assert_close(op(spec)(input, target), torch_op(spec)(input.float(), target))


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_distributed_tensors_run_the_reference(spec, mesh):
    plain = operands((8, 4), (torch.float32,) * 2, "cpu")
    input, target = (distribute_tensor(x, mesh, [Shard(0)]) for x in plain)
    value = op(spec)(input.requires_grad_(), target)
    torch.testing.assert_close(value.full_tensor(), op(spec)(*plain))
    value.backward()
    expected = torch.func.grad(lambda a: op(spec)(a, plain[1]))(plain[0])
    torch.testing.assert_close(input.grad.full_tensor(), expected)


def test_tensor_subclass_sees_the_op(spec):
    seen = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return super().__torch_function__(func, types, args, kwargs or {})

    value = getattr(cudaloss, spec.function)(torch.randn(4).as_subclass(Logged), torch.randn(4))
    assert isinstance(value, Logged)
    assert any(spec.name in name for name in seen)
