"""The divergence of a student's head from a frozen teacher's, from hidden states, against its definition in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import cudaloss
from cudaloss._heads import calls, divergence, plans
from drawn_heads import assert_close, error, found_by, largest_allocation
from oracle import DTYPES

SERVED = [dtype for dtype in DTYPES if dtype != torch.float16]  # by chunks of rows
BETAS = [0.0, 0.3, 1.0]
OPTIONS = {
    "none": {},
    "sum": {"reduction": "sum", "scale": 0.3},
    "single": {"reduction": "none"},
    "temperature": {"temperature": 2.0},
    "rows": {"mask": True, "sample_weight": True},
    "mask": {"mask": True},
    "normalizer": {"normalizer": 3.5},
    "all": {"mask": True, "sample_weight": True, "temperature": 0.7, "scale": 2.0},
}


@pytest.fixture(params=["chunks", "whole"])
def way(request, monkeypatch):
    """Chunks of few rows, or the definition."""
    if request.param == "chunks":
        by_chunks(monkeypatch)
    return request.param


def by_chunks(monkeypatch):
    monkeypatch.setattr(calls, "_SMALL_LOGITS", -1)
    monkeypatch.setattr(plans, "CHUNK_ROWS", 7)


def drawn(shape, features, of_teacher, classes, dtype, device, bias=True):
    """The student's operands, which require a gradient, and the teacher's."""
    found = []
    for size in (features, of_teacher):
        input = torch.randn(*shape, size, dtype=torch.float64)
        weight = 2 * torch.randn(classes, size, dtype=torch.float64) / size**0.5
        of_bias = torch.randn(classes, dtype=torch.float64) if bias else None
        found.append([None if x is None else x.to(dtype).to(device) for x in (input, weight, of_bias)])
    return [None if x is None else x.requires_grad_() for x in found[0]], found[1]


def given_options(name, shape, device, dtype):
    options = dict(OPTIONS[name])
    if "mask" in options:
        options["mask"] = torch.arange(shape.numel(), device=device).view(shape) % 3 != 1
    if "sample_weight" in options:
        options["sample_weight"] = (torch.rand(shape, device=device) + 0.5).to(dtype)
    return options


def divergence_of(logs, of_teacher, beta):
    """KL of the teacher's distribution from the student's, the reverse, or both from their mixture."""
    q, p = logs.exp(), of_teacher.exp()
    if beta == 0:
        return (p * (of_teacher - logs)).sum(-1)
    if beta == 1:
        return (q * (logs - of_teacher)).sum(-1)
    mixture = (beta * p + (1 - beta) * q).log()
    return (beta * p * (of_teacher - mixture) + (1 - beta) * q * (logs - mixture)).sum(-1)


def by_definition(student, teacher, beta, reduction="mean", temperature=1.0, scale=1.0, **rows):
    """Of logits."""
    found = divergence_of(*((x / temperature).log_softmax(-1) for x in (student, teacher)), beta) * temperature**2
    weight = torch.ones_like(found) if rows.get("sample_weight") is None else rows["sample_weight"].to(found.dtype)
    weight = weight if rows.get("mask") is None else weight * rows["mask"]
    found = scale * weight * torch.where(weight == 0, 0, found)
    if reduction == "none":
        return found
    divisor = 1 if reduction == "sum" else rows.get("normalizer") or weight.sum()
    return found.sum() / divisor


def called(student, teacher, **given):
    biases = {"linear_bias": student[2], "target_bias": teacher[2]}
    return cudaloss.linear_jsd_with_logits(*student[:2], *teacher[:2], **biases, **given)


def compared(found, student, teacher, beta, **options):
    """The value and the gradients, beside those of the whole logits in the same dtype."""
    incoming = torch.rand_like(found) + 0.5
    leaves = [x for x in student if x is not None]

    def whole(dtype):
        own = [None if x is None else x.detach().to(dtype).requires_grad_() for x in student]
        theirs = [None if x is None else x.detach().to(dtype) for x in teacher]
        logits = (F.linear(*x).double() for x in (own, theirs))
        return found_by(by_definition(*logits, beta, **options).to(dtype), own, incoming)

    truth, ours = whole(torch.float64), found_by(found, leaves, incoming)
    if leaves[0].dtype == torch.float64:  # the definition is no more precise
        assert all(error(a, b) <= 1e-13 for a, b in zip(ours, truth, strict=True))
    else:
        assert_close(ours, whole(leaves[0].dtype), truth)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients(device, way, dtype, beta, name):
    shape = torch.Size((19,))
    student, teacher = drawn(shape, 8, 12, 53, dtype, device)
    options = given_options(name, shape, device, dtype)
    found = called(student, teacher, beta=beta, **options)
    assert found.dtype == dtype
    compared(found, student, teacher, beta, **options)


@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize(
    ("shape", "features", "of_teacher", "classes"),
    [((1,), 1, 2, 1), ((9,), 4, 1, 2), ((3, 5), 16, 16, 33), ((2, 2, 3), 8, 24, 1030), ((9,), 8, 4, 20_001)],
)
def test_sizes(monkeypatch, device, beta, shape, features, of_teacher, classes):
    by_chunks(monkeypatch)
    for dtype in (torch.float32, torch.bfloat16):
        for bias in (True, False):
            student, teacher = drawn(shape, features, of_teacher, classes, dtype, device, bias)
            compared(called(student, teacher, beta=beta), student, teacher, beta)


def test_dtypes_of_the_two_can_differ(monkeypatch, device):
    by_chunks(monkeypatch)
    student, _ = drawn((19,), 8, 12, 53, torch.float32, device)
    _, teacher = drawn((19,), 8, 12, 53, torch.bfloat16, device)
    found = called(student, teacher, beta=0.0)
    exact = [x.detach().double().requires_grad_() for x in student]
    truth = by_definition(F.linear(*exact), F.linear(*teacher).double(), 0.0)
    assert found.dtype == torch.float32 and error(found, truth) <= 1e-6
    for a, b in zip(torch.autograd.grad(found, student), torch.autograd.grad(truth, exact), strict=True):
        assert error(a, b) <= 2e-6


def test_operands_that_do_not_lie_side_by_side(monkeypatch, device):
    by_chunks(monkeypatch)
    student, teacher = drawn((19,), 8, 12, 53, torch.float32, device)
    of_rows = torch.rand(19, 2, device=device)
    options = {"mask": (of_rows > 0.3)[:, 1], "sample_weight": of_rows[:, 0]}
    turned = [
        [x.detach().t().contiguous().t().requires_grad_(x.requires_grad) if x.dim() == 2 else x for x in of]
        for of in (student, teacher)
    ]
    found = called(*turned, **options)
    expected = called(student, teacher, **{name: x.contiguous() for name, x in options.items()})
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, turned[0]), torch.autograd.grad(expected, student))


def test_a_frozen_operand_has_no_gradient(monkeypatch, device):
    by_chunks(monkeypatch)
    student, teacher = drawn((19,), 8, 12, 53, torch.float32, device)
    expected = torch.autograd.grad(called(student, teacher, beta=0.0), student)
    for kept in range(3):
        only = [x.detach().requires_grad_(i == kept) for i, x in enumerate(student)]
        (found,) = torch.autograd.grad(called(only, teacher, beta=0.0), only[kept])
        torch.testing.assert_close(found, expected[kept])
    with torch.no_grad():
        alone = called(student, teacher, beta=0.0)
    torch.testing.assert_close(alone, called(student, teacher, beta=0.0).detach())


@pytest.mark.parametrize("beta", BETAS)
def test_a_row_that_is_left_out_does_not_matter(device, way, beta):
    student, teacher = drawn((19,), 8, 12, 53, torch.float32, device)
    mask, found = torch.arange(19, device=device) != 3, []
    for is_broken in (False, True):
        own, theirs = student[0].detach().clone(), teacher[0].clone()
        if is_broken:
            own[3], theirs[3] = torch.nan, torch.inf
        own.requires_grad_()
        loss = called([own, *student[1:]], [theirs, *teacher[1:]], beta=beta, mask=mask)
        found.append((loss, *torch.autograd.grad(loss, own)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("beta", BETAS)
def test_nothing_counts(device, way, beta):
    student, teacher = drawn((19,), 8, 12, 53, torch.float32, device)
    nothing = torch.zeros(19, dtype=torch.bool, device=device)
    for options in ({}, {"reduction": "sum"}):
        found = called(student, teacher, beta=beta, mask=nothing, **options)
        assert found.item() == 0 if options else found.isnan()
        assert all(not x.any() for x in torch.autograd.grad(found, student))


@pytest.mark.parametrize("beta", BETAS)
def test_no_rows(device, beta):
    student, teacher = drawn((0,), 8, 12, 53, torch.float32, device)
    found = called(student, teacher, beta=beta, reduction="sum")
    assert found == 0 and all(not x.any() for x in torch.autograd.grad(found, student))


@pytest.mark.parametrize("beta", BETAS)
def test_the_same_bits_in_each_run_and_backward(monkeypatch, device, beta):
    by_chunks(monkeypatch)
    student, teacher = drawn((40,), 8, 12, 299, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        found = called(student, teacher, beta=beta)
        first = torch.autograd.grad(found / 3, student, retain_graph=True)
        runs += [[found, *first], [found, *torch.autograd.grad(found / 3, student)]]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("beta", BETAS)
def test_derivatives(way, beta):
    student, teacher = drawn((9,), 3, 4, 7, torch.float64, "cpu")

    def loss(*operands):
        return called(operands, teacher, beta=beta, temperature=0.7, scale=2.0)

    assert torch.autograd.gradcheck(loss, student)
    assert torch.autograd.gradgradcheck(loss, student)


def test_transforms(device):
    student, teacher = drawn((5,), 3, 4, 7, torch.float64, device)
    operands = tuple(x.detach() for x in student)

    def loss(x, w, b):
        return called((x, w, b), teacher, beta=0.0)

    def definition(x, w, b):
        return by_definition(F.linear(x, w, b), F.linear(*teacher), 0.0)

    for transform in (
        lambda f: torch.func.grad(f, argnums=(0, 1, 2))(*operands),
        lambda f: torch.func.jvp(f, operands, operands),
        lambda f: torch.func.vmap(f, (0, None, None))(operands[0][None], *operands[1:]),
    ):
        torch.testing.assert_close(transform(loss), transform(definition))


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("beta", BETAS)
def test_compile(monkeypatch, device, way, beta):
    student, teacher = drawn((19,), 8, 12, 53, torch.float32, device)
    mask = torch.arange(19, device=device) != 3

    def step(x, w, b):
        return called((x, w, b), teacher, beta=beta, temperature=0.7, mask=mask) * 0.5

    torch._dynamo.reset()
    found, expected = torch.compile(step, fullgraph=True, backend="aot_eager")(*student), step(*student)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(x, student) for x in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_autocast_checkpoint_and_inference(monkeypatch, device):
    by_chunks(monkeypatch)
    student, teacher = drawn((19,), 8, 12, 53, torch.float32, device)
    expected = called(student, teacher, beta=0.0)
    with torch.autocast(device, torch.bfloat16):
        found = called(student, teacher, beta=0.0)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)
    assert torch.autograd.grad(found, student)[0].dtype == torch.float32
    held = checkpoint(lambda *x: called(x, teacher, beta=0.0), *student, use_reentrant=False)
    for a, b in zip(torch.autograd.grad(held, student), torch.autograd.grad(expected, student), strict=True):
        torch.testing.assert_close(a, b)
    with torch.inference_mode():
        torch.testing.assert_close(called(student, teacher, beta=0.0), expected.detach())


def test_a_learnt_sample_weight(monkeypatch, device):
    by_chunks(monkeypatch)
    student, teacher = drawn((19,), 8, 12, 53, torch.float64, device)
    own = torch.rand(19, dtype=torch.float64, device=device, requires_grad=True)
    found = called(student, teacher, beta=0.0, sample_weight=own)
    truth = by_definition(F.linear(*student), F.linear(*teacher), 0.0, sample_weight=own)
    leaves = *student, own
    torch.testing.assert_close(torch.autograd.grad(found, leaves), torch.autograd.grad(truth, leaves))


def test_no_tensor_has_the_logits_size(monkeypatch):
    by_chunks(monkeypatch)
    student, teacher = drawn((200,), 4, 5, 300, torch.float32, "cpu")
    largest = largest_allocation(lambda: called(student, teacher, beta=0.0).backward())
    assert 0 < largest < 200 * 300 * 4 / 4


def test_a_chunk_follows_from_the_sizes(monkeypatch):
    def most(classes, dtype=torch.bfloat16):
        made = [torch.empty(1, 1, dtype=dtype, device="meta").expand(*shape) for shape in ((9000, 8), (classes, 8))]
        return divergence.most_rows(plans.Head(*made, None), plans.Head(*made, None))

    assert [most(x) for x in (1000, 128_256, 151_936, 1_000_000)] == [4096, 1046, 883, 256]
    assert most(128_256, torch.float32) == 523


@pytest.mark.cuda
def test_memory_on_a_gpu():
    """Of 8,192 rows and 65,536 classes each logits have 1 GiB; at most 256 MiB of each are there at a time."""
    student, teacher = drawn((8192,), 256, 512, 65_536, torch.bfloat16, "cuda", bias=False)

    def step():
        for x in student[:2]:
            x.grad = None
        called(student, teacher).backward()

    step()
    for x in student[:2]:
        x.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    gradients = sum(2 * x.numel() for x in student[:2]) + 4 * student[1].numel()
    assert torch.cuda.max_memory_allocated() - before - gradients <= (512 + 16) * 2**20


def test_errors(device):
    student, teacher = drawn((6,), 8, 12, 5, torch.float32, device)
    x, w, _ = student
    t, of_teacher, _ = teacher
    call = cudaloss.linear_jsd_with_logits
    for wrong, error_type, message in (
        (lambda: call(x, w, t, of_teacher.requires_grad_()), RuntimeError, "target_weight must not .* detach"),
        (lambda: call(x, w, t.detach().requires_grad_(), teacher[1]), RuntimeError, "target_input must not .* detach"),
        (lambda: call(x, w[:, :7], t, of_teacher), RuntimeError, "expected equal input and linear_weight last dim"),
        (lambda: call(x, w[None], t, of_teacher), RuntimeError, "linear_weight must have two dimensions"),
        (lambda: call(x, w, t[:5], of_teacher), RuntimeError, r"target_input must be of shape \(6, features\)"),
        (lambda: call(x, w, t, of_teacher[:4]), RuntimeError, r"target_weight must be of shape \(5, 12\)"),
        (lambda: call(x, w, t, of_teacher[:, :4]), RuntimeError, r"target_weight must be of shape \(5, 12\)"),
        (lambda: call(x, w, t, of_teacher, target_bias=t[0]), RuntimeError, r"target_bias must be of shape \(5,\)"),
        (lambda: call(x, w, t, of_teacher, linear_bias=t[0]), RuntimeError, "expected linear_bias shape"),
        (lambda: call(x, w, t.long(), of_teacher), RuntimeError, "target_input must be a floating-point tensor"),
        (lambda: call(x, w, t, of_teacher, beta=1.5), RuntimeError, r"beta must be a number in \[0, 1\], got 1.5"),
        (lambda: call(x, w, t, of_teacher, beta="a"), TypeError, "beta must be a number"),
        (lambda: call(x, w, t, of_teacher, temperature=0.0), RuntimeError, "temperature must be"),
        (lambda: call(x, w, t, of_teacher, reduction="batchmean"), ValueError, "reduction must be"),
        (lambda: call(x, w, t, 1.0), TypeError, "target_weight"),
    ):
        of_teacher.requires_grad_(False)
        with pytest.raises(error_type, match=message):
            wrong()
    with torch.no_grad():
        assert call(x, w, t, of_teacher.requires_grad_(), beta=0.0).isfinite()
