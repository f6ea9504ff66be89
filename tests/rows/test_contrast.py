"""Losses of pairs: against their definitions in float64, in both plans, with chunks of few rows."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import cudaloss
from cudaloss._heads import calls, contrast, pairs
from processes import found_by_all

SIZES = [(1, 3), (2, 1), (7, 5), (64, 16), (129, 8), (300, 33)]
PLANS = ["fast", "least"]
DTYPES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 5e-3}


@pytest.fixture(autouse=True)
def chunks_of_64_rows(monkeypatch):
    monkeypatch.setattr(pairs, "CHUNK_BYTES", 1)
    monkeypatch.setattr(pairs, "FAST_CHUNK_BYTES", 1)
    monkeypatch.setattr(pairs, "PRODUCT_ROWS", 64)


def clip(a, b, scale, bias=None):
    logits = scale * a @ b.t()
    own = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.t(), own)) / 2


def siglip(a, b, scale, bias=None):
    logits = scale * a @ b.t() + (0 if bias is None else bias)
    signs = 2 * torch.eye(len(a), dtype=a.dtype, device=a.device) - 1
    return -F.logsigmoid(signs * logits).sum() / len(a)


def info_nce(a, b, scale, bias=None):
    return F.cross_entropy(scale * a @ b.t(), torch.arange(len(a), device=a.device))


def our_info_nce(a, b, scale, **options):
    return cudaloss.info_nce_loss(a * scale, b, 1.0, **options)


LOSSES = {
    "clip": (cudaloss.clip_loss, clip, ("scale",)),
    "siglip": (cudaloss.siglip_loss, siglip, ("scale", "bias")),
    "info_nce": (our_info_nce, info_nce, ("scale",)),
}
LOSS = pytest.mark.parametrize("name", LOSSES)
PLAN = pytest.mark.parametrize("plan", PLANS)


def drawn(name, count, features, dtype, device, keys=None):
    """Two sides of which partners resemble each other, and the numbers."""
    torch.manual_seed(count + features)
    a = torch.randn(count, features, dtype=torch.float64)
    b = a.repeat(2, 1)[: keys or count] + torch.randn(keys or count, features, dtype=torch.float64)
    sides = [F.normalize(x, dim=1).to(dtype).to(device).requires_grad_() for x in (a, b)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    numbers = {"scale": 14.3, "bias": -3.7}
    made = (torch.tensor(numbers[x], dtype=wide, device=device, requires_grad=True) for x in LOSSES[name][2])
    return [*sides, *made]


def error(found, truth):
    """The distance in units of the truth's norm; of NaN infinite, which a largest error does not leave out."""
    distance = (found.detach().double() - truth).norm().nan_to_num(torch.inf)
    return (distance / truth.norm()).item() if truth.norm() > 0 else distance.item()


def compared(name, operands, plan, upstream=3.0):
    """The errors of the loss and of its gradients."""
    ours, theirs, _ = LOSSES[name]
    exact = [x.detach().double().requires_grad_() for x in operands]
    truth, found = theirs(*exact), ours(*operands, memory=plan)
    of_truth = torch.autograd.grad(truth * upstream, exact)
    gradients = torch.autograd.grad(found * upstream, operands)
    assert [x.dtype for x in gradients] == [x.dtype for x in operands] and found.dtype == operands[0].dtype
    return [error(a, b) for a, b in zip((found, *gradients), (truth.detach(), *of_truth), strict=True)]


@PLAN
@LOSS
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_and_gradients(device, name, dtype, plan):
    for count, features in SIZES[2:]:
        assert max(compared(name, drawn(name, count, features, dtype, device), plan)) < DTYPES[dtype]


@PLAN
@LOSS
@pytest.mark.parametrize("dtype", DTYPES)
def test_uninitialized_memory(uninitialized_is_nan, device, name, dtype, plan):
    """Nothing is read that has not been written, also not behind a row of logits."""
    assert max(compared(name, drawn(name, 257, 64, dtype, device), plan)) < DTYPES[dtype]


@PLAN
@LOSS
def test_one_pair_and_one_feature(device, name, plan):
    for count, features in SIZES[:2]:
        assert max(compared(name, drawn(name, count, features, torch.float64, device), plan)) < 1e-12


@LOSS
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_as_exact_as_in_pytorch(device, name, dtype):
    operands = drawn(name, 257, 64, dtype, device)
    exact = [x.detach().double().requires_grad_() for x in operands]
    truth = torch.autograd.grad(LOSSES[name][1](*exact), exact)
    given = [x.detach().requires_grad_() for x in operands]
    sides, numbers = given[:2], [x.to(dtype) for x in given[2:]]
    theirs = torch.autograd.grad(LOSSES[name][1](*sides, *numbers).float(), given)
    for plan in PLANS:
        ours = torch.autograd.grad(LOSSES[name][0](*operands, memory=plan), operands)
        for mine, other, exactly in zip(ours[:2], theirs, truth, strict=False):
            assert error(mine, exactly) <= 1.02 * error(other, exactly)
        # One number has the average of many roundings: some 0.003 in bfloat16, by chance also PyTorch's.
        assert max(error(mine, exactly) for mine, exactly in zip(ours[2:], truth[2:], strict=True)) < 5e-3


@PLAN
@pytest.mark.parametrize("name", ["clip", "siglip"])
@pytest.mark.parametrize("offset", [3e3, -3e3])
def test_logits_far_from_0(device, name, plan, offset):
    """exp of them would be 0 or infinite."""
    operands = drawn(name, 130, 8, torch.float64, device)
    with torch.no_grad():
        wide = [torch.cat([x, torch.ones_like(x[:, :1])], 1) for x in operands[:2]]
        wide[1][:, -1] = offset / 14.3
    operands[:2] = [x.requires_grad_() for x in wide]
    found = compared(name, operands, plan)
    assert max(found[:1] + found[2:3]) < 1e-9
    if name == "clip":
        assert error(torch.autograd.grad(cudaloss.clip_loss(*operands), operands[0])[0],
                     torch.autograd.grad(clip(*operands), operands[0])[0]) < 1e-9  # fmt: skip


@PLAN
def test_a_column_with_a_wide_range(device, plan):
    """A later logit leaves the range of exp, counted from the first one."""
    a = torch.zeros(70, 4, device=device)
    b = torch.zeros(70, 4, device=device)
    a[:, 0], b[:, 0] = torch.linspace(-12, 12, 70, device=device), 10.0
    operands = [a.requires_grad_(), b.requires_grad_(), torch.tensor(1.5, device=device, requires_grad=True)]
    assert max(compared("clip", operands, plan)) < 1e-5


@PLAN
@LOSS
def test_the_same_bits_and_a_second_backward(device, name, plan):
    operands = drawn(name, 200, 16, torch.bfloat16, device)
    losses = [LOSSES[name][0](*operands, memory=plan) for _ in range(2)]
    first, again = torch.autograd.grad(losses[0], operands, retain_graph=True), torch.autograd.grad(losses[0], operands)
    other = torch.autograd.grad(losses[1], operands)
    assert torch.equal(*losses)
    assert all(torch.equal(x, y) and torch.equal(x, z) for x, y, z in zip(first, again, other, strict=True))


@PLAN
@LOSS
def test_frozen_operands(device, name, plan):
    operands = drawn(name, 70, 8, torch.float32, device)
    all_of_them = torch.autograd.grad(LOSSES[name][0](*operands, memory=plan), operands)
    for i, kept in enumerate(operands):
        given = [x.detach() for x in operands]
        given[i] = kept
        (found,) = torch.autograd.grad(LOSSES[name][0](*given, memory=plan), kept)
        torch.testing.assert_close(found, all_of_them[i])
    with torch.no_grad():
        assert not LOSSES[name][0](*operands, memory=plan).requires_grad


@PLAN
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-4, -2.0])
def test_any_scale(device, plan, dtype, scale):
    """The scale's gradient does not divide by the scale."""
    a, b, learnt = drawn("clip", 130, 8, dtype, device)
    learnt = torch.full_like(learnt, scale).requires_grad_()
    exact = [x.detach().double().requires_grad_() for x in (a, b, learnt)]
    truth = torch.autograd.grad(clip(*exact), exact[2])[0]
    (found,) = torch.autograd.grad(cudaloss.clip_loss(a, b, learnt, memory=plan), learnt)
    torch.testing.assert_close(found.double(), truth, rtol=2e-3 if dtype == torch.float16 else 1e-12, atol=0)


@PLAN
@LOSS
def test_a_backward_inside_autocast(device, name, plan):
    operands = drawn(name, 70, 8, torch.float32, device)
    found, same = (LOSSES[name][0](*operands, memory=plan) for _ in range(2))
    truth = torch.autograd.grad(same, operands)
    with torch.autocast(device, torch.bfloat16):
        gradients = torch.autograd.grad(found, operands)
    for mine, other in zip(gradients[:2], truth, strict=False):
        assert torch.equal(mine, other) or name == "info_nce"  # there PyTorch multiplies by the scale


@LOSS
def test_derivatives(name):
    operands = drawn(name, 5, 3, torch.float64, "cpu")
    call = LOSSES[name][0]
    assert torch.autograd.gradcheck(call, operands)
    assert torch.autograd.gradgradcheck(call, operands)
    args = tuple(range(len(operands)))
    ours, theirs = (torch.func.grad(f, args)(*operands) for f in LOSSES[name][:2])
    torch.testing.assert_close(ours, theirs)
    batch = [x.detach().expand(3, *x.shape) for x in operands]
    torch.testing.assert_close(torch.vmap(call)(*batch), call(*operands).expand(3))


@PLAN
@LOSS
def test_compile(device, name, plan):
    torch.compiler.reset()
    operands = drawn(name, 70, 8, torch.float32, device)
    compiled = torch.compile(partial(LOSSES[name][0], memory=plan), fullgraph=True, backend="aot_eager")
    found, truth = compiled(*operands), LOSSES[name][0](*operands, memory="least")
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(torch.autograd.grad(found, operands), torch.autograd.grad(truth, operands))


def test_a_number_in_a_graph():
    a, b, *_ = drawn("siglip", 6, 4, torch.float32, "cpu")
    compiled = torch.compile(lambda x, y: cudaloss.siglip_loss(x, y, 10.0, logit_bias=-10), backend="aot_eager")
    torch.testing.assert_close(compiled(a, b), cudaloss.siglip_loss(a, b, 10.0, -10.0))
    torch.testing.assert_close(torch.ops.cudaloss.info_nce(a, b, 0.1), cudaloss.info_nce_loss(a, b, 0.1))
    reordered = torch.compile(
        lambda x, y: cudaloss.clip_loss(logit_scale=3.0, text_features=y, image_features=x),
        fullgraph=True,
        backend="aot_eager",
    )
    torch.testing.assert_close(reordered(a, b), cudaloss.clip_loss(a, b, 3.0))


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: cudaloss.clip_loss(a, b, 3.0, logit_scale=5.0),
        lambda a, b: cudaloss.clip_loss(a, b, 3.0, "fast"),
        lambda a, b: cudaloss.clip_loss(a, b),
        lambda a, b: cudaloss.clip_loss(a, b, 3.0, groups=None),
    ],
)
def test_a_wrong_call_is_one_in_a_graph_too(call):
    a, b, _ = drawn("clip", 6, 4, torch.float32, "cpu")
    for f in (call, torch.compile(call, backend="aot_eager")):
        with pytest.raises(TypeError, match="clip_loss"):
            f(a, b)


def test_what_has_a_torch_function():
    class Duck:
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            return function.__name__

    assert cudaloss.clip_loss(Duck(), Duck(), 1.0) == "clip_loss"
    assert cudaloss.linear_cross_entropy(Duck(), Duck(), torch.tensor([0])) == "linear_cross_entropy"


@PLAN
@LOSS
def test_autocast(device, name, plan):
    operands = drawn(name, 70, 8, torch.float32, device)
    with torch.autocast(device, torch.bfloat16):
        found = LOSSES[name][0](*operands, memory=plan)
    assert found.dtype == torch.float32
    truth = LOSSES[name][1](*operands)
    torch.testing.assert_close(found, truth, rtol=2e-2, atol=2e-2)
    gradients = torch.autograd.grad(found, operands)
    assert [x.dtype for x in gradients] == [x.dtype for x in operands]
    for mine, exactly in zip(gradients, torch.autograd.grad(truth, operands), strict=True):
        assert error(mine, exactly.double()) < 3e-2


def test_a_queue_of_negatives(device):
    query, key, _ = drawn("info_nce", 60, 8, torch.float64, device, keys=100)
    found = cudaloss.info_nce_loss(query, key, 0.2, reduction="none")
    truth = F.cross_entropy(query @ key.t() / 0.2, torch.arange(60, device=device), reduction="none")
    torch.testing.assert_close(found, truth)
    torch.testing.assert_close(cudaloss.info_nce_loss(query, key, 0.2, reduction="sum"), truth.sum())


def test_transposed_features(device):
    a, b, scale = drawn("clip", 66, 9, torch.float64, device)
    given = [x.detach().t().contiguous().t().requires_grad_() for x in (a, b)]
    for plan in PLANS:
        found = torch.autograd.grad(cudaloss.clip_loss(*given, scale, memory=plan), given)
        torch.testing.assert_close(found, torch.autograd.grad(clip(a, b, scale), (a, b)))
        of_sigmoids = torch.autograd.grad(cudaloss.siglip_loss(*given, scale, memory=plan), given)
        torch.testing.assert_close(of_sigmoids, torch.autograd.grad(siglip(a, b, scale), (a, b)))


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_nan_is_not_lost(device, name):
    operands = drawn(name, 70, 8, torch.float32, device)
    with torch.no_grad():
        operands[0][3, 2] = math.nan
    found = LOSSES[name][0](*operands)
    assert found.isnan() and all(x.isnan().any() for x in torch.autograd.grad(found, operands))


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_no_pairs(name):
    operands = drawn(name, 0, 8, torch.float32, "cpu")
    found = LOSSES[name][0](*operands)
    assert found.isnan() and torch.autograd.grad(found, operands)[0].shape == (0, 8)


def saved_sizes(call) -> list[int]:
    """The elements of each tensor that a call saves for its backward."""
    sizes: list[int] = []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return sizes


@LOSS
def test_no_matrix_is_saved(device, name):
    """Not inside hooks either, which would not see what the fast plan keeps."""
    operands = drawn(name, 200, 4, torch.float32, device)
    for plan in PLANS:
        sizes = saved_sizes(lambda plan=plan: LOSSES[name][0](*operands, memory=plan))
        assert sizes and max(sizes) < 200 * 200


@pytest.mark.cuda
def test_memory_on_a_gpu(monkeypatch):
    """Beyond operands and gradients, in MiB: of 8,192 pairs in bfloat16 the logits have 128."""
    monkeypatch.undo()
    monkeypatch.setattr(pairs, "CHUNK_BYTES", 16 << 20)
    a, b, scale = drawn("clip", 8192, 512, torch.bfloat16, "cuda")

    def beyond(call):
        def step():
            a.grad = b.grad = scale.grad = None
            call().backward()

        step()
        a.grad = b.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return (torch.cuda.max_memory_allocated() - before - 2 * a.numel() * 2) / 2**20

    side = 8192 * 512 * 2 / 2**20
    assert beyond(lambda: cudaloss.clip_loss(a, b, scale)) <= 128 + 3 * side + 8
    assert beyond(lambda: cudaloss.clip_loss(a, b, scale, memory="least")) <= 16 + 4 * side + 8
    assert beyond(lambda: cudaloss.siglip_loss(a, b, scale, memory="least")) <= 16 + 5 * side + 8


def test_errors():
    a, b, scale = drawn("clip", 6, 4, torch.float32, "cpu")
    wrong = (
        (lambda: cudaloss.clip_loss(a, b[:5], scale), RuntimeError, "partner for each row of image_features"),
        (lambda: cudaloss.clip_loss(a, b[:, :3], scale), RuntimeError, "must be of shape"),
        (lambda: cudaloss.clip_loss(a, b.double(), scale), RuntimeError, "text_features must be of image_features's d"),
        (lambda: cudaloss.clip_loss(a, b, "1"), TypeError, "logit_scale must be a number or a 0-d tensor"),
        (lambda: cudaloss.clip_loss(a, b, torch.ones(2)), RuntimeError, "logit_scale must be one floating number"),
        (lambda: cudaloss.clip_loss(a, b, scale, memory="most"), ValueError, "memory must be"),
        (lambda: cudaloss.siglip_loss(a, b, scale, torch.ones(2)), RuntimeError, "logit_bias must be one floating"),
        (lambda: cudaloss.siglip_loss(a[0], b, scale), RuntimeError, "must be of shape"),
        (lambda: cudaloss.info_nce_loss(a, b[:5]), RuntimeError, "key must have a partner for each row of query"),
        (lambda: cudaloss.info_nce_loss(a, b, 0.0), RuntimeError, "temperature must be a finite number > 0"),
        (lambda: cudaloss.info_nce_loss(a, b, reduction="all"), ValueError, "all"),
        (lambda: cudaloss.info_nce_loss(a.long(), b), RuntimeError, "query"),
        (lambda: cudaloss.clip_loss(a, b, scale, group="all"), TypeError, "group must be a torch.distributed.Process"),
    )
    for call, kind, message in wrong:
        with pytest.raises(kind, match=message):
            call()


def test_modules():
    a, b, scale = drawn("clip", 6, 4, torch.float32, "cpu")
    assert torch.equal(cudaloss.ClipLoss(memory="least")(a, b, scale), cudaloss.clip_loss(a, b, scale, memory="least"))
    assert torch.equal(cudaloss.SigLipLoss()(a, b, scale, -1.0), cudaloss.siglip_loss(a, b, scale, -1.0))
    module = cudaloss.InfoNCELoss(0.5, reduction="sum")
    assert torch.equal(module(a, b), cudaloss.info_nce_loss(a, b, 0.5, reduction="sum"))
    assert "temperature=0.5" in repr(module) and "memory='least'" in repr(cudaloss.ClipLoss(memory="least"))


PROCESSES, PAIRS = 4, 5


def of_each_process(name, plan) -> list[float]:
    """The errors against all pairs at once: of the average of the results, and of the gradients, which each process has
    for its own pairs; those of the numbers are parts of a sum."""
    operands = drawn(name, PROCESSES * PAIRS, 8, torch.float64, "cpu")
    truth = LOSSES[name][1](*operands)
    exact = torch.autograd.grad(truth, operands)
    own = slice(dist.get_rank() * PAIRS, (dist.get_rank() + 1) * PAIRS)
    local = [x.detach()[own].clone().requires_grad_() for x in operands[:2]] + operands[2:]
    found = LOSSES[name][0](*local, memory=plan, group=dist.group.WORLD)
    gradients = list(torch.autograd.grad(found, local))
    value = found.detach().clone()
    for x in (value, *gradients[2:]):
        dist.all_reduce(x)
    errors = [error(value / PROCESSES, truth)]
    errors += [error(mine / PROCESSES, exactly[own]) for mine, exactly in zip(gradients[:2], exact[:2], strict=True)]
    return errors + [error(mine / PROCESSES, exactly) for mine, exactly in zip(gradients[2:], exact[2:], strict=True)]


def of_all_calls() -> dict[str, list[float]]:
    found = {f"{name} {plan}": of_each_process(name, plan) for name in LOSSES for plan in PLANS}
    a, b, scale = drawn("clip", PAIRS, 8, torch.float64, "cpu")
    sharded = DTensor.from_local(a, init_device_mesh("cpu", (PROCESSES,)), [Shard(0)])
    with pytest.raises(RuntimeError, match="image_features and text_features must be plain tensors"):
        cudaloss.clip_loss(sharded, sharded, scale)
    for call in (
        lambda: torch.autograd.grad(cudaloss.clip_loss(a, b, scale, group=dist.group.WORLD), a, create_graph=True),
        lambda: torch.func.grad(lambda x: cudaloss.clip_loss(x, b, scale, group=dist.group.WORLD))(a),
    ):
        with pytest.raises(RuntimeError, match="of several processes"):
            call()
    return found


def test_the_pairs_of_several_processes(tmp_path_factory):
    for of_rank in found_by_all(tmp_path_factory, PROCESSES, of_all_calls):
        assert all(max(errors) < 1e-12 for errors in of_rank.values()), of_rank


def test_what_the_kernels_do_not_take():
    """A captured call and a call of no pairs go by the definition."""
    a, b, scale = drawn("clip", 6, 4, torch.float32, "cpu")
    assert contrast._is_served(a, b, scale) and not contrast._is_served(a[:0], b[:0], scale)
    assert calls._are_served(a, b) and not calls._are_served(a.to("meta"), b)
