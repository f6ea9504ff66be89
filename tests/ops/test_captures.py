"""A graph that was captured from a call gives the same values and the same gradients when it is replayed with other
numbers, however it was captured, and whatever the kind of loss, the reduction and the options are."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import cudaloss
from capturing import CALLS, CAPTURES, FULLY_CAPTURED, MAIN_CAPTURES, Module, assert_captured, assert_same, calls
from cudaloss._call.modes import FOR_INPUT, FOR_TARGET, pack
from cudaloss._ops import private as _private
from oracle import TORCH, of_probabilities, op, operands, torch_op

SHAPE = (4, 6)


def of_calls(name, every, main):
    """The argument `name` takes every value with the calls of FULLY_CAPTURED, and the main ones with the others."""
    chosen = [(*call, value) for call in CALLS for value in (every if call[1] in FULLY_CAPTURED else main)]
    return pytest.mark.parametrize(("kind", "name", name), chosen, ids=["-".join(x) for x in chosen])


def function(spec):
    return getattr(cudaloss, spec.function)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@of_calls("capture", CAPTURES, MAIN_CAPTURES)
def test_captured_graphs_keep_values_and_gradients(device, kind, name, capture):
    for call in calls(kind, name, device):
        assert_captured(capture, call)


@of_calls("mode", ["real", "fake", "symbolic"], ["symbolic"])
def test_captured_backwards(device, kind, name, mode):
    """A whole step's graph, and that of ``torch.func.grad``, which is differentiated once more when it is replayed."""
    for call, tensors, others in calls(kind, name, device, torch.float64):  # second derivatives may cancel

        def step(x, *rest, call=call):
            x = x.detach().requires_grad_()
            return torch.autograd.grad((call(x, *rest) * 2).sum(), x)[0] * x

        torch.testing.assert_close(make_fx(step, tracing_mode=mode)(*tensors)(*others), step(*others))
        gradient = torch.func.grad(lambda *x, call=call: (call(*x) * 2).sum())
        found = []
        for each in (make_fx(gradient, tracing_mode=mode)(*tensors), gradient):
            x = others[0].clone().requires_grad_()
            once = each(x, *others[1:])
            twice = torch.autograd.grad(once.square().sum() + 0 * x.sum(), x)[0]  # once may be a constant
            found.append((once.detach(), twice))
        torch.testing.assert_close(*found)


INDUCED = [("difference", "plain"), ("classes", "none"), ("distributions", "none")]
INDUCED += [(kind, "all") for kind in ("difference", "classes", "index", "vectors and labels", "three vectors")]


@pytest.mark.filterwarnings("ignore:\\s*Online softmax")  # Inductor's on a GPU
@pytest.mark.parametrize(("kind", "name"), INDUCED, ids=["-".join(call) for call in INDUCED])
def test_inductor(device, kind, name):
    """Which checks the strides that fake kernels predict, and plans the memory of a step with other work around it."""
    call, (first, *rest), _ = calls(kind, name, device)[0]
    torch._dynamo.reset()

    def step(x):
        return call(x * 2, *rest)

    compiled = torch.compile(step, fullgraph=True)
    for factor in (1.0, 3.0):
        found = []
        for each in (compiled, step):
            x = first.clone().requires_grad_()
            value = each(x)
            found.append((value.detach(), *torch.autograd.grad((value * factor).sum(), x)))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["difference", "classes", "three vectors", "distributions"])
def test_compile_with_dynamic_sizes(device, kind):
    call, tensors, _ = calls(kind, "plain", device)[0]
    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for repeats in (1, 2, 3):
        assert_same(compiled, call, [x.repeat(repeats, *[1] * (x.dim() - 1)) for x in tensors])


def plainly(spec, *, mask=None, weight=None):
    """A mean from PyTorch's own element-wise loss."""

    def call(input, target):
        value = torch_op(spec)(input, target, "none")
        counts = torch.ones_like(value) if weight is None or spec.mean_over_count else weight.expand(value.shape)
        value = value if weight is None else value * weight
        value, counts = (x if mask is None else torch.where(mask, x, 0) for x in (value, counts))
        return value.sum() / counts.sum()

    return call


def private(kind):
    return getattr(torch.ops.cudaloss, f"_pointwise_{kind}")


def test_private_ops_are_differentiable_by_themselves(spec, device):
    input, target = 2 * torch.randn(2, *SHAPE, device=device)
    target = target.sigmoid() if of_probabilities(spec) else target
    weight, mask = torch.rand(SHAPE[1:], device=device) + 0.1, torch.rand(SHAPE, device=device) < 0.7
    how = pack("mean", torch.float32, spec.mode) | FOR_INPUT | FOR_TARGET
    one = torch.ones((), device=device)
    for options in ((), (1.0, weight, mask)):
        plain = plainly(spec, weight=weight, mask=mask) if options else plainly(spec)

        def leaves(options=options):
            return [x.clone().requires_grad_() for x in (input, target)]

        def expected(x, t, plain=plain):
            value = plain(x, t)
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
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("difference", name) for name in ("plain", "mask and weight")),
        *((kind, "none") for kind in ("difference, general", "two operands", "two operands, general")),
    ],
)
def test_onnx_export(kind, name):
    pytest.importorskip("onnxscript")
    evaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator
    for call, tensors, _ in calls(kind, name, "cpu"):
        program = torch.onnx.export(Module(call), tensors, dynamo=True, verbose=False)
        assert program is not None
        feeds = dict(zip((x.name for x in program.model.graph.inputs), (x.numpy() for x in tensors), strict=True))
        (found,) = evaluator(program.model_proto).run(None, feeds)
        torch.testing.assert_close(torch.from_numpy(found), call(*tensors))


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


@pytest.mark.skipif(TORCH < "2.11", reason="torch 2.10's Dynamo does not trace a property of a named tuple")
@pytest.mark.parametrize("name", ["plain", "mask", "all per sample"])
@pytest.mark.parametrize("kind", ["difference", "two operands", "classes", "three vectors"])
def test_compiled_autograd(device, kind, name):
    call, tensors, _ = calls(kind, name, device)[0]
    expected, leaf = (tensors[0].clone().requires_grad_() for _ in range(2))
    call(expected, *tensors[1:]).sum().backward()
    torch._dynamo.reset()
    value = call(leaf, *tensors[1:]).sum()
    compiler = lambda graph: torch.compile(graph, backend="eager", fullgraph=True)  # noqa: E731
    with torch._dynamo.compiled_autograd._enable(compiler):
        value.backward()
    torch.testing.assert_close(leaf.grad, expected.grad)
