"""PyTorch's own samples, errors and references of its losses (OpInfo and ModuleInfo), run on ours."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import cudaloss
from oracle import DTYPES, leaf
from thirds import BCE, THIRDS

NAMES = (
    "binary_cross_entropy_with_logits",
    "smooth_l1_loss",
    "mse_loss",
    "huber_loss",
    "l1_loss",
    "soft_margin_loss",
    "hinge_embedding_loss",
    "margin_ranking_loss",
    "kl_div",
    "binary_cross_entropy",
    "poisson_nll_loss",
    "gaussian_nll_loss",
    "cross_entropy",
    "nll_loss",
    "cosine_embedding_loss",
    "triplet_margin_loss",
)
MODULES = (
    "BCEWithLogitsLoss",
    "SmoothL1Loss",
    "MSELoss",
    "HuberLoss",
    "L1Loss",
    "SoftMarginLoss",
    "HingeEmbeddingLoss",
    "MarginRankingLoss",
    "KLDivLoss",
    "BCELoss",
    "PoissonNLLLoss",
    "GaussianNLLLoss",
    "CrossEntropyLoss",
    "NLLLoss",
    "CosineEmbeddingLoss",
)
of_names = pytest.mark.parametrize("name", NAMES)
of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
# Whose samples are also logarithms' of negative numbers, and targets of 0, by which PyTorch's gradients are NaN.
DRAWN_OUTSIDE = ("kl_div", "poisson_nll_loss")
LIKELIHOODS = (*DRAWN_OUTSIDE, "gaussian_nll_loss")
EITHER = (RuntimeError, ValueError)
pytestmark = [  # kl_div's of "mean", and ours where PyTorch's gaussian_nll_loss broadcasts without one
    pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning"),
    pytest.mark.filterwarnings("ignore:Using a target size:UserWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def internals():
    """PyTorch's tests, which take seconds to import: not where these tests are only collected."""
    pytest.importorskip("expecttest", reason="PyTorch's own tests need expecttest")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations, common_modules
    return common_methods_invocations.op_db, common_modules.module_db


@pytest.fixture(scope="module")
def infos(internals):
    found = {op.name.removeprefix("nn.functional."): op for op in internals[0] if op.name.startswith("nn.functional.")}
    return {name: found[name] for name in NAMES}


@pytest.fixture(scope="module")
def module_infos(internals):
    found = {info.module_cls.__name__: info for info in internals[1]}
    return {name: found[name] for name in MODULES}


def samples(info, device, dtype):
    """The operands, and the keywords."""
    found = [([x.input, *x.args], dict(x.kwargs)) for x in info.sample_inputs(device, dtype, requires_grad=True)]
    assert len(found) >= 6
    if info.name.endswith("hinge_embedding_loss"):  # where PyTorch's target has no gradient, ours is 0
        found = [([input, *(x.detach() for x in labels)], keywords) for (input, *labels), keywords in found]
    return found


def tensors(operands, keywords):
    return [x for x in (*operands, *keywords.values()) if isinstance(x, Tensor)]


def converted(operands, keywords, change):
    """Leaves in place of all tensors; indices as they are."""

    def of(x):
        is_changed = isinstance(x, Tensor) and x.dtype != torch.int64
        return change(x).detach().requires_grad_(x.requires_grad) if is_changed else x

    with torch.no_grad():
        return [of(x) for x in operands], {name: of(x) for name, x in keywords.items()}


def without_nan(x):
    """Replaces the samples' logarithms of negative numbers by those of a probability: PyTorch has gradients for NaN."""
    return torch.where(x.isnan(), -1.0, x)


def value_and_gradients(function, operands, keywords, grad_output=None):
    value = function(*operands, **keywords)
    wanted = [x for x in tensors(operands, keywords) if x.requires_grad]
    grad_output = torch.ones_like(value) if grad_output is None else grad_output.to(value.dtype)
    gradients = torch.autograd.grad(value, wanted, grad_output, allow_unused=True)
    return value, *(x for x in gradients if x is not None)  # labels have none


def largest(x):
    return x.nan_to_num(0, 0, 0).abs().max().item() if x.numel() else 0.0


def assert_near(found, theirs, truth, least=0.0):
    """As near to the truth as PyTorch's, or some units in the last place of its largest number, or of the `least` that
    it was added up from: float64's truth is PyTorch's own, and the samples' weights are of both signs."""
    assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype)
    is_beyond = (truth.abs() > torch.finfo(found.dtype).max) & found.isinf()
    size = max(largest(torch.where(is_beyond, 0, truth)), least)
    allowed = (32 if found.dtype == torch.float64 else 4) * torch.finfo(found.dtype).eps * size
    allowed = max(allowed, 1.01 * largest(torch.where(is_beyond, 0, theirs.double() - truth)))
    truth = torch.where(is_beyond, torch.inf * truth.sign(), truth)
    torch.testing.assert_close(found.double(), truth, rtol=0, atol=allowed, equal_nan=True)


@of_names
@of_dtypes
def test_samples(infos, name, device, dtype):
    function, namesake = getattr(cudaloss, name), getattr(F, name)
    for operands, keywords in samples(infos[name], device, dtype):
        grad_output = torch.randn_like(namesake(*operands, **keywords).detach())
        ours = value_and_gradients(function, operands, keywords, grad_output)
        theirs = value_and_gradients(namesake, operands, keywords, grad_output)
        truth = value_and_gradients(namesake, *converted(operands, keywords, Tensor.double), grad_output)
        assert len(ours) == len(theirs) >= 2
        sizes = [0.0] * len(ours)
        if name in LIKELIHOODS:
            # Terms of both signs cancel in a mean, and a logarithm with what is added to it; so do the gradients that
            # are summed for a broadcast operand.
            sizes = [8 * largest(namesake(*operands, **{**keywords, "reduction": "none"}).detach())]
            sizes += [max(map(largest, truth[1:]))] * (len(ours) - 1)
        for *rows, size in zip(ours, theirs, truth, sizes, strict=True):
            if name in DRAWN_OUTSIDE:  # where PyTorch has a number, so have we
                rows = [torch.where(rows[2].isfinite(), x, 0) for x in rows]
            assert_near(*rows, least=size)


def test_gradients_of_weights(infos, device):
    """Of weight and pos_weight too, which PyTorch does not differentiate by."""

    def plain(x, t, *, weight=None, pos_weight=1.0, reduction="mean"):
        return THIRDS[BCE].spelled_out(x, t, pos_weight, weight=weight, reduction=reduction)

    seen = set()
    for operands, keywords in samples(infos[NAMES[0]], device, torch.float32):
        keywords = {name: leaf(x) if isinstance(x, Tensor) else x for name, x in keywords.items()}
        seen |= {name for name, x in keywords.items() if isinstance(x, Tensor)}
        ours = value_and_gradients(cudaloss.binary_cross_entropy_with_logits, operands, keywords)
        theirs = value_and_gradients(plain, operands, keywords)
        truth = value_and_gradients(plain, *converted(operands, keywords, Tensor.double))
        for rows in zip(ours, theirs, truth, strict=True):
            assert_near(*rows)
    assert seen == {"weight", "pos_weight"}


@of_names
def test_samples_with_other_layouts(infos, name, device):
    layouts = {
        "strided": lambda x: x.detach().repeat_interleave(2, -1)[..., ::2] if x.dim() else x,
        "transposed": lambda x: x.detach().mT.contiguous().mT if x.dim() > 1 else x,
    }
    for operands, keywords in samples(infos[name], device, torch.float32):
        expected = value_and_gradients(getattr(cudaloss, name), operands, keywords)
        for change in layouts.values():
            given = converted(operands, keywords, change)
            for ours, dense in zip(value_and_gradients(getattr(cudaloss, name), *given), expected, strict=True):
                torch.testing.assert_close(ours, dense, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "huber_loss"])
def test_numpy_references(infos, name, device):
    info = infos[name]
    if info.ref is None:
        pytest.skip("PyTorch has no reference in NumPy")
    for operands, keywords in samples(info, device, torch.float64):
        expected = info.ref(*(x.detach().cpu().numpy() for x in operands), **keywords)
        found = getattr(cudaloss, name)(*operands, **keywords).detach().cpu()
        torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
@of_names
def test_error_inputs(infos, name, device):
    if infos[name].error_inputs_func is None:
        pytest.skip("PyTorch has no bad inputs for it")
    for bad in infos[name].error_inputs(device):
        x = bad.sample_input
        for function in (getattr(F, name), getattr(cudaloss, name)):
            with pytest.raises(EITHER):
                function(x.input, *x.args, **x.kwargs)


# ---- binary_cross_entropy_with_logits, whose bad inputs PyTorch does not list ----


@pytest.mark.parametrize(
    ("shape", "keywords", "match"),
    [
        ((4, 5), {}, "Target size .* must be the same as input size"),
        ((5,), {}, "Target size .* must be the same as input size"),
        ((4, 1), {}, "Target size .* must be the same as input size"),
        ((4, 6), {"reduction": "abc"}, "abc is not a valid value for reduction|reduction"),
        ((4, 6), {"pos_weight": torch.ones(5)}, "pos_weight|size of tensor"),
        ((4, 6), {"weight": torch.ones(5)}, "weight|size of tensor"),
    ],
)
def test_errors_are_pytorchs(shape, keywords, match):
    x, t = torch.randn(4, 6, requires_grad=True), torch.rand(shape)
    for function in (F.binary_cross_entropy_with_logits, cudaloss.binary_cross_entropy_with_logits):
        with pytest.raises(EITHER, match=match):
            function(x, t, **keywords)
    cudaloss.binary_cross_entropy_with_logits(x, torch.rand(4, 6)).backward()


def test_errors_of_its_own_arguments():
    x, t = torch.randn(2, 4), torch.rand(4)
    function = cudaloss.binary_cross_entropy_with_logits
    for keywords in (
        {"label_smoothing": -0.1},
        {"label_smoothing": 1.5},
        {"label_smoothing": float("nan")},
        {"pos_weight": "three"},
        {"pos_weight": torch.ones(4, device="meta")},
    ):
        with pytest.raises((*EITHER, TypeError), match=next(iter(keywords))):
            function(x[0], t, **keywords)
    for quantile in (0.0, 1.0, -0.5, 2, float("nan")):
        with pytest.raises(EITHER, match="quantile"):
            cudaloss.quantile_loss(x[0], t, quantile=quantile)


@pytest.mark.filterwarnings("ignore:size_average and reduce:UserWarning")
def test_positional_and_legacy_arguments():
    x, t, weight, pos_weight = torch.randn(4, 6), torch.rand(4, 6), torch.rand(6), torch.rand(6)
    for arguments in (
        (weight,),
        (weight, None, None, "sum"),
        (weight, None, None, "none", pos_weight),
        (weight, False),
        (None, True, False),
        (None, None, None, "mean", pos_weight),
    ):
        ours = cudaloss.binary_cross_entropy_with_logits(x, t, *arguments)
        torch.testing.assert_close(ours, F.binary_cross_entropy_with_logits(x, t, *arguments))
        ours = cudaloss.BCEWithLogitsLoss(*arguments)(x, t)
        torch.testing.assert_close(ours, torch.nn.BCEWithLogitsLoss(*arguments)(x, t))


# ---- modules ----


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_modules(module_infos, name, device, dtype, training):
    info = module_infos[name]
    given = info.module_inputs_func(info, device=device, dtype=dtype, requires_grad=True, training=training)
    assert len(given) >= 4
    for one in given:
        arguments = one.constructor_input
        ours = getattr(cudaloss, name)(*arguments.args, **arguments.kwargs).to(device).train(training)
        theirs = info.module_cls(*arguments.args, **arguments.kwargs).to(device).train(training)
        assert ours.state_dict().keys() == theirs.state_dict().keys()
        ours.load_state_dict(copy.deepcopy(theirs.state_dict()))
        operands, _ = converted(one.forward_input.args, {}, without_nan)
        found = value_and_gradients(ours, operands, {})
        expected = value_and_gradients(theirs, operands, {})
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-6, equal_nan=True)
        if one.reference_fn is not None:
            reference = one.reference_fn(theirs, *(x.detach() for x in operands))  # which it copies
            torch.testing.assert_close(found[0], torch.as_tensor(reference), rtol=2e-6, atol=2e-6, equal_nan=True)


def test_state_dicts_are_pytorchs():
    weight, pos_weight = torch.rand(6), torch.rand(6) * 4
    x, t = torch.randn(5, 6), torch.rand(5, 6)
    for keywords in ({}, {"weight": weight}, {"pos_weight": pos_weight}, {"weight": weight, "pos_weight": pos_weight}):
        theirs, ours = torch.nn.BCEWithLogitsLoss(**keywords), cudaloss.BCEWithLogitsLoss(**keywords)
        assert list(ours.state_dict()) == list(theirs.state_dict())
        assert all(torch.equal(x, theirs.state_dict()[name]) for name, x in ours.state_dict().items())
        blank = {name: torch.zeros(6) for name in keywords}
        for one, other in ((theirs, cudaloss.BCEWithLogitsLoss), (ours, torch.nn.BCEWithLogitsLoss)):
            loaded = other(**blank)
            loaded.load_state_dict(one.state_dict())
            torch.testing.assert_close(loaded(x, t), one(x, t))


# ---- numeric derivatives ----


@of_names
def test_gradcheck(infos, name):
    """Of first and second order, for everything that is differentiable, along random directions, as PyTorch's own; of
    one sample of each rank with the same keywords."""
    function, seen = getattr(cudaloss, name), set()
    for operands, keywords in samples(infos[name], "cpu", torch.float64):
        named = {name: x for name, x in keywords.items() if isinstance(x, Tensor)}
        rest = {name: x for name, x in keywords.items() if name not in named}
        leaves = [leaf(x) if x.is_floating_point() else x for x in (*operands, *named.values())]
        kind = (
            tuple(x.dim() for x in operands),
            *((k, x.dim() if isinstance(x, Tensor) else x) for k, x in keywords.items()),
        )
        if kind in seen or leaves[0].numel() > 30:
            continue
        seen.add(kind)

        def call(*given, count=len(operands), named=named, rest=rest):  # noqa: B008
            return function(*given[:count], **dict(zip(named, given[count:], strict=True)), **rest)

        forward = infos[name].supports_forward_ad
        assert torch.autograd.gradcheck(call, leaves, check_forward_ad=forward, fast_mode=True)
        assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
