"""The cross entropy of a few classes of each row, of logits and of heads, against its definition in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from cudaloss._heads import places
from cudaloss._heads.calls import bent
from drawn_heads import assert_close, drawn, error, found_by, largest_allocation, take
from oracle import DTYPES

of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
PLANS = ("kept", "least")
OPTIONS = {
    "none": {},
    "sum": {"reduction": "sum", "scale": 0.3},
    "single": {"reduction": "none"},
    "temperature": {"temperature": 0.7},
    "softcap": {"softcap": 3.0},
    "bent": {"temperature": 1.3, "softcap": 2.0},
    "rows": {"mask": True, "sample_weight": True},
    "weights": {"sample_weight": True},
    "normalizer": {"normalizer": 3.5},
    "all": {"mask": True, "sample_weight": True, "temperature": 0.7, "softcap": 2.0, "scale": 2.0},
}
EPS = {torch.float64: 1e-13, torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def targets(shape, k, classes, dtype, device):
    """Indices with equal ones, and with padding if there is room; probabilities that do not sum to 1."""
    indices, p = torch.randint(classes, (*shape, k)), torch.rand(*shape, k, dtype=torch.float64)
    if k > 2:
        indices[..., 1] = indices[..., 0]
        indices.view(-1, k)[-1, 2:] = -1
        indices.view(-1, k)[0, 2] = -100
    return indices.to(device), p.to(dtype).to(device).requires_grad_()


def given_options(name, shape, device, dtype=torch.float64):
    options = dict(OPTIONS[name])
    if "mask" in options:
        options["mask"] = torch.arange(shape.numel(), device=device).view(shape) % 3 != 1
    if "sample_weight" in options:
        options["sample_weight"] = (torch.rand(shape, device=device) + 0.5).to(dtype)
    return options


def by_definition(
    logits,
    indices,
    p,
    reduction="mean",
    temperature=1.0,
    softcap=None,
    mask=None,
    sample_weight=None,
    normalizer=None,
    scale=1.0,
):
    """From the whole logits and a whole target."""
    is_padding = indices < 0
    whole = torch.zeros_like(logits).scatter_add(
        -1, indices.clamp(min=0), torch.where(is_padding, 0, p).to(logits.dtype)
    )
    logs = bent(logits, softcap or 0.0, temperature).log_softmax(-1)
    found = -(whole * torch.where(whole == 0, 0, logs)).sum(-1)
    weight = torch.ones_like(found) if sample_weight is None else sample_weight.to(found.dtype)
    weight = weight if mask is None else weight * mask
    found = scale * weight * torch.where(weight == 0, 0, found)
    if reduction == "none":
        return found
    divisor = 1 if reduction == "sum" else weight.sum() if normalizer is None else normalizer
    return found.sum() / divisor


def compared(found, truth, leaves, exact, bars):
    """The values, and the gradients of all leaves."""
    assert found.shape == truth.shape
    assert error(found, truth) <= bars[found.dtype] * 4
    incoming = torch.rand_like(truth) + 0.5
    ours = torch.autograd.grad(found, leaves, incoming.to(found.dtype))
    theirs = torch.autograd.grad(truth, exact, incoming.to(found.dtype).to(truth.dtype))
    for a, b in zip(ours, theirs, strict=True):
        assert error(a, b) <= bars[a.dtype] * 4, f"{error(a, b):.2e}"


@of_dtypes
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients(device, dtype, name):
    shape = torch.Size((4, 6))
    input = (3 * torch.randn(*shape, 53, dtype=torch.float64)).to(dtype).to(device).requires_grad_()
    indices, p = targets(shape, 5, 53, dtype, device)
    options = given_options(name, shape, device, dtype)
    found = cudaloss.sparse_cross_entropy(input, indices, p, **options)
    exact = [x.detach().double().requires_grad_() for x in (input, p)]
    compared(found, by_definition(exact[0], indices, exact[1], **options), (input, p), exact, EPS)
    assert found.dtype == dtype


@pytest.mark.parametrize(
    ("shape", "classes", "k"),
    [((), 9, 3), ((1,), 1, 1), ((7,), 1, 3), ((3, 2), 9, 1), ((2, 3, 4), 64, 7), ((5,), 4099, 256), ((2,), 40_000, 3)],
)
def test_sizes(device, shape, classes, k):
    for dtype in (torch.float32, torch.bfloat16):
        input = torch.randn(*shape, classes, device=device).to(dtype).requires_grad_()
        indices, p = targets(shape, k, classes, torch.float32, device)
        found = cudaloss.sparse_cross_entropy(input, indices, p, reduction="none")
        assert found.dtype == torch.float32  # as in cross_entropy with such probabilities
        exact = [x.detach().double().requires_grad_() for x in (input, p)]
        truth = by_definition(exact[0], indices, exact[1], reduction="none")
        compared(found, truth, (input, p), exact, {**EPS, torch.float32: 4e-6 if classes > 1 else 1e-5})


@pytest.mark.parametrize("plan", PLANS)
@of_dtypes
@pytest.mark.parametrize("name", OPTIONS)
def test_heads(monkeypatch, device, dtype, plan, name):
    memory = take(monkeypatch, plan)
    shape, classes = torch.Size((19,)), 53
    input, weight, bias, _ = drawn(shape, 8, classes, dtype, device)
    indices, p = targets(shape, 4, classes, dtype, device)
    options = given_options(name, shape, device, dtype)
    ours = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, linear_bias=bias, memory=memory, **options)
    incoming = torch.rand_like(ours) + 0.5

    def whole(of):
        x, w, b, q = leaves = [x.detach().to(of).requires_grad_() for x in (input, weight, bias, p)]
        logits = F.linear(x, w, b)
        logits = logits if of == torch.float64 else logits.double()
        return found_by(by_definition(logits, indices, q.double(), **options).to(of), leaves, incoming)

    found = found_by(ours, (input, weight, bias, p), incoming)
    assert_close(found, whole(dtype), whole(torch.float64))


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("features", "classes", "k"), [(1, 1, 2), (8, 1030, 9), (4, 20_001, 64)])
def test_sizes_of_heads(monkeypatch, device, plan, features, classes, k):
    memory = take(monkeypatch, plan)
    input, weight, bias, _ = drawn((2, 5), features, classes, torch.float32, device)
    indices, p = targets((2, 5), k, classes, torch.float32, device)
    found = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, linear_bias=bias, memory=memory)
    exact = [x.detach().double().requires_grad_() for x in (input, weight, bias, p)]
    truth = by_definition(F.linear(*exact[:3]), indices, exact[3])
    compared(found, truth, (input, weight, bias, p), exact, {torch.float32: 1e-5})


def test_one_class_of_probability_1_is_cross_entropy(device):
    """Also for a sure row: its loss is exp(-40), and its gradient too."""
    input = torch.randn(6, 33, device=device)
    input[0, 4], input[0, 5:], input[0, :4] = 40.0, 0.0, 0.0
    index = torch.randint(33, (6, 1), device=device)
    index[0] = 4
    leaf = input.requires_grad_()
    ours = cudaloss.sparse_cross_entropy(leaf, index, torch.ones(6, 1, device=device), reduction="none")
    theirs = F.cross_entropy(leaf.double(), index.squeeze(1), reduction="none")
    torch.testing.assert_close(ours.double()[1:], theirs[1:], rtol=1e-6, atol=0)
    assert ours[0].item() == pytest.approx(32 * 4.248354e-18, rel=1e-5)
    (a,) = torch.autograd.grad(ours.sum(), leaf)
    assert a[0, 4].item() == pytest.approx(-32 * 4.248354e-18, rel=1e-5)
    assert a[0, 5].item() == pytest.approx(4.248354e-18, rel=1e-5)


def test_equal_indices_add_up_and_padding_has_no_effect(device):
    leaf = torch.randn(3, 9, device=device, requires_grad=True)
    one = torch.tensor([[1, 2], [3, 4], [0, 8]], device=device)
    of_one = torch.tensor([[0.6, 0.4], [0.5, 0.2], [1.0, 0.0]], device=device)
    many = torch.cat([one, one.flip(1), torch.full_like(one, -1)], 1)
    wild = torch.tensor([torch.nan, torch.inf], device=device).expand(3, 2)
    of_many = torch.cat([of_one * 0.25, of_one.flip(1) * 0.75, wild], 1).requires_grad_()
    found, expected = (cudaloss.sparse_cross_entropy(leaf, *x) for x in ((many, of_many), (one, of_one)))
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(x, leaf, retain_graph=True)[0] for x in (found, expected))
    torch.testing.assert_close(*gradients)
    (of_padding,) = torch.autograd.grad(found, of_many)
    assert not of_padding[:, 4:].any() and of_padding[:, :4].all()


@pytest.mark.parametrize("plan", PLANS)
def test_padding_alone(monkeypatch, device, plan):
    """Such a row counts, with a loss of 0."""
    memory = take(monkeypatch, plan)
    input, weight, _, _ = drawn((4,), 8, 53, torch.float32, device)
    indices, p = targets((4,), 1, 53, torch.float32, device)
    indices[2] = -1
    found = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, memory=memory)
    kept = torch.arange(4, device=device) != 2
    mean = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, memory=memory, mask=kept)
    torch.testing.assert_close(found * 4, mean * 3)
    assert not torch.autograd.grad(found, input)[0][2].any()


def test_classes_of_minus_infinity(device):
    """One of probability 0 adds 0, one of another makes the loss infinite; the gradients of others are usual."""
    leaf = torch.randn(3, 9, device=device)
    leaf[:, 2] = -torch.inf
    leaf.requires_grad_()
    indices = torch.tensor([[1, 2, 3]], device=device).expand(3, 3)
    p = torch.tensor([[0.5, 0.0, 0.5], [0.2, 0.7, 0.1], [0.7, 0.2, 0.1]], device=device)
    found = cudaloss.sparse_cross_entropy(leaf, indices, p, reduction="none")
    assert found[0].isfinite() and (found[1:] == torch.inf).all()
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    expected = leaf.detach().softmax(1).scatter_add(1, indices, -p)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("plan", PLANS)
def test_a_row_that_is_left_out_does_not_matter(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, _ = drawn((19,), 8, 53, torch.float32, device)
    indices, p = targets((19,), 4, 53, torch.float32, device)
    mask = torch.arange(19, device=device) != 3
    found = []
    for is_broken in (False, True):
        x, i, q = (y.detach().clone() for y in (input, indices, p))
        if is_broken:
            x[3], i[3], q[3] = torch.nan, 53, torch.inf
        loss = cudaloss.linear_sparse_cross_entropy(
            x.requires_grad_(), weight, i, q.requires_grad_(), mask=mask, memory=memory
        )
        found.append((loss, *torch.autograd.grad(loss, (x, q))))
        logits = F.linear(x.detach(), weight.detach()).requires_grad_()
        loss = cudaloss.sparse_cross_entropy(logits, i, q, mask=mask)
        found[-1] += loss, *torch.autograd.grad(loss, (logits, q))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("plan", PLANS)
def test_nothing_counts(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, _ = drawn((19,), 8, 53, torch.float32, device)
    indices, p = targets((19,), 4, 53, torch.float32, device)
    nothing = torch.zeros(19, dtype=torch.bool, device=device)
    for options in ({}, {"reduction": "sum"}):
        found = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, mask=nothing, memory=memory, **options)
        assert found.item() == 0 if options else found.isnan()
        assert all(not x.any() for x in torch.autograd.grad(found, (input, weight, p)))


def test_no_rows(device):
    for rows in ((0,), (0, 3)):
        leaf = torch.randn(*rows, 9, device=device, requires_grad=True)
        indices, p = torch.zeros(*rows, 2, dtype=torch.int64, device=device), torch.zeros(*rows, 2, device=device)
        assert cudaloss.sparse_cross_entropy(leaf, indices, p, reduction="none").shape == rows
        found = cudaloss.sparse_cross_entropy(leaf, indices, p, reduction="sum")
        assert found == 0 and torch.autograd.grad(found, leaf)[0].shape == leaf.shape


def test_layouts_and_integers(device):
    base = torch.randn(3, 7, 203, device=device)
    for x in (base[:, :-1, :199], base.transpose(0, 1)[..., :199], base[..., ::2], base[0, 0]):
        leaf = x.detach().requires_grad_()
        indices, p = targets(leaf.shape[:-1], 3, leaf.shape[-1], torch.float32, device)
        found = cudaloss.sparse_cross_entropy(leaf, indices.short(), p)
        expected = cudaloss.sparse_cross_entropy(leaf.contiguous(), indices, p)
        torch.testing.assert_close(found, expected)
        for_leaf = (torch.autograd.grad(y, leaf)[0] for y in (found, expected))
        torch.testing.assert_close(*for_leaf)


def test_targets_that_do_not_lie_side_by_side(device):
    input, weight, _, _ = drawn((19,), 8, 53, torch.float32, device)
    indices, p = targets((19,), 4, 53, torch.float32, device)
    of_rows = torch.rand(19, 2, device=device)
    options = {"mask": (of_rows > 0.3)[:, 1], "sample_weight": of_rows[:, 0]}
    found = cudaloss.linear_sparse_cross_entropy(
        input, weight, indices.t().contiguous().t(), p.detach().t().contiguous().t(), **options
    )
    options = {name: x.contiguous() for name, x in options.items()}
    expected = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, **options)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, (input, weight)) for x in (found, expected)))


@pytest.mark.parametrize("plan", PLANS)
def test_the_same_bits_in_each_run(monkeypatch, device, plan):
    """Also where a class comes many times."""
    memory = take(monkeypatch, plan)
    input, weight, bias, _ = drawn((40,), 8, 299, torch.bfloat16, device)
    indices, p = torch.randint(9, (40, 64), device=device), torch.rand(40, 64, device=device)
    runs = []
    for _ in range(2):
        found = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, linear_bias=bias, memory=memory)
        first = torch.autograd.grad(found, (input, weight, bias), retain_graph=True)
        runs += [[found, *first], [found, *torch.autograd.grad(found, (input, weight, bias))]]
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("plan", PLANS)
def test_derivatives(monkeypatch, plan):
    memory = take(monkeypatch, plan)
    input, weight, bias, _ = drawn((5,), 3, 7, torch.float64, "cpu")
    indices, p = targets((5,), 4, 7, torch.float64, "cpu")
    mask = torch.arange(5) != 1

    def loss(*operands):
        x, w, b, q = operands
        given = {"temperature": 0.7, "softcap": 2.0, "mask": mask, "memory": memory}
        return cudaloss.linear_sparse_cross_entropy(x, w, indices, q, linear_bias=b, **given)

    assert torch.autograd.gradcheck(loss, (input, weight, bias, p))
    assert torch.autograd.gradgradcheck(loss, (input, weight, bias, p))
    logits = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    of_logits, q = targets((2, 3), 4, 7, torch.float64, "cpu")

    def single(x, q):
        return cudaloss.sparse_cross_entropy(x, of_logits, q, reduction="none", softcap=2.0)

    assert torch.autograd.gradcheck(single, (logits, q))
    assert torch.autograd.gradgradcheck(single, (logits, q))


def test_transforms(device):
    input, weight, _, _ = drawn((5,), 3, 7, torch.float64, device)
    indices, p = targets((5,), 4, 7, torch.float64, device)
    operands = input.detach(), weight.detach(), p.detach()

    def loss(x, w, q):
        return cudaloss.linear_sparse_cross_entropy(x, w, indices, q, temperature=0.7)

    def definition(x, w, q):
        return by_definition(F.linear(x, w), indices, q, temperature=0.7)

    for transform in (
        lambda f: torch.func.grad(f, argnums=(0, 1, 2))(*operands),
        lambda f: torch.func.jvp(f, operands, operands),
        lambda f: torch.func.vmap(f, (0, None, None))(operands[0][None], *operands[1:]),
        lambda f: torch.fx.experimental.proxy_tensor.make_fx(f)(*operands)(*operands),
    ):
        torch.testing.assert_close(transform(loss), transform(definition))
    logits = F.linear(*operands[:2])
    found = torch.func.vmap(cudaloss.sparse_cross_entropy)(logits, indices, operands[2])
    torch.testing.assert_close(found, by_definition(logits, indices, operands[2], reduction="none"))


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@pytest.mark.parametrize("plan", PLANS)
def test_compile(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, bias, _ = drawn((19,), 8, 53, torch.float32, device)
    indices, p = targets((19,), 4, 53, torch.float32, device)
    mask = torch.arange(19, device=device) != 3
    torch._dynamo.reset()

    def step(x, w, b, q):
        given = {"temperature": 0.7, "mask": mask, "memory": memory}
        of_head = cudaloss.linear_sparse_cross_entropy(x, w, indices, q, linear_bias=b, **given)
        return of_head * 0.5 + cudaloss.sparse_cross_entropy(F.linear(x, w, b), indices, q)

    leaves = input, weight, bias, p
    found, expected = torch.compile(step, fullgraph=True, backend="aot_eager")(*leaves), step(*leaves)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(x, leaves) for x in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_autocast_and_inference(device):
    input, weight, _, _ = drawn((19,), 8, 53, torch.float32, device)
    indices, p = targets((19,), 4, 53, torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        found = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p)
        halves = cudaloss.sparse_cross_entropy(input.bfloat16(), indices % 8, p.bfloat16())
    assert found.dtype == halves.dtype == torch.float32
    assert torch.autograd.grad(found, input)[0].dtype == torch.float32
    with torch.inference_mode():
        alone = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p)
    torch.testing.assert_close(found.detach(), alone, rtol=0.02, atol=0)
    for dtype in (torch.float32, torch.float64):
        assert cudaloss.sparse_cross_entropy(input.bfloat16(), indices % 8, p.bfloat16(), dtype=dtype).dtype == dtype


def test_a_learnt_sample_weight_and_normalizer(device):
    input, weight, _, _ = drawn((19,), 8, 53, torch.float64, device)
    indices, p = targets((19,), 4, 53, torch.float64, device)
    own = torch.rand(19, dtype=torch.float64, device=device, requires_grad=True)
    divisor = torch.tensor(3.0, dtype=torch.float64, device=device, requires_grad=True)
    found = cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, sample_weight=own, normalizer=divisor)
    truth = by_definition(F.linear(input, weight), indices, p, sample_weight=own, normalizer=divisor)
    leaves = input, weight, p, own, divisor
    torch.testing.assert_close(torch.autograd.grad(found, leaves), torch.autograd.grad(truth, leaves))


def test_no_logits_are_saved(monkeypatch, device):
    memory = take(monkeypatch, "least")
    input, weight, _, _ = drawn((200,), 4, 300, torch.float32, device)
    indices, p = targets((200,), 4, 300, torch.float32, device)
    sizes: list[int] = []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, memory=memory)
    assert sizes and max(sizes) <= 300 * 4


def test_no_tensor_has_the_logits_size(monkeypatch):
    """Neither in the forward nor in the backward, by blocks."""
    memory = take(monkeypatch, "least")
    input, weight, _, _ = drawn((200,), 4, 300, torch.float32, "cpu")
    indices, p = targets((200,), 4, 300, torch.float32, "cpu")
    call = input, weight, indices, p
    largest = largest_allocation(lambda: cudaloss.linear_sparse_cross_entropy(*call, memory=memory).backward())
    assert 0 < largest < 200 * 300 * 4


@pytest.mark.cuda
def test_memory_on_a_gpu():
    """Of 2,048 rows and 65,536 classes the logits have 256 MiB; half of them are there at a time."""
    rows, features, classes, k = 2048, 1024, 65_536, 64
    input = torch.randn(rows, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, features, device="cuda", dtype=torch.bfloat16).mul_(0.02).requires_grad_()
    indices, p = targets((rows,), k, classes, torch.float32, "cuda")

    def step():
        input.grad = weight.grad = p.grad = None
        cudaloss.linear_sparse_cross_entropy(input, weight, indices, p, memory="least").backward()

    step()
    input.grad = weight.grad = p.grad = None
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    gradients = 2 * (input.numel() + weight.numel())
    of_classes = 16 * rows * k * 8  # some tensors of float64
    assert torch.cuda.max_memory_allocated() - before - gradients <= (128 + 8 + 8) * 2**20 + of_classes


@torch.no_grad()
def test_a_block_without_the_classes_of_a_row_stays_as_it_is(device):
    gradient = torch.randn(3, 8, device=device)
    indices = torch.tensor([[1, 2, 30], [30, 31, 32], [8, 9, 9]], device=device)
    values = torch.arange(9, device=device).view(3, 3).double()
    values[2, 2] = values[2, 1]  # equal ones have one gradient
    expected = gradient.clone()
    expected[2, 0], expected[2, 1] = values[2, 0], values[2, 1]
    places.Written(indices, values).write(gradient, 8)
    assert torch.equal(gradient, expected)


@torch.no_grad()
def test_sums_of_equal_indices(device):
    indices = torch.randint(5, (30, 70), device=device).sort(1)[0]
    values = torch.randn(30, 70, dtype=torch.float64, device=device)
    found = places._sums_of_equal(indices, values)
    truth = (torch.where(indices.unsqueeze(2) == indices.unsqueeze(1), values.unsqueeze(1), 0)).sum(2)
    torch.testing.assert_close(found, truth)
    for row, index in zip(found, indices, strict=True):
        assert len(row.unique()) == len(index.unique())


def test_errors(device):
    input, weight = torch.randn(4, 5, device=device), torch.randn(6, 5, device=device)
    indices, p = torch.zeros(4, 2, dtype=torch.int64, device=device), torch.rand(4, 2, device=device)
    head, logits = cudaloss.linear_sparse_cross_entropy, cudaloss.sparse_cross_entropy
    for wrong, error_type, message in (
        (lambda: logits(input, indices[:3], p), ValueError, r"indices must be of shape \(4, k\), .* got \(3, 2\)"),
        (lambda: logits(input[0], indices, p), ValueError, r"indices must be of shape \(k,\)"),
        (lambda: logits(input, indices[:, 0], p), ValueError, "indices must be of shape"),
        (lambda: logits(input, indices[:, :0], p[:, :0]), ValueError, "at least one class for each row"),
        (lambda: logits(input, indices, p[:, :1]), ValueError, "probabilities must be of indices' shape"),
        (lambda: logits(input, indices.float(), p), RuntimeError, "indices must be an integer tensor"),
        (lambda: logits(input, indices, p.long()), RuntimeError, "probabilities must be a floating-point tensor"),
        (lambda: logits(input.long(), indices, p), RuntimeError, "input must be a floating-point tensor"),
        (lambda: logits(input[:, :0], indices, p), RuntimeError, "at least one class"),
        (lambda: logits(input, indices, p, temperature=0.0), RuntimeError, "temperature must be"),
        (lambda: logits(input, indices, p, softcap=-1.0), RuntimeError, "softcap must be"),
        (lambda: logits(input, indices, p, reduction="average"), ValueError, "reduction must be"),
        (lambda: logits(input, indices, p, mask=torch.ones(3, dtype=torch.bool, device=device)), RuntimeError, "mask"),
        (lambda: logits(input, indices, p, dtype=torch.int64), (TypeError, RuntimeError), "dtype"),
        (lambda: head(input, weight[:, :4], indices, p), RuntimeError, "expected equal input and linear_weight last"),
        (lambda: head(input, weight[None], indices, p), RuntimeError, "linear_weight must have two dimensions"),
        (lambda: head(input, weight, indices, p, linear_bias=p), RuntimeError, "expected linear_bias shape"),
        (lambda: head(input, weight, indices, p, memory="most"), ValueError, "memory must be 'fast', 'least' or None"),
        (lambda: head(input, weight, indices[:2], p), ValueError, "indices must be of shape"),
        (lambda: head(input, weight, indices, 1.0), TypeError, "probabilities"),
    ):
        with pytest.raises(error_type, match=message):
            wrong()


@pytest.mark.parametrize("plan", PLANS)
def test_an_index_that_is_no_class(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    leaf = torch.randn(4, 5, device=device, requires_grad=True)
    weight = torch.randn(6, 5, device=device)
    indices, p = torch.zeros(4, 2, dtype=torch.int64, device=device), torch.rand(4, 2, device=device)
    indices[1, 1] = 6
    calls = (
        lambda **given: cudaloss.linear_sparse_cross_entropy(leaf, weight, indices, p, memory=memory, **given),
        lambda **given: cudaloss.sparse_cross_entropy(F.linear(leaf, weight), indices, p, **given),
    )
    for call in calls:
        if device == "cpu":
            with pytest.raises(RuntimeError, match=r"indices must be class indices below 6, .* got 6"):
                call()
            with torch.no_grad(), pytest.raises(RuntimeError, match="indices must be class indices below 6"):
                call()
        else:
            found = call(reduction="none")
            assert found[1].isnan() and found[[0, 2, 3]].isfinite().all()
            (gradient,) = torch.autograd.grad(found.sum(), leaf)
            assert gradient[1].isnan().all() and gradient[[0, 2, 3]].isfinite().all()
