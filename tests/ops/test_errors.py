"""Bad input: a clear error of the kind that PyTorch raises, before any kernel; the next call works."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

import cudaloss
from cudaloss import _dispatch, _private
from cudaloss._modes import BELOW_AUTOGRAD, FOR_INPUT, MAY_DECLINE, pack
from oracle import op

X = torch.ones(3)


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch is retiring them
        return torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)


BAD_TENSORS = {
    "integers": (
        torch.ones(3, dtype=torch.int64),
        RuntimeError,
        r"floating-point tensor, got torch.int64; call",
    ),
    "bools": (torch.ones(3, dtype=torch.bool), RuntimeError, "floating-point tensor, got torch.bool"),
    "complex": (torch.ones(3, dtype=torch.complex64), RuntimeError, "floating-point tensor, got torch.complex64"),
    "sparse": (torch.eye(3).to_sparse(), RuntimeError, r"dense tensor, got layout torch.sparse_coo; call \w+.to_dense"),
    "quantized": (
        quantized(),
        RuntimeError,
        r"floating-point tensor, got a quantized one; call \w+.dequantize",
    ),
}


@pytest.mark.parametrize("which", ["input", "target"])
@pytest.mark.parametrize("bad", BAD_TENSORS)
def test_tensors(spec, bad, which):
    tensor, kind, message = BAD_TENSORS[bad]
    if which == "target" and bad in ("integers", "bools"):
        pytest.skip("targets may be")
    if which == "target" and bad == "complex":
        message = "real tensor, got torch.complex64"
    arguments = {"input": X, "target": X, which: tensor}
    for call in (op(spec), getattr(cudaloss, spec.function), getattr(cudaloss, spec.module)()):
        with pytest.raises(kind, match=f"{which} must be a {message}"):
            call(arguments["input"], arguments["target"])
        assert call(X, X).isfinite()


@pytest.mark.parametrize("which", ["input", "target"])
@pytest.mark.parametrize("value", [[1.0, 2.0, 3.0], 1.0, None])
def test_not_a_tensor(spec, value, which):
    arguments = {"input": X, "target": X, which: value}
    with pytest.raises(TypeError, match=f"{which} must be a torch.Tensor, got {type(value).__name__}"):
        getattr(cudaloss, spec.function)(**arguments)
    with pytest.raises((RuntimeError, TypeError), match=which):  # the dispatcher's, or ours for None
        op(spec)(arguments["input"], arguments["target"])


def test_shapes(spec, device):
    x = X.to(device)
    for call in (op(spec), getattr(cudaloss, spec.function)):
        kind, message = RuntimeError, r"shapes that broadcast together, got \(3,\) and \(2, 4\)"
        if spec.same_shape and call is getattr(cudaloss, spec.function):  # PyTorch's words
            kind, message = ValueError, r"Target size \(.*2, 4.*\) must be the same as input size \(.*3.*\)"
        with pytest.raises(kind, match=message):
            call(x, torch.ones(2, 4, device=device))
        assert call(x, x).isfinite()


@pytest.mark.parametrize("reduction", ["avg", "", "Mean"])
def test_unknown_reduction(spec, reduction):
    for call in (op(spec), getattr(cudaloss, spec.function)):
        with pytest.raises(ValueError, match=f"reduction must be 'none', 'mean' or 'sum', got '{reduction}'"):
            call(X, X, reduction=reduction)


@pytest.mark.parametrize("reduction", [1, None, ["mean"]])
def test_reduction_of_a_wrong_type(spec, reduction):
    with pytest.raises(TypeError, match="reduction must be a str"):
        getattr(cudaloss, spec.function)(X, X, reduction=reduction)


OUTSIDE = {
    ">= 0": (-1.0, -1e-30),
    "> 0": (-1.0, 0.0, -1e-30),
    "in (0, 1)": (0.0, 1.0, -0.5, 2.0),
    "that is 1 or 2": (0.0, 3.0, 1.5, -1.0),
    "in [0, 1]": (-1e-30, 1.5),
}


@pytest.mark.any_numbers
def test_own_parameters(spec):
    function = getattr(cudaloss, spec.function)
    for parameter in spec.parameters:
        is_third, name = parameter is spec.parameter, parameter.name
        is_float = parameter.default is not None  # in the op's schema
        for value in (*OUTSIDE[parameter.interval], float("nan")):
            for call in (function, getattr(torch.ops.cudaloss, spec.name))[: 1 + is_float]:
                with pytest.raises(RuntimeError, match=re.escape(f"{name} must be {parameter.accepts}, got {value}")):
                    call(X, X, **{name: value})
        accepts = f"{parameter.accepts} or a tensor" if is_third else parameter.accepts
        for value in ("1", *([None] if is_float else []), True, [1.0]):
            with pytest.raises(TypeError, match=re.escape(f"{name} must be {accepts}, got {type(value).__name__}")):
                function(X, X, **{name: value})
        inside = 2.0 if parameter.interval == "that is 1 or 2" else 0.5
        usual = function(X, X, **{name: inside})
        for value in (np.float32(inside), *([torch.tensor(inside), torch.tensor([inside] * 3)] if is_third else [])):
            torch.testing.assert_close(function(X, X, **{name: value}), usual)


def test_tensors_as_third_operands(spec):
    if spec.parameter is None:
        pytest.skip("this loss has no parameter")
    name = spec.parameter.name
    function, public = getattr(cudaloss, spec.function), op(spec)
    for bad, message in (
        (torch.ones(2), r"must have a shape that broadcasts to \(3,\), got \(2,\)"),
        (torch.ones(1, 3), r"must have a shape that broadcasts to \(3,\), got \(1, 3\)"),
        (torch.ones(3, device="meta"), "must be on the data's device, cpu, got meta"),
        (torch.ones(3, dtype=torch.bool), "must be a floating-point or integer tensor, got torch.bool"),
        (torch.tensor(1j), "must be a floating-point or integer tensor, got torch.complex64"),
        (X.to_sparse(), "must be a dense tensor"),
    ):
        for call in (function, public):
            for input in (X, X.detach().requires_grad_()):
                with pytest.raises(RuntimeError, match=f"{name} {message}"):
                    call(input, X, **{name: bad})
            assert call(X, X, **{name: torch.full((3,), 0.5)}).isfinite()


def test_dtype(spec):
    function = getattr(cudaloss, spec.function)
    with pytest.raises(RuntimeError, match=r"dtype must be a floating torch.dtype or None, got torch.int32"):
        function(X, X, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"dtype must be a floating torch.dtype or None, got str"):
        function(X, X, dtype="float32")


@pytest.mark.cuda
def test_devices(spec):
    for a, b in ((X, X.cuda()), (X.cuda(), X)):
        with pytest.raises(RuntimeError, match="input and target must be on one device, got "):
            op(spec)(a, b)
    assert op(spec)(X.cuda(), X.cuda()).isfinite()


def test_devices_without_a_gpu(spec):
    with pytest.raises(RuntimeError, match="input and target must be on one device, got cpu and meta"):
        op(spec)(X, X.to("meta"))


def private(kind):
    return getattr(torch.ops.cudaloss, f"_pointwise_{kind}")


def test_private_ops_refuse_what_they_cannot_read(spec):
    flags = FOR_INPUT | BELOW_AUTOGRAD
    mean, none = (pack(reduction, torch.float32, spec.mode) | flags for reduction in ("mean", "none"))
    for bad in (torch.ones(4), torch.ones(3, dtype=torch.float8_e4m3fn)):
        for kind in ("loss", "forward", "loss_with_grad", "forward_with_grads"):
            with pytest.raises(RuntimeError):
                private(kind)(X, bad, mean, 1.0)
    for kind in ("loss", "loss_with_grad", "forward", "forward_with_grads"):
        for declined in (private(kind)(X, torch.ones(3, 1), mean | MAY_DECLINE, 1.0),):
            assert declined is None or set(declined) == {None}
    for grad_output, mode in ((torch.ones(9), mean), (torch.ones(1), none), (torch.ones(()), none)):
        with pytest.raises(RuntimeError, match="cudaloss: grad_output must be of the result's shape"):
            _private.gradients(grad_output, None, X, X, mode, 1.0)
    with pytest.raises(RuntimeError, match=r"cudaloss: mode must be one of _modes\.py's"):
        private("loss")(X, X, 3, 1.0)
    for kind in ("loss", "loss_with_grad"):
        with pytest.raises(RuntimeError, match="cudaloss: autograd does not see this op"):
            private(kind)(X, X, mean & ~BELOW_AUTOGRAD, 1.0)
    with pytest.raises(RuntimeError, match="cudaloss: no loss has this id"):
        private("loss")(X, X, pack("mean", torch.float32, 200) | BELOW_AUTOGRAD, 1.0)
    with pytest.raises(RuntimeError, match="cudaloss: only a reduced loss has its gradients in the same pass"):
        private("loss_with_grad")(X, X, none, 1.0)
    one = torch.ones(())
    for gradient in (torch.ones(4), torch.ones(3, dtype=torch.bfloat16), None):
        with pytest.raises(RuntimeError, match="cudaloss: gradients must be of their operands' shapes and dtypes"):
            private("rescale_")(gradient, None, None, 2 * one, None, None, X, X, mean, 1.0)
        assert private("rescale_")(gradient, None, None, 2 * one, None, None, X, X, mean | MAY_DECLINE, 1.0) is False


@pytest.mark.parametrize(
    "denominators",
    [
        None,
        torch.ones(4, 2),  # float32: what hooks on saved tensors may make of them
        torch.ones(2, 2, dtype=torch.float64),  # of two segments, where there are four
        torch.ones(8, 2, dtype=torch.float64)[::2],
        torch.ones(4, dtype=torch.float64),
    ],
)
def test_private_ops_refuse_foreign_denominators(spec, denominators):
    """Read as if they were the forward's, they were other numbers, or memory beyond their end."""
    x, mask = torch.ones(4, 3), torch.ones(4, 3, dtype=torch.bool)
    how = pack("mean", torch.float32, spec.mode, batch_dims=1) | FOR_INPUT | BELOW_AUTOGRAD
    options = 1.0, None, mask
    _, gradient, *_, right, _ = private("forward_with_grads")(x, x, how, 1.0, *options)
    assert right.shape == (4, 2)
    with pytest.raises(RuntimeError, match="cudaloss: denominators must be those of the forward"):
        private("rescale_")(gradient, None, None, torch.full((4,), 2.0), denominators, None, x, x, how, 1.0, *options)
    for found in private("gradients")(torch.ones(4), right, x, x, how, 1.0, *options)[:1]:
        torch.testing.assert_close(
            private("gradients")(torch.ones(4), denominators, x, x, how, 1.0, *options)[0], found
        )


@pytest.mark.parametrize(
    "strange", [lambda x: x.to_sparse(), lambda x: torch.quantize_per_tensor(x, 1.0, 0, torch.qint8)]
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # of their deprecation
def test_private_ops_decline_backends_without_kernels(spec, strange):
    mean = pack("mean", torch.float32, spec.mode)
    for kind in ("loss", "forward", "loss_with_grad", "forward_with_grads"):
        found = private(kind)(strange(X), strange(X), mean | MAY_DECLINE, 1.0)
        assert found is None or set(found) == {None}
        with pytest.raises(NotImplementedError, match="cudaloss has no compiled kernel"):
            private(kind)(strange(X), strange(X), mean, 1.0)


def test_broadcast_warns_in_the_function_only(spec, recwarn):
    op(spec)(torch.ones(3, 1), X)
    assert not recwarn
    if spec.same_shape:
        pytest.skip("the function refuses them, as its namesake does")
    with pytest.warns(UserWarning, match="Using a target size .* Please ensure they have the same size") as caught:
        getattr(cudaloss, spec.function)(torch.ones(3, 1), X)
    assert caught[0].filename == __file__


# ---- operands that only the reference serves, and errors that are none of the operands' ----


def test_dtypes_that_the_stable_abi_does_not_know(spec):
    if not hasattr(torch, "float8_e8m0fnu"):
        pytest.skip("this torch has no such dtype")
    target = torch.tensor([1.0, 2.0, 4.0]).to(torch.float8_e8m0fnu)
    rtol = 0 if spec.is_rational else 5e-7
    torch.testing.assert_close(op(spec)(X, target, "sum"), op(spec)(X, target.float(), "sum"), rtol=rtol, atol=0)
    found = op(spec)(X, target, mask=torch.ones(3, dtype=torch.bool))  # by the reference, the other by the kernels
    torch.testing.assert_close(found, op(spec)(X, target.float()), rtol=rtol, atol=0)


def test_tensors_of_no_memory(spec):
    zeros = torch._efficientzerotensor((3,))
    for options in ({}, {"scale": 0.5}):
        leaf = (X + 1).requires_grad_()
        value = op(spec)(leaf, zeros, **options)
        assert torch.equal(value, op(spec)(leaf, torch.zeros(3), **options))
        (gradient,) = torch.autograd.grad(value, leaf, torch._efficientzerotensor(()))
        assert (gradient == 0).all()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", ["weight", "mask"])
def test_nested_weights_and_masks(spec, name):
    nested = torch.nested.nested_tensor([torch.ones(3)])
    with pytest.raises(RuntimeError, match=f"{name} must be a dense tensor, got a nested one"):
        getattr(cudaloss, spec.function)(X[None], X[None], **{name: nested})


def test_an_allocation_that_fails_is_an_error_at_once(spec, monkeypatch):
    """And is not taken for an op that declines, and tried again by another."""
    huge = torch.zeros(1).expand(1 << 50)
    monkeypatch.setattr(_dispatch._reference, "loss", None)
    with pytest.raises(RuntimeError, match="the result could not be allocated"):
        op(spec)(huge, huge, "none")
