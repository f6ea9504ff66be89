"""Losses of rows under autograd, transforms and CUDA graphs: the contract of the pointwise ones."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import cudaloss
from cudaloss._call.call import Call
from cudaloss._losses.table import OF_ROWS
from cudaloss._reference import classes, definition

SHAPE = (6, 9)


@pytest.fixture
def operands(device):
    return torch.randn(SHAPE, device=device), torch.tensor([0, 3, 8, -100, 2, 5], device=device)


@pytest.fixture
def probabilities(device):
    return torch.randn(SHAPE, device=device), torch.randn(SHAPE, device=device).softmax(1)


def options(device):
    """What a call may say, by name; each holds for indices and for probabilities."""
    return {
        "plain": {},
        "sum": {"reduction": "sum"},
        "none": {"reduction": "none"},
        "smoothing": {"label_smoothing": 0.1},
        "weight": {"weight": torch.linspace(0.5, 1.5, SHAPE[1], device=device)},
        "sample_weight": {"sample_weight": torch.linspace(0.5, 1.5, SHAPE[0], device=device)},
        "mask": {"mask": torch.tensor([True, True, False, True, True, True], device=device)},
        "z_loss and softcap": {"z_loss": 0.01, "softcap": 4.0},
        "normalizer": {"normalizer": torch.tensor(3.0, device=device), "scale": 0.5},
        "per sample": {"batch_dims": 1, "reduction": "sum"},
    }


NAMES = list(options("cpu"))
of_options = pytest.mark.parametrize("name", NAMES)
of_targets = pytest.mark.parametrize("kind", ["operands", "probabilities"])


def spelled_out(input, target, reduction="mean", weight=None, **given):
    """The same from F.cross_entropy and PyTorch's other ops."""
    softcap, z_loss = given.get("softcap"), given.get("z_loss", 0.0)
    x = input if softcap is None else softcap * torch.tanh(input / softcap)
    value = F.cross_entropy(x, target, weight, reduction="none", label_smoothing=given.get("label_smoothing", 0.0))
    value = value + z_loss * x.logsumexp(1).square()
    counts = torch.ones_like(value)
    if not target.is_floating_point():
        kept = target != -100
        of_class = counts if weight is None else weight[target.clamp(min=0)]
        value, counts = torch.where(kept, value, 0), torch.where(kept, of_class, 0)
    for name in ("sample_weight", "mask"):
        factor = given.get(name)
        value, counts = (value, counts) if factor is None else (value * factor, counts * factor)
    value = value * given.get("scale", 1.0)
    if reduction == "none" or given.get("batch_dims"):
        return value
    return value.sum() if reduction == "sum" else value.sum() / given.get("normalizer", counts.sum())


@of_options
@of_targets
def test_value_and_gradients(request, device, kind, name):
    input, target = request.getfixturevalue(kind)
    given, found = options(device)[name], []
    for function in (cudaloss.cross_entropy, spelled_out):
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in (input, target)]
        value = function(*leaves, **given)
        wanted = [x for x in leaves if x.requires_grad]
        found.append((value, *torch.autograd.grad(value, wanted, torch.ones_like(value) * 3)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@of_targets
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_any_order(request, device, kind, name):
    if device != "cpu":
        pytest.skip("PyTorch's own numeric derivatives take seconds there")
    input, target = (x.double() if x.is_floating_point() else x for x in request.getfixturevalue(kind))
    given = {key: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
             for key, x in options("cpu")[name].items()}  # fmt: skip
    leaves = [x.requires_grad_() for x in (input, target) if x.is_floating_point()]

    def call(*leaves):
        return cudaloss.cross_entropy(leaves[0], leaves[1] if len(leaves) > 1 else target, **given)

    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_gradients_of_weights(device, smoothing):
    input = torch.randn(5, 4, dtype=torch.float64, device=device)
    target = torch.tensor([0, 3, 1, -100, 2], device=device)
    tensors = [torch.rand(4, dtype=torch.float64, device=device), torch.rand(5, dtype=torch.float64, device=device)]
    leaves = [x.requires_grad_() for x in (input, *tensors, torch.tensor(3.0, dtype=torch.float64, device=device))]

    def call(input, weight, sample_weight, normalizer):
        return cudaloss.cross_entropy(
            input, target, weight, label_smoothing=smoothing, sample_weight=sample_weight, normalizer=normalizer
        )

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("loss", [cudaloss.cross_entropy, cudaloss.nll_loss], ids=lambda loss: loss.__name__)
def test_an_ignored_row_of_nan_beside_learnt_weights(loss, device):
    """Its NaN reaches no gradient of either order."""
    input = torch.randn(3, 4, device=device).log_softmax(1)
    input[1] = torch.nan
    leaves = input.requires_grad_(), torch.rand(4, device=device, requires_grad=True)
    value = loss(leaves[0], torch.tensor([0, -100, 2], device=device), leaves[1])
    first = torch.autograd.grad(value, leaves, create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
    assert all(x.isfinite().all() for x in (value, *first, *second))


def test_transforms(operands):
    input, target = operands
    target = target.clamp(min=0)

    def one(x, t):
        return cudaloss.cross_entropy(x, t)

    expected = F.cross_entropy(input, target, reduction="none")
    torch.testing.assert_close(torch.func.vmap(one)(input, target), expected)
    gradients = torch.func.vmap(torch.func.grad(one))(input, target)
    theirs = torch.func.vmap(torch.func.grad(F.cross_entropy))(input, target)
    torch.testing.assert_close(gradients, theirs)
    tangent = torch.randn_like(input)
    found = torch.func.jvp(lambda x: one(x, target), (input,), (tangent,))
    torch.testing.assert_close(found, torch.func.jvp(lambda x: F.cross_entropy(x, target), (input,), (tangent,)))
    hessian = torch.func.hessian(lambda x: one(x, target))(input)
    torch.testing.assert_close(hessian, torch.func.hessian(lambda x: F.cross_entropy(x, target))(input))


def test_a_second_backward(operands):
    input, target = operands
    leaf = input.clone().requires_grad_()
    value = cudaloss.cross_entropy(leaf, target)
    (first,) = torch.autograd.grad(value, leaf, retain_graph=True)
    kept = first.clone()
    first.mul_(5)  # what was handed out is the receiver's
    (second,) = torch.autograd.grad(value * 3, leaf)
    torch.testing.assert_close(second, kept * 3)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_more_rows_than_a_pass_counts_itself(device, factor):
    """A plain call keeps no denominator: a backward counts again, unless its gradient is 1."""
    input, target = torch.randn(3000, 9, device=device), torch.randint(9, (3000,), device=device)
    target[::7] = -100
    for ours, theirs in ((cudaloss.cross_entropy, F.cross_entropy), (cudaloss.nll_loss, F.nll_loss)):
        leaves = [input.clone().requires_grad_() for _ in range(2)]
        found = [torch.autograd.grad(f(x, target) * factor, x) for f, x in zip((ours, theirs), leaves, strict=True)]
        torch.testing.assert_close(*found)


@of_options
def test_incoming_gradients(operands, device, name):
    """Of a loss that is scaled, added to another, or taken apart."""
    input, target = operands
    given = options(device)[name]
    for change in (lambda x: x * 0.25, lambda x: x.exp(), lambda x: x + x * x):
        found = []
        for function in (cudaloss.cross_entropy, spelled_out):
            leaf = input.clone().requires_grad_()
            change(function(leaf, target, **given)).sum().backward()
            found.append(leaf.grad)
        torch.testing.assert_close(*found, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "weight", "per sample", "none"])
def test_hooks_on_saved_tensors(operands, device, name):
    input, target = operands
    given = options(device)[name]
    leaf, expected = input.clone().requires_grad_(), input.clone().requires_grad_()
    with saved_tensors_hooks(lambda x: x.cpu(), lambda x: x.to(device)):
        value = cudaloss.cross_entropy(leaf, target, **given)
    value.sum().backward()
    cudaloss.cross_entropy(expected, target, **given).sum().backward()
    torch.testing.assert_close(leaf.grad, expected.grad)
    again = input.clone().requires_grad_()
    checkpoint(lambda x: cudaloss.cross_entropy(x * 1, target, **given), again, use_reentrant=False).sum().backward()
    torch.testing.assert_close(again.grad, expected.grad)


def test_inference_mode_and_no_grad(operands):
    input, target = operands
    expected = F.cross_entropy(input, target)
    with torch.inference_mode():
        torch.testing.assert_close(cudaloss.cross_entropy(input, target), expected)
    with torch.no_grad():
        assert not cudaloss.cross_entropy(input.requires_grad_(), target).requires_grad


def test_other_devices_and_dtypes():
    value = cudaloss.cross_entropy(torch.randn(4, 5, device="meta"), torch.zeros(4, dtype=torch.long, device="meta"))
    assert value.shape == () and value.is_meta
    value = cudaloss.cross_entropy(torch.randn(4, 5).to(torch.float8_e5m2), torch.zeros(4, dtype=torch.long))
    assert value.isfinite()


@pytest.mark.cuda
def test_cuda_graph():
    input = torch.randn(64, 1000, device="cuda")
    target = torch.randint(1000, (64,), device="cuda")
    leaf = input.clone().requires_grad_()

    def step():
        leaf.grad = None
        value = cudaloss.cross_entropy(leaf, target, label_smoothing=0.1) * 2
        value.backward()
        return value

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = step()
    gradient = leaf.grad
    for _ in range(3):
        fresh = torch.randn_like(input)
        with torch.no_grad():
            leaf.copy_(fresh)
        target.copy_(torch.randint_like(target, 1000))
        graph.replay()
        other = fresh.requires_grad_()
        expected = F.cross_entropy(other, target, label_smoothing=0.1) * 2
        expected.backward()
        torch.testing.assert_close(value, expected.detach())
        torch.testing.assert_close(gradient, other.grad, rtol=1e-4, atol=1e-8)


@pytest.mark.cuda
def test_no_synchronisation():
    input = torch.randn(64, 1000, device="cuda", requires_grad=True)
    target = torch.randint(1000, (64,), device="cuda")
    weight = torch.rand(1000, device="cuda")
    cudaloss.cross_entropy(input, target, weight).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        (cudaloss.cross_entropy(input, target, weight, label_smoothing=0.1) * 2).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [(16384, 1000), (1 << 20, 10), (256, 131072)])
def test_memory(shape):
    """In addition to operands and gradient less than 1 MB and 32 bytes a row."""
    input = torch.randn(shape, device="cuda", requires_grad=True)
    target = torch.randint(shape[1], shape[:1], device="cuda")
    cudaloss.cross_entropy(input[:64].detach().requires_grad_(), target[:64]).backward()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    cudaloss.cross_entropy(input, target).backward()
    beside = torch.cuda.max_memory_allocated() - before - input.numel() * 4
    assert beside < (1 << 20) + 32 * shape[0]


# ---- the module ----


def test_module(operands):
    input, target = operands
    weight = torch.rand(SHAPE[1], device=input.device)
    ours = cudaloss.CrossEntropyLoss(weight, label_smoothing=0.1, z_loss=0.01)
    theirs = torch.nn.CrossEntropyLoss(weight, label_smoothing=0.1)
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    expected = cudaloss.cross_entropy(input, target, weight, label_smoothing=0.1, z_loss=0.01)
    assert torch.equal(ours(input, target), expected)
    for made in (copy.deepcopy(ours), pickle.load(io.BytesIO(pickle.dumps(ours)))):
        assert torch.equal(made(input, target), expected)
    assert "label_smoothing=0.1" in repr(ours) and "z_loss=0.01" in repr(ours)
    mask = torch.rand(SHAPE[0], device=input.device) < 0.7
    assert torch.equal(ours(input, target, mask=mask), cudaloss.cross_entropy(
        input, target, weight, label_smoothing=0.1, z_loss=0.01, mask=mask))  # fmt: skip


@pytest.mark.filterwarnings("ignore:size_average and reduce:UserWarning")
def test_positional_and_legacy_arguments(operands):
    input, target = operands[0], operands[1].clamp(min=0)
    weight = torch.rand(SHAPE[1], device=input.device)
    for arguments in (
        (weight,),
        (weight, None, 3),
        (weight, None, -100, None, "sum"),
        (None, None, -100, None, "none", 0.2),
        (weight, False),
        (None, True, -100, False),
    ):
        expected = F.cross_entropy(input, target, *arguments)
        torch.testing.assert_close(cudaloss.cross_entropy(input, target, *arguments), expected)
        torch.testing.assert_close(cudaloss.CrossEntropyLoss(*arguments)(input, target), expected)


def test_op(operands):
    input, target = operands[0], operands[1].clamp(min=0)
    weight = torch.rand(SHAPE[1], device=input.device)
    expected = cudaloss.cross_entropy(input, target, weight, ignore_index=2, reduction="sum", label_smoothing=0.1)
    assert torch.equal(torch.ops.cudaloss.cross_entropy(input, target, weight, 2, "sum", 0.1), expected)
    torch.library.opcheck(torch.ops.cudaloss._pointwise_forward.default, op_call(input, target))


def op_call(input, target):
    from cudaloss._call.modes import pack
    from cudaloss._losses.table import OF_ROWS

    return input, target, pack("mean", input.dtype, OF_ROWS[0].mode), 0.0


# ---- bad arguments ----

LOGITS, INDICES = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
BAD = {
    "a list": ((LOGITS.tolist(), INDICES), {}, TypeError, "input must be a torch.Tensor"),
    "integers": ((INDICES, INDICES), {}, RuntimeError, "input must be a floating-point"),
    "no classes": ((torch.tensor(1.0), torch.tensor(0)), {}, RuntimeError, "input must have a dimension of classes"),
    "not a class": ((LOGITS[:, :0], INDICES), {}, RuntimeError, "input must have at least one class"),
    "bool target": ((LOGITS, INDICES > 1), {}, RuntimeError, "target must be an integer tensor"),
    "shape": ((LOGITS, INDICES.view(2, 2)), {}, (RuntimeError, ValueError), "target"),
    "batch": ((LOGITS, INDICES[:3]), {}, ValueError, "batch_size"),
    "probabilities": ((LOGITS, LOGITS[:, :3]), {}, RuntimeError, "target must have input's shape"),
    "weight": ((LOGITS, INDICES), {"weight": torch.ones(4)}, RuntimeError, "weight tensor should be defined"),
    "weight's dtype": ((LOGITS, INDICES), {"weight": torch.ones(5).long()}, RuntimeError, "weight must be a floating"),
    "sample_weight": ((LOGITS, INDICES), {"sample_weight": torch.ones(5)}, RuntimeError, "sample_weight must have"),
    "mask": ((LOGITS, INDICES), {"mask": torch.ones(4)}, RuntimeError, "mask must be a bool tensor"),
    "smoothing": ((LOGITS, INDICES), {"label_smoothing": 1.5}, RuntimeError, "label_smoothing must be between"),
    "no smoothing": ((LOGITS, INDICES), {"label_smoothing": None}, TypeError, "label_smoothing must be a number"),
    "z_loss": ((LOGITS, INDICES), {"z_loss": -1.0}, RuntimeError, "z_loss must be a finite number >= 0"),
    "softcap": ((LOGITS, INDICES), {"softcap": 0.0}, RuntimeError, "softcap must be a finite number > 0"),
    "ignore_index": ((LOGITS, INDICES), {"ignore_index": 1.5}, TypeError, "ignore_index must be an int"),
    "ignored probabilities": ((LOGITS, LOGITS), {"ignore_index": 1}, RuntimeError, "ignore_index is not supported"),
    "reduction": ((LOGITS, INDICES), {"reduction": "batchmean"}, ValueError, "reduction must be"),
    "batch_dims": ((LOGITS, INDICES), {"batch_dims": 2}, ValueError, "batch_dims must be"),
    "normalizer": ((LOGITS, INDICES), {"normalizer": 0}, ValueError, "normalizer must be"),
    "scale": ((LOGITS, INDICES), {"scale": LOGITS[0, 0]}, TypeError, "scale must be a number"),
    "dtype": ((LOGITS, INDICES), {"dtype": torch.int32}, RuntimeError, "dtype must be a floating"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("wants", [False, True], ids=["forward", "training"])
def test_bad_arguments(name, wants):
    (input, *rest), keywords, kind, message = BAD[name]
    if wants and isinstance(input, torch.Tensor) and input.is_floating_point():
        input = input.clone().requires_grad_()
    with pytest.raises(kind, match=message):
        cudaloss.cross_entropy(input, *rest, **keywords)


def test_numpy_numbers(operands):
    np = pytest.importorskip("numpy")
    input, target = operands[0], operands[1].clamp(min=0)
    found = cudaloss.cross_entropy(input, target, ignore_index=np.int64(3), label_smoothing=np.float32(0.5))
    assert torch.equal(found, cudaloss.cross_entropy(input, target, ignore_index=3, label_smoothing=0.5))


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize("loss", [cudaloss.cross_entropy, cudaloss.nll_loss], ids=lambda loss: loss.__name__)
def test_a_mean_of_each_row(operands, device, loss, backend):
    """The mean of one row is its loss, whatever its weights: they are in the denominator too. An ignored one is NaN."""
    input, target = operands
    torch._dynamo.reset()
    call = loss if backend is None else torch.compile(loss, backend=backend, fullgraph=True)
    single = loss(input, target, reduction="none")
    expected = torch.where(target == -100, torch.nan, single)
    weight = torch.linspace(0.5, 2.0, SHAPE[1], device=device)
    sample_weight = torch.linspace(0.25, 3.0, SHAPE[0], device=device)
    for given in (
        {"weight": weight},
        {"sample_weight": sample_weight},
        {"weight": weight, "sample_weight": sample_weight},
    ):
        found = call(input.requires_grad_(), target, batch_dims=1, **given)
        torch.testing.assert_close(found, expected, equal_nan=True)
        (gradient,) = torch.autograd.grad(found, input, torch.ones_like(found))
        (plain,) = torch.autograd.grad(loss(input, target, reduction="sum"), input)
        torch.testing.assert_close(gradient, plain)


@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_wrong_class_has_nan_slopes_in_the_reference(name, weighted, monkeypatch):
    """As on a GPU, where nothing raises an error for it."""
    of_cpu = classes._indices

    def of_gpu(target, selected, count):
        wrong = (target < 0) | (target >= count)
        return of_cpu(torch.where(wrong, 0, target), selected, count)[0], wrong

    monkeypatch.setattr(classes, "_indices", of_gpu)
    input, target = torch.randn(3, 4).log_softmax(1), torch.tensor([1, 7, 2])
    (spec,) = (spec for spec in OF_ROWS if spec.function == name)
    call = Call(spec, input, target, "sum", torch.float32, third=torch.ones(4) if weighted else None, parameter=0.0)
    (slope, *_) = definition.gradients(call, torch.ones(()), (True, False, False))
    assert slope[1].isnan().all() and slope[[0, 2]].isfinite().all()
    assert definition.loss(call).isnan()
