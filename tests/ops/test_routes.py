"""Every route to a loss is the same function: kernels, reference, transforms, compilers and captured graphs give the
same values and gradients, also at the edges of its domain. A new loss takes part by its row."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.multiprocessing import ProcessExitedException  # pyright: ignore[reportPrivateImportUsage]

import cudaloss
import routes
from cudaloss._losses.options import Options
from exact import Exact
from oracle import TORCH
from processes import printed_by
from routes import FIRST, FIRST_OF_ELEMENTS, SECOND, Case, fused

inf = math.inf
ALL = [*routes.elements(), *routes.rows()]
# Each case as it is, and a loss's first with weights or a mask; all with both if --whole is given.
NAMES = [case.name for case in ALL]
FIRSTS = list({(id(x.spec), *x.operands, *x.differentiable): x.name for x in reversed(ALL)}.values())
OPTIONS = ("plain", "weighted", "masked")
TOLERANCE = 2e-6  # 17 units in the last place of the larger term, which a plain formula rounds in each step
LEAST = 1e-36  # below 2^-119 float32's numbers lose digits in such steps


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "choice" in metafunc.fixturenames:
        every = metafunc.config.getoption("whole")
        chosen = [(name, option) for name in NAMES for option in (OPTIONS if every else OPTIONS[:1])]
        chosen += [] if every else [(name, OPTIONS[1 + place % 2]) for place, name in enumerate(FIRSTS)]
        metafunc.parametrize("choice", chosen, ids="-".join)


@pytest.fixture
def case(choice: tuple[str, str], device: str) -> Case:
    name, option = choice
    return routes.with_option(ALL[NAMES.index(name)], option).on(device)


@pytest.fixture
def left_out(choice: tuple[str, str], request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Routes, unless --whole is given, that have others' formulas: graphs that call the kernels as eager code does, or
    that decompose to what another graph has; and most graphs of a loss's other numbers, and with an option."""
    if request.config.getoption("whole"):
        return ()
    always = "compiled sum", "compiled mean", "export"
    is_first = choice[0] in FIRSTS and choice[1] == "plain"
    return always if is_first else (*always, "compiled none", "export, decomposed", "make_fx sum")


def magnitude(x: Tensor) -> Tensor:
    return x.double().nan_to_num(0.0, 0.0, 0.0).abs()


def sizes(case: Case, expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """The larger terms of value and gradients, whose rounding bounds the error of a plain formula."""
    if case.rank:
        largest = magnitude(next(iter(case.operands.values()))).amax(-1).clamp(min=case.numbers.get("softcap", 1.0))
        of = {name: magnitude(x).amax(-1, keepdim=True).clamp(min=1.0) for name, x in expected.items() if x.dim() > 1}
        return {**of, "value": largest}
    third, second = case.spec.parameter, case.spec.second
    parameter = case.operands.get(third.name, case.spec.default) if third else case.spec.default
    number = case.numbers[second.name] if second else None
    names = case.spec.operands
    operands = [case.operands[name] for name in names]
    exact = Exact(case.spec, *operands, "none", parameter, Options(weight=case.options.get("weight")), number)
    ones = torch.ones(len(operands[0]))
    found = {"value": exact.size, **{name: exact.gradient(place, ones)[1] for place, name in enumerate(names)}}
    return {name: x.to(operands[0].device) for name, x in found.items()}


def differ(found: Tensor, expected: Tensor, size: Tensor | float, tolerance: Tensor | float, least: Tensor) -> Tensor:
    """Where two results are not the same number, infinity or NaN."""
    a, b = found.double(), expected.double()
    is_nan, is_finite = a.isnan() | b.isnan(), a.isfinite() & b.isfinite()
    scale = torch.maximum(torch.maximum(a.abs(), b.abs()), torch.as_tensor(size).nan_to_num(0.0, 0.0, 0.0))
    error = torch.where(is_finite, (a - b).abs(), 0)
    return torch.where(
        is_nan, a.isnan() != b.isnan(), torch.where(is_finite, error > tolerance * scale + least, a != b)
    )


def described(case: Case, where: Tensor, found: Tensor, expected: Tensor) -> str:
    lines = []
    for place in sorted(set(where.nonzero()[:, 0].tolist()))[:4]:
        operands = {name: x[place].tolist() for name, x in {**case.operands, **case.options}.items()}
        lines.append(f"  {operands}: {found[place].tolist()}, expected {expected[place].tolist()}")
    return f"{int(where.sum())} of {where.numel()} differ:\n" + "\n".join(lines)


def edges(case: Case) -> tuple[Tensor, Tensor]:
    """The tolerance and the least error that counts. A number below the normal ones has fewer digits, and its last one
    counts as much as what multiplies it."""
    if case.rank:
        return torch.full((), TOLERANCE), torch.full((), LEAST)
    operands = torch.stack([x.double() for x in case.operands.values()])
    is_tiny = ((operands != 0) & (operands.abs() < 2**-126)).any(0)
    return torch.where(is_tiny, 1e-3, TOLERANCE), LEAST + 2.0**-147 * magnitude(operands).amax(0)


@pytest.mark.filterwarnings("ignore")
def test_values_and_gradients(case, left_out):
    expected, faults = fused(case), []
    size, (tolerance, least) = sizes(case, expected), edges(case)
    for name, route in (FIRST if case.rank else FIRST_OF_ELEMENTS).items():
        if name in left_out:
            continue
        found = route(case)
        for key, number in expected.items():
            where = differ(found[key], number, size.get(key, 0.0), tolerance, least)
            if where.any():
                faults.append(f"{name}, {key}: {described(case, where, found[key], number)}")
    assert not faults, "\n".join(faults)


@pytest.mark.filterwarnings("ignore")
def test_second_derivatives(case):
    """Where operands and first derivatives are finite and have all digits."""
    if case.rank:
        pytest.skip("the hessian of a row is a matrix: test_row_contract.py compares those")
    first, expected = fused(case), SECOND["create_graph twice"](case)
    operands = torch.stack([*case.operands.values()])
    counts = (operands.isfinite() & ((operands == 0) | (operands.abs() > 2**-100))).all(0)
    of_input = first[case.spec.operands[0]]
    counts &= of_input.isfinite() & first["value"].isfinite()
    where = counts & expected.isnan()
    faults = [f"NaN: {described(case, where, expected, of_input)}"] if where.any() else []
    for name, route in SECOND.items():
        found = route(case)
        where = differ(found, expected, 0.0, 1e-4, torch.full((), LEAST)) & counts
        if where.any():
            faults.append(f"{name}: {described(case, where, found, expected)}")
    assert not faults, "\n".join(faults)


# ---- what is chosen where a formula has no number ----


def every_route(function, *operands, device):
    """The single losses, and the gradients of all operands, by kernels, vmap, create_graph and a compiler."""
    tensors = [torch.tensor(x, device=device) for x in operands]
    places = tuple(range(len(tensors)))

    def by_autograd(call, create_graph=False):
        leaves = [x.clone().requires_grad_() for x in tensors]
        value = call(*leaves)
        found = torch.autograd.grad(value.sum(), leaves, create_graph=create_graph)
        return [value.tolist(), *(x.tolist() for x in found)]

    torch._dynamo.reset()
    by_vmap = torch.func.vmap(torch.func.grad(lambda *x: function(*x).sum(), places))(*tensors)
    return [
        by_autograd(function),
        by_autograd(function, create_graph=True),
        by_autograd(torch.compile(function, backend="aot_eager", fullgraph=True)),
        [torch.func.vmap(function)(*tensors).tolist(), *(x.tolist() for x in by_vmap)],
    ]


def assert_chosen(found, expected):
    for route in found:
        for ours, theirs in zip(route, expected, strict=True):
            torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), equal_nan=True)


def none_of(function, **given):
    return lambda *operands: function(*operands, reduction="none", **given)


def test_choices(device):
    bce = none_of(cudaloss.binary_cross_entropy)
    found = every_route(bce, [0.0, 1.0, 0.0], [0.0, 1.0, 1.0], device=device)
    assert_chosen(found, [[0.0, 0.0, 100.0], [0.0, 0.0, -1e12], [100.0, -100.0, 100.0]])
    poisson = none_of(cudaloss.poisson_nll_loss, log_input=False, eps=0.0)
    assert_chosen(every_route(poisson, [0.0], [0.0], device=device), [[0.0], [1.0], [inf]])
    masked = none_of(cudaloss.poisson_nll_loss, log_input=False, eps=0.0, mask=torch.tensor(False, device=device))
    assert_chosen(every_route(masked, [0.0, math.nan], [0.0, 1.0], device=device), [[0.0, 0.0]] * 3)
    gaussian = none_of(cudaloss.gaussian_nll_loss)
    assert_chosen(every_route(gaussian, [1.0], [0.0], [inf], device=device), [[inf], [0.0], [-0.0], [0.0]])
    kl_div = none_of(cudaloss.kl_div)
    assert_chosen(every_route(kl_div, [-inf, -1.0], [0.5, 0.0], device=device), [[inf, 0.0], [-0.5, 0.0], [inf, 0.0]])
    focal = none_of(cudaloss.sigmoid_focal_loss, gamma=0.0)
    found = every_route(lambda x: focal(x, torch.ones_like(x)), [95.0, inf], device=device)
    assert_chosen(found, [[1.4e-42, 0.0], [-1.4e-42, 0.0]])


def test_a_class_weight_of_0_times_an_infinite_loss(device):
    """NaN, as in PyTorch; the gradient is 0."""
    weight, index = torch.tensor([0.0, 1.0, 1.0], device=device), torch.tensor([0], device=device)
    call = none_of(cudaloss.cross_entropy, target=index, weight=weight)
    input = torch.tensor([[-inf, 0.0, 1.0]], device=device, requires_grad=True)
    torch._dynamo.reset()
    for route in (call, torch.compile(call, backend="aot_eager"), lambda x: torch.func.vmap(call)(x[None])[0]):
        value = route(input)
        (gradient,) = torch.autograd.grad(value.sum(), input)
        assert value.isnan().all() and gradient.eq(0).all()


def test_second_derivative_of_binary_cross_entropy_at_its_ends(device):
    """1 / (1 - p)^2 for t = 0, and 1 / p^2 for t = 1, of which only the infinite one is limited."""
    p, t = torch.tensor([0.0, 1.0, 0.0, 1.0], device=device), torch.tensor([0.0, 1.0, 1.0, 0.0], device=device)
    expected = torch.tensor([1.0, 1.0, 1e12, 1e12], device=device)

    def summed(p, t):
        return cudaloss.binary_cross_entropy(p, t, reduction="sum")

    torch.testing.assert_close(torch.func.hessian(summed)(p, t).diagonal(), expected)
    leaf = p.clone().requires_grad_()
    (slope,) = torch.autograd.grad(summed(leaf, t), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), leaf)[0], expected)


OF_LOGITS = {
    "binary cross entropy": cudaloss.binary_cross_entropy_with_logits,
    "with a pos_weight": functools.partial(cudaloss.binary_cross_entropy_with_logits, pos_weight=2.5),
    "focal": functools.partial(cudaloss.sigmoid_focal_loss, gamma=1.5),
    "varifocal": cudaloss.varifocal_loss,
    "soft margin": cudaloss.soft_margin_loss,
}


@pytest.mark.parametrize("name", OF_LOGITS)
def test_a_logit_of_0_has_the_derivatives_of_its_neighbours(device, name):
    """Also those of the target's slope. Formulas fold the input at 0, where PyTorch's versions differ in slopes."""

    def derivatives(at: float) -> list[Tensor]:
        x = torch.full((4,), at, dtype=torch.float64, device=device, requires_grad=True)
        t = torch.tensor([0.1, 0.3, 1.0, -1.0 if name == "soft margin" else 0.0], dtype=x.dtype, device=device)
        loss = OF_LOGITS[name](x, t.requires_grad_()).sum()
        of_x, of_t = torch.autograd.grad(loss, (x, t), create_graph=True)
        of_xx, of_xt = torch.autograd.grad(of_x.sum(), (x, t), create_graph=True)
        (of_tx,) = torch.autograd.grad(of_t.sum(), x, create_graph=True)
        (of_xxx,) = torch.autograd.grad(of_xx.sum(), x)
        return [of_x, of_t, of_xx, of_xt, of_tx, of_xxx]

    for at_0, near in zip(derivatives(0.0), derivatives(1e-9), strict=True):
        torch.testing.assert_close(at_0, near, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("target", [0.0, 0.3, 1.0])
def test_derivatives_of_binary_cross_entropy_with_logits_in_its_tails(device, target):
    """Those of float32 have their digits where a sigmoid is 1 minus less than an ulp, up to the third order."""
    found = []
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([-inf, -80, -30, -5, 0, 5, 30, 80, inf], dtype=dtype, device=device, requires_grad=True)
        loss = cudaloss.binary_cross_entropy_with_logits(x, torch.full_like(x, target).detach(), reduction="sum")
        orders = [loss]
        for _ in range(3):
            orders.append(torch.autograd.grad(orders[-1].sum(), x, create_graph=True)[0])
        found.append([x.detach().double() for x in orders[1:]])
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-36)


WRONG_LABEL = """
import torch

try:
    torch.compile(torch.nn.functional.cross_entropy)(torch.zeros(2, 3), torch.tensor([0, 3]))
except (RuntimeError, IndexError):
    pass
"""


@functools.cache
def compiled_code_can_raise() -> bool:
    """On a machine with torch 2.11 and GCC 13 PyTorch's own loss ended the process, where Inductor's kernel raises."""
    if TORCH >= "2.12":
        return True
    try:
        printed_by(WRONG_LABEL)
    except ProcessExitedException:
        return False
    return True


@pytest.mark.filterwarnings("ignore")  # Inductor's on a GPU: online softmax
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("loss", [cudaloss.cross_entropy, cudaloss.nll_loss], ids=lambda loss: loss.__name__)
@pytest.mark.parametrize("raises", [True, False], ids=["as here", "as on a GPU"])
def test_wrong_labels_in_a_compiled_call(loss, backend, raises, device, monkeypatch):
    """They raise, or give NaN; a compiler may drop the check of PyTorch's scatter."""
    if backend == "inductor" and device == "cpu" and not compiled_code_can_raise():
        pytest.skip("here PyTorch's compiled cross entropy dies of a wrong label")
    torch._dynamo.reset()
    if not raises:
        monkeypatch.setattr("cudaloss._reference.classes._raises", lambda index: False)
    input, target = torch.zeros(2, 3, device=device, requires_grad=True), torch.tensor([0, 3], device=device)
    for reduction in ("none", "sum"):
        compiled = torch.compile(loss, backend=backend)
        try:
            value = compiled(input, target, reduction=reduction)
            gradient = torch.autograd.grad(value.sum(), input)[0]
        except (RuntimeError, IndexError) as error:
            if "out of bounds" not in str(error) and "target must hold class indices" not in str(error):
                raise
        else:
            assert value.isnan().any() and gradient[1].isnan().all()


@pytest.mark.filterwarnings("ignore")
def test_this_test_can_fail(device, monkeypatch):
    """With the formula that autograd differentiates step by step, it finds what it was written for."""
    monkeypatch.setattr("cudaloss._losses.closed_forms._composes", lambda: True)
    case = next(case for case in ALL if case.name == "binary_cross_entropy").on(device)
    with pytest.raises(AssertionError, match="vmap"):
        test_values_and_gradients(case, ())
    with warnings.catch_warnings(), pytest.raises(AssertionError):
        test_second_derivatives(case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_halves_at_the_edges(choice, device, dtype):
    """Kernels for halves have arithmetic of their own on a GPU: NaN and infinity where float32's have them.
    Exponentials below 2^-126 are 0 there (docs/numerics.md), so operands with such are left out."""
    name, option = choice
    if option != "plain":
        pytest.skip("as without options")
    case = ALL[NAMES.index(name)].on(device)
    largest = torch.finfo(dtype).max
    given = {
        k: torch.where(x.abs() == 1e30, x.sign() * min(largest, 1e30), x).to(x.dtype) for k, x in case.operands.items()
    }
    if device == "cuda":
        numbers = torch.stack([x.double().abs().reshape(len(x), -1).amax(1) for x in given.values()])
        kept = (~((numbers > 87) & (numbers < 1e4)) & ~((numbers > 0) & (numbers < 2**-126))).all(0)
        given = {k: x[kept] for k, x in given.items()}
    half = replace(case, operands={k: x.to(dtype) if x.is_floating_point() else x for k, x in given.items()})
    wide = replace(half, operands={k: x.float() if x.is_floating_point() else x for k, x in half.operands.items()})
    found, expected, faults = fused(half), fused(wide), []
    size = sizes(wide, expected)
    for key, number in expected.items():
        rounded = number.to(dtype)
        is_even = ~(number.abs() > largest / 2) | number.isinf()  # rounds to a number or to infinity
        least = torch.full((), torch.finfo(dtype).tiny)
        where = differ(found[key], rounded, size.get(key, 0.0), 4 * torch.finfo(dtype).eps, least) & is_even
        if where.any():
            faults.append(f"{key}: {described(half, where, found[key], rounded)}")
    assert not faults, "\n".join(faults)
