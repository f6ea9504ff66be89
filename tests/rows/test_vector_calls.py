"""Calls of losses of vectors: modules, ops, arguments good and bad; and on a GPU graphs, memory, large tensors."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch

import cudaloss
from exact_vectors import LOSSES, drawn

SHAPE = (6, 5)
of_losses = pytest.mark.parametrize("name", LOSSES)
# Our module, PyTorch's, and what both are made with.
MODULES = {
    "cosine_similarity": (cudaloss.CosineSimilarityLoss, None, ("sum", -1, 1e-3)),
    "cosine_embedding": (cudaloss.CosineEmbeddingLoss, torch.nn.CosineEmbeddingLoss, (0.25, None, None, "sum")),
    "triplet_margin": (
        cudaloss.TripletMarginLoss,
        torch.nn.TripletMarginLoss,
        (0.7, 2.0, 1e-3, True, None, None, "sum"),
    ),
    "kl_div_with_logits": (cudaloss.KLDivWithLogitsLoss, None, ("sum", 2.5)),
    "jsd_with_logits": (cudaloss.JSDWithLogitsLoss, None, ("sum", 0.25, 2.5)),
}


@of_losses
def test_module_and_op(device, name):
    ours, theirs, given = MODULES[name]
    loss, operands = LOSSES[name], drawn(name, SHAPE, torch.float32, device)
    module, expected = ours(*given), loss.ours(*operands, *given)
    if theirs is not None:
        torch.testing.assert_close(expected, theirs(*given)(*operands))
        assert module.state_dict().keys() == theirs(*given).state_dict().keys()
    for made in (module, copy.deepcopy(module), pickle.load(io.BytesIO(pickle.dumps(module)))):
        assert torch.equal(made(*operands), expected)
    options = {"mask": torch.arange(SHAPE[0], device=device) != 2, "weight": torch.rand(SHAPE[0], device=device)}
    assert torch.equal(module(*operands, **options), loss.ours(*operands, *given, **options))
    op = getattr(torch.ops.cudaloss, name)
    assert torch.equal(op(*operands, *(x for x in given if x is not None)), expected)
    assert torch.equal(op(*operands, **options), loss.ours(*operands, **options))
    kept = ours(scale=0.5, batch_dims=1, dtype=torch.float64)
    expected = loss.ours(*operands, scale=0.5, batch_dims=1, dtype=torch.float64)
    assert torch.equal(kept(*operands), expected) and expected.shape == SHAPE[:1]


@of_losses
def test_representation(name):
    for shown in {
        "cosine_similarity": ("dim=-1", "eps=0.001"),
        "cosine_embedding": ("margin=0.25",),
        "triplet_margin": ("margin=0.7", "p=2.0", "eps=0.001", "swap=True"),
        "kl_div_with_logits": ("temperature=2.5", "dim=1", "reduction='sum'"),
        "jsd_with_logits": ("beta=0.25", "temperature=2.5", "dim=1", "reduction='sum'"),
    }[name]:
        assert shown in repr(MODULES[name][0](*MODULES[name][2]))


@pytest.mark.filterwarnings("ignore:size_average and reduce:UserWarning")
@pytest.mark.parametrize(
    "legacy", [(None, None, "none"), (False, None), (True, False), (True, True), (None, None, "sum")]
)
def test_positional_and_legacy_arguments(device, legacy):
    for name, own in (("cosine_embedding", (0.25,)), ("triplet_margin", (0.7, 2, 1e-3, True))):
        loss, operands = LOSSES[name], drawn(name, SHAPE, torch.float32, device)
        expected = loss.theirs(*operands, *own, *legacy)
        torch.testing.assert_close(loss.ours(*operands, *own, *legacy), expected)
        torch.testing.assert_close(MODULES[name][0](*own, *legacy)(*operands), expected)


def test_numbers_of_numpy(device):
    x, y, n = drawn("triplet_margin", SHAPE, torch.float32, device)
    found = cudaloss.triplet_margin_loss(x, y, n, np.float32(0.5), p=np.int64(2), eps=np.float64(1e-3))
    assert torch.equal(found, cudaloss.triplet_margin_loss(x, y, n, 0.5, eps=1e-3))
    found = cudaloss.cosine_similarity_loss(x, y, dim=np.int64(-1), eps=np.float64(1e-3))
    assert torch.equal(found, cudaloss.cosine_similarity_loss(x, y, dim=-1, eps=1e-3))
    for temperature in (np.float32(2.5), np.float64(2.5), np.int64(2), 2):
        found = cudaloss.kl_div_with_logits(x, y, temperature=temperature, dim=np.int64(-1))
        assert torch.equal(found, cudaloss.kl_div_with_logits(x, y, temperature=float(temperature)))
    for beta in (np.float32(0.25), np.float64(0.25), np.int64(1), 0):
        assert torch.equal(cudaloss.jsd_with_logits(x, y, beta=beta), cudaloss.jsd_with_logits(x, y, beta=float(beta)))


@of_losses
def test_operands_are_never_written_to(device, name):
    for length in (5, 5000):
        operands = drawn(name, (9, length), torch.float32, device)
        before = [x.clone() for x in operands]
        leaves = [x.requires_grad_(x.is_floating_point()) for x in operands]
        LOSSES[name].ours(*leaves).backward()
        assert all(torch.equal(x, y) and x._version == 0 for x, y in zip(leaves, before, strict=True))


# ---- bad arguments ----

X, ROWS = torch.randn(4, 5), torch.ones(4)
EITHER = (RuntimeError, ValueError)
# What stands in the place of an operand, or a keyword; its error; and what is said.
OF_ALL = {
    "weight": (torch.ones(5), RuntimeError, "weight must have a shape that broadcasts"),
    "mask": (torch.ones(4), RuntimeError, "mask must be a bool tensor"),
    "reduction": ("batchmean", ValueError, "reduction must be"),
    "batch_dims": (2, ValueError, "batch_dims must be"),
    "normalizer": (0, ValueError, "normalizer must be"),
    "scale": (X[0, 0], TypeError, "scale must be a number"),
    "dtype": (torch.int32, RuntimeError, "dtype must be a floating"),
}
BAD = {
    "cosine_similarity": {
        "input, a list": (X.tolist(), TypeError, "input must be a torch.Tensor"),
        "target, integers": (X.long(), RuntimeError, "target must be a floating-point"),
        "target": (torch.ones(3, 5), RuntimeError, r"input.*target.*broadcast.*\(4, 5\).*\(3, 5\)"),
        "target, elsewhere": (X.to("meta"), RuntimeError, "target.*meta"),
        "dim": (2, IndexError, r"dim must be .*\[-2, 1\], got 2"),
        "dim, -3": (-3, IndexError, r"dim must be .*\[-2, 1\], got -3"),
        "dim, no int": (1.5, TypeError, "dim must be an int"),
        "eps": ("tiny", TypeError, "eps must be a number"),
        "eps, negative": (-1.0, EITHER, "eps must be a number > 0"),
        "eps, NaN": (float("nan"), EITHER, "eps must be a number > 0"),
    },
    "cosine_embedding": {
        "input1": (X.tolist(), TypeError, "input1 must be a torch.Tensor"),
        "input2": (X.long(), RuntimeError, "input2 must be a floating-point"),
        "input2, shape": (torch.ones(3, 5), RuntimeError, r"input1.*input2.*broadcast.*\(4, 5\).*\(3, 5\)"),
        "target": (ROWS.to(torch.complex64), RuntimeError, "target must be a real tensor"),
        "target, scalar": (ROWS[0], RuntimeError, "0D target tensor expects 1D input tensors"),
        "target, 2-d": (X, RuntimeError, "0D or 1D target tensor expected, multi-target not supported"),
        "target, rows": (torch.ones(3), RuntimeError, "target"),
        "input1, 1-d": (X[0], RuntimeError, "1D target tensor expects 2D input tensors"),
        "margin": (X[0, 0], TypeError, "margin must be a number"),
    },
    "triplet_margin": {
        "anchor": (X.tolist(), TypeError, "anchor must be a torch.Tensor"),
        "positive": (X.long(), RuntimeError, "positive must be a floating-point"),
        "negative": (torch.ones(3, 5), RuntimeError, r"anchor.*negative.*broadcast.*\(4, 5\).*\(3, 5\)"),
        "negative, 1-d": (X[0], RuntimeError, "same number of dimensions.*negative 1D"),
        "negative, elsewhere": (X.to("meta"), RuntimeError, "negative.*meta"),
        "margin": (0, ValueError, "margin must be greater than 0, got 0"),
        "margin, NaN": (float("nan"), ValueError, "margin must be greater than 0"),
        "p": ("2", TypeError, "p must be a number"),
        "eps": (None, TypeError, "eps must be a number"),
        "swap": (1, TypeError, "swap must be a bool"),
    },
    "kl_div_with_logits": {
        "input, a list": (X.tolist(), TypeError, "input must be a torch.Tensor"),
        "input, complex": (X.to(torch.complex64), RuntimeError, "input must be a floating-point"),
        "target, integers": (X.long(), RuntimeError, "target must be a floating-point"),
        "target": (torch.ones(3, 5), RuntimeError, r"input.*target.*broadcast.*\(4, 5\).*\(3, 5\)"),
        "target, elsewhere": (X.to("meta"), RuntimeError, "target.*meta"),
        "dim": (2, IndexError, r"dim must be .*\[-2, 1\], got 2"),
        "dim, no int": (1.5, TypeError, "dim must be an int"),
        "temperature": (0, RuntimeError, "temperature must be a finite number > 0, got 0"),
        "temperature, negative": (-1.0, RuntimeError, "temperature must be a finite number > 0, got -1"),
        "temperature, NaN": (float("nan"), RuntimeError, "temperature must be a finite number > 0, got nan"),
        "temperature, infinite": (float("inf"), RuntimeError, "temperature must be a finite number > 0, got inf"),
        "temperature, a word": ("hot", TypeError, "temperature must be a number, got str"),
        "temperature, a tensor": (X[0, 0], TypeError, "temperature must be a number, got Tensor"),
        "temperature, none": (None, TypeError, "temperature must be a number, got NoneType"),
    },
    "jsd_with_logits": {
        "target": (torch.ones(3, 5), RuntimeError, r"input.*target.*broadcast.*\(4, 5\).*\(3, 5\)"),
        "dim": (2, IndexError, r"dim must be .*\[-2, 1\], got 2"),
        "temperature": (0, RuntimeError, "temperature must be a finite number > 0, got 0"),
        "beta": (1.5, RuntimeError, r"beta must be a number in \[0, 1\], got 1.5"),
        "beta, negative": (-1e-9, RuntimeError, r"beta must be a number in \[0, 1\], got -1e-09"),
        "beta, NaN": (float("nan"), RuntimeError, r"beta must be a number in \[0, 1\], got nan"),
        "beta, a word": ("half", TypeError, "beta must be a number, got str"),
        "beta, a tensor": (X[0, 0], TypeError, "beta must be a number, got Tensor"),
    },
}
EACH = [(name, what) for name in BAD for what in (*BAD[name], *OF_ALL)]


@pytest.mark.parametrize(("name", "what"), EACH, ids=[f"{name}, {what}" for name, what in EACH])
@pytest.mark.parametrize("wants", [False, True], ids=["forward", "training"])
def test_bad_arguments(name, what, wants):
    value, kind, message = {**OF_ALL, **BAD[name]}[what]
    names = LOSSES[name].names
    named = dict(zip(names, (X.clone().requires_grad_(wants), X, ROWS if "embedding" in name else X), strict=False))
    assert LOSSES[name].ours(**named).isfinite()
    named[what.split(",")[0]] = value
    with pytest.raises(kind, match=message):
        LOSSES[name].ours(**named)


def test_bad_shapes_are_pytorchs():
    """Shapes that PyTorch's losses refuse are refused."""
    for name, operands in {
        "cosine_embedding": ((X, X, ROWS[:3]), (X, X, ROWS[0]), (X[0], X[0], ROWS), (X, X[0], ROWS), (X, X, X)),
        "triplet_margin": ((X, X[:3], X), (X, X[0], X), (X, X, X[None]), (X[0], X, X)),
    }.items():
        for given in operands:
            for function in (LOSSES[name].theirs, LOSSES[name].ours):
                with pytest.raises(EITHER):
                    function(*given)


# ---- on a GPU ----


@pytest.mark.cuda
@of_losses
@pytest.mark.parametrize("length", [5, 300, 5000])
def test_cuda_graph_without_synchronisation(name, length):
    operands, loss = drawn(name, (64, length), torch.float32, "cuda"), LOSSES[name]
    weight = torch.rand(64, device="cuda")

    def step():
        # Leaves whose nodes in autograd's graph are of the stream that is current.
        leaves = [x.detach().requires_grad_() for x in operands[: loss.vectors]]
        value = loss.ours(*leaves, *operands[loss.vectors :], weight=weight) * 2
        return value.detach(), *torch.autograd.grad(value, leaves)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for _ in range(3):
        for x, fresh in zip(operands, drawn(name, (64, length), torch.float32, "cuda"), strict=True):
            x.copy_(fresh)
        graph.replay()
        torch.testing.assert_close(found, step(), rtol=0, atol=0)


@pytest.mark.cuda
@of_losses
def test_no_synchronisation(name):
    operands = [x.requires_grad_(x.is_floating_point()) for x in drawn(name, (64, 300), torch.float32, "cuda")]
    options = {"mask": torch.rand(64, device="cuda") < 0.5, "weight": torch.rand(64, device="cuda")}
    LOSSES[name].ours(*operands, **options).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        (LOSSES[name].ours(*operands) * 2).backward()
        (LOSSES[name].ours(*operands, **options) * 2).backward()
        LOSSES[name].ours(*operands, reduction="none").sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@of_losses
@pytest.mark.parametrize("shape", [(16384, 1000), (1 << 20, 10), (256, 131072)])
@pytest.mark.parametrize("option", ["plain", "mask", "none"])
def test_memory(name, shape, option):
    """In addition to operands and gradient less than 1 MB and 32 bytes a row."""
    given = {"mask": torch.rand(shape[0], device="cuda") < 0.5} if option == "mask" else {}
    given |= {"reduction": "none"} if option == "none" else {}
    vectors = LOSSES[name].vectors
    operands = [torch.randn(shape, device="cuda", requires_grad=True) for _ in range(vectors)]
    rest = [torch.ones(shape[0], device="cuda")] if name == "cosine_embedding" else []
    incoming = torch.ones(shape[0] if option == "none" else (), device="cuda")
    for _ in range(2):  # what is there for good comes first
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        found = torch.autograd.grad(LOSSES[name].ours(*operands, *rest, **given), operands, incoming)
        beside = torch.cuda.max_memory_allocated() - before - sum(x.numel() * 4 for x in found)
        del found
    assert beside < (1 << 20) + 32 * shape[0]


@pytest.mark.cuda
@of_losses
@pytest.mark.parametrize("shape", [((1 << 20) + 3, 2050), (5, (1 << 29) - 3)])
def test_more_than_2_to_the_31_elements(name, shape, large):
    loss, step = LOSSES[name], 1 + shape[1] // 4096
    operands = [torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_() for _ in range(loss.vectors)]
    labels = [torch.ones(shape[0], device="cuda")] if name == "cosine_embedding" else []
    given = {"reduction": "none", "dtype": torch.float32} | ({"margin": 1e6} if name == "triplet_margin" else {})
    leaves = [x.requires_grad_() for x in operands]
    single = loss.ours(*leaves, *labels, **given)
    gradients = torch.autograd.grad(single.sum(), leaves)
    for end in (slice(None, 1), slice(-1, None)):
        parts = [x.detach()[end].clone().requires_grad_() for x in operands]
        found = loss.ours(*parts, *(x[end] for x in labels), **given)
        torch.testing.assert_close(single[end], found, rtol=1e-6, atol=1e-6)
        for ours, part in zip(gradients, torch.autograd.grad(found.sum(), parts), strict=True):
            # Other rows begin at a multiple of 16 bytes, so that sums are in another order: a half's last place, and
            # float32's of terms that cancel.
            largest = part.abs().max().item()
            assert largest > 0
            for some in (slice(None, None, step), slice(-4096, None)):
                torch.testing.assert_close(ours[end, some], part[:, some], rtol=2**-7, atol=2**-20 * largest)
