"""Log-probabilities of tokens and entropies, of logits and of heads; and the numbers of rows at their edges."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._heads import blocks, calls
from drawn_heads import PLANS, drawn, error, take, token_by_definition
from oracle import DTYPES

of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Ragged, of one class, of whole vectors, of several rounds of a block's threads, and longer than 32 KiB.
SHAPES = [(1, 1), (7, 1), (3, 2), (5, 9), (4, 3, 33), (2, 3, 4, 64), (6, 1000), (3, 4099), (2, 40_000)]
EPS = {torch.float64: 4e-14, torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def assert_right(input, target, far=0.0, **given):
    """The values, in float32 for halves, and the gradient of both outputs. `far`: the size of the largest logits."""
    leaf, exact = input.detach().requires_grad_(), input.detach().double().requires_grad_()
    ours = cudaloss.token_log_prob(leaf, target, return_entropy=True, **given)
    theirs = token_by_definition(exact, target, **given)
    wide = torch.promote_types(input.dtype, torch.float32)
    size = (
        exact.detach().abs().nan_to_num(0, 0, 0).amax(-1).clamp(1)
    )  # an error of a logit's last place is one of its logarithm
    for found, truth in zip(ours, theirs, strict=True):
        assert found.dtype == wide and found.shape == target.shape
        assert ((found - truth).abs() <= EPS[wide] * size).all()
    incoming = [torch.randn_like(x) for x in theirs]
    (gradient,) = torch.autograd.grad(ours, leaf, [x.to(wide) for x in incoming])
    (expected,) = torch.autograd.grad(theirs, exact, incoming)
    allowed = EPS[input.dtype] * 10 + far * torch.finfo(wide).eps
    assert gradient.dtype == input.dtype and error(gradient, expected) <= allowed


@of_dtypes
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(device, dtype, shape):
    input = (3 * torch.randn(shape, dtype=torch.float64)).to(dtype).to(device)
    target = torch.randint(shape[-1], shape[:-1], device=device)
    for given in ({}, {"temperature": 0.7}, {"softcap": 5.0}, {"temperature": 1.3, "softcap": 5.0}):
        assert_right(input, target, **given)
        alone = cudaloss.token_log_prob(input, target, **given)
        torch.testing.assert_close(
            alone.double(), token_by_definition(input, target, **given)[0], rtol=1e-5, atol=EPS[alone.dtype] * 20
        )


@of_dtypes
def test_layouts(device, dtype):
    """Slices without a copy, at any place in memory, and those that need one."""
    base = torch.randn(3, 7, 203, dtype=torch.float64).to(dtype).to(device)
    target = torch.randint(199, (3, 7), device=device)
    for x, t in (
        (base[:, :-1, :199], target[:, :-1]),
        (base[:, 1:, 1:200], target[:, 1:]),
        (base[::2, :, 3:], target[::2]),
        (base.transpose(0, 1)[..., :199], target.t()),
        (base[..., ::2][..., :101], target % 101),
        (base[0, 0, :199], target[0, 0]),
        (base.permute(0, 2, 1), target[:, :1].expand(3, 203) % 7),
    ):
        assert_right(x, t)


def test_a_column_of_targets(device):
    """Indices that do not lie side by side, of logits and of heads."""
    input, targets = torch.randn(5, 9, device=device), torch.randint(9, (5, 3), device=device)
    column, weight = targets[:, 1], torch.eye(9, device=device)
    expected = cudaloss.token_log_prob(input, column.contiguous())
    assert torch.equal(cudaloss.token_log_prob(input, column), expected)
    torch.testing.assert_close(cudaloss.linear_token_log_prob(input, weight, column), expected)
    found = cudaloss.linear_cross_entropy(input, weight, column, memory="least")
    torch.testing.assert_close(found, -expected.mean())


def test_a_slice_is_not_copied(device):
    base = torch.randn(4, 65, 1000, device=device)
    target = torch.randint(1000, (4, 64), device=device)
    rows = calls._as_rows(base[:, :-1])
    assert rows is not None and rows.data_ptr() == base.data_ptr()
    expected = cudaloss.token_log_prob(base[:, :-1].contiguous(), target)
    found = cudaloss.token_log_prob(base[:, :-1], target)
    assert torch.equal(found, expected)


@of_dtypes
def test_edges(device, dtype):
    """Rows that overflow a thread's first base, equal ones far from 0, classes of -inf, sure rows, and NaN."""
    size = 2000
    rows = [torch.randn(size, dtype=torch.float64) for _ in range(9)]
    rows[0][:1500], rows[0][1500:] = -60_000.0, 60_000.0
    rows[1][:] = -60_000.0
    rows[2][:] = -torch.inf
    rows[2][5] = 1.0  # the target's, alone
    rows[3][::2] = -torch.inf
    rows[4][5] = 50.0
    rows[5][6] = 60.0  # another class than the target
    rows[6][:64] = -torch.inf
    rows[7][:] = 0.0
    rows[8][:1000] = -torch.inf
    rows[8][1700] = 200.0
    input = torch.stack(rows).to(dtype).to(device)
    target = torch.full((9,), 5, device=device)
    target[3], target[6], target[8] = 7, 100, 1700
    assert_right(input, target, far=60_000.0)
    for value in (torch.nan, torch.inf):
        broken = input.clone()
        broken[7, 1234] = value
        log_prob, entropy = cudaloss.token_log_prob(broken, target, return_entropy=True)
        assert log_prob[7].isnan() and entropy[7].isnan()
        kept = torch.arange(9, device=device) != 7
        torch.testing.assert_close(log_prob[kept], cudaloss.token_log_prob(input, target)[kept])


@of_dtypes
def test_masked_by_the_least_number(device, dtype):
    """Classes of finfo.min beside usual ones: their exp is 0, and their differences to the others overflow."""
    input = torch.randn(4, 3000, dtype=torch.float64).to(dtype)
    input[:, :2000] = torch.finfo(dtype).min
    target = torch.full((4,), 2500, device=device)
    leaf = input.to(device).requires_grad_()
    for entropy in (False, True):
        found = cudaloss.token_log_prob(leaf, target, return_entropy=entropy)
        found = found if entropy else (found,)
        assert all(x.isfinite().all() for x in (*found, *torch.autograd.grad(found, leaf, [x * 0 + 1 for x in found])))
    own, theirs = found[1], token_by_definition(leaf[:, 2000:], target - 2000)[1]
    torch.testing.assert_close(own.double(), theirs, rtol=1e-5, atol=1e-5)


def test_the_gradient_of_an_entropy_far_from_0(device):
    """Only differences of logits matter: those of 1e4 + x are as precise as their own digits."""
    exact = torch.randn(8, 500, dtype=torch.float64).mul_(64).round_().div_(64)
    for offset in (0.0, 1e4):
        leaf = (exact + offset).float().to(device).requires_grad_()
        truth = exact.to(device).requires_grad_()
        target = torch.zeros(8, dtype=torch.int64, device=device)
        ours = cudaloss.token_log_prob(leaf, target, return_entropy=True)[1].sum()
        theirs = token_by_definition(truth, target)[1].sum()
        (a,), (b,) = torch.autograd.grad(ours, leaf), torch.autograd.grad(theirs, truth)
        assert error(a, b) <= 4e-6


def test_a_target_of_infinity(device):
    input = torch.tensor([[0.0, torch.inf, 1.0]], device=device)
    assert cudaloss.token_log_prob(input, torch.tensor([1], device=device)).isnan()


def test_a_class_of_minus_infinity(device):
    """Its logarithm is -inf, and the gradient PyTorch's."""
    leaf = torch.tensor([[0.0, -torch.inf, 1.0]], dtype=torch.float64, device=device, requires_grad=True)
    target = torch.tensor([1], device=device)
    found = cudaloss.token_log_prob(leaf, target)
    truth = leaf.log_softmax(-1)[:, 1]
    assert found == truth == -torch.inf
    incoming = torch.tensor([2.0], dtype=torch.float64, device=device)
    (ours,), (theirs,) = (torch.autograd.grad(x, leaf, incoming) for x in (found, truth))
    torch.testing.assert_close(ours, theirs)


def test_the_entropy_of_one_class_is_0(device):
    leaf = torch.randn(4, 1, device=device, requires_grad=True)
    target = torch.zeros(4, dtype=torch.int64, device=device)
    log_prob, entropy = cudaloss.token_log_prob(leaf, target, return_entropy=True)
    assert not log_prob.any() and not entropy.any()
    assert not torch.autograd.grad((log_prob + entropy).sum(), leaf)[0].any()


def test_a_sure_row_keeps_its_digits(device):
    """log(p) of a target 40 above the other classes is -exp(-40), not 0."""
    input = torch.tensor([[40.0, 0.0], [0.0, 40.0]], device=device)
    found = cudaloss.token_log_prob(input, torch.tensor([0, 1], device=device))
    torch.testing.assert_close(found, torch.full_like(found, -4.248354e-18), rtol=1e-5, atol=0)


@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan != "step"])
def test_heads(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        input, weight, bias, target = drawn((3, 5), 8, 53, dtype, device)
        target = target.clamp(0)
        given = {"temperature": 0.7, "softcap": 3.0}
        call = input, weight, target
        ours = cudaloss.linear_token_log_prob(*call, linear_bias=bias, return_entropy=True, memory=memory, **given)
        leaves = [x.detach().double().requires_grad_() for x in (input, weight, bias)]
        theirs = token_by_definition(F.linear(*leaves), target, **given)
        bar = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.06}[dtype]
        assert all(error(a, b) <= bar for a, b in zip(ours, theirs, strict=True))
        incoming = [torch.randn_like(x) for x in theirs]
        found = torch.autograd.grad(ours, (input, weight, bias), [x.to(ours[0].dtype) for x in incoming])
        expected = torch.autograd.grad(theirs, leaves, incoming)
        assert all(error(a, b) <= bar for a, b in zip(found, expected, strict=True))
        with torch.no_grad():
            alone = cudaloss.linear_token_log_prob(*call, linear_bias=bias, memory=memory, **given)
        assert error(alone, theirs[0]) <= bar


def test_derivatives(device):
    leaf = torch.randn(2, 3, 5, dtype=torch.float64, device=device, requires_grad=True)
    target = torch.randint(5, (2, 3), device=device)

    def both(x):
        return cudaloss.token_log_prob(x, target, temperature=0.7, softcap=2.0, return_entropy=True)

    assert torch.autograd.gradcheck(both, leaf)
    assert torch.autograd.gradgradcheck(both, leaf)
    found = torch.func.grad(lambda x: both(x)[1].sum())(leaf.detach())
    torch.testing.assert_close(found, torch.autograd.grad(both(leaf)[1].sum(), leaf)[0])


def test_compile(device):
    input = torch.randn(3, 5, 33, device=device, requires_grad=True)
    target = torch.randint(33, (3, 5), device=device)

    def both(x, t):
        return cudaloss.token_log_prob(x, t, temperature=0.7, return_entropy=True)

    torch._dynamo.reset()
    found, expected = torch.compile(both, fullgraph=True)(input, target), both(input, target)
    torch.testing.assert_close(found, expected)
    incoming = [torch.randn_like(x) for x in expected]
    (ours,), (theirs,) = (torch.autograd.grad(x, input, incoming) for x in (found, expected))
    torch.testing.assert_close(ours, theirs)


def test_only_one_output_is_used(device):
    leaf = torch.randn(6, 33, device=device, requires_grad=True)
    target = torch.randint(33, (6,), device=device)
    for place in (0, 1):
        ours = cudaloss.token_log_prob(leaf, target, return_entropy=True)[place]
        theirs = token_by_definition(leaf, target)[place]
        (a,), (b,) = (torch.autograd.grad(x.sum(), leaf) for x in (ours, theirs))
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_errors(device):
    input, target = torch.randn(4, 5, device=device), torch.randint(5, (4,), device=device)
    for wrong, error_type, message in (
        (lambda: cudaloss.token_log_prob(input, target[:3]), ValueError, "Expected target size"),
        (lambda: cudaloss.token_log_prob(input, target.float()), RuntimeError, "target must be an integer tensor"),
        (lambda: cudaloss.token_log_prob(input.long(), target), RuntimeError, "input must be a floating-point tensor"),
        (lambda: cudaloss.token_log_prob(input, target, temperature=0.0), RuntimeError, "temperature must be"),
        (lambda: cudaloss.token_log_prob(input, target, softcap=-1.0), RuntimeError, "softcap must be"),
        (lambda: cudaloss.token_log_prob(input[:, :0], target), RuntimeError, "at least one class"),
    ):
        with pytest.raises(error_type, match=message):
            wrong()
    target[1] = 5
    if device == "cpu":
        with pytest.raises(RuntimeError, match="got 5"):
            cudaloss.token_log_prob(input, target)
    else:
        found = cudaloss.token_log_prob(input, target)
        assert found[1].isnan() and not found[0].isnan()


@of_dtypes
@pytest.mark.parametrize("classes", [1, 9, 1000, 20_001])
@torch.no_grad()
def test_numbers_of_blocks_are_those_of_the_whole(device, dtype, classes):
    """Also of a block that has the target, and of one that has no class but it."""
    logits = (3 * torch.randn(7, classes, dtype=torch.float64)).to(dtype).to(device)
    target = torch.randint(classes, (7,), device=device)
    counts = torch.arange(7, device=device) != 2
    weight = torch.rand(classes, device=device).to(torch.promote_types(dtype, torch.float32))
    whole = blocks.Block(target, counts, weight, 0, classes, 5.0, 0.7, entropy=True, shares=True)
    parts = [
        (first, min(classes, first + size)) for size in (max(1, classes // 3),) for first in range(0, classes, size)
    ]
    sums = blocks.Sums(logits, 7, len(parts))
    for first, last in parts:
        sums.add(logits[:, first:last], whole.part(first, last - first))
    found, truth = sums.numbers(whole), blocks.by_torch(logits, whole)
    bar = 1e-12 if dtype == torch.float64 else 2e-6
    finite = truth.isfinite()
    assert torch.equal(found.isfinite(), finite)
    assert error(found[finite], truth[finite]) <= bar


@of_dtypes
@pytest.mark.parametrize("place", [0, 1, 3])
@torch.no_grad()
def test_a_gradient_that_lies_otherwise_than_its_logits(device, dtype, place):
    logits = torch.randn(5, 203, dtype=torch.float64).to(dtype).to(device)
    target = torch.randint(203, (5,), device=device)
    block = blocks.Block(target, None, None, 0, 203)
    numbers = blocks.numbers_of(logits, block)
    grads = torch.randn_like(numbers)
    memory = torch.full((5, 210), 7.0, device=device).to(dtype)
    wanted = torch.empty_like(logits)
    blocks.write_gradient(logits, block, numbers, grads, wanted)
    blocks.write_gradient(logits, block, numbers, grads, memory[:, place : place + 203])
    assert torch.equal(memory[:, place : place + 203], wanted)
    assert (memory[:, :place] == 7).all() and (memory[:, place + 203 :] == 7).all()
    blocks.write_gradient(logits, block, numbers, grads, logits)  # over the logits
    assert torch.equal(logits, wanted)
