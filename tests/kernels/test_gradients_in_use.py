"""Gradients of calls with keywords and without in every mode of plain autograd: checked numerically, retained, hooked,
kept."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from calls import Call
from cudaloss._losses.options import Options
from cudaloss._losses.table import SPECS
from exact import Exact
from oracle import error, leaf, op, operands, parameters, spelled_out

SHAPE = (4, 250)
GRAD_OUTPUTS = (1.0, 0.5, -1.0, 65536.0, 0.3, -7.0, 0.0, 1e-30)


@pytest.fixture
def pair(device):
    return operands(SHAPE, (torch.float32,) * 2, device)


def keywords(device, seed=0):
    """None, and one of each combination that selects or weighs; the mask leaves something of each sample."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(SHAPE, generator=generator) < 0.6
    mask[:, 0] = True
    mask, weight = mask.to(device), (torch.rand(SHAPE, generator=generator) + 0.1).to(device)
    return {
        "plain": {},
        "mask": {"mask": mask},
        "weight": {"weight": weight},
        "mask and weight": {"mask": mask, "weight": weight},
        "normalizer": {"mask": mask, "normalizer": torch.tensor(7.0, device=device), "scale": 0.3},
        "per sample": {"mask": mask, "weight": weight, "batch_dims": 1, "scale": 0.5},
    }


KEYWORDS = tuple(keywords("cpu"))


@pytest.fixture(params=KEYWORDS)
def given(request, device):
    return keywords(device)[request.param]


def incoming(value, number):
    return torch.full_like(value, number)


def call_of(spec, pair, given, wanted=(True, False)):
    operands = (x.detach().clone().requires_grad_(need) for x, need in zip(pair, wanted, strict=True))
    return Call(spec, *operands, options=Options(**given))


# ---- checked numerically, and a second time ----


def smooth_operands(device):
    """float64 leaves whose differences stay clear of every kink, as finite differences need."""
    d = torch.tensor([[-1.7, -0.6, -0.2, 0.4], [0.15, 0.45, 1.3, -1.4]], dtype=torch.float64, device=device)
    target = torch.randn(2, 4, dtype=torch.float64, device=device)
    return leaf(target + d), leaf(target)


@pytest.mark.parametrize(("reduction", "batch_dims"), [("mean", 0), ("mean", 1), ("sum", 1), ("none", 0)])
def test_gradcheck_and_gradgradcheck(spec, device, reduction, batch_dims):
    mask = torch.tensor([[True, False, True, True], [True, True, False, True]], device=device)
    row = leaf(torch.tensor([0.5, 2.0, 1.5, 0.7], dtype=torch.float64, device=device))
    normalizer = leaf(torch.tensor(3.0, dtype=torch.float64, device=device))
    for parameter in parameters(spec):

        def selected(input, target, weight=None, parameter=parameter):
            return op(spec)(input, target, reduction, parameter, mask=mask, weight=weight, batch_dims=batch_dims)

        def divided(input, target, normalizer, parameter=parameter):
            return op(spec)(input, target, "mean", parameter, mask=mask, normalizer=normalizer, batch_dims=batch_dims)

        calls = [(selected, ()), (selected, (row.detach(),)), (selected, (row,))]
        for call, more in calls + ([(divided, (normalizer,))] if reduction == "mean" else []):
            inputs = (*smooth_operands(device), *more)
            assert torch.autograd.gradcheck(call, inputs, check_forward_ad=True)
            assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_double_backward_is_the_spelled_out_ones(spec, pair, given, reduction):
    if "normalizer" in given and reduction == "sum":
        pytest.skip("a normalizer is of a mean")

    def second(function, dtype):
        a, b = (leaf(x.to(dtype)) for x in pair)
        value = function(a, b, reduction, **given)
        first = torch.autograd.grad(value, (a, b), torch.ones_like(value), create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in first) + value.sum(), (a, b))

    found, expected = second(op(spec), pair[0].dtype), second(spelled_out(spec), torch.float64)  # which cancels
    torch.testing.assert_close(found, [x.to(y) for x, y in zip(expected, found, strict=True)])


# ---- what becomes of a gradient between its making and its use ----


@pytest.mark.parametrize("wanted", [(True, False), (False, True), (True, True)], ids=str)
def test_any_grad_output(spec, pair, given, wanted):
    call = call_of(spec, pair, given, wanted)
    for number in GRAD_OUTPUTS:
        call.incoming = str(number)
        call.assert_right()


def test_retained_graphs_hand_out_gradients_of_their_own(spec, pair, given):
    call = call_of(spec, pair, given, (True, True))
    operands = call.input, call.target
    value = op(spec)(*operands, **given)
    for number in (1.0, 0.5, 0.3, 1.0):
        grad_output = incoming(value, number)
        found = torch.autograd.grad(value, operands, grad_output, retain_graph=True)
        call.assert_gradients(found, grad_output)
        for gradient in found:
            gradient.fill_(math.nan)  # whoever was given it may do what he likes


def test_create_graph_between_plain_backwards(spec, pair, given):
    a = leaf(pair[0])
    value = op(spec)(a, pair[1], **given)
    one = torch.ones_like(value)
    (expected,) = torch.autograd.grad(spelled_out(spec)(a, pair[1], **given), a, one)
    for create_graph in (True, False, True, False):
        (found,) = torch.autograd.grad(value, a, one, retain_graph=True, create_graph=create_graph)
        assert found.requires_grad == create_graph
        torch.testing.assert_close(found, expected)
        found.detach().fill_(math.nan)


def test_accumulation_and_two_losses_of_one_input(spec, pair, given):
    a, b = leaf(pair[0]), leaf(pair[0])
    for _ in range(2):
        (op(spec)(a, pair[1], **given).sum() / 4 + op(spec)(2 * a, pair[1]).sum()).backward()
        (spelled_out(spec)(b, pair[1], **given).sum() / 4 + spelled_out(spec)(2 * b, pair[1]).sum()).backward()
    torch.testing.assert_close(a.grad, b.grad)


def test_hooks_see_and_change_only_their_own(spec, pair, given):
    a, seen = leaf(pair[0]), []
    a.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient.mul_(3))
    value = op(spec)(a, pair[1], **given)
    one = torch.ones_like(value)
    value.backward(one, retain_graph=True)
    value.backward(one)
    assert torch.equal(seen[0], seen[1])
    torch.testing.assert_close(a.grad, 6 * seen[0])


@pytest.mark.parametrize("retain", [False, True])
def test_saved_tensor_hooks(spec, pair, given, retain):
    for hooks in (
        torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
        torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x.clone()),
        torch.autograd.graph.save_on_cpu(),
    ):
        call = call_of(spec, pair, given)
        with hooks:
            value = op(spec)(call.input, call.target, **given)
        for number in (0.5, 0.25) if retain else (0.5,):
            grad_output = incoming(value, number)
            (found,) = torch.autograd.grad(value, call.input, grad_output, retain_graph=retain)
            call.assert_gradients([found], grad_output)
            found.fill_(math.nan)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(spec, pair, given, reentrant):
    a = leaf(pair[0])
    value = checkpoint(lambda x: op(spec)(x * 2, pair[1], **given), a, use_reentrant=reentrant)
    value.backward(torch.ones_like(value))
    b = leaf(pair[0])
    expected = spelled_out(spec)(b * 2, pair[1], **given)
    expected.backward(torch.ones_like(expected))
    torch.testing.assert_close(a.grad, b.grad)


def test_gradient_scaler(spec, pair, given):
    call = call_of(spec, pair, given)
    scaler = torch.amp.GradScaler(call.input.device.type)
    value = op(spec)(call.input, call.target, **given)
    scaler.scale(value.sum()).backward()
    call.assert_gradients([call.input.grad], incoming(value, 65536.0))
    scaler.unscale_(torch.optim.SGD([call.input], lr=1.0))
    call.assert_gradients([call.input.grad], incoming(value, 1.0))


@pytest.mark.parametrize("size", [1 << 16, pytest.param(1 << 26, marks=pytest.mark.cuda)])
def test_scaled_fp16_gradients_do_not_underflow(spec, device, size):
    """Divided by the count before a gradient scaler's 65,536 multiplies, they would be 0."""
    if (device == "cuda") != (size > 1 << 16):
        pytest.skip("one size a device")
    input, target = torch.tensor([[0.02], [0.01]], dtype=torch.float16, device=device).expand(2, size).clone()
    input.requires_grad_()
    mask = torch.ones((), dtype=torch.bool, device=device).expand(size)
    value = op(spec)(input, target, mask=mask, dtype=torch.float32)
    (found,) = torch.autograd.grad(value * 65536.0, input)
    slope, _ = Exact(spec, input[:1], target[:1], "sum", spec.default).gradient(0, torch.tensor(65536.0 / size))
    assert error(found[:1], slope, torch.float16) <= 1.0
    assert (found == found[0]).all() and found[0] != 0


# ---- grad_output's layout ----


@pytest.mark.parametrize(
    "make",
    [
        lambda shape: torch.ones(()).expand(shape),
        lambda shape: torch.randn(*shape[:-1], 1).expand(shape),
        lambda shape: torch.randn(*reversed(shape)).permute(*reversed(range(len(shape)))),
        lambda shape: torch.randn(*shape, 2)[..., 1],
        lambda shape: torch.randn(math.prod(shape) + 1)[1:].view(shape),
    ],
    ids=["expanded", "partly expanded", "transposed", "stepped", "misaligned"],
)
@pytest.mark.parametrize(("reduction", "batch_dims"), [("none", 0), ("mean", 1), ("sum", 2)])
def test_layouts_of_grad_output(spec, device, make, reduction, batch_dims):
    operands_ = (leaf(x) for x in operands((6, 7, 30), (torch.float32,) * 2, device))
    pair = tuple(operands_)
    for mask in (None, torch.rand(6, 7, 30, device=device) < 0.6):
        call = Call(spec, *pair, reduction, options=Options(mask=mask, batch_dims=batch_dims))
        value = op(spec)(*pair, reduction, mask=mask, batch_dims=batch_dims)
        grad_output = make(tuple(value.shape)).to(device)
        call.assert_gradients(torch.autograd.grad(value, pair, grad_output), grad_output)


def test_gradient_of_a_sum_of_samples_is_an_expanded_one(spec, pair, given):
    given = {name: value for name, value in given.items() if name != "normalizer"}
    for reduce in (torch.sum, torch.mean, lambda x: x.double().sum()):
        a, b = leaf(pair[0]), leaf(pair[0])
        reduce(op(spec)(a, pair[1], "none", **given)).backward()
        reduce(spelled_out(spec)(b, pair[1], "none", **given)).backward()
        torch.testing.assert_close(a.grad, b.grad)


# ---- the same bits ----


def test_repeated_runs_give_the_same_bits(spec, device):
    for shape in ((1000,), (8193,), (3, 100_003), (7000, 40)):
        input, target = operands(shape, (torch.float32, torch.bfloat16), device)
        mask, weight = torch.rand(shape, device=device) < 0.6, torch.rand(shape[-1:], device=device)
        for batch_dims in range(len(shape) + 1):
            options = {"mask": mask, "weight": weight, "batch_dims": batch_dims, "ignore_nan": True}

            def bits(copy, options=options, input=input, target=target):
                a, b = leaf(copy(input)), leaf(copy(target))
                value = op(spec)(a, b, **{**options, "mask": copy(options["mask"])})
                return value.detach(), *torch.autograd.grad(value, (a, b), incoming(value, 0.3))

            first = bits(lambda x: x)
            for _ in range(3):
                for x, y in zip(first, bits(torch.clone), strict=True):
                    assert torch.equal(x.nan_to_num(nan=-7.0), y.nan_to_num(nan=-7.0))


def test_every_way_of_asking_for_gradients_gives_one_value(spec, pair, given):
    """One pass with a gradient, with both, or only a forward: the loss has the same bits."""
    value = op(spec)(*pair, **given)
    for wanted in ((True, False), (False, True), (True, True)):
        tensors = [x.detach().clone().requires_grad_(need) for x, need in zip(pair, wanted, strict=True)]
        assert torch.equal(op(spec)(*tensors, **given), value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_that_the_first_pass_could_not_store(device, dtype):
    """Stored below the normal numbers, then multiplied: the result has the operands' digits, not the stored ones."""
    mse = next(spec for spec in SPECS if spec.name == "mse")
    info = torch.finfo(dtype)
    exponents = torch.linspace(math.log2(info.tiny), math.log2(info.tiny) + 40, 4000, dtype=torch.float64)
    input = leaf(torch.exp2(exponents).to(device, dtype))
    mask = torch.arange(4000, device=device) % 3 != 0
    for number in ("1099511627776", "1048576", "0.5"):
        Call(mse, input, torch.zeros_like(input), options=Options(mask=mask), incoming=number).assert_right()
