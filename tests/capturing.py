"""Every way in which PyTorch captures a call as a graph, which is then called with the same tensors."""

from __future__ import annotations

import warnings

import torch
from torch.fx.experimental.proxy_tensor import make_fx


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
