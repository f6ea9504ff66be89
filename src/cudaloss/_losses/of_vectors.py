"""Losses of rows of vectors, which can be the logits of distributions: one number for each row of all operands."""

from __future__ import annotations

from .argument import Argument
from .spec import LossSpec

_ABOUT_COSINE_SIMILARITY = """\
A row is a vector along ``dim`` of each operand. Its loss is 1 minus the cosine of the two, between 0 (same direction)
and 2. A norm below ``eps`` counts as ``eps``, and then has no gradient."""
_ABOUT_COSINE_EMBEDDING = """\
A row is a vector of input1 and a vector of input2. ``cos`` is their product over ``sqrt((input1**2 + 1e-12) *
(input2**2 + 1e-12))``, with the squares summed over the row. The loss is ``1 - cos`` if target is 1,
``max(0, cos - margin)`` if it is -1, and 0 for any other target."""
_ABOUT_TRIPLET_MARGIN = """\
A row is a vector along the last dimension of each operand. ``distance(a, b)`` is the p-norm of ``a - b + eps``. With
``swap`` the smaller of ``distance(anchor, negative)`` and ``distance(positive, negative)`` is subtracted. p = 2 is one
pass; plain PyTorch computes any other norm."""
_ABOUT_KL_DIV_WITH_LOGITS = """\
A row is a distribution of each operand, ``p = softmax(target / temperature)`` of the teacher's logits and ``q =
softmax(input / temperature)`` of the student's, along ``dim``. Its loss is the divergence of q from p, ``sum(p *
(log p - log q))``, times ``temperature**2``, which keeps the size of the gradients for any temperature. It equals
``F.kl_div(log_softmax(input / T, 1), log_softmax(target / T, 1), reduction="batchmean", log_target=True) * T**2`` for
2-D operands. A class that is -inf in both operands adds 0, not NaN. The teacher gets a gradient too if it requires
one."""
_ABOUT_JSD_WITH_LOGITS = """\
A row is a distribution of each operand, ``p = softmax(target / temperature)`` of the teacher's logits and ``q =
softmax(input / temperature)`` of the student's, along ``dim``. Their mixture is ``m = beta * p + (1 - beta) * q``. The
loss is the generalised Jensen-Shannon divergence, ``beta * KL(p, m) + (1 - beta) * KL(q, m)``, times
``temperature**2``. The ends are by convention the divergences of q and p from each other: ``beta=0`` is ``KL(p, q)``,
which is :func:`kl_div_with_logits`, and ``beta=1`` the reverse one, ``KL(q, p)``. Between the ends the loss is never
infinite. A class that is -inf in both operands adds 0, not NaN. The teacher gets a gradient too if it requires one."""
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
_OF_KL_DIV_WITH_LOGITS = """\
>>> import torch, cudaloss
>>> student = torch.tensor([[0.0, 0.0]], requires_grad=True)
>>> teacher = torch.tensor([[1.0, 3.0]]).log()  # 1/4 and 3/4
>>> loss = cudaloss.kl_div_with_logits(student, teacher)
>>> loss.backward()
>>> loss.detach()  # 1/4 log(1/2) + 3/4 log(3/2)
tensor(0.1308)
>>> student.grad  # 1/2 - 1/4 and 1/2 - 3/4
tensor([[ 0.2500, -0.2500]])"""
_OF_JSD_WITH_LOGITS = """\
>>> import torch, cudaloss
>>> student = torch.tensor([[0.0, 0.0]], requires_grad=True)
>>> teacher = torch.tensor([[1.0, 3.0]]).log()  # 1/4 and 3/4; the mixture is 3/8 and 5/8
>>> loss = cudaloss.jsd_with_logits(student, teacher)
>>> loss.backward()
>>> loss.detach()  # half of 1/4 log(2/3) + 3/4 log(6/5), and half of 1/2 log(4/3) + 1/2 log(4/5)
tensor(0.0338)
>>> student.grad
tensor([[ 0.0639, -0.0639]])"""

_TEMPERATURE = Argument("temperature", "number", 1.0, "above 0; both operands' logits are divided by it")
_OF_CLASSES = Argument("dim", "int", 1, "the dimension of the classes; 1 also for 1-D operands", only_keyword=True)

ROWS = (
    LossSpec(
        id=66,
        name="cosine_similarity",
        module="CosineSimilarityLoss",
        arguments=(
            Argument("dim", "int", 1, "the vectors' dimension, as in :func:`torch.nn.functional.cosine_similarity`"),
            Argument("eps", "number", 1e-8, "above 0; the least norm in the denominator"),
        ),
        reads="vectors",
        formula="1 - cosine_similarity(input, target)",
        about=_ABOUT_COSINE_SIMILARITY,
        example=_OF_COSINE_SIMILARITY,
        source="Salton, Wong and Yang, A Vector Space Model for Automatic Indexing, 1975",
        signature="reduction dim eps",
        ulps=2.0,
    ),
    LossSpec(
        id=67,
        name="cosine_embedding",
        module="CosineEmbeddingLoss",
        operands=("input1", "input2", "target"),
        arguments=(Argument("margin", "number", 0.0, "dissimilar rows have a loss above this cosine"),),
        reads="vectors",
        formula="1 - cos where target == 1, else max(0, cos - margin)",
        about=_ABOUT_COSINE_EMBEDDING,
        example=_OF_COSINE_EMBEDDING,
        source="Hadsell, Chopra and LeCun, Dimensionality Reduction by Learning an Invariant Mapping, 2006",
        signature="margin size_average reduce reduction",
        ulps=2.0,
    ),
    LossSpec(
        id=68,
        name="triplet_margin",
        module="TripletMarginLoss",
        operands=("anchor", "positive", "negative"),
        differentiable_third=True,
        arguments=(
            Argument("margin", "number", 1.0, "above 0; how much farther the negative should be"),
            Argument("p", "number", 2.0, "the norm of a distance"),
            Argument("eps", "number", 1e-6, "added to each difference"),
            Argument("swap", "flag", False, "whether to use the distance swap"),
        ),
        reads="vectors",
        formula="max(distance(anchor, positive) - distance(anchor, negative) + margin, 0)",
        about=_ABOUT_TRIPLET_MARGIN,
        example=_OF_TRIPLET_MARGIN,
        source="Balntas et al., Learning Shallow Convolutional Feature Descriptors with Triplet Losses, 2016",
        signature="margin p eps swap size_average reduce reduction",
        ulps=2.0,
    ),
    LossSpec(
        id=69,
        name="kl_div_with_logits",
        function="kl_div_with_logits",
        module="KLDivWithLogitsLoss",
        arguments=(_TEMPERATURE, _OF_CLASSES),
        reads="distributions",
        formula="temperature**2 * KL(softmax(target / temperature), softmax(input / temperature))",
        about=_ABOUT_KL_DIV_WITH_LOGITS,
        example=_OF_KL_DIV_WITH_LOGITS,
        source="Hinton, Vinyals and Dean, Distilling the Knowledge in a Neural Network, 2015",
        signature="reduction temperature",
        ulps=2.0,
    ),
    LossSpec(
        id=70,
        name="jsd_with_logits",
        function="jsd_with_logits",
        module="JSDWithLogitsLoss",
        arguments=(
            Argument("beta", "number", 0.5, "in [0, 1]; the teacher's share of m", interval="in [0, 1]"),
            _TEMPERATURE,
            _OF_CLASSES,
        ),
        reads="distributions",
        formula="temperature**2 * (beta * KL(p, m) + (1 - beta) * KL(q, m))",
        about=_ABOUT_JSD_WITH_LOGITS,
        example=_OF_JSD_WITH_LOGITS,
        source="Agarwal et al., On-Policy Distillation of Language Models, 2024",
        signature="reduction beta temperature",
        ulps=2.0,
    ),
)
