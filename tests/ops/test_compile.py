"""Calls under torch.compile, and what compilers ask of an op: schemas, fake tensors, meta tensors."""

from __future__ import annotations

import functools

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses.fake_tensor import FakeTensorMode

import cudaloss
from conftest import KINDS
from cudaloss._call.modes import FOR_INPUT, FOR_TARGET, REDUCTIONS, pack
from oracle import TORCH, op, operands, spelled_out


def assert_compiled(compiled, plain, tensors, rtol=2e-6):
    """The value and both gradients, for a grad_output of 1 and for another."""
    a, b = (x.detach().requires_grad_() for x in tensors[:2])
    for number in (1.0, 0.3):
        found, expected = (f(a, b, *tensors[2:]) for f in (compiled, plain))
        torch.testing.assert_close(found, expected, rtol=rtol, atol=0)
        ours, theirs = (torch.autograd.grad(x, (a, b), torch.full_like(x, number)) for x in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=2e-8)  # gradients of 1e-2, where they do not cancel


def selecting(shape, device):
    mask = torch.rand(shape, device=device) < 0.6
    mask[..., 0] = True
    return *operands(shape, (torch.float32,) * 2, device), mask, torch.rand(shape, device=device) + 0.1


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(spec, device, backend, dynamic):
    torch._dynamo.reset()
    function = getattr(cudaloss, spec.function)

    def plain(a, b, m, w):
        whole = function(a * 2, b, mask=m, weight=w, scale=0.5) + function(a * 2, b)
        return whole + function(a, b, mask=m, weight=w[0], batch_dims=1)

    compiled = torch.compile(plain, fullgraph=True, dynamic=dynamic, backend=backend)
    for size in (16, 33):
        assert_compiled(compiled, plain, selecting((3, size), device))


def weighted_module(spec, **options):
    """Of input, target and weight, which some modules keep."""
    module = getattr(cudaloss, spec.module)(**options)

    def call(input, target, weight, **of_call):
        if not spec.weight_first:
            return module(input, target, weight=weight, **of_call)
        module.weight = weight
        return module(input, target, **of_call)

    return call


def test_compile_of_the_op_and_of_a_module(spec, device):
    torch._dynamo.reset()
    module = weighted_module(spec, batch_dims=1, ignore_nan=True)
    normalizer = torch.tensor(7.0, device=device)

    def both(a, b, m, w):
        of_op = op(spec)(a, b, "mean", mask=m, weight=w[0], normalizer=normalizer)
        return of_op + module(a, b, w, mask=m[:, :1])

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    assert_compiled(compiled, both, selecting((4, 65), device))


@pytest.mark.parametrize("name", ["normalizer", "scale"])
def test_compile_with_numbers_that_change(spec, device, name):
    """From the second on they are symbols of the compiler's."""
    torch._dynamo.reset()
    function = getattr(cudaloss, spec.function)
    input, _, mask, weight = selecting((4, 65), device)
    target = torch.randint(0, 5, (4, 65), dtype=torch.uint8, device=device)
    plain = lambda a, number: function(a, target, mask=mask, weight=weight, **{name: number})  # noqa: E731
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    for number in (4, 7, 9, 2.5, 3.5, 0.1):
        a, b = (input.clone().requires_grad_() for _ in range(2))
        found, expected = compiled(a, number), plain(b, number)
        torch.testing.assert_close(found, expected)
        found.backward()
        expected.backward()
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_compile_of_unusual_layouts(device, reduction):
    torch._dynamo.reset()
    spec = KINDS[0]
    input, target, mask, weight = selecting((2, 3, 4, 4), device)
    plain = lambda a, b, m, w: op(spec)(a, b, reduction, mask=m, weight=w, batch_dims=1)  # noqa: E731
    compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
    last = {"memory_format": torch.channels_last}
    for tensors in (
        (input, target, mask, weight),
        (input.to(**last), target, mask.to(**last), weight[:, :1]),
        (input[:, :1], target, mask[:, :, :1, :1], weight[0]),
        (input[..., ::2], target[..., 1::2], mask[..., :1], weight[..., ::2]),
    ):
        assert_compiled(compiled, plain, tensors)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_compile_of_the_op_and_of_unusual_operands(device, reduction):
    torch._dynamo.reset()
    spec = KINDS[0]  # layouts know no losses
    compiled = torch.compile(lambda a, b: op(spec)(a, b, reduction), fullgraph=True)
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


# torch 2.15's opcheck clones its arguments and asks the clones, which are no leaves, for their .grad.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_opcheck_of_the_public_op(spec, device):
    public = getattr(torch.ops.cudaloss, spec.name).default
    input, target, mask, weight = selecting((3, 4), device)
    leaves = [x.clone().requires_grad_() for x in (input, target)]
    given = {"mask": mask, "weight": weight, "batch_dims": 1, "scale": 0.5}
    mixed = [x.to(dtype) for x, dtype in zip((input, target), (torch.bfloat16, torch.float32), strict=True)]
    whole = torch.randint(0, 9, (4,), dtype=torch.uint8, device=device)
    for operands_, keywords in (
        *(((input, target), {"reduction": reduction, **given}) for reduction in REDUCTIONS),
        *((leaves, {"reduction": reduction, **x}) for reduction in REDUCTIONS for x in ({}, given)),
        ((leaves[0][:, :1].detach().requires_grad_(), target[0]), {}),
        (mixed, {"dtype": torch.float16}),
        (leaves, {"normalizer": torch.tensor(3.0, device=device), "ignore_nan": True, "mask": mask[0]}),
        (leaves, {"weight": weight.clone().requires_grad_(), "mask": mask}),
        ((leaves[0], whole), {"weight": weight[0].bfloat16(), "batch_dims": 2}),
    ):
        torch.library.opcheck(public, operands_, keywords)


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
            wanted = (0, FOR_INPUT, FOR_TARGET, FOR_INPUT | FOR_TARGET) if reduction == "mean" else (FOR_INPUT,)
            for flags in wanted:
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


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_fake_tensors_predict_the_result(spec, device, reduction):
    shape = (2, 3, 4, 5)
    input, target = operands(shape, (torch.float16, torch.float32), device)
    last = input.to(memory_format=torch.channels_last)
    mask, weight = torch.rand(shape, device=device) < 0.6, torch.rand(shape[1:], device=device)
    whole = torch.randint(0, 9, shape, dtype=torch.uint8, device=device)
    for a, b, given in (
        *(
            (x, y, {})
            for x in (input, last)
            for y in (target, target.to(memory_format=torch.channels_last), target[:1])
        ),
        (input, target, {"mask": mask}),
        (last, target.to(memory_format=torch.channels_last), {"mask": mask, "weight": weight, "batch_dims": 1}),
        (last, target, {"weight": weight, "batch_dims": 2}),
        (last, target[:1], {"mask": mask[:, :1], "scale": 0.5, "batch_dims": 4}),
        (input, whole, {"mask": mask}),
        (input.mT, target.mT, {"ignore_nan": True, "batch_dims": 3, "dtype": torch.float64}),
    ):
        leaf = a.detach().requires_grad_()
        real = op(spec)(leaf, b, reduction, **given)
        (gradient,) = torch.autograd.grad(real.sum(), leaf)
        with FakeTensorMode() as mode:
            fakes = {k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in given.items()}
            fake_leaf = mode.from_tensor(a).requires_grad_()
            fake = op(spec)(fake_leaf, mode.from_tensor(b), reduction, **fakes)
            (of_fake,) = torch.autograd.grad(fake.sum(), fake_leaf)
        for ours, theirs in ((fake, real), (of_fake, gradient)):
            assert (ours.shape, ours.dtype, ours.device) == (theirs.shape, theirs.dtype, theirs.device)
            assert ours.stride() == theirs.stride()


def test_meta_tensors(spec):
    input = torch.empty(2, 3, 4, device="meta", requires_grad=True)
    target = torch.empty(2, 3, 4, device="meta", dtype=torch.uint8)
    mask, weight = torch.empty(3, 1, device="meta", dtype=torch.bool), torch.empty(4, device="meta")
    for reduction, shape in (("mean", (2,)), ("sum", (2,)), ("none", (2, 3, 4))):
        value = op(spec)(input, target, reduction, mask=mask, weight=weight, batch_dims=1)
        assert value.is_meta and value.shape == shape
        (gradient,) = torch.autograd.grad(value.sum(), input)
        assert gradient.is_meta and gradient.shape == (2, 3, 4)
    for given in ({}, {"normalizer": torch.empty((), device="meta"), "mask": mask}):
        value = op(spec)(input, target, **given)
        assert value.is_meta and value.shape == ()
        assert torch.autograd.grad(value, input)[0].shape == input.shape


@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_a_masked_step_of_a_compiled_model(spec, device, backend):
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).to(device)
    criterion = weighted_module(spec, ignore_nan=True)
    x, y = torch.randn(64, 16, device=device), torch.randn(64, 8, device=device)
    y[::3, 2] = float("nan")
    weight = torch.rand(8, device=device)
    step = torch.compile(lambda x, y: criterion(model(x), y, weight), fullgraph=True, backend=backend)
    for factor in (1.0, 0.5, 0.3):
        model.zero_grad()
        (factor * step(x, y)).backward()
        found = [p.grad.clone() for p in model.parameters()]
        plain = spelled_out(spec)(model(x), y, mask=~y.isnan(), weight=weight)
        expected = torch.autograd.grad(factor * plain, list(model.parameters()))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-6)


def compilations(call, numbers, **options):
    """How many graphs a step is compiled to, while its number takes each of these."""
    torch._dynamo.reset()
    graphs = []

    def compiler(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=compiler, bw_compiler=lambda graph, _: make_boxed_func(graph.forward))
    compiled = torch.compile(call, backend=backend, fullgraph=True, **options)
    input = torch.randn(4, 7, requires_grad=True)
    for number in numbers:
        leaf = input.detach().clone().requires_grad_()
        found, expected = compiled(leaf, number), call(input, number)
        torch.testing.assert_close(found, expected)
        (gradient,) = torch.autograd.grad(found.sum(), leaf)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), input)[0])
    return len(graphs)


_TARGET, _INDEX = torch.rand(4, 7), torch.tensor([0, 3, 6, 2])
_VARYING = {
    "scale": lambda x, v: cudaloss.mse_loss(x, _TARGET, scale=v),
    "scale of single losses": lambda x, v: cudaloss.mse_loss(x, _TARGET, scale=v, reduction="none"),
    "scale of a half": lambda x, v: cudaloss.mse_loss(x.bfloat16(), _TARGET.bfloat16(), scale=v).float(),
    "normalizer": lambda x, v: cudaloss.mse_loss(x, _TARGET, normalizer=v),
    "scale and normalizer": lambda x, v: cudaloss.cross_entropy(x, _INDEX, scale=v, normalizer=v + 1),
    "beta": lambda x, v: cudaloss.smooth_l1_loss(x, _TARGET, beta=v),
    "pos_weight": lambda x, v: cudaloss.binary_cross_entropy_with_logits(x, _TARGET, pos_weight=v),
    "gamma": lambda x, v: cudaloss.sigmoid_focal_loss(x, _TARGET, gamma=v, reduction="mean"),
    "temperature": lambda x, v: cudaloss.kl_div_with_logits(x, _TARGET, temperature=v),
    "beta of a mixture": lambda x, v: cudaloss.jsd_with_logits(x, _TARGET, beta=v),
    "label_smoothing": lambda x, v: cudaloss.cross_entropy(x, _INDEX, label_smoothing=v),
    "z_loss": lambda x, v: cudaloss.cross_entropy(x, _INDEX, z_loss=v),
    "softcap": lambda x, v: cudaloss.cross_entropy(x, _INDEX, softcap=v),
    "margin": lambda x, v: cudaloss.triplet_margin_loss(x, _TARGET, _TARGET.flip(0), margin=v),
    "a module's scale": lambda x, v: cudaloss.HuberLoss(scale=v)(x, _TARGET),
}


_NUMBERS = [0.15 + 0.025 * step for step in range(5)]


@functools.cache
def compilations_of_pytorch():
    return compilations(lambda x, v: torch.nn.functional.mse_loss(x, _TARGET) * v, _NUMBERS)


@pytest.mark.parametrize("name", _VARYING)
def test_a_number_that_varies_compiles_as_seldom_as_pytorchs(name):
    """Once, if the sizes and numbers are dynamic; otherwise again when the number first changes."""
    if TORCH < "2.13" and name == "label_smoothing":
        pytest.skip("before 2.13 torch compiles again for each difference of a number")
    assert compilations(_VARYING[name], _NUMBERS) == compilations_of_pytorch() == 2
    assert compilations(_VARYING[name], _NUMBERS, dynamic=True) == 1


@pytest.mark.parametrize("loss", [cudaloss.cross_entropy, cudaloss.nll_loss], ids=lambda loss: loss.__name__)
def test_an_ignore_index_that_varies(loss):
    def call(x, number):
        return loss(x.log_softmax(1), _INDEX, ignore_index=number)

    assert compilations(call, [*range(-20, 0), 3]) == 2
    assert compilations(call, [*range(-20, 0), 3], dynamic=True) == 1


def test_the_usual_ignore_index_is_a_wrong_class_beside_another_one():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, t, v: cudaloss.cross_entropy(x, t, ignore_index=v), dynamic=True)
    input, target = torch.randn(4, 7), torch.tensor([0, -100, 6, -5])
    for number in (-7, -5):
        with pytest.raises(RuntimeError, match=r"target must hold class indices|out of bounds"):
            compiled(input, target, number)
    target[1] = 1
    torch.testing.assert_close(
        compiled(input, target, -5), torch.nn.functional.cross_entropy(input, target, ignore_index=-5)
    )


def test_single_losses_of_a_compiled_call_lie_as_the_kernels(spec, device):
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: op(spec)(a, b, "none"), backend="aot_eager", fullgraph=True)
    input, target, *_ = selecting((2, 3, 4, 4), device)
    last = {"memory_format": torch.channels_last}
    for a, b in ((input.to(**last), target.to(**last)), (input.to(**last), target), (input, target.to(**last))):
        assert compiled(a, b).stride() == op(spec)(a, b, "none").stride()
