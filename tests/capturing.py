"""Every way in which PyTorch captures a call as a graph, which is then called with the same tensors."""

from __future__ import annotations

import warnings

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import ProfilerActivity, profile


class Module(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *tensors):
        return self.call(*tensors)


def traced_without_grad(call, tensors):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(call, tensors)


def traced_with_grad(call, tensors):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(call, (tensors[0].clone().requires_grad_(), *tensors[1:]))


def exported(call, tensors):
    return torch.export.export(Module(call), tensors)


CAPTURES = {
    "jit.trace under no_grad": traced_without_grad,
    "jit.trace": traced_with_grad,
    "make_fx, real": lambda call, tensors: make_fx(call, tracing_mode="real")(*tensors),
    "make_fx, fake": lambda call, tensors: make_fx(call, tracing_mode="fake")(*tensors),
    "make_fx, symbolic": lambda call, tensors: make_fx(call, tracing_mode="symbolic")(*tensors),
    "make_fx, pre-dispatch": lambda call, tensors: make_fx(call, pre_dispatch=True)(*tensors),
    "export": lambda call, tensors: exported(call, tensors).module(),
    "export, decomposed": lambda call, tensors: exported(call, tensors).run_decompositions().module(),
    "compiled make_fx": lambda call, tensors: torch.compile(make_fx(call)(*tensors), backend="aot_eager"),
}


def assert_captured(capture, function, tensors, given):
    """That a graph of `function(*tensors, **given)` does what the call does; tensors among `given` are the graph's."""
    named = [key for key, value in given.items() if isinstance(value, torch.Tensor)]
    numbers = {key: value for key, value in given.items() if key not in named}

    def call(input, target, *beside):
        return function(input, target, **dict(zip(named, beside, strict=True)), **numbers)

    tensors = *tensors, *(given[key] for key in named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_same(CAPTURES[capture](call, tensors), call, tensors)


def assert_same(replayed, expected, tensors):
    """Values, and gradients of everything floating, of the loss beside another term."""
    found = []
    for call in (replayed, expected):
        leaves = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in tensors]
        value = call(*leaves)
        assert value.requires_grad
        total = (value * 3).sum() + 0.01 * leaves[0].square().sum()
        wanted = [x for x in leaves if x.requires_grad]
        found.append((value.detach(), *torch.autograd.grad(total, wanted, allow_unused=True)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=1e-6)


def private_calls(work):
    """The private ops that `work` calls, in order."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as found:
        work()
    calls = [event.name.split("::_pointwise_") for event in found.events()]
    return [call[1] for call in calls if call[0] == "cudaloss"]
