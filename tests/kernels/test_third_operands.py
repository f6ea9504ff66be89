"""A third operand (beta, delta, quantile, pos_weight) as a tensor: as the number where it is constant, as the formula
says where it varies, whatever its shape, layout and dtype are, and with a gradient of its own."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import cudaloss
from calls import Call
from capturing import CAPTURES
from conftest import KINDS
from cudaloss._call.modes import REDUCTIONS
from cudaloss._install.build import DEVICES
from cudaloss._losses.options import Options
from cudaloss._losses.table import SPECS
from oracle import DTYPES, SUITED, leaf
from thirds import BCE, LAYOUTS, SHAPE, THIRDS, Third, incoming, largest, results


def pytest_generate_tests(metafunc):
    """Of one loss of each kind, and with the marker `any_numbers` of every one."""
    if "third" in metafunc.fixturenames:
        config, every = metafunc.config, metafunc.definition.get_closest_marker("any_numbers")
        every = (every or config.getoption("whole")) and not config.getoption("kinds")
        thirds = [third for third in THIRDS.values() if every or third.spec in KINDS]
        assert len(thirds) == (len(THIRDS) if every else 2)
        metafunc.parametrize("third", thirds, ids=lambda third: third.name)
    if "of" in metafunc.fixturenames:  # each of these has kernels of its own
        every = [spec for spec in SPECS if spec.parameter]
        chosen = [spec for spec in every if spec in KINDS] if metafunc.config.getoption("kinds") else every
        metafunc.parametrize("of", chosen, ids=lambda spec: spec.name)


def assert_as_spelled_out(third, call, input, target, p, *, rtol=2e-6, **options):
    """Value and both gradients, of the kernels: the third operand requires none."""
    ours = results(lambda x, t, **given: call(x, t, p, **given), (input, target), **options)
    wide = {k: v.double() if torch.is_tensor(v) and v.is_floating_point() else v for k, v in options.items()}
    formula = lambda x, t, **given: third.spelled_out(x, t, p.double(), **given)  # noqa: E731
    theirs = results(formula, (input.double(), target.double()), **wide)
    assert ours[0].dtype == torch.promote_types(input.dtype, target.dtype)
    for found, truth, like in zip(ours, theirs, (ours[0], input, target), strict=True):
        assert (found.shape, found.dtype) == (truth.shape, like.dtype)
        rel = max(rtol, 1.01 * torch.finfo(found.dtype).eps)
        summed = max(1, ours[1].numel(), ours[2].numel()) / max(1, found.numel())  # of a broadcast operand
        atol = rel * largest(truth) * (1 if found is ours[0] else summed)
        torch.testing.assert_close(found.double(), truth, rtol=rel, atol=atol, equal_nan=True)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_constant_tensors_are_numbers(third, device, layout):
    input, target = third.operands(SHAPE, device)
    for number in (0.5, 0.25 if third.name == "quantile" else 2.0):
        constant = LAYOUTS[layout](lambda shape, n=number: torch.full(shape, n, device=device))
        for reduction in REDUCTIONS:
            ours = results(lambda x, t, r=reduction: third.call(x, t, constant, reduction=r), (input, target))  # noqa: B023
            theirs = results(lambda x, t, r=reduction: third.call(x, t, number, reduction=r), (input, target))  # noqa: B023
            for found, expected in zip(ours, theirs, strict=True):
                torch.testing.assert_close(found, expected, rtol=3e-7, atol=3e-7 * largest(expected))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_varying_tensors_are_the_formula(third, device, layout):
    input, target = third.operands(SHAPE, device)
    p = LAYOUTS[layout](lambda shape: third.third(shape, device))
    for reduction in REDUCTIONS:
        for batch_dims in (0, 1, 2) if reduction != "none" else (0,):
            options = {"reduction": reduction, "batch_dims": batch_dims}
            assert_as_spelled_out(third, third.call, input, target, p, **options)


@pytest.mark.any_numbers
@pytest.mark.parametrize("of_data", DTYPES, ids=str)
def test_dtypes(third, device, of_data):
    """A wide third operand does not promote the result, and a narrow one is read as it is."""
    input, target = third.operands(SHAPE, device, of_data)
    for of_third, shape in itertools.product(DTYPES, ((), (8,), (6, 1, 1), SHAPE)):
        p = third.third(shape, device, of_third)
        for reduction in REDUCTIONS:
            rtol = 1e-13 if of_data == torch.float64 else 2e-6
            assert_as_spelled_out(third, third.call, input, target, p, rtol=rtol, reduction=reduction)


@pytest.mark.parametrize("size", [0, 1, 7, 64, 65, 4097, 32_769, 100_003])
def test_sizes(third, device, size):
    input, target = third.operands((size,), device)
    for p in (third.third((), device), third.third((size,), device), third.third((2 * size,), device)[::2]):
        for reduction in REDUCTIONS:
            assert_as_spelled_out(third, third.call, input, target, p, reduction=reduction)
    wide = third.operands((3, size), device)
    for shape in ((3, 1), (size,), (1, size)):
        assert_as_spelled_out(third, third.call, *wide, third.third(shape, device), batch_dims=1)


@pytest.mark.parametrize("kind", ["mask", "weight", "mask and weight", "weight per class", "normalizer", "all"])
@pytest.mark.parametrize("layout", ["0-d", "per class", "per sample", "full", "every second"])
def test_masks_and_weights(third, device, layout, kind):
    input, target = third.operands(SHAPE, device)
    p = LAYOUTS[layout](lambda shape: third.third(shape, device))
    options = {}
    if "mask" in kind or kind == "all":
        options["mask"] = torch.rand(SHAPE, device=device) < 0.6
    if "weight" in kind or kind == "all":
        options["weight"] = torch.rand(SHAPE[2:] if "class" in kind else SHAPE, device=device) + 0.1
    for reduction in REDUCTIONS:
        if kind in ("normalizer", "all"):
            normalized = {"normalizer": torch.tensor(7.0, device=device)} if reduction == "mean" else {}
            options = {**options, "normalizer": None, "scale": 0.5, **normalized}
        for batch_dims in (0, 1) if reduction != "none" else (0,):
            given = {**options, "reduction": reduction, "batch_dims": batch_dims}
            assert_as_spelled_out(third, third.call, input, target, p, **given)


MANY = (4, 40, 16)  # more than are computed exactly, in whole vectors of every dtype


@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16, torch.float32),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.float32, torch.bfloat16, torch.float16),
    ],
    ids=lambda dtypes: "-".join(str(dtype)[6:] for dtype in dtypes),
)
def test_many_elements(of, device, dtypes):
    """With masks and weights, in order and not, whatever the dtypes of the three operands are."""
    drawn = [SUITED[domain](torch.randn(MANY, dtype=torch.float64)) for domain in (of.inputs, of.targets)]
    input, target = (x.to(device, dtype) for x, dtype in zip(drawn, dtypes, strict=False))
    low, high = (0.05, 0.95) if of.parameter.interval == "in (0, 1)" else (0.5, 4.0)
    for shape in ((16,), (4, 1, 1), MANY):
        third = (low + (high - low) * torch.rand(shape, dtype=torch.float64)).to(device, dtypes[2])
        mask, weight = torch.rand(MANY, device=device) < 0.6, torch.rand(MANY, device=device) + 0.1
        for options in (
            Options(),
            Options(mask=mask, ignore_nan=True),
            Options(mask=mask[:, :1], weight=weight[..., :1].to(dtypes[0])),
            Options(weight=weight.mT.contiguous().mT, batch_dims=1),
        ):
            leaves = [x.clone().requires_grad_() for x in (input, target)]
            if target.dtype.itemsize > input.dtype.itemsize:  # its gradient would have another kernel
                leaves[1].requires_grad_(False)
            Call(of, *leaves, parameter=third, options=options).assert_right()


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((6, 1, 8), (5, 1), (8,)),
        ((6, 5, 8), (8,), (6, 1, 1)),
        ((8,), (6, 5, 8), (6, 5, 8)),
        ((), (5, 8), (5, 1)),
        ((4, 1), (1, 3), (4, 3)),
        ((0, 8), (1, 8), (8,)),
    ],
    ids=str,
)
def test_broadcast_operands(third, device, shapes, reduction):
    input, target = third.operands(shapes[0], device)[0], third.operands(shapes[1], device)[1]
    p = third.third(shapes[2], device)
    assert_as_spelled_out(third, third.op, input, target, p, reduction=reduction)


@pytest.mark.parametrize("lies", ["channels_last", "transposed", "strided", "misaligned", "seven dimensions"])
def test_operands_of_other_layouts(third, device, lies):
    both = third.operands((4, 8, 6, 10), device)
    input, target = {
        "channels_last": lambda: (x.to(memory_format=torch.channels_last) for x in both),
        "transposed": lambda: (both[0], both[1].transpose(2, 3).contiguous().transpose(2, 3)),
        "strided": lambda: (x[..., ::2] for x in both),
        "misaligned": lambda: (
            both[0],
            both[1].flatten()[1:-9].view(-1, 10)[: 4 * 8].view(4, 8, 1, 10).expand_as(both[0]),
        ),
        "seven dimensions": lambda: (x.view(2, 2, 2, 4, 2, 3, 10) for x in both),
    }[lies]()
    last, channel = input.shape[-1], (input.shape[1], *(1,) * (input.dim() - 2))
    for shape in ((), (last,), channel, tuple(input.shape)):
        for reduction in REDUCTIONS:
            p = third.third(shape, device)
            assert_as_spelled_out(third, third.call, input, target, p, reduction=reduction)


@pytest.mark.any_numbers
@pytest.mark.parametrize("shape", [(), (1,), (8,), (6, 1, 1), (5, 1), SHAPE], ids=str)
def test_gradients_of_the_third_operand(third, device, shape):
    input, target = third.operands(SHAPE, device)
    p, mask = third.third(shape, device), torch.rand(SHAPE, device=device) < 0.6
    for reduction in REDUCTIONS:
        for options in ({}, {"mask": mask, "weight": torch.rand(8, device=device) + 0.1}):
            ours = results(third.call, (input, target, p), reduction=reduction, **options)
            wide = {k: v.double() if v.is_floating_point() else v for k, v in options.items()}
            truth = (input.double(), target.double(), p.double())
            theirs = results(third.spelled_out, truth, reduction=reduction, **wide)
            for found, expected in zip(ours, theirs, strict=True):
                assert found.shape == expected.shape and found.dtype == torch.float32
                atol = 3e-6 * largest(expected)
                torch.testing.assert_close(found.double(), expected, rtol=3e-6, atol=atol)


def test_gradients_of_one_operand_alone(third, device):
    tensors = (*third.operands(SHAPE, device), third.third((8,), device))
    every = results(third.call, tensors)[1:]
    for i, expected in enumerate(every):
        given = [leaf(x) if i == j else x for j, x in enumerate(tensors)]
        value = third.call(*given)
        value.backward(incoming(value))
        torch.testing.assert_close(given[i].grad, expected, rtol=2e-6, atol=2e-6 * largest(expected))
        assert all(x.grad is None for j, x in enumerate(given) if i != j)
    narrow = leaf(tensors[2].bfloat16())
    third.call(*tensors[:2], narrow).backward()
    assert narrow.grad.dtype == torch.bfloat16 and narrow.grad.shape == (8,)


def test_no_grad_asks_for_no_gradient_of_the_third(third, device):
    input, target = third.operands(SHAPE, device)
    p = leaf(third.third((8,), device))
    with torch.no_grad():
        value = third.call(input, target, p)
    assert not value.requires_grad
    assert torch.equal(value, third.call(input, target, p.detach()))


def test_nan_in_the_third_operand(third, device):
    """It shows if its element counts, and nowhere else."""
    input, target = third.operands(SHAPE, device)
    p, poisoned = third.third(SHAPE, device), torch.rand(SHAPE, device=device) < 0.3
    holed = torch.where(poisoned, math.nan, p)
    one = torch.ones(SHAPE, device=device)
    x, t = leaf(input), leaf(target)
    value = third.call(x, t, holed, reduction="none")
    gradients = torch.autograd.grad(value, (x, t), one)
    for found in (value, *gradients):
        assert torch.equal(found.isnan(), poisoned)
    assert_as_spelled_out(third, third.call, input, target, p, mask=~poisoned)
    ours = results(lambda x, t: third.call(x, t, holed, mask=~poisoned), (input, target))
    theirs = results(lambda x, t: third.call(x, t, p, mask=~poisoned), (input, target))
    for found, expected in zip(ours, theirs, strict=True):
        assert torch.equal(found, expected)


def test_a_beta_of_zero_among_others_is_l1(device):
    input, target = (
        torch.tensor([-2.0, 0.5, 0.0, 3.0, 0.25, 1e-40, -1e-40], device=device),
        torch.zeros(7, device=device),
    )
    beta = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0], device=device)
    value, of_input, of_target = results(
        lambda x, t: cudaloss.smooth_l1_loss(x, t, beta=beta, reduction="sum"), (input, target)
    )
    factor = incoming(value)
    slope = torch.tensor([-1.0, 1.0, 0.0, 1.0, 0.25, 1.0, -1.0], device=device)
    torch.testing.assert_close(value.item(), 2 + 0.5 + 2.5 + 0.03125)
    torch.testing.assert_close(of_input, factor * slope)
    torch.testing.assert_close(of_target, -factor * slope)


def test_the_third_operand_is_read_where_it_lies(third, device):
    """Read without a copy: a view of one row in a matrix of others, and one that changes between calls."""
    input, target = third.operands(SHAPE, device)
    matrix = third.third((3, 8), device)
    first = third.call(input, target, matrix[1])
    assert torch.equal(first, third.call(input, target, matrix[1].clone()))
    matrix[1] = third.third((8,), device)
    assert not torch.equal(first, third.call(input, target, matrix[1]))
    x = leaf(input)
    value = third.call(x, target, matrix[1])
    matrix[1] *= 0.5
    if device in DEVICES:  # PyTorch's formulas need not have saved it
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            value.backward()


@pytest.mark.parametrize("shape", [(7,), (2, 6, 5, 8), (6, 5)], ids=str)
def test_shapes_that_do_not_broadcast(third, device, shape):
    input, target = third.operands(SHAPE, device)
    for call in (third.call, third.op):
        with pytest.raises((RuntimeError, ValueError), match=third.parameter):
            call(input, target, third.third(shape, device))
    third.call(input, target, third.third((8,), device))


def test_pos_weight_beyond_the_operands_shape_is_refused(device):
    """It broadcasts to the common shape; PyTorch's would make the loss larger than its operands."""
    x, t = torch.randn(8, device=device), torch.rand(8, device=device)
    with pytest.raises((RuntimeError, ValueError), match="pos_weight"):
        getattr(cudaloss, BCE)(x, t, pos_weight=torch.ones(3, 8, device=device))


@pytest.mark.any_numbers
def test_modules_keep_a_tensor_as_a_buffer(third, device):
    input, target = third.operands(SHAPE, device)
    p = third.third((8,), device)
    module = getattr(cudaloss, third.module)(**{third.parameter: p})
    assert list(module.state_dict()) == [third.parameter] and not list(module.parameters())
    assert torch.equal(module(input, target), third.call(input, target, p))
    wide = module.double()
    assert getattr(wide, third.parameter).dtype == torch.float64
    torch.testing.assert_close(wide(input.double(), target.double()).float(), third.call(input, target, p))
    other = getattr(cudaloss, third.module)(**{third.parameter: torch.ones(8, device=device)})
    other.load_state_dict({third.parameter: p})
    assert torch.equal(other(input, target), third.call(input, target, p))


# ---- graphs, transforms, autocast, checks of ops ----


def of_both(third, shape, device="cpu"):
    return *third.operands((4, 6), device), third.third(shape, device)


def assert_same(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


def test_numbers_in_graphs(third):
    """A number is a constant of the graph, whichever way it goes to the op."""
    x, t, _ = of_both(third, ())

    def call(x, t):
        return third.call(x, t, 0.75)

    for replayed in (
        make_fx(call)(x, t),
        *(CAPTURES[name](call, (x, t)) for name in ("export", "jit.trace", "compile")),
    ):
        assert_same(results(replayed, (x * 2, t)), results(lambda x, t: third.spelled_out(x, t, 0.75), (x * 2, t)))


def test_vmap(third, device):
    """Over the third operand alone, and over all operands: what batch_dims and broadcasting give."""
    x, t, p = (*third.operands((5, 4, 6), device), third.third((5, 6), device))
    for reduction in ("mean", "sum"):

        def call(x, t, p, reduction=reduction):
            return third.call(x, t, p, reduction=reduction)

        found = torch.func.vmap(call)(x, t, p)
        assert_same([found], [third.call(x, t, p[:, None], reduction=reduction, batch_dims=1)])
        found = torch.func.vmap(call, in_dims=(None, None, 0))(x[0], t[0], p)
        assert_same([found], [torch.stack([call(x[0], t[0], row) for row in p])])
        gradients = torch.func.vmap(torch.func.grad(call, argnums=(0, 2)))(x, t, p)
        whole = (leaf(x), t, leaf(p))
        value = third.spelled_out(whole[0], t, whole[2][:, None], reduction=reduction, batch_dims=1).sum()
        assert_same(gradients, torch.autograd.grad(value, (whole[0], whole[2])))


def test_forward_mode(third, device):
    tensors = of_both(third, (6,), device)
    tangents = [torch.randn_like(x) for x in tensors]
    expected = torch.func.jvp(third.spelled_out, tensors, tuple(tangents))
    assert_same(torch.func.jvp(third.call, tensors, tuple(tangents)), expected)
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(*pair) for pair in zip(tensors, tangents, strict=True)]
        assert_same(forward_ad.unpack_dual(third.call(*duals)), expected)


@pytest.mark.any_numbers
def test_gradcheck(third):
    x, t = third.operands((4, 6), "cpu", torch.float64)
    tensors = [leaf(y) for y in (x, t, third.third((6,), "cpu", torch.float64))]
    mask = torch.rand((4, 6)) < 0.7
    for options in ({}, {"reduction": "none"}, {"mask": mask, "batch_dims": 1}):
        call = partial(third.call, **options)
        assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, tensors)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # opcheck's own, in torch 2.15
@pytest.mark.parametrize("requires_grad", [False, True])
def test_pytorchs_checks_of_ops(third, device, requires_grad):
    x, t, p = of_both(third, (6,), device)
    x, t = x.requires_grad_(requires_grad), t.requires_grad_(requires_grad)
    op = getattr(torch.ops.cudaloss, third.name).default
    for options in ({"reduction": "none"}, {"mask": torch.rand((4, 6), device=device) < 0.7, "batch_dims": 1}):
        torch.library.opcheck(op, (x, t), {third.keyword: p, **options})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(third, device, dtype):
    x, t, p = of_both(third, (6,), device)
    expected = results(lambda x, t: third.call(x.to(dtype).float(), t, p), (x, t))
    with torch.autocast(device, dtype):
        narrow = leaf(x.to(dtype))
        value = third.call(narrow, t, p)
        assert value.dtype == torch.float32 == third.call(narrow, t.to(dtype), p.to(dtype)).dtype
    torch.testing.assert_close(value.detach(), expected[0])
    value.backward()
    assert narrow.grad.dtype == dtype


def test_saved_tensors_and_second_backwards(third, device):
    x, t, p = of_both(third, (6,), device)
    one = leaf(x)
    value = third.call(one, t, p)
    first = torch.autograd.grad(value, one, retain_graph=True)
    assert_same(torch.autograd.grad(value, one), first)
    wide = lambda y: y.double() if y.is_floating_point() else y  # noqa: E731
    with torch.autograd.graph.saved_tensors_hooks(wide, lambda y: y.float() if y.dtype == torch.float64 else y):
        one = leaf(x)
        value = third.call(one, t, p)
    assert_same(torch.autograd.grad(value, one), first)
    (once,) = torch.autograd.grad(third.call(one, t, p), one, create_graph=True)
    other = leaf(x)
    (expected,) = torch.autograd.grad(third.spelled_out(other, t, p), other, create_graph=True)
    if expected.requires_grad and third.name != "quantile":  # whose curvature is 0
        assert_same(torch.autograd.grad(once.square().sum(), one), torch.autograd.grad(expected.square().sum(), other))


# ---- gradients of a third operand that each call has (var), which the kernels make ----

OF_KERNELS = [Third(spec, spec.parameter) for spec in SPECS if spec.has_third_gradient]
assert OF_KERNELS, "a test of no loss shows nothing"
of_kernels = pytest.mark.parametrize("of_call", OF_KERNELS, ids=lambda third: third.name)


def assert_gradients_as_spelled_out(of_call, device, shape, p, dtype=torch.float32, **options):
    input, target = of_call.operands(shape, device, dtype)
    mask = torch.rand(shape, device=device) < 0.6
    for beside in ({}, {"mask": mask}, {"weight": torch.rand(shape, device=device, dtype=dtype) + 0.1}):
        ours = results(of_call.call, (input, target, p), **options, **beside)
        wide = {k: v.double() if k == "weight" else v for k, v in beside.items()}
        theirs = results(of_call.spelled_out, (input.double(), target.double(), p.double()), **options, **wide)
        for found, expected, like in zip(ours, theirs, (ours[0], input, target, p), strict=True):
            assert (found.shape, found.dtype) == (expected.shape, like.dtype)
            rel = 1.01 * torch.finfo(found.dtype).eps + (3e-6 if found.dtype != torch.float64 else 1e-14)
            tiny = torch.finfo(found.dtype).smallest_normal
            torch.testing.assert_close(
                found.double(), expected, rtol=rel, atol=max(tiny, rel * largest(expected)), equal_nan=True
            )


@of_kernels
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_of_third_operands_of_any_layout(of_call, device, layout):
    p = LAYOUTS[layout](lambda shape: of_call.third(shape, device))
    for reduction in REDUCTIONS:
        for batch_dims in (0, 1, 2) if reduction != "none" else (0,):
            assert_gradients_as_spelled_out(of_call, device, SHAPE, p, reduction=reduction, batch_dims=batch_dims)


@of_kernels
@pytest.mark.parametrize("of_third", DTYPES, ids=str)
@pytest.mark.parametrize("of_data", DTYPES, ids=str)
def test_gradients_of_third_operands_of_any_dtype(of_call, device, of_data, of_third):
    for shape in ((), (8,), (6, 1, 1), SHAPE):
        assert_gradients_as_spelled_out(of_call, device, SHAPE, of_call.third(shape, device, of_third), of_data)


@of_kernels
@pytest.mark.parametrize("size", [0, 1, 65, 4097, 32_769, 100_003])
def test_gradients_of_third_operands_of_any_size(of_call, device, size):
    for reduction in REDUCTIONS:
        assert_gradients_as_spelled_out(of_call, device, (size,), of_call.third((size,), device), reduction=reduction)
    assert_gradients_as_spelled_out(of_call, device, (3, size), of_call.third((size,), device), batch_dims=1)


@of_kernels
def test_the_third_operand_may_want_a_gradient_alone(of_call, device):
    """One op more than a step without it; again with the graph kept, batched, and differentiated once more."""
    tensors = *of_call.operands((3, 5), device, torch.float64), of_call.third((3, 5), device, torch.float64)
    input, target, p = tensors[0], tensors[1], leaf(tensors[2])
    value = of_call.call(input, target, p)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profiled:
        value.backward(retain_graph=True)
    names = [event.name for event in profiled.events() if event.name.startswith("cudaloss::")]
    assert names == (["cudaloss::_pointwise_gradients"] if device in DEVICES else [])
    first, p.grad = p.grad, None
    value.backward()
    assert torch.equal(p.grad, first)
    leaves = [leaf(x) for x in tensors]
    assert torch.autograd.gradcheck(of_call.call, leaves, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(of_call.call, leaves)
