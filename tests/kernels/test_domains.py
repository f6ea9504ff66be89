"""Losses of certain numbers (probabilities, logarithms, counts), with their flags: exact values and gradients, their
namesakes' results, and what they are where a logarithm or a probability ends."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from calls import Call
from cudaloss._call.modes import REDUCTIONS
from cudaloss._losses.options import Options
from cudaloss.bench.rivals import COMPOSED
from oracle import ARITHMETICS, SECONDS, leaf, op, operands, parameters, public, with_ties

inf, nan = math.inf, math.nan


def leaves(spec, device, shape=(40, 101), dtypes=(torch.float32,) * 2):
    return tuple(leaf(x) for x in operands(shape, dtypes, device))


@pytest.mark.domains
@pytest.mark.parametrize("dtypes", ARITHMETICS, ids=str)
def test_dtypes(spec, device, dtypes):
    for reduction in REDUCTIONS:
        Call(spec, *leaves(spec, device, dtypes=dtypes), reduction, spec.default).assert_right()


@pytest.mark.domains
def test_sizes_and_numbers(spec, device):
    seconds = SECONDS[spec.second.interval] if spec.second else (None,)
    for size, parameter, second in itertools.product((3, 40_001), parameters(spec), seconds):
        Call(spec, *leaves(spec, device, (size,)), "mean", parameter, second=second).assert_right()


@pytest.mark.domains
def test_keywords(spec, device):
    input, target = leaves(spec, device)
    mask, weight = torch.rand(40, 101, device=device) < 0.6, torch.rand(101, device=device) + 0.1
    for reduction in REDUCTIONS:
        for options in (
            Options(mask=mask),
            Options(weight=weight, scale=0.3),
            Options(weight=weight, mask=mask, batch_dims=1),
            Options(normalizer=torch.tensor(7.0, device=device)) if reduction == "mean" else Options(batch_dims=1),
        ):
            Call(spec, input, target, reduction, spec.default, options, incoming="random").assert_right()


@pytest.mark.domains
def test_third_operands_of_elements(spec, device):
    if spec.parameter is None:
        pytest.skip("this loss has none")
    input, target = leaves(spec, device)
    for shape in ((), (101,), (40, 1), (40, 101)):
        third = 0.1 + 0.8 * torch.rand(shape, device=device)
        Call(spec, input, target, "mean", third).assert_right()
    # Its own gradient, beside that of float64's formula.
    call = public(spec)
    third = leaf(third)
    (found,) = torch.autograd.grad(call(input, target, **{spec.parameter.name: third}), third)
    wide = [leaf(x.double()) for x in (input, target, third)]
    (expected,) = torch.autograd.grad(call(*wide[:2], **{spec.parameter.name: wide[2]}), wide[2])
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=2e-9)


# ---- PyTorch's namesakes ----


composed_focal = COMPOSED["sigmoid_focal"]  # as torchvision has it


@pytest.mark.domains
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
def test_namesakes(spec, device, reduction):
    namesake = getattr(F, spec.function, composed_focal)
    input, target = leaves(spec, device, (9, 14), (torch.float64,) * 2)
    own = dict(spec.flag_values)
    given = (
        (torch.rand(9, 14, device=device, dtype=torch.float64),) if spec.parameter and spec.parameter.of_call else ()
    )
    theirs = input
    if not own.pop("log_input", True) and spec.batchmean:  # which PyTorch's has not
        theirs = input.log()
    elif "log_input" in spec.flag_values and not spec.batchmean:
        own["log_input"] = spec.flag_values["log_input"]
    if spec.name == "margin_ranking":
        own["margin"] = with_ties(0.0, torch.float64)
    ours = getattr(cudaloss, spec.function)(input, target, *given, reduction=reduction, **spec.flag_values)
    expected = namesake(theirs, target.detach(), *given, reduction=reduction, **own)
    torch.testing.assert_close(ours, expected)
    grad_output = torch.randn_like(ours)
    found, truth = (torch.autograd.grad(value, input, grad_output)[0] for value in (ours, expected))
    torch.testing.assert_close(found, truth, rtol=1e-6, atol=1e-12)
    module = getattr(cudaloss, spec.module)(reduction=reduction, **spec.flag_values)
    assert torch.equal(module(input, target, *given), ours)


@pytest.mark.parametrize("shape", [(6, 5), (4, 3, 5), (0, 5)])
def test_batchmean(device, shape):
    x, t = torch.randn(shape, device=device).log_softmax(-1).requires_grad_(), torch.rand(shape, device=device)
    for function in (cudaloss.kl_div, torch.compile(cudaloss.kl_div, backend="aot_eager", fullgraph=True)):
        ours, theirs = function(x, t, reduction="batchmean"), F.kl_div(x, t, reduction="batchmean")
        torch.testing.assert_close(ours, theirs, equal_nan=True)
        for found in zip(*(torch.autograd.grad(value, x) for value in (ours, theirs)), strict=True):
            torch.testing.assert_close(*found)
    torch.testing.assert_close(torch.ops.cudaloss.kl_div(x, t, "batchmean"), theirs, equal_nan=True)
    with pytest.raises(ValueError, match="normalizer must be None if reduction is 'batchmean'"):
        cudaloss.kl_div(x, t, reduction="batchmean", normalizer=torch.tensor(3.0, device=device))
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean' or 'sum', got 'batchmean'"):
        cudaloss.mse_loss(x, t, reduction="batchmean")


# ---- where logarithms and probabilities end ----


def at(function, input, target, device, **own):
    """The single losses, and the gradients of input and target."""
    x, t = (torch.tensor(numbers, device=device).requires_grad_() for numbers in (input, target))
    value = function(x, t, reduction="none", **own)
    return [value.tolist(), *(found.tolist() for found in torch.autograd.grad(value.sum(), (x, t)))]


def assert_ends(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), equal_nan=True)


def test_ends_of_kl_div(device):
    assert_ends(
        at(cudaloss.kl_div, [-inf, -1.0, nan, -inf], [0.0, 0.0, 0.0, 0.5], device),
        [[0.0, 0.0, nan, inf], [0.0, 0.0, nan, -0.5], [0.0, 0.0, nan, inf]],
    )
    found = at(cudaloss.kl_div, [0.0, 0.5], [0.0, 0.0], device, log_input=False)
    assert_ends(found, [[0.0, 0.0]] * 3)
    found = at(cudaloss.kl_div, [-inf, -1.0], [-inf, -inf], device, log_target=True)
    assert_ends(found, [[0.0, 0.0]] * 3)
    assert math.isnan(at(cudaloss.kl_div, [-1.0], [-0.5], device)[0][0])


def test_ends_of_binary_cross_entropy(device):
    x, t = [0.0, 1.0, 0.0, 1.0, nan], [1.0, 0.0, 0.0, 1.0, 1.0]
    found = at(cudaloss.binary_cross_entropy, x, t, device)
    assert_ends(found[:2], [[100.0, 100.0, 0.0, 0.0, nan], [-1e12, 1e12, 0.0, 0.0, nan]])
    assert found[2][:2] == [100.0, -100.0]
    outside = at(cudaloss.binary_cross_entropy, [-0.5, 1.5], [0.0, 1.0], device)
    assert all(math.isnan(number) for numbers in outside[:2] for number in numbers)


def test_ends_of_poisson_nll(device):
    found = at(cudaloss.poisson_nll_loss, [-inf, 100.0, -inf], [0.0, 1.0, 2.0], device)
    assert_ends(found, [[0.0, inf, inf], [0.0, inf, -2.0], [inf, -100.0, inf]])
    found = at(cudaloss.poisson_nll_loss, [0.0, 2.0], [0.0, 0.0], device, log_input=False, eps=0.0)
    assert_ends(found[:2], [[0.0, 2.0], [1.0, 1.0]])


def test_ends_of_gaussian_nll(device):
    var = torch.tensor([-1.0, nan, 0.0, 1.0], device=device).requires_grad_()
    x = torch.tensor([1.0, 1.0, 1.0, inf], device=device).requires_grad_()
    value = cudaloss.gaussian_nll_loss(x, torch.zeros_like(x), var, eps=0.25, reduction="none")
    of_x, of_var = torch.autograd.grad(value.sum(), (x, var))
    for found, third in ((value, 0.5 * (math.log(0.25) + 4)), (of_x, 4.0), (of_var, 0.5 * (4 - 16))):
        assert found[:2].isnan().all() and found[2].item() == pytest.approx(third)
    assert value[3] == of_x[3] == inf
    with torch.no_grad():  # the kernels' own
        assert cudaloss.gaussian_nll_loss(x, torch.zeros_like(x), var, eps=0.25, reduction="none")[:2].isnan().all()
    assert math.isnan(at(cudaloss.gaussian_nll_loss, [nan], [0.0], device, var=1.0)[0][0])


def test_a_var_without_the_last_dimension(device):
    x, t, var = torch.randn(6, 6, device=device), torch.randn(6, 6, device=device), torch.rand(6, device=device) + 0.5
    found = cudaloss.gaussian_nll_loss(x, t, var)
    torch.testing.assert_close(found, F.gaussian_nll_loss(x, t, var))
    assert torch.equal(found, cudaloss.gaussian_nll_loss(x, t, var[:, None]))
    torch.testing.assert_close(torch.ops.cudaloss.gaussian_nll(x, t, var), found)


def test_ends_of_sigmoid_focal(device):
    for gamma in (0.0, 0.5, 1.0, 2.0, 3.5):
        found = at(cudaloss.sigmoid_focal_loss, [inf, -inf, inf, -inf], [1.0, 0.0, 0.0, 1.0], device, gamma=gamma)
        assert_ends(found[:2], [[0.0, 0.0, inf, inf], [0.0, 0.0, 0.75, -0.25]])
    assert math.isnan(at(cudaloss.sigmoid_focal_loss, [nan], [1.0], device)[0][0])


def test_a_negative_alpha_is_none(device):
    x, t = torch.randn(500, device=device).requires_grad_(), (torch.rand(500, device=device) < 0.3).float()
    tensor = torch.tensor([-1.0, 0.25], device=device).repeat(250)
    for alpha in (-1.0, -0.5, tensor):
        ours = cudaloss.sigmoid_focal_loss(x, t, alpha)
        theirs = 2 * composed_focal(x, t, "none", alpha=0.5)  # whose weights are all 1
        if alpha is tensor:
            theirs = torch.where(tensor < 0, theirs, composed_focal(x, t, "none", alpha=0.25))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        found = (torch.autograd.grad(value.sum(), x)[0] for value in (ours, theirs))
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


# ---- transforms, errors ----


@pytest.mark.domains
def test_transforms(spec, device):
    input, target = operands((5, 6), (torch.float64,) * 2, device)
    call = lambda x: op(spec)(x, target)  # noqa: E731
    x = leaf(input)
    (gradient,) = torch.autograd.grad(call(x), x, create_graph=True)
    torch.testing.assert_close(torch.func.grad(call)(input), gradient.detach())
    value, slope = torch.func.jvp(call, (input,), (torch.ones_like(input),))
    torch.testing.assert_close((value, slope), (call(input), gradient.sum().detach()))
    per_sample = torch.func.vmap(lambda a, b: op(spec)(a, b))(input, target)
    torch.testing.assert_close(per_sample, op(spec)(input, target, batch_dims=1))
    hessian = torch.func.hessian(call)(input).sum((2, 3))
    torch.testing.assert_close(hessian, torch.autograd.grad(gradient.sum(), x)[0])


@pytest.mark.domains
def test_derivatives_of_second_order(spec, device):
    input, target = operands((3, 4), (torch.float64,) * 2, device)
    if "[0, 1]" in spec.targets:
        target = 0.2 + 0.6 * target  # hard ones lie at the ends of what may be differentiated
    if spec.name == "margin_ranking":
        target = target + 1 / 128  # no difference is then at its kink
    for reduction in ("none", "mean"):
        call = lambda x, t, r=reduction: op(spec)(x, t * 1.0, r)  # noqa: E731
        needs_target = spec.targets != ">= 0"  # at whole counts Stirling's term has a kink
        given = leaf(input), target.clone().requires_grad_(needs_target)
        assert torch.autograd.gradcheck(call, given)
        assert torch.autograd.gradgradcheck(call, given)


def test_errors():
    x, t = torch.rand(2, 4)
    with pytest.raises(TypeError, match="var"):
        cudaloss.gaussian_nll_loss(x, t)
    with pytest.raises(TypeError, match="var must be a number >= 0 or a tensor, got NoneType"):
        cudaloss.gaussian_nll_loss(x, t, None)
    with pytest.raises(RuntimeError, match="var must be a number >= 0, got -1"):
        cudaloss.gaussian_nll_loss(x, t, -1.0)
    with pytest.raises(RuntimeError, match=r"var must have a shape that broadcasts to \(4,\), got \(3,\)"):
        cudaloss.gaussian_nll_loss(x, t, torch.ones(3))
    with pytest.raises(RuntimeError, match=r"alpha must be a number <= 1, got 1\.5"):
        cudaloss.sigmoid_focal_loss(x, t, 1.5)
    with pytest.raises(RuntimeError, match="gamma must be a number >= 0, got -2"):
        cudaloss.sigmoid_focal_loss(x, t, gamma=-2.0)
    with pytest.raises(RuntimeError, match="eps must be a number >= 0"):
        cudaloss.poisson_nll_loss(x, t, eps=-1.0)
    with pytest.raises(ValueError, match="reduction must be 'none', 'mean', 'sum' or 'batchmean', got 'median'"):
        cudaloss.kl_div(x, t, reduction="median")
    with pytest.raises(ValueError, match=r"Target size .* must be the same as input size"):
        cudaloss.binary_cross_entropy(x, torch.rand(3))
