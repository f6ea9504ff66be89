"""A launch of every class count on a GPU: kernels, lanes and shared memory change with it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

import cudaloss
from exact_distributions import jsd_of_torch

# Where the kernels change, or the memory that they ask for: powers of two, and the splits of csrc/cuda/rows_*.cuh.
_SPLITS = (5992, 6000, 6008, 6144, 7168, 8192, 9992, 12_000, 12_288, 16_384, 24_576, 32_768, 65_536, 131_072)
COUNTS = [*range(1, 4201), *(split + by for split in _SPLITS for by in (-1, 0, 1, 8))]
ROWS = 2


def _kl(x, t):
    return F.kl_div(x.log_softmax(1), t.log_softmax(1), log_target=True, reduction="sum")


def _cosine(x, t):
    return (1 - F.cosine_similarity(x, t)).sum()


def _embedding(x, t, label):
    cosine = F.cosine_similarity(x, t)
    return torch.where(label == 1, 1 - cosine, cosine.clamp(min=0)).sum()


# Ours, and the sum by PyTorch, of so many operands (rows, classes); and what else is a target.
LOSSES = {
    "cross_entropy": (cudaloss.cross_entropy, partial(F.cross_entropy, reduction="sum"), 1, "indices"),
    "cross_entropy of probabilities": (cudaloss.cross_entropy, partial(F.cross_entropy, reduction="sum"), 2, None),
    "nll_loss": (cudaloss.nll_loss, partial(F.nll_loss, reduction="sum"), 1, "indices"),
    "kl_div_with_logits": (cudaloss.kl_div_with_logits, _kl, 2, None),
    "jsd_with_logits": (cudaloss.jsd_with_logits, partial(jsd_of_torch, reduction="sum"), 2, None),
    "cosine_similarity_loss": (cudaloss.cosine_similarity_loss, _cosine, 2, None),
    "cosine_embedding_loss": (cudaloss.cosine_embedding_loss, _embedding, 2, "labels"),
    "triplet_margin_loss": (cudaloss.triplet_margin_loss, partial(F.triplet_margin_loss, reduction="sum"), 3, None),
}


@pytest.mark.cuda
@pytest.mark.parametrize("strided", [False, True], ids=["rows", "strided"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_every_class_count(name, dtype, strided):
    function, theirs, count, kind = LOSSES[name]
    memory = torch.randn(count, ROWS * max(COUNTS), device="cuda", dtype=dtype)
    if name == "cross_entropy of probabilities":
        memory[1].abs_()
    index = torch.randint(2**40, (ROWS,), device="cuda")
    found, expected = [], []
    for classes in COUNTS:
        flat = [x[: ROWS * classes] for x in memory]
        operands = [x.view(classes, ROWS).t() if strided else x.view(ROWS, classes) for x in flat]
        numbers = index % classes if kind == "indices" else index % 2 * 2 - 1
        target = [numbers] if kind else []
        leaf = operands[0].detach().requires_grad_()
        with torch.no_grad():  # the kernels without gradients are others
            found.append(function(*operands, *target, reduction="sum", dtype=torch.float32))
        value = function(leaf, *operands[1:], *target, reduction="sum", dtype=torch.float32)
        (gradient,) = torch.autograd.grad(value, leaf)
        found += [value.detach(), gradient.float().square().sum()]
        wide = [x.float() if dtype in (torch.float16, torch.bfloat16) else x for x in operands]
        wide[0] = wide[0].detach().requires_grad_()
        value = theirs(*wide, *target)
        (gradient,) = torch.autograd.grad(value, wide[0])
        expected += [value.detach().float()] * 2 + [gradient.to(dtype).float().square().sum()]
    torch.cuda.synchronize()
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=2e-3, atol=2e-3)
