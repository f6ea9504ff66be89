"""Losses of rows of vectors: one number for each row of all operands."""

from __future__ import annotations

from .._spec import Argument, Flag, RowSpec

_ABOUT_COSINE_SIMILARITY = """\
A row is a vector along ``dim`` of each operand, and its loss 1 minus their cosine, between 0 (one direction) and 2. A
norm below ``eps`` counts as ``eps``, and then has no gradient."""
_ABOUT_COSINE_EMBEDDING = """\
A row is a vector of input1 and one of input2, and ``cos`` their product over ``sqrt((input1**2 + 1e-12) *
(input2**2 + 1e-12))``, of squares summed over the row. The loss is ``1 - cos`` where target is 1,
``max(0, cos - margin)`` where it is -1, and 0 where it is anything else."""
_ABOUT_TRIPLET_MARGIN = """\
A row is a vector along the last dimension of each operand, and ``distance(a, b)`` the p-norm of ``a - b + eps``. With
``swap`` the smaller of ``distance(anchor, negative)`` and ``distance(positive, negative)`` is taken away. p = 2 is one
pass; any other norm is plain PyTorch's."""
_OF_COSINE_SIMILARITY = """\
>>> import torch, cudaloss
>>> input = torch.tensor([[3.0, 4.0], [1.0, 0.0]], requires_grad=True)
>>> loss = cudaloss.cosine_similarity_loss(input, torch.tensor([[0.0, 2.0], [5.0, 0.0]]))
>>> loss.backward()
>>> loss.detach()  # the mean of 1 - 4 / 5 and 0
tensor(0.1000)"""
_OF_COSINE_EMBEDDING = """\
>>> import torch, cudaloss
>>> input = torch.tensor([[3.0, 4.0], [1.0, 0.0]], requires_grad=True)
>>> other = torch.tensor([[0.0, 2.0], [5.0, 0.0]])
>>> loss = cudaloss.cosine_embedding_loss(input, other, torch.tensor([1, -1]), margin=0.5)
>>> loss.backward()
>>> loss.detach()  # the mean of 1 - 4 / 5 and 1 - 1 / 2
tensor(0.3500)"""
_OF_TRIPLET_MARGIN = """\
>>> import torch, cudaloss
>>> anchor = torch.zeros(1, 2, requires_grad=True)
>>> loss = cudaloss.triplet_margin_loss(anchor, torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 5.5]]), eps=0.0)
>>> loss.backward()
>>> loss.detach()  # 5 - 5.5 + 1
tensor(0.5000)"""

_MARGIN = "the least that dissimilar rows are to be apart"

ROWS = (
    RowSpec(
        id=66,
        name="cosine_similarity",
        module="CosineSimilarityLoss",
        arguments=(
            Argument("dim", "int", "int", 1, "along which the vectors lie, as in :func:`torch.cosine_similarity`"),
            Argument("eps", "float", "float", 1e-8, "above 0; the least norm that is divided by"),
        ),
        reads="vectors",
        formula="1 - cosine_similarity(input, target)",
        about=_ABOUT_COSINE_SIMILARITY,
        example=_OF_COSINE_SIMILARITY,
        source="Salton, Wong and Yang, A Vector Space Model for Automatic Indexing, 1975",
        signature="reduction dim eps",
        ulps=2.0,
    ),
    RowSpec(
        id=67,
        name="cosine_embedding",
        module="CosineEmbeddingLoss",
        operands=("input1", "input2", "target"),
        arguments=(Argument("margin", "float", "float", 0.0, f"{_MARGIN}, as a cosine"),),
        reads="vectors",
        formula="1 - cos or max(0, cos - margin)",
        about=_ABOUT_COSINE_EMBEDDING,
        example=_OF_COSINE_EMBEDDING,
        source="Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, 2006",
        signature="margin size_average reduce reduction",
        ulps=2.0,
    ),
    RowSpec(
        id=68,
        name="triplet_margin",
        module="TripletMarginLoss",
        operands=("anchor", "positive", "negative"),
        differentiable_third=True,
        arguments=(
            Argument("margin", "float", "float", 1.0, f"above 0; {_MARGIN}, beyond similar ones"),
            Argument("p", "float", "float", 2.0, "which norm a distance is"),
            Argument("eps", "float", "float", 1e-6, "what is added to each difference"),
            Argument("swap", "bool", "bool", False, "whether the distance swap is taken"),
        ),
        flags=(Flag("swap", False, ""),),
        reads="vectors",
        formula="max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)",
        about=_ABOUT_TRIPLET_MARGIN,
        example=_OF_TRIPLET_MARGIN,
        source="Balntas et al., Learning Shallow Convolutional Feature Descriptors with Triplet Losses, 2016",
        signature="margin p eps swap size_average reduce reduction",
        ulps=2.0,
    ),
)
