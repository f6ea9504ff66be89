"""nll_loss: a loss of rows that reads only its target's class."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from exact_rows import assert_same_bits, error
from oracle import DTYPES

# Of the last one a GPU's threads write all classes of their rows.
SHAPES = [(7,), (1, 1), (9, 10), (300, 33), (3, 5000), (4, 19, 6, 5), (2, 3, 2, 2, 2, 2, 2), (2, 5, 64, 64)]


def drawn(shape, dtype=torch.float32, device="cpu"):
    """Log-probabilities, and indices; if there are several, the first one is ignored."""
    dim = 1 if len(shape) > 1 else 0
    input = (torch.randn(shape, dtype=torch.float64) * 3).log_softmax(dim).to(dtype)
    target = torch.randint(shape[dim], shape[:1] + shape[2:] if len(shape) > 1 else ())
    if target.numel() > 1:
        target.view(-1)[0] = -100
    return input.to(device), target.to(device)


def spelled_out(input, target, reduction="mean", weight=None, sample_weight=None, mask=None, batch_dims=0, **given):
    """The same in float64, from F.nll_loss and PyTorch's other ops."""
    weight = None if weight is None else weight.double()
    ignored = given.get("ignore_index", -100)
    losses = F.nll_loss(input.double(), target.long(), weight, ignore_index=ignored, reduction="none")
    kept = target != ignored
    of_class = torch.ones_like(losses) if weight is None else weight[torch.where(kept, target, 0).long()]
    counts = torch.where(kept, of_class, 0)
    for factor in (sample_weight, mask):
        losses, counts = (losses, counts) if factor is None else (losses * factor, counts * factor)
    losses = losses * given.get("scale", 1.0)
    if reduction == "none":
        return losses
    sums = losses.reshape(*losses.shape[:batch_dims], -1).sum(-1)
    if reduction == "sum":
        return sums
    return sums / given.get("normalizer", counts.reshape(*losses.shape[:batch_dims], -1).sum(-1))


def assert_right(input, target, ulps=1.0, **given):
    leaf, exact = input.detach().requires_grad_(), input.detach().double().contiguous().requires_grad_()
    ours, theirs = cudaloss.nll_loss(leaf, target, **given), spelled_out(exact, target, **given)
    assert ours.shape == theirs.shape and ours.dtype == input.dtype
    assert error(ours, theirs.detach().cpu().numpy()) <= ulps
    incoming = torch.rand_like(ours) + 0.5
    (gradient,) = torch.autograd.grad(ours, leaf, incoming)
    (expected,) = torch.autograd.grad(theirs, exact, incoming.double())
    assert error(gradient, expected.cpu().numpy()) <= 2 * ulps
    return gradient


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_values_and_gradients(device, shape, dtype, reduction):
    input, target = drawn(shape, dtype, device)
    weight = torch.rand(shape[1] if len(shape) > 1 else shape[0], dtype=torch.float64).to(dtype).to(device) + 0.5
    for own in ({}, {"weight": weight}, {"weight": weight, "ignore_index": 1}):
        given = target.where(target >= 0, torch.ones_like(target)) if "ignore_index" in own else target
        if given.numel() == 1 and "ignore_index" in own and shape != (1, 1):
            given = torch.zeros_like(given)
        assert_right(input, given, ulps=2.0 if dtype == torch.float64 else 1.0, reduction=reduction, **own)


@pytest.mark.parametrize("batch_dims", [0, 1])
@pytest.mark.parametrize("shape", [(24, 10), (6, 19, 4)])
def test_options(device, shape, batch_dims):
    input, target = drawn(shape, torch.float32, device)
    rows = target.shape
    options = {
        "sample_weight": torch.rand(rows, device=device) + 0.5,
        "mask": torch.rand(rows, device=device) < 0.7,
        "weight": torch.rand(shape[1], device=device) + 0.5,
        "scale": 0.75,
        "batch_dims": batch_dims,
    }
    options["mask"].view(-1)[-1] = True
    assert_right(input, target, reduction="sum", **options)
    assert_right(input, target, normalizer=torch.tensor(8.0, device=device), **options)
    if not batch_dims:
        assert_right(input, target, **options)
        assert_right(input, target, reduction="none", **options)
    alone = {**options, "mask": torch.zeros(rows, dtype=torch.bool, device=device)}
    leaf = input.clone().requires_grad_()
    nothing = cudaloss.nll_loss(leaf, target, **alone)
    assert nothing.isnan().all()
    nothing.sum().backward()
    assert not leaf.grad.any()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_dtypes_of_indices(device, dtype):
    input, target = drawn((40, 100), torch.float32, device)
    target[0] = 0
    assert torch.equal(cudaloss.nll_loss(input, target.to(dtype)), cudaloss.nll_loss(input, target))


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda x: x.repeat_interleave(2, 1)[:, ::2],
    "sliced": lambda x: F.pad(x, (1, 2))[..., 1:-2],
    "expanded": lambda x: x[:1].expand_as(x),
    "channels last": lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
}


@pytest.mark.parametrize("shape", [(12, 10), (6, 5000), (3, 20, 6, 5)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device, layout, shape):
    input, target = drawn(shape, torch.float32, device)
    assert_right(LAYOUTS[layout](input), target)


def test_other_classes_are_not_read(device):
    input, target = drawn((6, 9), torch.float32, device)
    expected = cudaloss.nll_loss(input, target)
    there = torch.zeros_like(input, dtype=torch.bool)
    there[torch.arange(1, 6), target[1:]] = True
    leaf = torch.where(there, input, torch.nan).requires_grad_()
    value = cudaloss.nll_loss(leaf, target)
    assert torch.equal(value, expected)
    value.backward()
    assert (leaf.grad[there] == torch.tensor(-0.2, device=device)).all() and not leaf.grad[~there].any()


@pytest.mark.parametrize("bad", [6, -1, 2**40])
def test_index_out_of_range(device, bad):
    input = torch.randn(5, 6, device=device, requires_grad=True)
    target = torch.tensor([0, 1, bad, 2, 5], device=device)
    if device == "cpu":
        with pytest.raises(RuntimeError, match=f"target must .* below 6.*got {bad}"):
            cudaloss.nll_loss(input, target)
        return
    value = cudaloss.nll_loss(input, target, reduction="none")
    value.sum().backward()
    assert value.isnan().tolist() == input.grad.isnan().all(1).tolist() == [False, False, True, False, False]
    assert input.grad[[0, 1, 3, 4]].isfinite().all()


# ---- autograd, transforms ----

OPTIONS = {
    "plain": {},
    "sum": {"reduction": "sum"},
    "none": {"reduction": "none"},
    "weight": {"weight": torch.linspace(0.5, 1.5, 9)},
    "all": {"sample_weight": torch.linspace(0.5, 1.5, 6), "mask": torch.arange(6) != 2, "scale": 0.5},
    "per sample": {"batch_dims": 1, "reduction": "sum"},
}
of_options = pytest.mark.parametrize("name", OPTIONS)


def on(device, name):
    return {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in OPTIONS[name].items()}


@of_options
def test_derivatives_of_any_order(name):
    input, target = drawn((6, 9), torch.float64)
    given = {k: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
             for k, x in OPTIONS[name].items()}  # fmt: skip
    leaf = input.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cudaloss.nll_loss(x, target, **given), leaf, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x: cudaloss.nll_loss(x, target, **given).square(), leaf)


def test_transforms(device):
    input, target = drawn((6, 9), torch.float32, device)
    target[0] = 0
    found = torch.func.vmap(torch.func.grad(cudaloss.nll_loss))(input, target)
    torch.testing.assert_close(found, torch.func.vmap(torch.func.grad(F.nll_loss))(input, target))


@of_options
def test_a_second_backward(device, name):
    input, target = drawn((6, 9), torch.float32, device)
    leaf = input.clone().requires_grad_()
    value = cudaloss.nll_loss(leaf, target, **on(device, name)).sum()
    (first,) = torch.autograd.grad(value * 3, leaf, retain_graph=True)
    kept = first.clone()
    first.mul_(5)  # what was handed out is the receiver's
    (second,) = torch.autograd.grad(value * 3, leaf)
    torch.testing.assert_close(second, kept)


def test_small_gradients_of_fp16(device):
    input = torch.zeros(1 << 16, 4, dtype=torch.float16, device=device, requires_grad=True)
    target = torch.zeros(1 << 16, dtype=torch.long, device=device)
    (cudaloss.nll_loss(input, target, dtype=torch.float32) * 65536).backward()
    assert (input.grad[:, 0] == -1).all() and not input.grad[:, 1:].any()


def test_same_bits(device):
    input, target = drawn((30000, 10), torch.float32, device)
    assert_same_bits(cudaloss.nll_loss, input, target)


def test_module_op_and_autocast(device):
    input, target = drawn((6, 9), torch.float32, device)
    weight = torch.rand(9, device=device)
    module, theirs = cudaloss.NLLLoss(weight, ignore_index=3), torch.nn.NLLLoss(weight, ignore_index=3)
    target = target.where(target >= 0, torch.full_like(target, 3))
    assert module.state_dict().keys() == theirs.state_dict().keys()
    torch.testing.assert_close(module(input, target), theirs(input, target))
    found = torch.ops.cudaloss.nll(input, target, weight, 3, "sum")
    assert torch.equal(found, cudaloss.nll_loss(input, target, weight, ignore_index=3, reduction="sum"))
    with torch.autocast(device, dtype=torch.bfloat16):
        assert cudaloss.nll_loss(input.bfloat16(), target, weight, ignore_index=3).dtype == torch.float32


LOGS, INDICES = torch.randn(4, 5), torch.tensor([0, 1, 2, 3])
BAD = {
    "probabilities": ((LOGS, LOGS), {}, RuntimeError, "target must be an integer tensor of class indices, got"),
    "float indices": ((LOGS, INDICES.float()), {}, RuntimeError, r"call target.long\(\)"),
    "shape": ((LOGS, INDICES.view(2, 2)), {}, (RuntimeError, ValueError), "target"),
    "batch": ((LOGS, INDICES[:3]), {}, ValueError, "batch_size"),
    "weight": ((LOGS, INDICES), {"weight": torch.ones(4)}, RuntimeError, "weight tensor should be defined"),
    "ignore_index": ((LOGS, INDICES), {"ignore_index": 1.5}, TypeError, "ignore_index must be an int"),
    "smoothing": ((LOGS, INDICES), {"label_smoothing": 0.1}, TypeError, "label_smoothing"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("wants", [False, True], ids=["forward", "training"])
def test_bad_arguments(name, wants):
    (input, target), keywords, kind, message = BAD[name]
    with pytest.raises(kind, match=message):
        cudaloss.nll_loss(input.clone().requires_grad_(wants), target, **keywords)


@pytest.mark.cuda
def test_index_out_of_range_side_by_side():
    """Of rows whose threads write all classes."""
    input, target = drawn((2, 5, 64, 64), torch.float32, "cuda")
    target[0, 3, 7] = 5
    leaf = input.requires_grad_()
    cudaloss.nll_loss(leaf, target, reduction="sum").backward()
    assert leaf.grad.isnan().any(1).nonzero().tolist() == [[0, 3, 7]] and leaf.grad[0, :, 3, 7].isnan().all()


@pytest.mark.cuda
def test_more_than_2_to_the_31_elements(large):
    rows, classes = (1 << 20) + 3, 2050
    input = torch.full((rows, classes), -1.0, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    target = torch.randint(classes, (rows,), device="cuda")
    value = cudaloss.nll_loss(input, target, reduction="sum", dtype=torch.float32)
    assert value == rows
    value.backward()
    assert input.grad.float().sum(1).eq(-1).all() and (input.grad.gather(1, target[:, None]) == -1).all()


@pytest.mark.cuda
def test_cuda_graph_without_synchronisation():
    input, target = drawn((64, 100), torch.float32, "cuda")

    def step():
        leaf = input.detach().requires_grad_()  # whose node in autograd's graph is of the stream that is current
        return torch.autograd.grad(cudaloss.nll_loss(leaf, target) * 2, leaf)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        gradient = step()
    for _ in range(3):
        target.copy_(torch.randint_like(target, 100))
        graph.replay()
        torch.testing.assert_close(gradient, step(), rtol=0, atol=0)
