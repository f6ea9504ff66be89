"""A graph that was captured from a call gives the same values and the same gradients when it is replayed, however it
was captured, with or without grad, and whatever the loss, the reduction and the options are."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import cudaloss
from capturing import CAPTURES, Module, assert_same
from cudaloss import _private
from cudaloss._modes import REDUCTIONS
from oracle import of_probabilities, op, operands, suited, torch_op

SHAPE = (4, 6)


def function(spec):
    return getattr(cudaloss, spec.function)


# What follows input and target, and the keywords that it is given as.
CALLS = {
    "plain": (),
    "mask": ("mask",),
    "weight": ("weight",),
    "normalizer": ("normalizer",),
    "mask and weight": ("mask", "weight"),
    "per sample": ("batch_dims",),
    "weight per sample": ("weight", "batch_dims", "scale"),
    "number": ("number",),
}


@pytest.fixture
def tensors(device):
    input, target = torch.randn(2, *SHAPE, device=device) * 2  # none at a kink
    if of_probabilities(suited[0]):  # beyond [0, 1] terms of both signs would cancel
        target = target.sigmoid()
    beside = {
        "mask": torch.rand(SHAPE, device=device) < 0.7,
        "weight": torch.rand(SHAPE[1:], device=device) + 0.1,
        "normalizer": torch.tensor(7.0, device=device),
    }
    return input, target, beside


def called(function, given, reduction):
    """The call of ``function(input, target, *tensors)``, with the options of CALLS."""
    of_tensors = [name for name in given if name in ("mask", "weight", "normalizer")]
    fixed = {name: value for name, value in {"batch_dims": 1, "scale": 0.5}.items() if name in given}
    if "number" in given:
        fixed["normalizer"] = 7

    def call(input, target, *beside):
        return function(input, target, reduction=reduction, **dict(zip(of_tensors, beside, strict=True)), **fixed)

    return call, of_tensors


def plainly(spec, given, reduction):
    """The same from PyTorch's own element-wise loss."""

    def call(input, target, *, mask=None, weight=None, normalizer=None, batch_dims=0, scale=1.0, reduction):
        value = torch_op(spec)(input, target, "none")
        unweighted = weight is None or spec.mean_over_count
        counts = torch.ones_like(value) if unweighted else weight.expand(value.shape)
        counts = counts if mask is None else torch.where(mask, counts, 0)
        value = (value if mask is None else torch.where(mask, value, 0)) * (1 if weight is None else weight)
        if reduction != "none":
            value, counts = (x.sum(tuple(range(batch_dims, 2))) for x in (value, counts))
        if reduction == "mean":
            value = value / (counts if normalizer is None else normalizer)
        return value * scale

    return called(call, given, reduction)[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("given", CALLS)
@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_graphs_keep_values_and_gradients(spec, tensors, capture, given):
    input, target, beside = tensors
    torch._dynamo.reset()
    for reduction in REDUCTIONS:
        if reduction != "mean" and {"normalizer", "number"} & set(CALLS[given]):
            continue
        call, names = called(function(spec), CALLS[given], reduction)
        arguments = input, target, *(beside[name] for name in names)
        replayed = CAPTURES[capture](call, arguments)
        assert_same(replayed, plainly(spec, CALLS[given], reduction), arguments)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("given", CALLS)
def test_captured_backwards(spec, tensors, mode, given):
    """A whole step's graph, and that of ``torch.func.grad``, which is differentiated once more when it is replayed."""
    input, target, beside = tensors
    if not spec.is_rational:  # whose formulas may cancel when autograd differentiates them once more
        input, target = input.double(), target.double()
    for reduction in ("mean", "none"):
        if reduction == "none" and {"normalizer", "number"} & set(CALLS[given]):
            continue
        call, names = called(function(spec), CALLS[given], reduction)
        plain = plainly(spec, CALLS[given], reduction)
        arguments = input, target, *(beside[name] for name in names)

        def step(x, *rest, call=call):
            x = x.detach().requires_grad_()
            value = (call(x, *rest) * 2).sum()
            return torch.autograd.grad(value, x)[0] * x

        graph = make_fx(step, tracing_mode=mode)(*arguments)
        others = input * 1.5, *arguments[1:]
        torch.testing.assert_close(graph(*others), step(*others, call=plain), rtol=2e-5, atol=1e-6)
        graph = make_fx(torch.func.grad(lambda *a: (call(*a) * 2).sum()), tracing_mode=mode)(*arguments)  # noqa: B023
        expected = torch.func.grad(lambda *a: (plain(*a) * 2).sum())  # noqa: B023
        found = []
        for gradient in (graph, expected):
            x = input.clone().requires_grad_()
            once = gradient(x, *arguments[1:])
            twice = torch.autograd.grad(once.square().sum() + 0 * x.sum(), x)[0]  # once may be a constant
            found.append((once.detach(), twice))
        for ours, theirs in zip(*found, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)


def private(kind):
    return getattr(torch.ops.cudaloss, f"_pointwise_{kind}")


def test_private_ops_are_differentiable_by_themselves(spec, tensors):
    from cudaloss._modes import FOR_INPUT, FOR_TARGET, pack

    input, target, beside = tensors
    how = pack("mean", torch.float32, spec.mode) | FOR_INPUT | FOR_TARGET
    one, given = torch.ones((), device=input.device), (1.0, beside["weight"], beside["mask"])
    for options in ((), given):
        names = () if not options else ("weight", "mask")
        plain = plainly(spec, names, "mean")
        rest = () if not options else options[1:]

        def leaves(options=options):
            return [x.clone().requires_grad_() for x in (input, target)]

        def expected(x, t, plain=plain, rest=rest):
            value = plain(x, t, *rest)
            return value, *torch.autograd.grad(value, (x, t), create_graph=True)

        calls = {
            "forward": lambda x, t, o=options: [private("forward")(x, t, how, spec.default, *o)[0]],
            "gradients": lambda x, t, o=options: private("gradients")(one, None, x, t, how, spec.default, *o)[:2],
        }
        for kind in _private.UNSEEN[:3] + _private.COMPILED:  # which autograd does not see
            before = {"compiled_finish_grad": (None, None, one, None), "compiled_gradients": (one, None)}
            before["compiled_finish_grads"] = (None, None, None, one, None, None)
            with pytest.raises(RuntimeError, match="autograd does not see this op"):
                private(kind)(*before.get(kind, ()), *leaves(), how, spec.default)
        for name, call in calls.items():
            ours, theirs = leaves(), leaves()
            found, truth = call(*ours), expected(*theirs)
            truth = truth[: len(found)] if name != "gradients" else truth[1:]
            for a, b in zip(found, truth, strict=True):
                assert a.requires_grad, name
                torch.testing.assert_close(a, b)
                if not b.requires_grad:
                    continue
                seen = torch.autograd.grad(a.square().sum(), ours, retain_graph=True, allow_unused=True)
                wanted = torch.autograd.grad(b.square().sum(), theirs, retain_graph=True, allow_unused=True)
                for p, q in zip(seen, wanted, strict=True):
                    torch.testing.assert_close(torch.zeros_like(input) if p is None else p, q if q is not None else p)


# ---- fx, function modes, ONNX ----


def test_symbolic_trace(spec):
    input, target = torch.randn(2, 5, requires_grad=True), torch.randn(2, 5)
    mask = torch.tensor([True, False, True, True, False])
    for call in (
        lambda x, t, m: function(spec)(x, t),
        lambda x, t, m: function(spec)(x, t, mask=m, batch_dims=1),
        getattr(cudaloss, spec.module)(reduction="sum", scale=0.5),
    ):
        is_module = isinstance(call, torch.nn.Module)
        arguments = (input, target) if is_module else (input, target, mask)
        graph = torch.fx.symbolic_trace(call)
        assert function(spec) in {node.target for node in graph.graph.nodes}
        assert torch.equal(graph(*arguments), call(*arguments))
        assert spec.function in graph.code


def test_function_modes_see_the_function(spec):
    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    input, target = torch.randn(5, requires_grad=True), torch.randn(5)
    expected = function(spec)(input, target, scale=0.5)
    with Mode():
        found = function(spec)(input, target, scale=0.5)
    assert seen == [function(spec)]
    assert torch.equal(found, expected) and found.requires_grad


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("given", [(), ("mask",), ("weight",), ("number",)])
def test_onnx_export(spec, given):
    pytest.importorskip("onnxscript")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    input, target = operands(SHAPE, (torch.float32,) * 2, "cpu")
    beside = {"mask": torch.rand(SHAPE) < 0.7, "weight": torch.rand(SHAPE[1:]) + 0.1}
    for reduction in ("mean",) if given else REDUCTIONS:
        call, names = called(function(spec), given, reduction)
        arguments = input, target, *(beside[name] for name in names)
        program = torch.onnx.export(Module(call), arguments, dynamo=True, verbose=False)
        assert program is not None
        feeds = dict(zip((x.name for x in program.model.graph.inputs), (x.numpy() for x in arguments), strict=True))
        (found,) = evaluator(program.model_proto).run(None, feeds)
        torch.testing.assert_close(torch.from_numpy(found), call(*arguments))


# ---- under the compiler ----


def test_none_decomposes_under_a_compiler(spec, device):
    """So that what follows is fused with it: opaque, it was 1.3 times as slow as PyTorch's own."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    targets = []

    def compiler(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    call = torch.compile(
        lambda a, b: (op(spec)(a, b, "none") * 0.5).mean(),
        backend=aot_autograd(fw_compiler=compiler),
        fullgraph=True,
    )
    input, target = operands((8, 8), (torch.float32,) * 2, device)
    leaf = input.clone().requires_grad_()
    call(leaf, target).backward()
    assert targets and not any("cudaloss" in name for name in targets)
    other = input.clone().requires_grad_()
    (torch_op(spec)(other, target, "none") * 0.5).mean().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


@pytest.mark.parametrize("given", [(), ("mask",), ("weight", "batch_dims")])
def test_compiled_autograd(spec, tensors, given):
    input, target, beside = tensors
    call, names = called(function(spec), given, "mean")
    arguments = target, *(beside[name] for name in names)
    expected = input.clone().requires_grad_()
    plainly(spec, given, "mean")(expected, *arguments).sum().backward()
    torch._dynamo.reset()
    leaf = input.clone().requires_grad_()
    value = call(leaf, *arguments).sum()
    compiler = lambda graph: torch.compile(graph, backend="eager", fullgraph=True)  # noqa: E731
    with torch._dynamo.compiled_autograd._enable(compiler):
        value.backward()
    torch.testing.assert_close(leaf.grad, expected.grad)
