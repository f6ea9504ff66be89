"""Wrong keywords: the argument, its value and what is accepted, from op, function and module; the next call works."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest
import torch

import cudaloss
from oracle import op

X = torch.ones(2, 3)
OF_A_CALL = ("weight", "mask", "normalizer")


def faces(spec):
    """op, function and module, called as ``f(input, target, **keywords)``."""

    def module(input, target, **keywords):
        names = OF_A_CALL[1:] if spec.weight_first else OF_A_CALL
        of_call = {name: value for name, value in keywords.items() if name in names}
        kept = {name: value for name, value in keywords.items() if name not in names}
        return getattr(cudaloss, spec.module)(**kept)(input, target, **of_call)

    return {"op": op(spec), "function": getattr(cudaloss, spec.function), "module": module}


def assert_refused(spec, keywords, kind, message, only=("op", "function", "module"), tensors=(X, X)):
    for name in only:
        call = faces(spec)[name]
        for requires_grad in (False, True):
            input = tensors[0].detach().requires_grad_(requires_grad)
            with pytest.raises(kind, match=message):
                call(input, tensors[1], **keywords)
        assert call(X, X).isfinite()
        assert call(X, X, weight=X, mask=X > 0, batch_dims=1).isfinite().tolist() == [True, True]


def tensor_kinds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch is retiring quantized tensors
        return {
            "sparse": (X.to_sparse(), RuntimeError, r"{} must be a dense tensor, got layout torch.sparse_coo"),
            "quantized": (
                torch.quantize_per_tensor(X, 0.1, 0, torch.quint8),
                RuntimeError,
                "{} must be .* got a quant",
            ),
            "meta": (X.to("meta"), RuntimeError, r"{} must be on the data's device, cpu, got meta"),
        }


@pytest.mark.parametrize("name", OF_A_CALL)
@pytest.mark.parametrize("kind", tensor_kinds())
def test_kinds_of_tensors(spec, name, kind):
    tensor, error, message = tensor_kinds()[kind]
    if name == "mask" and kind == "sparse":
        tensor = (X > 0).to_sparse()
    if name == "mask" and kind == "meta":
        tensor = (X > 0).to("meta")
    if name == "normalizer" and kind == "meta":
        tensor = tensor.sum()
    assert_refused(spec, {name: tensor}, error, message.format(name))


@pytest.mark.cuda
@pytest.mark.parametrize("name", OF_A_CALL)
def test_devices(spec, name):
    value = {"weight": X, "mask": X > 0, "normalizer": torch.tensor(2.0)}[name]
    message = f"{name} must be on the data's device, (cuda:0|cpu), got (cuda:0|cpu)"
    assert_refused(spec, {name: value}, RuntimeError, message, tensors=(X.cuda(), X.cuda()))
    assert_refused(spec, {name: value.cuda()}, RuntimeError, message)
    of_gpu, of_cpu = (op(spec)(X.to(x), X.to(x), **{name: value.to(x)}).cpu() for x in ("cuda", "cpu"))
    torch.testing.assert_close(of_gpu, of_cpu)


@pytest.mark.parametrize("name", ["weight", "mask"])
@pytest.mark.parametrize("shape", [(2, 2), (4,), (2, 2, 3), (1, 2, 3), (3, 2), (2, 3, 1), (0,), (0, 3)], ids=str)
def test_shapes_that_do_not_broadcast_or_would_enlarge(spec, name, shape):
    value = torch.ones(shape) if name == "weight" else torch.ones(shape, dtype=torch.bool)
    message = rf"{name} must have a shape that broadcasts to \(2, 3\), got {re.escape(str(shape))}"
    assert_refused(spec, {name: value}, RuntimeError, message)


def test_the_shape_is_the_broadcast_one(spec):
    wide, row = torch.ones(2, 1), torch.ones(3)
    assert op(spec)(wide, row, weight=X, mask=X > 0).isfinite()
    with pytest.raises(RuntimeError, match=r"weight must have a shape that broadcasts to \(2, 3\), got \(2, 4\)"):
        op(spec)(wide, row, weight=torch.ones(2, 4))
    with pytest.raises(RuntimeError, match=r"mask must have a shape that broadcasts to \(\), got \(1,\)"):
        op(spec)(torch.ones(()), torch.ones(()), mask=torch.ones(1, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_dtypes_of_a_weight(spec, dtype):
    hint = {torch.bool: "; give it as mask=", torch.complex64: ""}.get(dtype, r"; call weight.float\(\)")
    message = f"weight must be a floating-point tensor, got {dtype}{hint}"
    assert_refused(spec, {"weight": X.to(dtype)}, RuntimeError, message)


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.int64, torch.complex64], ids=str)
def test_dtypes_of_a_mask(spec, dtype):
    message = rf"mask must be a bool tensor, got {dtype}; call mask.bool\(\)"
    assert_refused(spec, {"mask": X.to(dtype)}, RuntimeError, message)


@pytest.mark.parametrize("name", ["weight", "mask"])
@pytest.mark.parametrize("value", [[1.0, 1.0, 1.0], 1.0, True, np.ones(3), "x"], ids=repr)
def test_not_a_tensor(spec, name, value):
    message = f"{name} must be a torch.Tensor, got {type(value).__name__}"
    assert_refused(spec, {name: value}, TypeError, message, only=("function", "module"))
    if not isinstance(value, (float, bool)):  # the dispatcher makes tensors of numbers, which are then 0-d
        assert_refused(spec, {name: value}, (RuntimeError, TypeError), name, only=("op",))


# ---- normalizer ----


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64], ids=str)
def test_dtypes_of_a_normalizer(spec, dtype):
    message = f"normalizer must be a floating-point or integer tensor, got {dtype}"
    assert_refused(spec, {"normalizer": torch.ones((), dtype=dtype)}, RuntimeError, message)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (2,), (0,), (2, 3)], ids=str)
def test_shapes_of_a_normalizer(spec, shape):
    message = rf"normalizer must be a 0-d tensor, got shape {re.escape(str(shape))}"
    assert_refused(spec, {"normalizer": torch.ones(shape)}, RuntimeError, message)


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("value", [torch.tensor(2.0), 2.0, 2], ids=["tensor", "float", "int"])
def test_a_normalizer_of_what_is_no_mean(spec, reduction, value):
    only = ("op", "function", "module") if isinstance(value, torch.Tensor) else ("function", "module")
    message = f"normalizer must be None if reduction is '{reduction}'"
    assert_refused(spec, {"normalizer": value, "reduction": reduction}, ValueError, message, only)


@pytest.mark.parametrize("value", ["2", [2.0], (2,), True, 2j, {}], ids=repr)
def test_wrong_types_of_a_normalizer(spec, value):
    message = f"normalizer must be a 0-d tensor or a number, got {type(value).__name__}"
    assert_refused(spec, {"normalizer": value}, TypeError, message, only=("function", "module"))
    if isinstance(value, (str, list, tuple, dict)):
        assert_refused(spec, {"normalizer": value}, (RuntimeError, TypeError), "normalizer", only=("op",))


@pytest.mark.parametrize("value", [np.ones(2), np.ones(1), np.array(2.0)], ids=repr)
def test_a_normalizer_is_no_array(spec, value):
    message = "normalizer must be a 0-d tensor or a number, got ndarray"
    assert_refused(spec, {"normalizer": value}, TypeError, message, only=("function", "module"))


def test_a_normalizer_of_the_number_0(spec):
    for zero in (0, 0.0, -0.0, np.float32(0)):
        message = "normalizer must be a 0-d tensor or a number other than 0, got 0"
        assert_refused(spec, {"normalizer": zero}, ValueError, message, only=("function", "module"))


# ---- scale, batch_dims, ignore_nan ----


@pytest.mark.parametrize(
    "value", ["2", None, [2.0], 2j, True, torch.tensor(2.0), torch.tensor(1.0), X, np.ones(2)], ids=repr
)
def test_wrong_types_of_a_scale(spec, value):
    message = f"scale must be a number, got {type(value).__name__}"
    assert_refused(spec, {"scale": value}, TypeError, message, only=("function", "module"))
    if isinstance(value, (str, list)):
        assert_refused(spec, {"scale": value}, (RuntimeError, TypeError), "scale", only=("op",))


def test_a_scale_that_is_right_beside_a_normalizer_that_is_a_number(spec):
    for scale in ("2", None, torch.tensor(2.0)):
        message = f"scale must be a number, got {type(scale).__name__}"
        assert_refused(spec, {"scale": scale, "normalizer": 2}, TypeError, message, only=("function", "module"))


@pytest.mark.parametrize("value", [-1, 3, 100, -(2**40)])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_batch_dims_past_the_rank(spec, value, reduction):
    message = f"batch_dims must be at least 0 and at most 2, the rank of the loss, got {value}"
    assert_refused(spec, {"batch_dims": value, "reduction": reduction}, ValueError, message)
    with pytest.raises(ValueError, match="batch_dims must be at least 0 and at most 0, the rank of the loss, got 1"):
        op(spec)(torch.ones(()), torch.ones(()), batch_dims=1)
    assert op(spec)(torch.ones(3), torch.ones(2, 3), batch_dims=2, reduction="sum").shape == (2, 3)


@pytest.mark.parametrize("value", ["1", None, [1], 1.0, 0.0, True, False, torch.tensor(1), np.ones(2)], ids=repr)
def test_wrong_types_of_batch_dims(spec, value):
    message = f"batch_dims must be an int, got {type(value).__name__}"
    assert_refused(spec, {"batch_dims": value}, TypeError, message, only=("function", "module"))
    if not isinstance(value, (bool, torch.Tensor)) and value is not None:  # those the dispatcher takes for ints
        assert_refused(spec, {"batch_dims": value}, (RuntimeError, TypeError), "batch_dims", only=("op",))


@pytest.mark.parametrize("value", ["yes", None, 1, 0, 0.0, torch.tensor(True)], ids=repr)
def test_wrong_types_of_ignore_nan(spec, value):
    message = f"ignore_nan must be a bool, got {type(value).__name__}"
    assert_refused(spec, {"ignore_nan": value}, TypeError, message, only=("function", "module"))
    if isinstance(value, str):
        assert_refused(spec, {"ignore_nan": value}, (RuntimeError, TypeError), "ignore_nan", only=("op",))


def test_numbers_of_numpy_are_numbers(spec):
    call = getattr(cudaloss, spec.function)
    value = call(X, 0 * X, scale=np.float32(0.5), batch_dims=np.int64(1), normalizer=np.float64(3))
    torch.testing.assert_close(value, op(spec)(X, 0 * X, scale=0.5, batch_dims=1))


def test_unknown_keywords(spec):
    for call in faces(spec).values():
        with pytest.raises((TypeError, RuntimeError), match="weights"):
            call(X, X, weights=X)


def test_keywords_of_nested_tensors(spec):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    for keywords in ({"scale": 2.0}, {"batch_dims": 1}, {"ignore_nan": True}, {"weight": torch.ones(())}):
        message = f"{next(iter(keywords))}.* must keep their defaults if input is a nested tensor"
        with pytest.raises(RuntimeError, match=message):
            op(spec)(nested, nested, **keywords)


def test_the_first_thing_wrong_is_named(spec):
    """Operands before keywords: a keyword is judged by the shape and the device of the data."""
    with pytest.raises(RuntimeError, match=r"input must be a floating-point tensor, got torch\.int64"):
        op(spec)(X.long(), X, weight=X.long())
    with pytest.raises(RuntimeError, match="input and target must have shapes that broadcast"):
        op(spec)(X, torch.ones(5), mask=torch.ones(7))
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'avg'"):
        op(spec)(X, X, "avg", normalizer=torch.ones(()))
