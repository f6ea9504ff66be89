"""Losses of overlap against their definitions in float64: MONAI's formulas, written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from cudaloss._install.build import DEVICES
from cudaloss._overlap import sums

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
FUNCTIONS = {
    "dice": cudaloss.dice_loss,
    "tversky": cudaloss.tversky_loss,
    "dice_ce": cudaloss.dice_ce_loss,
    "dice_bce": cudaloss.dice_bce_loss,
}
# By the classes: numbers at which kernels change. The last shapes have several tiles and several blocks.
SHAPES = [
    (2, 3, 7),
    (1, 2, 5, 6),
    (3, 5, 4, 6, 2),
    (2, 16, 33),
    (2, 17, 31),
    (1, 32, 6, 6),
    (2, 33, 40),
    (1, 150, 9, 8),
]
SHAPES += [(4, 1, 9, 9), (2, 3, 60_000), (1, 14, 30, 30, 30)]


def shares(input: Tensor, target: Tensor) -> Tensor:
    """One-hot in float64, for targets of indices."""
    if target.shape == input.shape:
        return target.double()
    if target.dim() == input.dim():
        target = target[:, 0]
    inside = target.long().clamp(0, input.shape[1] - 1)  # those beyond are ignored
    return F.one_hot(inside, input.shape[1]).movedim(-1, 1).double()


def truth(name: str, input: Tensor, target: Tensor, reduction: str = "mean", **own: Any) -> Tensor:
    """In float64."""
    return truth_and_probabilities(name, input, target, reduction, **own)[0]


def truth_and_probabilities(name, input, target, reduction="mean", **own):
    given = {"activation": {"dice_ce": "softmax", "dice_bce": "sigmoid"}.get(name), "alpha": 0.5, "beta": 0.5} | own
    x, g = input.double(), shares(input, target)
    counts = torch.ones_like(g[:, :1], dtype=torch.bool) if own.get("mask") is None else own["mask"].unsqueeze(1)
    if own.get("ignore_index") is not None:
        counts = counts & (target.view(g[:, :1].shape) != own["ignore_index"])
    x = torch.where(counts, x, 0)
    act = given["activation"]
    p = x.softmax(1) if act == "softmax" else x.sigmoid() if act == "sigmoid" else x
    kept, of = p * counts, g * counts
    nr, dr = own.get("smooth_nr", 1e-5), own.get("smooth_dr", 1e-5)
    dims = tuple(range(2, x.dim()))
    first = slice(1, None) if not own.get("include_background", True) and x.shape[1] > 1 else slice(None)

    def over_space(y):
        y = y.sum(dims)[:, first]
        return y.sum(0) if own.get("batch") else y

    both = over_space(kept * of)
    if name == "tversky":
        wrong, missed = over_space(kept * (1 - of)), over_space(of * (1 - kept))
        losses = 1 - (both + nr) / (both + given["alpha"] * wrong + given["beta"] * missed + dr)
    else:
        squares = own.get("squared", False)
        total = over_space(kept**2 if squares else kept) + over_space(of**2 if squares else of)
        total = 2 * (total - both) if own.get("jaccard") else total
        losses = 1 - (2 * both + nr) / (total + dr)
    weight = own.get("weight")
    if weight is not None:
        losses = losses * (weight[first] if name in ("dice_ce", "dice_bce") else weight).double()
    loss = losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()
    if name == "dice_ce":
        classes = torch.ones(x.shape[1], dtype=torch.float64, device=x.device) if weight is None else weight.double()
        each = -(x.log_softmax(1) * g * classes.view(1, -1, *(1,) * len(dims))) * counts
        divisor = (g * classes.view(1, -1, *(1,) * len(dims)) * counts).sum() if reduction == "mean" else 1
        loss = own.get("lambda_dice", 1) * loss + own.get("lambda_ce", 1) * each.sum() / divisor
    elif name == "dice_bce":
        each = F.binary_cross_entropy_with_logits(x, g, reduction="none") * counts
        each = each if weight is None else each * weight.double().view(1, -1, *(1,) * len(dims))
        divisor = counts.sum() * x.shape[1] if reduction == "mean" else 1
        loss = own.get("lambda_dice", 1) * loss + own.get("lambda_bce", 1) * each.sum() / divisor
    return loss, p


def drawn(shape, dtype, device, target="indices", activation="softmax"):
    input = torch.randn(shape, dtype=torch.float64) * 3
    input = (input.sigmoid() if activation is None else input).to(dtype).to(device)
    voxels = (shape[0], *shape[2:])
    if target == "indices":
        return input, torch.randint(shape[1], voxels, device=device)
    if target == "shares":
        return input, torch.rand(shape, device=device).to(dtype)
    if target == "labels":
        return input, torch.rand(shape, device=device) > 0.6
    return input, F.one_hot(torch.randint(shape[1], voxels), shape[1]).movedim(-1, 1).to(dtype).to(device)


def assert_right(name: str, input: Tensor, target: Tensor, **own: Any) -> None:
    """The value to its last place, beside 1, from which the ratio is subtracted; the gradient to 4 units in the last
    place of the terms that it is a sum of."""
    leaf, exact = input.detach().requires_grad_(), input.detach().requires_grad_()
    own = {"activation": "softmax"} | own if name in ("dice", "tversky") and "activation" not in own else own
    value, (right, p) = FUNCTIONS[name](leaf, target, **own), truth_and_probabilities(name, exact, target, **own)
    assert value.shape == right.shape and value.dtype == input.dtype
    eps, beside = torch.finfo(value.dtype).eps, 1e-13 if input.dtype == torch.float64 else 2.0**-22
    assert ((value.detach().double() - right).abs() <= eps * right.detach().abs() + beside).all()
    incoming = torch.rand_like(right) + 0.5
    (found,) = torch.autograd.grad(value, leaf, incoming.to(value.dtype))
    right, of_p = torch.autograd.grad(right, [exact, p], incoming.to(value.dtype).double())
    right, p = right.double(), p.detach().abs()
    size = of_p.abs().flatten(2).amax(2).view(*p.shape[:2], *(1,) * (p.dim() - 2))
    # Of p's derivative, which is a sum of two; with the mean of these over the classes.
    terms = size if own.get("activation", "") is None else p * size
    if own.get("activation", "softmax") == "softmax" and name != "dice_bce":
        below = input.detach().double().amax(1, keepdim=True) - input.detach().double()  # rounded, and then in exp
        terms = terms + p * (p * size).sum(1, keepdim=True)
        terms = terms + torch.where(below.isfinite(), below, 0) / 4 * (right.abs() + terms * 2.0**-20)
    if name in ("dice_ce", "dice_bce"):  # the gradient is a difference of p and g
        terms = terms + 8 * (1 if own.get("reduction") == "sum" else p.shape[1] / p.numel())
    bound = {torch.float32: 2.0**-21, torch.float64: 1e-14}.get(input.dtype, eps)
    least = 2.0**-24 if input.dtype == torch.float16 else 1e-30  # float16's last place below its normal numbers
    assert found.dtype == input.dtype
    assert ((found.double() - right).abs() <= bound * (right.abs() + terms) + least).all()


@of_dtypes
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_indices(device, name, shape, dtype):
    input, target = drawn(shape, dtype, device)
    alone = shape[1] == 1
    if alone and name == "dice_ce":
        pytest.skip("of one class")
    own = {"activation": "sigmoid"} if alone and name in ("dice", "tversky") else {}
    if alone:
        target = (torch.rand(shape, device=device) > 0.4).long()
    assert_right(name, input, target, **own)
    if not alone:
        assert_right(name, input, target.unsqueeze(1).int(), **own)


@pytest.mark.parametrize("name", ["dice", "tversky", "dice_bce"])
@pytest.mark.parametrize("target", ["one-hot", "shares", "labels"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", None])
@pytest.mark.parametrize("shape", [(2, 3, 7), (3, 5, 4, 6, 2), (2, 33, 40), (2, 3, 30_000)], ids=str)
def test_shares(device, name, target, activation, shape):
    if name == "dice_bce" and activation != "sigmoid":
        pytest.skip("of the sigmoid")
    input, target = drawn(shape, torch.float32, device, target, activation)
    own = {} if name == "dice_bce" else {"activation": activation}
    assert_right(name, input, target, **own)
    assert_right(name, input.bfloat16(), target, **own)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("classes", [3, 20, 40])
def test_options(device, name, classes):
    input, target = drawn((3, classes, 5, 9), torch.float32, device)
    weight = torch.rand(classes, device=device) + 0.5
    own: list[dict[str, Any]] = [
        {"reduction": "sum"},
        {"batch": True},
        {"include_background": False},
        {"weight": weight},
        {"smooth_nr": 0.5, "smooth_dr": 2.0},
        {"smooth_nr": 0.0},
    ]
    own += [{"squared": True}, {"jaccard": True}, {"squared": True, "jaccard": True}] if name != "tversky" else []
    own += [{"alpha": 0.3, "beta": 0.7}] if name == "tversky" else []
    own += [{"reduction": "none"}, {"reduction": "none", "batch": True}] if name in ("dice", "tversky") else []
    own += [{"lambda_dice": 0.25, f"lambda_{name[5:]}": 2.0}] if name in ("dice_ce", "dice_bce") else []
    own += [{"weight": weight if name in ("dice_ce", "dice_bce") else weight[1:], "include_background": False}]
    for given in own:
        assert_right(name, input, target, **given)


# Kernels for 4, 16 and 32 classes; a warp has several groups of voxels, the last one is not whole.
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels_last"])
@pytest.mark.parametrize("classes", [3, 14, 16, 20])
@of_dtypes
def test_logits_that_come_ahead(device, dtype, classes, last):
    """Of aligned vectors of 16 bytes; beside them the same logits from another address, read voxel by voxel."""
    input, target = drawn((2, classes, 8, 1001), dtype, device)
    input = input.contiguous(memory_format=torch.channels_last) if last else input
    elsewhere = input.new_empty(input.numel() + 1)[1:].as_strided(input.shape, input.stride()).copy_(input)
    mask = torch.rand(2, 8, 1001, device=device) > 0.3
    for x in (input, elsewhere):
        assert x.stride() == input.stride()
        assert_right("dice", x, target.to(torch.uint8), squared=True)
        assert_right("dice_ce", x, target, ignore_index=classes - 1, mask=mask)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("classes", [3, 20, 40])
def test_voxels_that_do_not_count(device, name, classes):
    input, target = drawn((2, classes, 300), torch.float32, device)
    mask = torch.rand(2, 300, device=device) > 0.3
    target[:, ::7] = 255
    assert_right(name, input, target, ignore_index=255)
    assert_right(name, input, target, ignore_index=255, mask=mask)
    hidden = input.movedim(1, -1).clone()
    hidden[~mask] = float("nan")
    hidden = hidden.movedim(-1, 1).contiguous()
    leaves = [x.clone().requires_grad_() for x in (input, hidden)]
    own = {"activation": "softmax"} if name in ("dice", "tversky") else {}
    values = [FUNCTIONS[name](x, target, mask=mask, ignore_index=255, **own) for x in leaves]
    assert torch.equal(*values)
    found = [torch.autograd.grad(value, x)[0] for value, x in zip(values, leaves, strict=True)]
    assert torch.equal(*found) and not found[1].movedim(1, -1)[~mask].any()
    one = FUNCTIONS[name](input, target, mask=mask[:1], ignore_index=255, **own)
    assert torch.equal(one, FUNCTIONS[name](input, target, mask=mask[:1].expand(2, 300), ignore_index=255, **own))


@pytest.mark.parametrize("name", ["dice", "dice_ce", "dice_bce"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layouts(device, name, dtype):
    input, target = drawn((2, 5, 6, 8, 10), dtype, device)
    last = input.contiguous(memory_format=torch.channels_last_3d)
    assert_right(name, last, target)
    assert_right(name, input, target.mT.contiguous().mT)  # one more dimension than the kernels have
    assert_right(name, input[..., 1:-1], target[..., 1:-1])
    assert_right(name, input[:, :, :, 2:], target[:, :, 2:])
    assert_right(name, input[:, 1:4], target.clamp(max=2))
    assert_right(name, input[:1].expand(2, *input.shape[1:]), target)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("target", ["indices", "labels"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nothing_of_voxels_is_kept(device, name, target, dtype):
    """But the operands: so the kernels serve the call, and plain PyTorch does not."""
    if device not in DEVICES:
        pytest.skip("without kernels")
    if name == "dice_ce" and target == "labels":
        pytest.skip("in plain PyTorch")
    input, target = drawn((2, 3, 20, 30), dtype, device, target)
    own = {"activation": "softmax"} if name in ("dice", "tversky") else {}
    mask = torch.rand(2, 20, 30, device=device) > 0.5
    given = {x.untyped_storage().data_ptr() for x in (input, target, mask)}
    for layout in (torch.contiguous_format, torch.channels_last):
        kept = []
        x = input.detach().to(memory_format=layout)
        given.add(x.untyped_storage().data_ptr())
        with torch.autograd.graph.saved_tensors_hooks(lambda x, kept=kept: kept.append(x) or x, lambda x: x):
            FUNCTIONS[name](x.requires_grad_(), target, mask=mask, **own)
        beside = [x.numel() for x in kept if x.untyped_storage().data_ptr() not in given]
        assert kept and sum(beside) <= 2 * 3 * sums.SUMS


@pytest.mark.parametrize("name", FUNCTIONS)
def test_equal_bits(device, name):
    input, target = drawn((2, 7, 20_000), torch.float32, device)
    own = {"activation": "softmax"} if name in ("dice", "tversky") else {}
    found = []
    for _ in range(2):
        leaf = input.clone().requires_grad_()
        value = FUNCTIONS[name](leaf, target, **own)
        found.append((value, *torch.autograd.grad(value, leaf)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("classes", [3, 20, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_logits_that_are_large(device, classes, dtype):
    input, target = drawn((2, classes, 50), dtype, device)
    for scale, offset in ((30.0, 0.0), (1.0, 1e4), (1e30, 0.0)):
        assert_right("dice", input * scale + offset, target)
    input[0, 1, ::3] = -math.inf
    leaf = input.clone().requires_grad_()
    value = cudaloss.dice_loss(leaf, target, activation="softmax")
    (gradient,) = torch.autograd.grad(value, leaf)
    assert value.isfinite() and gradient.isfinite().all() and not gradient[input == -math.inf].any()
    torch.testing.assert_close(value.double(), truth("dice", input, target, activation="softmax"), rtol=1e-2, atol=1e-6)
    input[1, 2, 4] = math.nan
    losses = cudaloss.dice_loss(input, target, "none", activation="softmax")
    assert losses[0].isfinite().all() and losses[1].isnan().all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_of_any_order(device, name):
    input, target = drawn((2, 3, 11), torch.float64, device)
    own = {"activation": "softmax"} if name in ("dice", "tversky") else {}
    leaves = [input.clone().requires_grad_() for _ in range(2)]
    values = FUNCTIONS[name](leaves[0], target, **own), truth(name, leaves[1], target, **own)
    slopes = [torch.autograd.grad(v, x, create_graph=True)[0] for v, x in zip(values, leaves, strict=True)]
    torch.testing.assert_close(*slopes)
    seed = torch.randn_like(input)
    torch.testing.assert_close(*(torch.autograd.grad(s, x, seed)[0] for s, x in zip(slopes, leaves, strict=True)))
    by_func = torch.func.grad(lambda x: FUNCTIONS[name](x, target, **own))(input)
    torch.testing.assert_close(by_func, slopes[0].detach())
    soft = torch.rand_like(input).requires_grad_()
    if name != "dice_ce":
        (of_target,) = torch.autograd.grad(FUNCTIONS[name](input, soft, **own), soft)
        torch.testing.assert_close(of_target, torch.autograd.grad(truth(name, input, soft, **own), soft)[0])


def test_cross_entropy_of_shares(device):
    """As F.cross_entropy takes probabilities, in plain PyTorch."""
    input, target = drawn((2, 4, 30), torch.float32, device, "shares")
    weight = torch.rand(4, device=device)
    own = {"lambda_dice": 0.0}
    for reduction in ("mean", "sum"):
        found = cudaloss.dice_ce_loss(input, target, reduction, weight=weight, **own)
        torch.testing.assert_close(found, F.cross_entropy(input, target, weight, reduction=reduction))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_compiles(device, name):
    input, target = drawn((2, 3, 40), torch.float32, device)
    own = {"activation": "softmax"} if name in ("dice", "tversky") else {}

    def step(x, t):
        return FUNCTIONS[name](x, t, **own)

    leaves = [input.clone().requires_grad_() for _ in range(2)]
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    values = step(leaves[0], target), compiled(leaves[1], target)
    for value in values:
        value.backward()
    torch.testing.assert_close(*values)
    torch.testing.assert_close(leaves[0].grad, leaves[1].grad)


@pytest.mark.cuda
def test_no_synchronisation_and_cuda_graphs():
    input, target = drawn((2, 14, 5000), torch.float32, "cuda")
    leaf = input.requires_grad_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            eager = cudaloss.dice_ce_loss(leaf, target)
            (of_eager,) = torch.autograd.grad(eager, leaf)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            value = cudaloss.dice_ce_loss(leaf, target)
            (gradient,) = torch.autograd.grad(value, leaf)
        graph.replay()
        stream.synchronize()
    assert torch.equal(value, eager) and torch.equal(gradient, of_eager)


def test_autocast(device):
    input, target = drawn((2, 3, 40), torch.bfloat16, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert cudaloss.dice_loss(input, target, activation="softmax").dtype == torch.float32
    assert cudaloss.dice_loss(input, target, activation="softmax", dtype=torch.float64).dtype == torch.float64


def test_modules(device):
    input, target = drawn((2, 3, 40), torch.float32, device)
    weight = torch.tensor([1.0, 2.0, 0.5])
    mask = torch.rand(2, 40, device=device) > 0.5
    pairs = [
        (cudaloss.DiceLoss("sum", activation="softmax", weight=weight, jaccard=True), "dice"),
        (cudaloss.TverskyLoss("sum", activation="softmax", weight=weight, alpha=0.2), "tversky"),
        (cudaloss.DiceCELoss("sum", weight=weight, lambda_ce=0.5), "dice_ce"),
        (cudaloss.DiceBCELoss("sum", weight=weight, lambda_bce=0.5), "dice_bce"),
    ]
    for module, name in pairs:
        module = module.to(device)
        given = {"mask": mask, "weight": weight.to(device), **module.keywords}
        assert torch.equal(module(input, target, mask=mask), FUNCTIONS[name](input, target, "sum", **given))
        assert list(module.state_dict()) == ["weight"] and "reduction='sum'" in repr(module)


def test_errors(device):
    input, target = drawn((2, 3, 8), torch.float32, device)
    call = cudaloss.dice_loss
    wrong = [
        (RuntimeError, r"target must be of shape \(2, 8\) or \(2, 1, 8\)", (input, target[:, :4]), {}),
        (RuntimeError, "target must be an integer tensor of class indices", (input, target.float()), {}),
        (RuntimeError, "input must be a floating-point tensor", (target, target), {}),
        (RuntimeError, r"input must be of shape \(N, classes, ...\)", (input[0, 0], target), {}),
        (
            ValueError,
            "activation must be None, 'sigmoid' or 'softmax', got 'tanh'",
            (input, target),
            {"activation": "tanh"},
        ),
        (
            ValueError,
            "activation must not be 'softmax' for one class",
            (input[:, :1], target),
            {"activation": "softmax"},
        ),
        (RuntimeError, r"weight must be of shape \(3,\)", (input, target), {"weight": torch.ones(2, device=device)}),
        (RuntimeError, "mask must be a bool tensor", (input, target), {"mask": target}),
        (RuntimeError, "mask must broadcast to the voxels' shape", (input, target), {"mask": target[:, :3] > 0}),
        (ValueError, "ignore_index needs a target of class indices", (input, input), {"ignore_index": 1}),
        (RuntimeError, "smooth_nr must be a number >= 0, got -1", (input, target), {"smooth_nr": -1.0}),
        (TypeError, "smooth_dr must be a number, got str", (input, target), {"smooth_dr": "1"}),
    ]
    for kind, message, operands, own in wrong:
        with pytest.raises(kind, match=message):
            call(*operands, **own)
    with pytest.raises(ValueError, match="reduction must be 'mean' or 'sum'"):
        cudaloss.dice_ce_loss(input, target, "none")


@pytest.mark.parametrize("wrong", [3, -1, -(2**40)])
@pytest.mark.parametrize("options", [{}, {"ignore_index": 255}])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", None])
def test_wrong_indices(device, activation, options, wrong):
    """No index but ignore_index leaves a voxel out, whatever its number."""
    input, target = drawn((2, 3, 8), torch.float32, device)
    target[0, 3] = wrong
    call = cudaloss.dice_loss
    if device == "cpu":
        with pytest.raises(
            RuntimeError, match="target must hold class indices at least 0 and below 3, or ignore_index"
        ):
            call(input, target, activation=activation, **options)
    else:
        assert call(input, target, "none", activation=activation, **options)[0].isnan().any()


def test_views_of_voxels():
    """Two dimensions are enough for contiguous tensors, channels last and crops of the last dimension."""
    x = torch.rand(2, 3, 4, 5, 6)
    for view in (x, x.contiguous(memory_format=torch.channels_last_3d), x[..., 1:-1], x[:, :, 1:]):
        assert sums._views([view]) is not None
    assert sums._views([x[:, :, :, 1:-1, 1:-1]]) is None


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (2, 3, 2, 2)], ids=str)
def test_transforms(device, name, shape):
    """The plain formula, also of elements without space: vmap, both modes of derivatives, the second derivatives."""
    x, g = torch.randn(shape, dtype=torch.float64, device=device), torch.rand(shape, dtype=torch.float64, device=device)
    mask = torch.rand(shape[0], *shape[2:], device=device) < 0.7
    mask[0] = True
    own = {"activation": "softmax"} if name in ("dice", "tversky") else {}

    def call(x, g):
        return FUNCTIONS[name](x, g, mask=mask, **own)

    torch.testing.assert_close(torch.func.vmap(call)(x[None], g[None]), call(x, g)[None])
    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(call(leaf, g), leaf)
    direction = torch.randn_like(x)
    _, along = torch.func.jvp(lambda x: call(x, g), (x,), (direction,))
    torch.testing.assert_close(along, (slope * direction).sum())
    assert torch.autograd.gradgradcheck(lambda x: call(x, g), leaf)
