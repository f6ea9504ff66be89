"""torch.func, forward-mode AD, torch.compile, fake tensors, inference mode, autocast: the same numbers everywhere."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cudaloss
from conftest import KINDS
from cudaloss import _reference
from cudaloss._modes import FOR_INPUT, FOR_TARGET, REDUCTIONS, pack
from oracle import op, operands, parameters, torch_op


@pytest.fixture
def pair(device):
    return operands((6, 7), (torch.float32, torch.float32), device)


# torch 2.15's opcheck clones its arguments and asks the clones, which are no leaves, for their .grad.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_opcheck_of_the_public_op(spec, device):
    public = getattr(torch.ops.cudaloss, spec.name).default
    for reduction in REDUCTIONS:
        for requires_grad in (False, True):
            tensors = [x.requires_grad_(requires_grad) for x in operands((3, 4), (torch.float32,) * 2, device)]
            torch.library.opcheck(public, (*tensors, reduction))
    broadcast = torch.randn(3, 1, device=device, requires_grad=True), torch.randn(4, device=device)
    torch.library.opcheck(public, broadcast)
    mixed = operands((3, 4), (torch.bfloat16, torch.float32), device)
    torch.library.opcheck(public, mixed, {"dtype": torch.float16})


def test_opcheck_of_the_private_ops(device):
    spec = KINDS[0]  # which one, is a number to these ops

    def check(kind, *arguments):
        private = getattr(torch.ops.cudaloss, f"_pointwise_{kind}").default
        torch.library.opcheck(private, arguments)
        return private(*arguments)

    input, target = operands((3, 4), (torch.float32, torch.bfloat16), device)
    weight, mask = torch.rand(4, device=device) + 0.1, torch.tensor([[True, False, True, True]], device=device)
    seven = torch.tensor(7.0, device=device)
    for reduction in REDUCTIONS:
        for given in ((), (0.5, weight, mask), (0.5, None, None, seven), (1.0, None, None, None, 3.0)):
            how = pack(reduction, torch.float32, spec.mode, batch_dims=1 if given else 0)
            for flags in (0, FOR_INPUT, FOR_TARGET, FOR_INPUT | FOR_TARGET):
                call = input, target, how | flags, 0.5, *given
                value, denominators = check("forward", *call)
                if not flags:
                    continue
                grad_output = torch.ones_like(value)
                check("gradients", grad_output, denominators, *call)
                with torch.no_grad():
                    check("compiled_gradients", grad_output, denominators, *call)
                    if reduction == "none":
                        continue
                    # Not of what finishes their gradients, whose fake says that it returns the same memory.
                    check("compiled_forward_with_grads", *call)
                    if not given:
                        check("compiled_loss_with_grad", *call)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_func_grad(spec, pair, reduction):
    for parameter in parameters(spec):
        call = lambda f: lambda a, b: f(spec)(a, b, reduction, parameter)  # noqa: B023, E731
        ours = torch.func.grad(call(op), argnums=(0, 1))(*pair)
        theirs = torch.func.grad(call(torch_op), argnums=(0, 1))(*pair)
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("in_dims", [(0, 0), (1, 1), (0, None), (None, 0)])
def test_func_vmap(spec, pair, reduction, in_dims):
    input, target = (x if dim is not None else x[0] for x, dim in zip(pair, in_dims, strict=True))
    ours = torch.func.vmap(lambda a, b: op(spec)(a, b, reduction), in_dims=in_dims)(input, target)

    def row(x, dim, i):
        return x if dim is None else x.select(dim, i)

    rows = [
        op(spec)(row(input, in_dims[0], i), row(target, in_dims[1], i), reduction)
        for i in range(pair[0].shape[1 if in_dims == (1, 1) else 0])
    ]
    torch.testing.assert_close(ours, torch.stack(rows))


def test_func_per_sample_gradients(spec, pair):
    ours = torch.func.vmap(torch.func.grad(lambda a, b: op(spec)(a, b)))(*pair)
    theirs = torch.func.vmap(torch.func.grad(lambda a, b: torch_op(spec)(a, b)))(*pair)
    torch.testing.assert_close(ours, theirs)


def test_func_jvp_and_hessian(spec, pair):
    input, target = (x.flatten()[4:12].clone() for x in pair)
    tangent = torch.randn_like(input)
    value, slope = torch.func.jvp(lambda a: op(spec)(a, target), (input,), (tangent,))
    torch.testing.assert_close(value, torch_op(spec)(input, target))
    gradient = torch.func.grad(lambda a: op(spec)(a, target))(input)
    torch.testing.assert_close(slope, (gradient * tangent).sum())
    hessian = torch.func.hessian(lambda a: op(spec)(a, target))(input)
    expected = torch.autograd.functional.hessian(lambda a: torch_op(spec)(a, target), input)
    torch.testing.assert_close(hessian, expected)


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
        return _reference.loss(spec, input, target, reduction, spec.default, input.dtype)

    ours, expected = (batched_backward(f, pair, BACKWARD_TRANSFORMS[transform], options) for f in (op(spec), plain))
    torch.testing.assert_close(ours, expected)


def test_batched_gradients(spec, pair):
    def gradient(function):
        input, target = (x.detach().requires_grad_() for x in pair)
        grad_outputs = torch.stack([torch.ones_like(input), torch.full_like(input, 2.0)])
        return torch.autograd.grad(function(input, target, "none"), input, grad_outputs, is_grads_batched=True)[0]

    torch.testing.assert_close(gradient(op(spec)), gradient(torch_op(spec)))


def test_functionalize(spec, pair):
    """PyTorch has no autograd.Function under it: the formulas are plain ops there."""
    ours = torch.func.functionalize(lambda a, b: op(spec)(a * 2, b))(*pair)
    torch.testing.assert_close(ours, op(spec)(pair[0] * 2, pair[1]))


def test_a_mean_of_nothing_under_transforms(spec, pair):
    """NaN, as in the kernels, with gradients of 0; also where the data that is left out is NaN."""
    input, mask = torch.full_like(pair[0], torch.nan), torch.zeros_like(pair[0], dtype=torch.bool)
    value, gradient = torch.func.vjp(lambda a: op(spec)(a, pair[1], mask=mask), input)
    assert value.isnan() and gradient(torch.ones_like(value))[0].eq(0).all()


def test_forward_mode_ad(spec, pair):
    input, target = pair
    tangent = torch.randn_like(input)
    with forward_ad.dual_level():
        value, slope = forward_ad.unpack_dual(op(spec)(forward_ad.make_dual(input, tangent), target))
    gradient = torch.autograd.grad(op(spec)(input.requires_grad_(), target), input)[0]
    torch.testing.assert_close(value, op(spec)(input, target))
    torch.testing.assert_close(slope, (gradient * tangent).sum())


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(spec, device, backend, dynamic):
    torch._dynamo.reset()
    function = getattr(cudaloss, spec.function)
    compiled = torch.compile(lambda a, b: function(a * 2, b), fullgraph=True, dynamic=dynamic, backend=backend)
    for size in (16, 33):
        input, target = (x.requires_grad_() for x in operands((3, size), (torch.float32,) * 2, device))
        ours, expected = compiled(input, target), function(input * 2, target)
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=0)
        torch.testing.assert_close(
            torch.autograd.grad(ours, (input, target)), torch.autograd.grad(expected, (input, target))
        )


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_compile_of_the_op_and_of_unusual_operands(spec, device, backend, reduction):
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: op(spec)(a, b, reduction), fullgraph=True, backend=backend)
    input, target = operands((2, 3, 4, 4), (torch.bfloat16, torch.float32), device)
    for a, b in (
        (input, target),
        (input.to(memory_format=torch.channels_last), target.to(memory_format=torch.channels_last)),
        (input.to(memory_format=torch.channels_last), target),
        (input[:, :1], target),
        (input[..., ::2], target[..., 1::2]),
    ):
        a = a.detach().requires_grad_()
        ours, expected = compiled(a, b), op(spec)(a, b, reduction)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            torch.autograd.grad(ours.sum(), a)[0], torch.autograd.grad(expected.sum(), a)[0], rtol=8e-3, atol=0
        )


def test_compile_traces_to_the_fused_kernels(spec, device):
    torch._dynamo.reset()
    targets = []

    def backend(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compiler(graph, inputs):
        backend(graph, inputs)
        return make_boxed_func(graph.forward)

    function = getattr(cudaloss, spec.function)
    compiled = torch.compile(function, backend=aot_autograd(fw_compiler=compiler), fullgraph=True)
    input, target = operands((8, 8), (torch.float32,) * 2, device)
    compiled(input.requires_grad_(), target).backward()
    names = ("forward_with_grads", "finish_grads") if spec.second_default else ("loss_with_grad", "finish_grad")
    assert {f"cudaloss._pointwise_compiled_{name}.default" for name in names} <= set(targets)
    assert not any(name.startswith("aten.sub") for name in targets)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_fake_tensors_predict_the_result(spec, device, reduction):
    input, target = operands((2, 3, 4, 5), (torch.float16, torch.float32), device)
    input = input.to(memory_format=torch.channels_last)
    for a, b in ((input, target), (input, target.to(memory_format=torch.channels_last)), (input, target[:1])):
        real = op(spec)(a, b, reduction)
        with FakeTensorMode() as mode:
            fake = op(spec)(mode.from_tensor(a), mode.from_tensor(b), reduction)
        assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)
        assert fake.stride() == real.stride()


def test_meta_tensors(spec):
    input = torch.empty(2, 3, device="meta", requires_grad=True)
    value = op(spec)(input, torch.empty(2, 3, device="meta"))
    assert value.is_meta and value.shape == ()
    value.backward()
    assert input.grad.shape == (2, 3)


def test_inference_mode_and_no_grad(spec, pair):
    expected = op(spec)(*pair)
    with torch.inference_mode():
        assert torch.equal(op(spec)(*pair), expected)
        assert torch.equal(op(spec)(pair[0].clone(), pair[1].clone()), expected)
    with torch.no_grad():
        assert not op(spec)(pair[0].requires_grad_(), pair[1]).requires_grad


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_autocast_gives_float32(spec, device, low):
    input, target = (x.requires_grad_() for x in operands((50,), (low, low), device))
    with torch.autocast(device, dtype=low):
        value = op(spec)(input, target)
        assert getattr(cudaloss, spec.function)(input, target).dtype == torch.float32
        assert op(spec)(input.double(), target).dtype == torch.float64
        assert op(spec)(input, target, dtype=low).dtype == low
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, torch_op(spec)(input.float(), target.float()))
    value.backward()
    assert input.grad.dtype == low


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
