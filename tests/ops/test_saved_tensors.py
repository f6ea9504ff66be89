"""What a backward meets: hooks on saved tensors, several threads, gradients that are batched by the older vmap."""

from __future__ import annotations

import sys
import threading

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import cudaloss
from conftest import KINDS
from oracle import op, operands, spelled_out

HOOKS = {
    "bfloat16 and back to float32": (lambda x: x.to(torch.bfloat16), lambda x: x.float()),
    "bfloat16 and back": (lambda x: (x.to(torch.bfloat16), x.dtype), lambda kept: kept[0].to(kept[1])),
    "float64": (lambda x: x.double(), lambda x: x),
    "transposed": (lambda x: x, lambda x: x.mT.contiguous().mT if x.dim() > 1 else x),
    "numpy": (lambda x: x.cpu().numpy().copy(), lambda x: torch.from_numpy(x)),
}


def calls(device):
    mask = torch.rand(4, 6, device=device) < 0.7
    mask[:, 0] = True
    weight = torch.rand(6, device=device) + 0.5
    return {
        "plain": {},
        "sum": {"reduction": "sum"},
        "none": {"reduction": "none"},
        "mask": {"mask": mask},
        "weight": {"weight": weight},
        "per sample": {"mask": mask, "weight": weight, "batch_dims": 1},
        "ignore_nan": {"ignore_nan": True},
    }


@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("given", list(calls("cpu")))
def test_hooks_that_change_what_was_saved(spec, device, given, hooks):
    assert_right_with_hooks(spec, device, given, hooks, compiled=False)


@pytest.mark.parametrize("hooks", ["bfloat16 and back to float32", "bfloat16 and back"])
@pytest.mark.parametrize("given", list(calls("cpu")))
def test_hooks_around_a_compiled_call(device, given, hooks):
    assert_right_with_hooks(KINDS[0], device, given, hooks, compiled=True)


def assert_right_with_hooks(spec, device, given, hooks, compiled):
    if compiled and hooks == "bfloat16 and back to float32" and given not in ("plain", "sum", "none"):
        pytest.skip("PyTorch's compiled backwards take what they have saved in its dtype and layout")
    if device == "cuda" and hooks == "numpy":
        pytest.skip("it would stay on the CPU")
    options = calls(device)[given]
    # bfloat16 holds them, so that what is lost is not the data's digits
    input, target = (torch.randint(-8, 8, (4, 6), device=device) / 4 for _ in range(2))
    if given == "ignore_nan":
        target[1, 2] = torch.nan
    leaf = input.clone().requires_grad_()
    function = op(spec)
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, backend="aot_eager")
    with saved_tensors_hooks(*HOOKS[hooks]):
        value = function(leaf, target, **options).sum()
    value.backward()
    options = dict(options)
    if options.pop("ignore_nan", False):
        options["mask"], target = ~target.isnan(), target.nan_to_num()
    other = input.clone().requires_grad_()
    spelled_out(spec)(other, target, **options).sum().backward()
    # of bfloat16: weights, denominators and the first pass's gradients are rounded to it
    tolerance = {"rtol": 2e-2, "atol": 1e-4} if "bfloat16" in hooks else {"rtol": 1e-5, "atol": 1e-7}
    torch.testing.assert_close(leaf.grad, other.grad, **tolerance)


@pytest.mark.parametrize("hooks", ["bfloat16 and back to float32", "float64"])
def test_hooks_around_a_broadcast_operand(spec, device, hooks):
    """Its gradient sums over segments with denominators of their own, which come back as other numbers."""
    options = {"mask": calls(device)["mask"]["mask"], "batch_dims": 1}
    input, target = (torch.randint(-8, 8, shape, device=device) / 4 for shape in ((4, 6), (1, 6)))
    found = []
    for function, pair in ((op(spec), HOOKS[hooks]), (spelled_out(spec), (lambda x: x, lambda x: x))):
        leaves = [x.clone().requires_grad_() for x in (input, target)]
        with saved_tensors_hooks(*pair):
            value = function(*leaves, **options).square().sum()
        found.append(torch.autograd.grad(value, leaves))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("given", list(calls("cpu")))
def test_several_threads_get_gradients_of_their_own(spec, device, given):
    options = calls(device)[given]
    input, target = operands((4, 6), (torch.float32,) * 2, device)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            leaf = input.clone().requires_grad_()
            value = op(spec)(leaf, target, **options).sum()
            ready, found = threading.Barrier(4), []

            def work(value=value, leaf=leaf, ready=ready, found=found):
                ready.wait()
                found.extend(torch.autograd.grad(value, leaf, retain_graph=True))

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len({gradient.data_ptr() for gradient in found}) == 4
            for gradient in found[1:]:
                torch.testing.assert_close(gradient, found[0])
    finally:
        sys.setswitchinterval(before)


def test_a_gradient_is_claimed_once(spec):
    """Whatever thread comes first: the token is taken in one step."""
    leaf = torch.ones(8, requires_grad=True)
    value = op(spec)(leaf, torch.zeros(8))
    assert value.grad_fn.__dict__.pop("unspent") is True
    saved = value.grad_fn.saved_tensors[2]
    (found,) = torch.autograd.grad(value, leaf)  # as a thread that has come too late
    assert found.data_ptr() != saved.data_ptr()


@pytest.mark.parametrize("given", list(calls("cpu")))
def test_gradients_batched_by_the_older_vmap(spec, device, given):
    options = calls(device)[given]
    input, target = operands((4, 6), (torch.float32,) * 2, device)
    target = target.detach()
    functional = torch.autograd.functional

    def of(function):
        call = lambda x: function(spec)(x, target, **given_of(function))  # noqa: E731
        jacobian = functional.jacobian(call, input, vectorize=True)
        hessian = functional.hessian(lambda x: call(x).sum(), input, vectorize=True)
        leaf = input.clone().requires_grad_()
        value = call(leaf)
        several = torch.stack([torch.ones_like(value), torch.full_like(value, 2.5)])
        batched = torch.autograd.grad(value, leaf, several, is_grads_batched=True)[0]
        return jacobian, hessian, batched

    def given_of(function):
        if function is op or not options.get("ignore_nan"):
            return options
        return {}

    for ours, theirs in zip(of(op), of(spelled_out), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_one_rule_where_weights_sum_to_nothing(spec, device):
    """Gradients are 0 times the data's: 0 for finite data, NaN otherwise, also for a broadcast operand."""
    if spec.mean_over_count:
        pytest.skip("its mean divides by the number of elements")
    weight = torch.tensor([1.0, 1.0, -1.0, -1.0], device=device)
    for dtype in (torch.float32, torch.float64):
        data = torch.tensor([[1.0, 2.0, 3.0, 4.0], [torch.nan, 2.0, 3.0, 4.0]], dtype=dtype, device=device)
        for batch_dims in (0, 1):
            full = data.clone().requires_grad_()
            one = torch.zeros((1, 1), dtype=dtype, device=device, requires_grad=True)
            value = op(spec)(full, one, weight=weight.to(dtype), batch_dims=batch_dims)
            of_full, of_one = torch.autograd.grad(value.sum(), (full, one))
            assert torch.equal(of_full.isnan(), data.isnan()) and (of_full.nan_to_num() == 0).all()
            assert of_one.isnan().all()
            finite = data[:1].clone().requires_grad_()
            value = op(spec)(finite, one, weight=weight.to(dtype), batch_dims=batch_dims)
            for gradient in torch.autograd.grad(value.sum(), (finite, one)):
                assert (gradient == 0).all()


# ---- numbers as normalizers ----


def test_a_number_divides(spec, device):
    function = getattr(cudaloss, spec.function)
    for dtype in (torch.float64, torch.float32):
        seven, zero = torch.tensor(7.0, dtype=dtype, device=device), torch.zeros((), dtype=dtype, device=device)
        value = op(spec)(seven, zero)
        assert function(seven, zero, normalizer=float(value)) == 1
        number = int(value * 4)
        found = function(seven, zero, normalizer=number)
        if spec.is_rational:
            assert found.item() == value.item() / number
        else:
            torch.testing.assert_close(found, value / number)
        leaf = seven.clone().requires_grad_()
        ours = torch.autograd.grad(function(leaf, zero, normalizer=49), leaf)[0]
        theirs = torch.autograd.grad(op(spec)(leaf, zero) / 49, leaf)[0]
        torch.testing.assert_close(ours, theirs)


def test_extreme_scales_and_normalizers(device):
    value = cudaloss.mse_loss(
        torch.tensor(1e100, dtype=torch.float64, device=device),
        torch.zeros((), dtype=torch.float64, device=device),
        scale=1e-300,
        normalizer=1e100,
    )
    torch.testing.assert_close(value.item(), 1e-200, rtol=1e-12, atol=0)


def test_the_fallback_keeps_a_float64_normalizer(spec, device):
    input, target = operands((100,), (torch.float32,) * 2, device)
    normalizer = torch.tensor(1e-50, dtype=torch.float64, device=device, requires_grad=True)
    scale = 1e-52
    fused = op(spec)(input, target, normalizer=normalizer.detach(), scale=scale)
    assert fused.isfinite() and fused > 0
    other = op(spec)(input, target, normalizer=torch.tensor(3.3, dtype=torch.float64, device=device))
    reference = op(spec)(
        input, target, normalizer=torch.tensor(3.3, dtype=torch.float64, device=device, requires_grad=True)
    )
    torch.testing.assert_close(reference, other, rtol=2e-7, atol=0)
