"""Bad operands, numbers and keywords: the argument, its value and what is accepted, from op, function and module, in an
error of the kind that PyTorch raises, before any kernel; the next call works."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch

import cudaloss
from cudaloss._call.modes import BELOW_AUTOGRAD, FOR_INPUT, MAY_DECLINE, pack
from cudaloss._ops import dispatch
from cudaloss._ops import private as _private
from oracle import op

X = torch.ones(3)
Y = torch.ones(2, 3)
OF_A_CALL = ("weight", "mask", "normalizer")


def quantized(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch is retiring them
        return torch.quantize_per_tensor(x, 0.1, 0, torch.quint8)


def faces(spec):
    """op, function and module, called as ``f(input, target, **keywords)``."""

    def module(input, target, **keywords):
        names = OF_A_CALL[1:] if spec.weight_first else OF_A_CALL
        of_call = {name: value for name, value in keywords.items() if name in names}
        kept = {name: value for name, value in keywords.items() if name not in names}
        return getattr(cudaloss, spec.module)(**kept)(input, target, **of_call)

    return {"op": op(spec), "function": getattr(cudaloss, spec.function), "module": module}


# ---- operands ----

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
        quantized(X),
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
    for call in faces(spec).values():
        with pytest.raises(kind, match=f"{which} must be a {message}"):
            call(arguments["input"], arguments["target"])
        assert call(X, X).isfinite()


@pytest.mark.parametrize("which", ["input", "target"])
def test_not_a_tensor(spec, which):
    for value in ([1.0, 2.0, 3.0], 1.0, None):
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


def test_reductions(spec):
    for reduction in ("avg", "", "Mean"):
        for call in (op(spec), getattr(cudaloss, spec.function)):
            with pytest.raises(ValueError, match=f"reduction must be 'none', 'mean' or 'sum', got '{reduction}'"):
                call(X, X, reduction=reduction)
    for reduction in (1, None, ["mean"]):
        with pytest.raises(TypeError, match="reduction must be a str"):
            getattr(cudaloss, spec.function)(X, X, reduction=reduction)


OUTSIDE = {
    None: (),
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


def test_broadcast_warns_in_the_function_only(spec, recwarn):
    op(spec)(torch.ones(3, 1), X)
    assert not recwarn
    if spec.same_shape:
        pytest.skip("the function refuses them, as its namesake does")
    with pytest.warns(UserWarning, match="Using a target size .* Please ensure they have the same size") as caught:
        getattr(cudaloss, spec.function)(torch.ones(3, 1), X)
    assert caught[0].filename == __file__


# ---- keywords ----


def assert_refused(spec, keywords, kind, message, only=("op", "function", "module"), tensors=(Y, Y)):
    for name in only:
        call = faces(spec)[name]
        for requires_grad in (False, True):
            input = tensors[0].detach().requires_grad_(requires_grad)
            with pytest.raises(kind, match=message):
                call(input, tensors[1], **keywords)
        assert call(Y, Y).isfinite()
        assert call(Y, Y, weight=Y, mask=Y > 0, batch_dims=1).isfinite().tolist() == [True, True]


def of_tensors(good):
    """What no weight, mask or normalizer may be: values, the error, and how the message goes on after the name."""
    return [
        (good.to_sparse(), RuntimeError, "must be a dense tensor, got layout torch.sparse_coo"),
        (quantized(good.float()), RuntimeError, "must be .* got a quant"),
        (good.to("meta"), RuntimeError, r"must be on the data's device, cpu, got meta"),
    ]


def of_shape(good):
    shapes = (2, 2), (4,), (2, 2, 3), (1, 2, 3), (3, 2), (2, 3, 1), (0,), (0, 3)
    message = r"must have a shape that broadcasts to \(2, 3\), got "
    return [(torch.ones(x).to(good.dtype), RuntimeError, message + re.escape(str(x))) for x in shapes]


def of_types(accepted, *values):
    return [(value, TypeError, f"must be {accepted}, got {type(value).__name__}") for value in values]


NO_TENSORS = of_types("a torch.Tensor", [1.0, 1.0, 1.0], 1.0, True, np.ones(3), "x")
ONE = torch.tensor(1.0)
WRONG: dict[str, list[tuple[Any, type[Exception], str]]] = {
    "weight": [
        *of_tensors(Y),
        *of_shape(Y),
        *NO_TENSORS,
        *(
            (Y.to(dtype), RuntimeError, f"must be a floating-point tensor, got {dtype}{hint}")
            for dtype, hint in {
                torch.int64: r"; call weight.float\(\)",
                torch.uint8: r"; call weight.float\(\)",
                torch.bool: "; give it as mask=",
                torch.complex64: "",
            }.items()
        ),
    ],
    "mask": [
        *of_tensors(Y > 0),
        *of_shape(Y > 0),
        *NO_TENSORS,
        *(
            (Y.to(dtype), RuntimeError, rf"must be a bool tensor, got {dtype}; call mask.bool\(\)")
            for dtype in (torch.float32, torch.uint8, torch.int64, torch.complex64)
        ),
    ],
    "normalizer": [
        (Y.to_sparse(), RuntimeError, "must be a dense tensor, got layout torch.sparse_coo"),
        (quantized(Y), RuntimeError, "must be .* got a quant"),
        (ONE.to("meta"), RuntimeError, "must be on the data's device, cpu, got meta"),
        *(
            (ONE.to(dtype), RuntimeError, f"must be a floating-point or integer tensor, got {dtype}")
            for dtype in (torch.bool, torch.complex64)
        ),
        *(
            (torch.ones(shape), RuntimeError, rf"must be a 0-d tensor, got shape {re.escape(str(shape))}")
            for shape in ((1,), (1, 1), (2,), (0,), (2, 3))
        ),
        *of_types("a 0-d tensor or a number", "2", [2.0], (2,), True, 2j, {}, np.ones(2), np.ones(1), np.array(2.0)),
        *(
            (zero, ValueError, "must be a 0-d tensor or a number other than 0, got 0")
            for zero in (0, 0.0, -0.0, np.float32(0))
        ),
    ],
    "scale": of_types("a number", "2", None, [2.0], 2j, True, torch.tensor(2.0), ONE, Y, np.ones(2)),
    "batch_dims": of_types("an int", "1", None, [1], 1.0, 0.0, True, False, torch.tensor(1), np.ones(2)),
    "ignore_nan": of_types("a bool", "yes", None, 1, 0, 0.0, torch.tensor(True)),
}
# What the dispatcher refuses in its own words; other values of a wrong type it converts, or an op does not take them.
BY_DISPATCHER = {
    "weight": (list, np.ndarray, str),
    "mask": (list, np.ndarray, str),
    "normalizer": (str, list, tuple, dict),
    "scale": (str, list),
    "batch_dims": (str, list, float, np.ndarray),
    "ignore_nan": (str,),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_keywords(spec, name):
    for value, kind, message in WRONG[name]:
        is_tensor = isinstance(value, torch.Tensor) and name in OF_A_CALL
        only = ("op", "function", "module") if is_tensor else ("function", "module")
        assert_refused(spec, {name: value}, kind, f"{name} {message}", only)
        if isinstance(value, BY_DISPATCHER[name]):
            assert_refused(spec, {name: value}, (RuntimeError, TypeError), name, only=("op",))


@pytest.mark.cuda
@pytest.mark.parametrize("name", OF_A_CALL)
def test_devices_of_keywords(spec, name):
    value = {"weight": Y, "mask": Y > 0, "normalizer": torch.tensor(2.0)}[name]
    message = f"{name} must be on the data's device, (cuda:0|cpu), got (cuda:0|cpu)"
    assert_refused(spec, {name: value}, RuntimeError, message, tensors=(Y.cuda(), Y.cuda()))
    assert_refused(spec, {name: value.cuda()}, RuntimeError, message)
    of_gpu, of_cpu = (op(spec)(Y.to(x), Y.to(x), **{name: value.to(x)}).cpu() for x in ("cuda", "cpu"))
    torch.testing.assert_close(of_gpu, of_cpu)


def test_the_shape_is_the_broadcast_one(spec):
    wide, row = torch.ones(2, 1), torch.ones(3)
    assert op(spec)(wide, row, weight=Y, mask=Y > 0).isfinite()
    with pytest.raises(RuntimeError, match=r"weight must have a shape that broadcasts to \(2, 3\), got \(2, 4\)"):
        op(spec)(wide, row, weight=torch.ones(2, 4))
    with pytest.raises(RuntimeError, match=r"mask must have a shape that broadcasts to \(\), got \(1,\)"):
        op(spec)(torch.ones(()), torch.ones(()), mask=torch.ones(1, dtype=torch.bool))


def test_a_normalizer_of_what_is_no_mean(spec):
    for reduction in ("sum", "none"):
        message = f"normalizer must be None if reduction is '{reduction}'"
        for value in (torch.tensor(2.0), 2.0, 2):
            only = ("op", "function", "module") if isinstance(value, torch.Tensor) else ("function", "module")
            assert_refused(spec, {"normalizer": value, "reduction": reduction}, ValueError, message, only)


def test_a_scale_that_is_right_beside_a_normalizer_that_is_a_number(spec):
    for scale in ("2", None, torch.tensor(2.0)):
        message = f"scale must be a number, got {type(scale).__name__}"
        assert_refused(spec, {"scale": scale, "normalizer": 2}, TypeError, message, only=("function", "module"))


def test_batch_dims_past_the_rank(spec):
    for value in (-1, 3, 100, -(2**40)):
        for reduction in ("mean", "sum", "none"):
            message = f"batch_dims must be at least 0 and at most 2, the rank of the loss, got {value}"
            assert_refused(spec, {"batch_dims": value, "reduction": reduction}, ValueError, message)
    with pytest.raises(ValueError, match="batch_dims must be at least 0 and at most 0, the rank of the loss, got 1"):
        op(spec)(torch.ones(()), torch.ones(()), batch_dims=1)
    assert op(spec)(torch.ones(3), torch.ones(2, 3), batch_dims=2, reduction="sum").shape == (2, 3)


def test_numbers_of_numpy_are_numbers(spec):
    call = getattr(cudaloss, spec.function)
    value = call(Y, 0 * Y, scale=np.float32(0.5), batch_dims=np.int64(1), normalizer=np.float64(3))
    torch.testing.assert_close(value, op(spec)(Y, 0 * Y, scale=0.5, batch_dims=1))


def test_unknown_keywords(spec):
    for call in faces(spec).values():
        with pytest.raises((TypeError, RuntimeError), match="weights"):
            call(Y, Y, weights=Y)


def test_keywords_of_nested_tensors(spec):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for keywords in ({"scale": 2.0}, {"batch_dims": 1}, {"ignore_nan": True}, {"weight": torch.ones(())}):
        message = f"{next(iter(keywords))}.* must keep their defaults if input is a nested tensor"
        with pytest.raises(RuntimeError, match=message):
            op(spec)(nested, nested, **keywords)


def test_the_first_thing_wrong_is_named(spec):
    """Operands before keywords: a keyword is judged by the shape and the device of the data."""
    with pytest.raises(RuntimeError, match=r"input must be a floating-point tensor, got torch\.int64"):
        op(spec)(Y.long(), Y, weight=Y.long())
    with pytest.raises(RuntimeError, match="input and target must have shapes that broadcast"):
        op(spec)(Y, torch.ones(5), mask=torch.ones(7))
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'avg'"):
        op(spec)(Y, Y, "avg", normalizer=torch.ones(()))


# ---- private ops ----


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
    with pytest.raises(RuntimeError, match=r"cudaloss: mode must be packed by _call/modes\.py"):
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


def test_private_ops_refuse_foreign_denominators(spec):
    """Read as if they were the forward's, they were other numbers, or memory beyond their end."""
    x, mask = torch.ones(4, 3), torch.ones(4, 3, dtype=torch.bool)
    how = pack("mean", torch.float32, spec.mode, batch_dims=1) | FOR_INPUT | BELOW_AUTOGRAD
    options = 1.0, None, mask
    _, gradient, *_, right, _ = private("forward_with_grads")(x, x, how, 1.0, *options)
    assert right.shape == (4, 2)
    whole = private("gradients")(torch.ones(4), right, x, x, how, 1.0, *options)[0]
    for denominators in (
        None,
        torch.ones(4, 2),  # float32: what hooks on saved tensors may make of them
        torch.ones(2, 2, dtype=torch.float64),  # of two segments, where there are four
        torch.ones(8, 2, dtype=torch.float64)[::2],
        torch.ones(4, dtype=torch.float64),
    ):
        call = x, x, how, 1.0, *options
        with pytest.raises(RuntimeError, match="cudaloss: denominators must be those of the forward"):
            private("rescale_")(gradient, None, None, torch.full((4,), 2.0), denominators, None, *call)
        torch.testing.assert_close(private("gradients")(torch.ones(4), denominators, *call)[0], whole)


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
    monkeypatch.setattr(dispatch.definition, "loss", None)
    with pytest.raises(RuntimeError, match="the result could not be allocated"):
        op(spec)(huge, huge, "none")
