"""Divergences against the truth: of distributions that are far apart, nearly one, or certain; of classes that are
impossible, rows that are not finite, and layouts. What all losses of vectors do is tested with these."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import exact_vectors
from cudaloss import jsd_with_logits, kl_div_with_logits
from exact_distributions import kl_div_of_torch, student_and_teacher
from exact_rows import error
from exact_vectors import LOSSES, ULPS, assert_right, long
from oracle import DTYPES, HALVES
from wide import Wide, numbers

NAMES = "kl_div_with_logits", "jsd_with_logits"
BETAS = (0.5, 0.01, 0.9)
INF = float("inf")
TEMPERATURES = (0.5, 1.0, 2.0, 3.7)
# How far student and teacher are apart, and how certain they are.
PAIRS = {
    "apart": {},
    "near": {"noise": 1e-3},
    "nearer": {"noise": 1e-6},
    "offset": {"noise": 1e-3, "offset": 5.0},
    "offset and nearer": {"noise": 1e-6, "offset": 5.0},
    "sure": {"noise": 0.3, "sure": 8.0},
    "surer": {"noise": 20.0, "sure": 40.0},
    "sure and near": {"noise": 1e-3, "sure": 30.0},
}
# Sizes at which kernels change, and some between.
LENGTHS = (1, 2, 3, 7, 16, 33, 64, 127, 128, 129, 300, 511, 512, 513, 1024, 1025, 2048, 4096, 8192, 8195)
of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
of_temperatures = pytest.mark.parametrize("temperature", TEMPERATURES)
of_pairs = pytest.mark.parametrize("pair", PAIRS)
of_losses = pytest.mark.parametrize("name", NAMES)


def own(name, place):
    """The loss's own arguments, of one of several calls."""
    return {"beta": BETAS[place % 3]} if name == "jsd_with_logits" else {}


@of_losses
@of_pairs
def test_float64_judges_float32(monkeypatch, pair, name):
    """The truth of float32 operands (wide.py) is at most some hundredths of a last place beside double-doubles'."""
    operands = student_and_teacher((6, 33), **PAIRS[pair])
    found = LOSSES[name].truth(*operands, temperature=3.7)
    monkeypatch.setattr(exact_vectors, "numbers", lambda *_: numbers(torch.zeros((), dtype=torch.float64)))
    exact = LOSSES[name].truth(*operands, temperature=3.7)
    assert isinstance(exact.losses, Wide) and not isinstance(found.losses, Wide)
    (ours, truths), sizes = ((x.losses, *x.gradients) for x in (found, exact)), (exact.sizes, *exact.gradient_sizes)
    for number, truth, size in zip(ours, truths, sizes, strict=True):
        assert (np.abs(truth - number) <= 2.0**-28 * np.maximum(np.abs(truth), size)).all()


# ---- how far apart, and how certain ----


@of_losses
@of_pairs
def test_every_number_of_classes(device, pair, name):
    for length in range(1, 71):
        assert_right(name, student_and_teacher((3, length), **PAIRS[pair], device=device), **own(name, length))


@of_losses
@of_pairs
@of_temperatures
def test_temperatures(device, pair, temperature, name):
    for place, length in enumerate(LENGTHS if temperature == 1 else LENGTHS[int(temperature) :: 3]):
        operands = student_and_teacher((3, length), **PAIRS[pair], device=device)
        assert_right(name, operands, temperature=temperature, **own(name, place))


@of_pairs
@pytest.mark.parametrize("student", HALVES, ids=str)
@pytest.mark.parametrize("teacher", [*HALVES, torch.float32], ids=str)
@of_losses
def test_halves(device, pair, student, teacher, name):
    for place, length in enumerate((2, 5, 40, 128, 513, 1100, 4099)):
        operands = student_and_teacher((3, length), **PAIRS[pair], dtypes=(student, teacher), device=device)
        assert_right(name, operands, temperature=1.0 if length % 2 else 2.0, **own(name, place))


@of_losses
@of_pairs
def test_double_precision(device, pair, name):
    """As precise as PyTorch's own, if the loss is almost 0."""
    for place, length in enumerate((2, 5, 40, 128, 513, 4096)):
        operands = student_and_teacher((3, length), **PAIRS[pair], dtypes=(torch.float64,) * 2, device=device)
        assert_right(name, operands, temperature=2.0, **own(name, place))


@of_losses
def test_double_precision_does_not_cancel(device, name):
    """PyTorch's sum of p (log p - log q) has no digit of this left, or few."""
    loss = LOSSES[name]
    for length in (5, 40, 513, 4096):
        operands = student_and_teacher((4, length), noise=1e-6, dtypes=(torch.float64,) * 2, device=device)
        exact = loss.truth(*operands).losses
        found = [error(f(*operands, reduction="none"), exact) for f in (loss.ours, loss.theirs)]
        assert found[0] <= max(4.0, found[1])


@pytest.mark.parametrize("beta", [1e-6, 1 - 1e-6])
def test_mixtures_that_are_nearly_one_of_the_two(device, beta):
    for pair in PAIRS.values():
        for dtype in DTYPES:
            operands = student_and_teacher((3, 40), **pair, dtypes=(dtype,) * 2, device=device)
            assert_right("jsd_with_logits", operands, beta=beta, temperature=2.0)


@of_dtypes
@pytest.mark.parametrize("given", [{}, {"dim": -1, "mask": torch.arange(12) != 3, "dtype": torch.float64}])
def test_ends_of_the_mixture(device, dtype, given):
    """Where one of the two is the mixture, its divergence from the other one."""
    given = {name: x.to(device) if name == "mask" else x for name, x in given.items()}
    x, t = student_and_teacher((12, 33), dtypes=(dtype, torch.float32), device=device)
    for beta, swaps in ((0.0, False), (1.0, True)):
        for reduction in ("mean", "none"):
            found = []
            for function, swapped in ((jsd_with_logits, False), (kl_div_with_logits, swaps)):
                leaves = [y.clone().requires_grad_() for y in (x, t)]
                named = {"beta": beta} if function is jsd_with_logits else {}
                value = function(*leaves[:: -1 if swapped else 1], reduction, temperature=2.0, **named, **given)
                found.append([value, *torch.autograd.grad(value.sum(), leaves)])
            assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@of_losses
@of_dtypes
def test_equal_operands(device, dtype, name):
    """Of which nothing is left, whatever the order of the sums."""
    for length in (1, 2, 9, 64, 300, 1024, 5000):
        for sure in (1.0, 30.0):
            teacher, _ = student_and_teacher((4, length), sure=sure, dtypes=(dtype,) * 2, device=device)
            leaves = [teacher.clone().requires_grad_() for _ in range(2)]
            value = LOSSES[name].ours(*leaves, temperature=2.0, reduction="none")
            value.sum().backward()
            assert not value.any() and not any(x.grad.any() for x in leaves)


@of_losses
@of_temperatures
def test_equal_but_for_an_offset(device, temperature, name):
    """Distributions of which both are one, of logits that are not."""
    for length in (1, 2, 9, 64, 300, 1024, 5000):
        teacher = torch.randint(-4000, 4000, (4, length), device=device) / 1024
        for offset in (5.0, -1000.0):
            assert_right(name, [teacher + offset, teacher], temperature=temperature)
            value = LOSSES[name].ours(teacher + offset, teacher, reduction="none", temperature=temperature)
            assert (value >= 0).all()


@of_losses
@of_pairs
def test_never_negative(device, pair, name):
    for place, dtype in enumerate(DTYPES):
        operands = student_and_teacher((500, 12), **PAIRS[pair], dtypes=(dtype,) * 2, device=device)
        assert (LOSSES[name].ours(*operands, reduction="none", **own(name, place)) >= 0).all()


@of_losses
@pytest.mark.parametrize("length", [2, 9, 128, 700, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_large_logits(device, length, dtype, name):
    for size, temperature in ((1e4, 1.0), (1e4, 3.7), (1e30, 2.0)):
        operands = student_and_teacher((3, length), size, sure=size, dtypes=(dtype,) * 2, device=device)
        assert_right(name, operands, temperature=temperature)
        assert_right(name, [operands[0], torch.zeros_like(operands[1])], temperature=temperature)


@of_losses
def test_uniform_distributions(device, name):
    for length in (1, 2, 9, 300, 5000):
        x = torch.randn(3, length, device=device)
        for flat in (0.0, -7.0, 1e6):
            for operands in ([x, torch.full_like(x, flat)], [torch.full_like(x, flat), x]):
                assert_right(name, operands, temperature=2.0)


# ---- rows that are not finite ----


@of_losses
@of_dtypes
@pytest.mark.parametrize("length", [5, 40, 300, 1025, 5000])
def test_impossible_classes(device, dtype, length, name):
    """-inf in both operands, or only in the target, adds nothing."""
    x, t = student_and_teacher((6, length), dtypes=(dtype,) * 2, device=device)
    x[0, 1] = t[0, 1] = t[1, 0] = t[2, -1] = x[2, -1] = t[2, 0] = -INF
    x[3, 1:] = t[3, 1:] = -INF
    t[4, 1:] = -INF  # of one class alone
    without = t == -INF
    assert_right(name, [x, t], temperature=1.5)
    leaves = [y.clone().requires_grad_() for y in (x, t)]
    value = LOSSES[name].ours(*leaves, temperature=1.5, reduction="none")
    value.sum().backward()
    assert value.isfinite().all() and value[3] == 0 and not leaves[1].grad[without].any()
    assert all(y.grad.isfinite().all() and not y.grad[(x == -INF) & without].any() for y in leaves)
    whole = [y[:1].detach()[:, y[0] != -INF].clone() for y in (x, t)]
    torch.testing.assert_close(value[:1], LOSSES[name].ours(*whole, temperature=1.5, reduction="none"))


@of_dtypes
@pytest.mark.parametrize("length", [5, 40, 300, 1025, 5000])
def test_classes_that_the_student_rules_out(device, dtype, length):
    x, t = student_and_teacher((4, length), dtypes=(dtype,) * 2, device=device)
    x[1, 2] = -INF
    leaves = [y.clone().requires_grad_() for y in (x, t)]
    value = kl_div_with_logits(*leaves, temperature=2.0, reduction="none")
    value.sum().backward()
    truth, rest = LOSSES["kl_div_with_logits"].truth(x, t, 2.0), torch.tensor([0, 2, 3], device=device)
    assert value[1] == INF and value[rest].isfinite().all()
    assert leaves[0].grad.isfinite().all()
    assert error(leaves[0].grad, truth.gradients[0], truth.gradient_sizes[0]) <= 2 * ULPS[dtype]
    assert not leaves[1].grad[1, 2].isfinite() and leaves[1].grad[rest].isfinite().all()
    assert_right("jsd_with_logits", [x, t], temperature=2.0)
    assert jsd_with_logits(x, t).isfinite()
    assert_right("kl_div_with_logits", [y[rest] for y in (x, t)])


@of_losses
@of_dtypes
@pytest.mark.parametrize("length", [2, 5, 40, 300, 1025, 5000])
def test_rows_that_are_not_finite(device, dtype, length, name):
    """NaN, +inf, or only -inf: the row is NaN, and no other row; rows that are masked out leave no trace."""
    x, t = student_and_teacher((9, length), dtypes=(dtype,) * 2, device=device)
    x[0, 0] = x[1, -1] = t[2, 1] = float("nan")
    x[3, 0] = t[4, -1] = INF
    x[5], t[6], x[7], t[7] = (-INF,) * 4
    bad = torch.arange(9, device=device) < 8
    leaves = [y.clone().requires_grad_() for y in (x, t)]
    value = LOSSES[name].ours(*leaves, temperature=2.0, reduction="none")
    value.sum().backward()
    assert torch.equal(value.isnan(), bad)
    for leaf in leaves:
        assert leaf.grad[bad].isnan().all() and leaf.grad[~bad].isfinite().all()
    for masked in ({"reduction": "none"}, {"reduction": "sum"}, {}):
        leaves = [y.clone().requires_grad_() for y in (x, t)]
        value = LOSSES[name].ours(*leaves, temperature=2.0, mask=~bad, **masked)
        value.sum().backward()
        torch.testing.assert_close(value.sum(), LOSSES[name].ours(x[8:], t[8:], temperature=2.0), rtol=1e-6, atol=0)
        assert all(not y.grad[bad].any() and y.grad[8].isfinite().all() for y in leaves)


@of_losses
@pytest.mark.parametrize("shape", [(6, 9), (6, 300), (6, 5000), (6, 9, 4, 5)])
def test_masked_rows_beside_an_incoming_nan(device, shape, name):
    leaves = [y.requires_grad_() for y in student_and_teacher(shape, device=device)]
    out = torch.zeros(shape[:1] + shape[2:], dtype=torch.bool, device=device)
    out[2] = True
    for reduction in ("mean", "none"):
        value = LOSSES[name].ours(*leaves, mask=~out, reduction=reduction)
        incoming = torch.full_like(value, float("nan"))
        for gradient in torch.autograd.grad(value, leaves, incoming):
            assert not gradient[2].any() and gradient[[0, 1, 3, 4, 5]].isnan().any()


@of_losses
@pytest.mark.parametrize(
    "incoming",
    [2.0**-140, 2.0**-60, 2.0**-19, 2.0**-16, 2.0**-8, -0.6, -1.0, 2.0**20, -(2.0**41), 2.0**100],
    ids="{:.1e}".format,
)
def test_incoming_gradients_of_any_size(device, incoming, name):
    cases = [
        student_and_teacher((4, length), **PAIRS[pair], device=device)
        for pair in ("apart", "near", "nearer", "surer")
        for length in (9, 300, 5000)
    ]
    student, teacher = [[-116.2, 0.0], [-250.0, 0.5], [0.0, -99.0]], [[0.0, -1.0], [0.3, 0.1], [-99.0, 0.0]]
    cases.append([torch.tensor(x, device=device) for x in (student, teacher)])
    for operands in cases:
        assert_right(name, operands, torch.full(operands[0].shape[:1], incoming, device=device), temperature=2.0)


@of_losses
@of_dtypes
@pytest.mark.parametrize("incoming", [INF, -INF, float("nan")])
def test_incoming_gradients_that_are_not_finite(device, dtype, incoming, name):
    """A gradient scaler looks for these."""
    for length in (9, 300, 5000):
        leaves = [y.requires_grad_() for y in student_and_teacher((4, length), dtypes=(dtype,) * 2, device=device)]
        value = LOSSES[name].ours(*leaves, reduction="none")
        for taken in (leaves[:1], leaves):
            found = torch.autograd.grad(value, taken, torch.full_like(value, incoming), retain_graph=True)
            assert not any(gradient.isfinite().any() for gradient in found)


@pytest.mark.cuda
def test_threads_whose_rows_need_different_shared_memory():
    """From 43 KB on a kernel must be allowed them, whatever another thread allows it meanwhile."""
    calls = [student_and_teacher((8, length), device="cuda") for length in (1408, 1536, 5632, 6144)]
    failed = []

    def steps(operands):
        try:
            for _ in range(500):
                kl_div_with_logits(*operands)
        except RuntimeError as error:
            failed.append(error)

    workers = [threading.Thread(target=steps, args=(operands,)) for operands in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed


# ---- layouts, and what a call says ----


@of_losses
@pytest.mark.parametrize("shape", [(2, 40, 5, 7), (2, 3, 33, 31), (1, 300, 4, 3), (3, 19, 64), (2, 1030, 3)])
@pytest.mark.parametrize("dtypes", [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)])
def test_classes_that_do_not_lie_together(device, shape, dtypes, name):
    rows = (shape[0], *shape[2:], shape[1])
    operands = [y.movedim(-1, 1).contiguous() for y in student_and_teacher(rows, dtypes=dtypes, device=device)]
    x, t = operands
    assert_right(name, operands, temperature=2.0)
    assert_right(name, [x, t.movedim(1, -1).contiguous().movedim(-1, 1)])
    assert_right(name, [y[:, : -3 if shape[1] > 3 else -1] for y in operands])
    assert_right(name, [x[..., 1:], t[..., :-1]])
    assert_right(name, [x, t[:1]])  # one teacher for all


@of_losses
@pytest.mark.parametrize("length", [5, 64, 300, 1028])
def test_layouts_of_rows(device, length, name):
    operands = student_and_teacher((2, 6, length), device=device)
    assert_right(name, operands, dim=-1)
    flat = [y.view(12, length) for y in operands]
    assert_right(name, [y[:, :-3] for y in flat])
    assert_right(name, [flat[0][:, 3:], flat[1][:, :-3].clone()])
    assert_right(name, [flat[0].mT.contiguous().mT, flat[1]])
    assert_right(name, [flat[0], flat[1][:1].expand_as(flat[0])])
    assert_right(name, [flat[0][0], flat[1][0]])
    single = [LOSSES[name].ours(flat[0][0], flat[1][0], dim=dim) for dim in (0, 1, -1)]  # its only dimension
    assert all(x.shape == () and torch.equal(x, single[0]) for x in single)


@of_losses
@pytest.mark.parametrize("length", [7, 128, 300, 1100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_one_operand(device, length, dtype, name):
    operands = student_and_teacher((5, length), dtypes=(dtype,) * 2, device=device)
    both = [y.clone().requires_grad_() for y in operands]
    value = LOSSES[name].ours(*both, temperature=2.0)
    value.backward()
    for which in (0, 1):
        leaves = [y.clone().requires_grad_(i == which) for i, y in enumerate(operands)]
        alone = LOSSES[name].ours(*leaves, temperature=2.0)
        alone.backward()
        torch.testing.assert_close(alone, value, rtol=0, atol=0)
        assert error(leaves[which].grad, long(both[which].grad)) <= ULPS[dtype] and leaves[1 - which].grad is None


@of_temperatures
@of_dtypes
def test_pytorchs_composition(device, temperature, dtype):
    x, t = student_and_teacher((12, 33), dtypes=(dtype,) * 2, device=device)
    for reduction in ("mean", "sum", "none"):
        found = []
        for function, wide in ((kl_div_with_logits, dtype), (kl_div_of_torch, torch.float64)):
            leaves = [y.to(wide).requires_grad_() for y in (x.detach().clone(), t.detach().clone())]
            value = function(*leaves, reduction, temperature)
            found.append([y.to(dtype) for y in (value, *torch.autograd.grad(value, leaves, torch.ones_like(value)))])
        torch.testing.assert_close(*found)
    logs = (F.log_softmax(y.double() / temperature, 1) for y in (x, t))
    whole = F.kl_div(*logs, reduction="batchmean", log_target=True) * temperature**2
    torch.testing.assert_close(kl_div_with_logits(x, t, temperature=temperature), whole.to(dtype))


def test_normalizers_and_batches(device):
    x, t = student_and_teacher((4, 3, 9), device=device)
    weight, mask = torch.rand(4, 3, device=device), torch.rand(4, 3, device=device) < 0.7
    single = kl_div_with_logits(x, t, "none", temperature=2.0, dim=-1).double()
    counted = torch.where(mask, single * weight, 0)
    given = {"weight": weight, "mask": mask, "dim": -1}
    for batch_dims, total in ((0, counted.sum()), (1, counted.sum(-1))):
        for normalizer in (7, 7.0, torch.tensor(7.0, device=device)):
            options = {"normalizer": normalizer, "batch_dims": batch_dims, **given}
            found = kl_div_with_logits(x, t, temperature=2.0, scale=0.5, **options)
            torch.testing.assert_close(found, (total * 0.5 / 7).float())


# ---- derivatives ----


@of_losses
def test_derivatives_beside_impossible_classes(device, name):
    """Second derivatives, too, come only from the other classes."""
    x, t = student_and_teacher((4, 6), dtypes=(torch.float64,) * 2, device=device)
    kept = torch.arange(6, device=device) != 2
    found = []
    for whole in (True, False):
        leaves = [(y.masked_fill(~kept, -INF) if whole else y[:, kept]).clone().requires_grad_() for y in (x, t)]
        first = torch.autograd.grad(LOSSES[name].ours(*leaves, temperature=2.0), leaves, create_graph=True)
        second = torch.autograd.grad(sum(y.square().sum() for y in first), leaves)
        found.append([y[:, kept] if whole else y for y in (*first, *second)])
        assert all(y.isfinite().all() for y in (*first, *second))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("noise", [1.0, 1e-3, 0.0])
def test_curvature(noise):
    """For the student diag(q) - q q^T, at every temperature and wherever the teacher is."""
    x, t = (y[0] for y in student_and_teacher((1, 5), noise=noise, dtypes=(torch.float64,) * 2))
    hessian = torch.func.hessian(lambda y: kl_div_with_logits(y, t, temperature=3.0))(x)
    q = torch.softmax(x / 3, 0)
    torch.testing.assert_close(hessian, torch.diag(q) - torch.outer(q, q))
    both = torch.func.jvp(torch.func.grad(kl_div_with_logits, (0, 1)), (x, t), (x, x))
    theirs = torch.func.jvp(torch.func.grad(kl_div_of_torch, (0, 1)), (x, t), (x, x))
    torch.testing.assert_close(both, theirs)


@pytest.mark.cuda
@of_losses
@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 1540), (torch.bfloat16, 3080)], ids=str)
def test_blocks_that_take_several_rows(name, dtype, length):
    """A row of as many classes is a whole block's: with more than 16,384 each block takes several in turn."""
    rows = 2 * 16_384 + 3
    x, t = (torch.randn(rows, length, device="cuda", dtype=dtype).requires_grad_() for _ in range(2))
    value = LOSSES[name].ours(x, t, reduction="none")
    gradients = torch.autograd.grad(value.sum(), (x, t))
    for some in (slice(0, 5), slice(16_380, 16_390), slice(rows - 7, rows)):
        few = [y[some].detach().requires_grad_() for y in (x, t)]
        alone = LOSSES[name].ours(*few, reduction="none")
        assert torch.equal(value[some], alone)
        for all_rows, of_few in zip(gradients, torch.autograd.grad(alone.sum(), few), strict=True):
            assert torch.equal(all_rows[some], of_few)
    mean = LOSSES[name].ours(x, t)
    torch.testing.assert_close(
        mean.double(), value.detach().double().mean(), rtol=1e-2 if dtype in HALVES else 1e-6, atol=0
    )
