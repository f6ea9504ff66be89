"""The ops of a compiled step: when the backward may take the memory of the forward's gradients."""

from __future__ import annotations

import importlib
import threading

import pytest
import torch

import cudaloss
from capturing import private_calls
from cudaloss._call.modes import EXPECTS, FOR_INPUT, FOR_TARGET, pack
from cudaloss._ops import private
from cudaloss._ops.private import compiled_name
from oracle import leaf, op, operands

OPS = torch.ops.cudaloss
SIZE = 1000


class InBackward(torch.autograd.Function):
    """Does its work inside a backward."""

    @staticmethod
    def forward(ctx, x, work):
        ctx.work = work
        return x.sum()

    @staticmethod
    def backward(ctx, grad_output):
        ctx.work()
        return grad_output.expand(1), None


def in_backward(work):
    found = []
    InBackward.apply(torch.ones(1, requires_grad=True), lambda: found.append(work())).backward()
    return found[0]


class Step:
    """A forward and its backwards, with options and without."""

    def __init__(self, spec, device, plain):
        self.call = *operands((SIZE,), (torch.float32,) * 2, device), *self.how(spec)
        self.plain = plain

    @staticmethod
    def how(spec):
        return pack("mean", torch.float32, spec.mode) | FOR_INPUT | FOR_TARGET | EXPECTS, spec.default

    @torch.no_grad()
    def forward(self):
        run = OPS._pointwise_compiled_loss_with_grad if self.plain else OPS._pointwise_compiled_forward_with_grads
        _, *held, self.record = run(*self.call)
        return held[:2]

    @torch.no_grad()
    def finish(self, held, grad_output):
        grad_output = torch.tensor(grad_output, device=held[0].device)
        if self.plain:
            return OPS._pointwise_compiled_finish_grad(*held, grad_output, self.record, *self.call)
        return OPS._pointwise_compiled_finish_grads(*held, None, grad_output, None, self.record, *self.call)[:2]

    def right(self, spec, grad_output):
        leaves = [leaf(x) for x in self.call[:2]]
        return torch.autograd.grad(op(spec)(*leaves) * grad_output, leaves)


def shares(found, held):
    return [a.data_ptr() == b.data_ptr() for a, b in zip(found, held, strict=True)]


@pytest.fixture(params=[True, False], ids=["plain", "with options"])
def step(spec, device, request):
    return Step(spec, device, request.param)


def test_a_backward_takes_the_memory_once(spec, step):
    for factors in ((1.0, 1.0), (0.3, 0.5), (0.5, 0.5)):
        held = step.forward()
        first = in_backward(lambda: step.finish(held, factors[0]))  # noqa: B023
        second = in_backward(lambda: step.finish(held, factors[1]))  # noqa: B023
        assert shares(first, held) == [True, True] and shares(second, held) == [False, False]
        for found, factor in ((first, factors[0]), (second, factors[1])):
            assert all(torch.equal(a, b) for a, b in zip(found, step.right(spec, factor), strict=True))
        before = held[0]._version
        first[0].zero_()  # its own version counter: what is saved has not changed
        assert held[0]._version == before


def test_not_outside_of_a_backward_nor_if_the_forward_ran_in_one(spec, step):
    """A compiler may then have planned the memory between the two."""
    held = step.forward()
    assert shares(step.finish(held, 0.3), held) == [False, False]
    held = in_backward(step.forward)
    found = in_backward(lambda: step.finish(held, 0.3))
    assert shares(found, held) == [False, False]
    assert all(torch.equal(a, b) for a, b in zip(found, step.right(spec, 0.3), strict=True))


def test_a_copy_has_the_right_gradients(spec, step):
    """What hooks on saved tensors return: also where an earlier gradient was that no backward took."""
    for factor in (0.3, 1.0, 0.3):
        step.forward()
        copies, held = [x.clone() for x in step.forward()], step.forward()
        for gradients in (copies, held):
            found = in_backward(lambda: step.finish(gradients, factor))  # noqa: B023
            assert all(torch.equal(a, b) for a, b in zip(found, step.right(spec, factor), strict=True))


def test_no_part_is_taken(spec, step):
    """A gradient beside one that hooks have replaced."""
    held = step.forward()
    arena = torch.empty(2 * SIZE, device=held[1].device)
    mixed = [held[0], arena[8 : 8 + SIZE].copy_(held[1])]  # where no gradient begins
    found = in_backward(lambda: step.finish(mixed, 0.3))
    assert shares(found, mixed) == [False, False]
    assert all(torch.equal(a, b) for a, b in zip(found, step.right(spec, 0.3), strict=True))


def test_graphs_that_save_copies_have_two_passes(spec, device):
    """A compiler may reuse the memory of a copy that its own graph has restored."""
    from torch.autograd.graph import saved_tensors_hooks

    torch._dynamo.reset()
    input, target = operands((SIZE,), (torch.float32,) * 2, device)
    compiled = torch.compile(lambda x: op(spec)(x, target), backend="aot_eager")

    def step():
        with saved_tensors_hooks(lambda x: x, lambda x: x):
            value = compiled(input.requires_grad_())
        return torch.autograd.grad(value, input)

    step()
    assert private_calls(step) == ["compiled_forward", "compiled_gradients"]


@pytest.mark.parametrize(
    ("module", "option", "value"),
    [
        ("torch._functorch.config", "enable_activation_offloading", True),
        ("torch._inductor.config", "post_grad_fusion_options", {"activation_quantization_aten_pass": {}}),
    ],
)
def test_options_by_which_graphs_save_copies(module, option, value):
    config = importlib.import_module(module)
    if not hasattr(config, option):
        pytest.skip("this torch does not have it")
    assert private.keeps_what_it_saves()
    with config.patch({option: value}):
        assert not private.keeps_what_it_saves()


OPTIONS = {
    "none": {},
    "sum": {"reduction": "sum"},
    "mask": {"mask": torch.arange(SIZE) % 3 > 0},
    "weight": {"weight": torch.linspace(0.5, 2, SIZE)},
    "ignore_nan": {"ignore_nan": True},
    "normalizer": {"normalizer": torch.tensor(7.0)},
    "scale": {"scale": 0.5},
    "batch_dims": {"batch_dims": 1},
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float32) for name in OPTIONS), ("none", torch.float16), ("mask", torch.float16)],
    ids=str,
)
def test_factors_of_a_compiled_step(spec, device, name, dtype):
    """The same bits as in eager mode: without options, with each, and with flags that a plain call does not have."""
    options = {k: x.to(device) if isinstance(x, torch.Tensor) else x for k, x in OPTIONS[name].items()}
    input, target = operands((SIZE,), (dtype,) * 2, device)
    if name == "ignore_nan":
        target[::7] = torch.nan
    if name == "batch_dims":
        input, target = input.view(4, -1), target.view(4, -1)
    torch._dynamo.reset()
    eager = lambda x: op(spec)(x, target, **options)  # noqa: E731
    compiled, x = torch.compile(eager, backend="aot_eager", fullgraph=True), leaf(input)
    for factor in (1.0, 0.3, 0.3, 1.0):
        found, right = (torch.autograd.grad((call(x) * factor).sum(), x)[0] for call in (compiled, eager))
        assert torch.equal(found, right)


def test_one_of_several_threads_takes_it(spec, step):
    held, found = step.forward(), []
    barrier = threading.Barrier(4)

    def work():
        barrier.wait()
        found.append(in_backward(lambda: step.finish(held, 1.0)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({gradients[0].data_ptr() for gradients in found}) == 4
    assert sum(shares(gradients, held)[0] for gradients in found) == 1


def test_an_exported_call_has_the_public_op():
    """Also with Dynamo as the front end, which reads this flag of every supported torch."""

    class Call(torch.nn.Module):
        def forward(self, input, target):
            assert torch.compiler._is_exporting_flag
            return cudaloss.mse_loss(input, target)

    assert torch.compiler._is_exporting_flag is False
    for strict in (True, False):
        graph = torch.export.export(Call(), (torch.ones(2), torch.ones(2)), strict=strict).graph
        assert [node.target for node in graph.nodes if node.op == "call_function"] == [OPS.mse.default]


def test_a_compiled_call_has_the_twin_op():
    found = []

    def backend(graph, _):
        found.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    torch.compile(cudaloss.mse_loss, backend=backend, fullgraph=True)(torch.ones(2), torch.ones(2))
    assert found == [getattr(OPS, compiled_name("mse"))]
