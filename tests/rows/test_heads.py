"""Heads: the cross entropy of hidden states times a weight, in each plan, against the whole logits in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import cudaloss
from cudaloss._heads import calls, plans
from drawn_heads import OPTIONS, PLANS, assert_close, by_definition, drawn, found_by, given_options, take
from oracle import DTYPES

of_plans = pytest.mark.parametrize("plan", PLANS)
of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)
pytestmark = pytest.mark.filterwarnings("ignore:.*options.*ignored:UserWarning")


def assert_right(monkeypatch, plan, shape, features, classes, dtype, device, name, bias=True):
    memory = take(monkeypatch, plan)
    input, weight, of_bias, target = drawn(shape, features, classes, dtype, device, bias)
    options = given_options(name, target, classes, dtype)
    call = input, weight, of_bias, target
    found = cudaloss.linear_cross_entropy(input, weight, target, linear_bias=of_bias, memory=memory, **options)
    incoming = torch.rand_like(found) + 0.5
    theirs, truth = (found_by(*by_definition(*call, x, **options), incoming) for x in (dtype, None))
    assert_close(found_by(found, call[:3], incoming), theirs, truth)


@of_plans
@of_dtypes
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients(monkeypatch, device, dtype, plan, name):
    assert_right(monkeypatch, plan, (19,), 8, 53, dtype, device, name)


@of_plans
@pytest.mark.parametrize("name", ["none", "both", "rows", "softcap"])
def test_aligned_heads(monkeypatch, plan, name):
    """On a CPU too, where the products do not need it."""
    monkeypatch.setattr(plans, "ALIGNED_DEVICES", ["cpu"])
    for dtype in (torch.float32, torch.bfloat16):
        assert_right(monkeypatch, plan, (19,), 8, 53, dtype, "cpu", name)
    head = plans.aligned(plans.Head(torch.ones(2, 8), torch.ones(53, 8), torch.ones(53)))
    assert head.weight.shape == (56, 8) and head.bias is not None and head.bias.tolist() == [1.0] * 53 + [0.0] * 3


@of_plans
@of_dtypes
def test_uninitialized_memory(monkeypatch, uninitialized_is_nan, device, dtype, plan):
    """No memory is read before it is written: AMX's products of bfloat16 read behind a row, and 0 times NaN is NaN."""
    assert_right(monkeypatch, plan, (257,), 64, 257, dtype, device, "none")


@of_plans
@pytest.mark.parametrize(
    ("shape", "features", "classes"),
    [((1,), 1, 1), ((9,), 4, 1), ((3, 5), 16, 33), ((2, 2, 3), 8, 1030), ((40,), 24, 4099), ((3,), 8, 20_001)],
)
def test_sizes(monkeypatch, device, plan, shape, features, classes):
    for dtype in (torch.float32, torch.bfloat16):
        for bias in (True, False):
            assert_right(monkeypatch, plan, shape, features, classes, dtype, device, "none", bias)


@of_plans
def test_a_frozen_operand_has_no_gradient(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    for frozen in (0, 1):
        input, weight, bias, target = drawn((19,), 8, 53, torch.float32, device)
        operands = [input, weight]
        operands[frozen] = operands[frozen].detach()
        found = cudaloss.linear_cross_entropy(*operands, target, linear_bias=bias, memory=memory)
        kept = [operands[1 - frozen], bias]
        truth, leaves = by_definition(input, weight, bias, target)
        expected = torch.autograd.grad(truth, [leaves[1 - frozen], leaves[2]])
        for ours, theirs in zip(torch.autograd.grad(found, kept), expected, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-6)


@of_plans
def test_transposed_operands(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((19,), 8, 53, torch.bfloat16, device)
    leaves = [x.detach().t().contiguous().t().requires_grad_() for x in (input, weight)]
    for given in (lambda f: f, lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")):
        torch._dynamo.reset()
        step = given(lambda x, w: cudaloss.linear_cross_entropy(x, w, target, memory=memory) * 3)
        found, expected = (torch.autograd.grad(step(*x), x) for x in (leaves, [input, weight]))
        torch.testing.assert_close(found, expected, rtol=0.02, atol=1e-3)


@of_plans
def test_nothing_counts(monkeypatch, device, plan):
    """The mean is NaN and the sum 0, as in PyTorch; the gradients are 0."""
    memory = take(monkeypatch, plan)
    input, weight, bias, target = drawn((19,), 8, 53, torch.float32, device)
    for options in ({}, {"label_smoothing": 0.1, "weight": torch.rand(53, device=device)}, {"reduction": "sum"}):
        found = cudaloss.linear_cross_entropy(
            input, weight, torch.full_like(target, -100), linear_bias=bias, memory=memory, **options
        )
        assert found.item() == 0 if "reduction" in options else found.isnan()
        assert all(not x.any() for x in torch.autograd.grad(found, (input, weight, bias)))


@of_plans
@pytest.mark.parametrize("aligned", [["cpu", "cuda"], []], ids=["aligned", "as they are"])
def test_a_row_that_is_left_out_does_not_matter(monkeypatch, device, plan, aligned):
    monkeypatch.setattr(plans, "ALIGNED_DEVICES", aligned)
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((19,), 8, 53, torch.float32, device)
    mask = torch.arange(19, device=device) != 3
    broken = input.detach().clone()
    broken[3] = torch.nan
    broken[1] = torch.inf  # its target is ignored
    broken.requires_grad_()
    for x in (input, broken):
        found = cudaloss.linear_cross_entropy(x, weight, target, mask=mask, memory=memory)
        if x is input:
            expected = found, torch.autograd.grad(found, x)[0]
    (gradient,) = torch.autograd.grad(found, broken)
    assert found == expected[0] and torch.equal(gradient, expected[1])


@of_plans
def test_a_wrong_target(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((19,), 8, 53, torch.float32, device)
    for wrong in (53, -1):
        target[4] = wrong
        if device == "cpu":
            with pytest.raises(RuntimeError, match=f"got {wrong}"):
                cudaloss.linear_cross_entropy(input, weight, target, memory=memory)
        else:
            assert cudaloss.linear_cross_entropy(input, weight, target, memory=memory).isnan()


@of_plans
def test_a_second_backward_has_the_same_gradients(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, bias, target = drawn((19,), 8, 53, torch.float32, device)
    found = cudaloss.linear_cross_entropy(input, weight, target, linear_bias=bias, memory=memory) / 3
    first = torch.autograd.grad(found, (input, weight, bias), retain_graph=True)
    second = torch.autograd.grad(found, (input, weight, bias))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@of_plans
def test_the_same_bits_in_each_run(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, bias, target = drawn((40,), 8, 4099, torch.bfloat16, device)
    runs = []
    for _ in range(2):
        found = cudaloss.linear_cross_entropy(input, weight, target, linear_bias=bias, memory=memory)
        runs.append([found, *torch.autograd.grad(found, (input, weight, bias))])
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@of_plans
def test_derivatives(monkeypatch, plan):
    memory = take(monkeypatch, plan)
    input, weight, bias, target = drawn((5,), 3, 7, torch.float64, "cpu")
    for options in ({}, {"label_smoothing": 0.1, "softcap": 2.0, "z_loss": 0.01}):

        def loss(*operands, given=options):
            x, w, b = operands
            return cudaloss.linear_cross_entropy(x, w, target, linear_bias=b, memory=memory, **given)

        assert torch.autograd.gradcheck(loss, (input, weight, bias))
        assert torch.autograd.gradgradcheck(loss, (input, weight, bias))


def test_transforms(monkeypatch, device):
    take(monkeypatch, "kept")
    input, weight, bias, target = drawn((5,), 3, 7, torch.float64, device)

    def loss(x, w, b):
        return cudaloss.linear_cross_entropy(x, w, target, linear_bias=b)

    def definition(x, w, b):
        return F.cross_entropy(F.linear(x, w, b), target)

    operands = input.detach(), weight.detach(), bias.detach()
    for transform in (
        lambda f: torch.func.grad(f, argnums=(0, 1, 2))(*operands),
        lambda f: torch.func.jvp(f, operands, operands),
        lambda f: torch.func.vmap(torch.func.grad(f), (None, 0, None))(operands[0], weight.detach()[None], operands[2]),
    ):
        torch.testing.assert_close(transform(loss), transform(definition))


@pytest.mark.filterwarnings("ignore:TensorFloat32")
@of_plans
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compile(monkeypatch, device, plan, dtype):
    memory = take(monkeypatch, plan)
    input, weight, bias, target = drawn((19,), 8, 53, dtype, device)

    def step(x, w, b, t):
        return cudaloss.linear_cross_entropy(x, w, t, linear_bias=b, memory=memory, label_smoothing=0.1) * 0.5

    torch._dynamo.reset()
    backend = "inductor" if dtype == torch.float32 else "aot_eager"  # one takes seconds
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    leaves, incoming = (input, weight, bias), torch.ones(())
    call = input, weight, bias, target
    options = {"label_smoothing": 0.1, "scale": 0.5}
    theirs, truth = (found_by(*by_definition(*call, x, **options), incoming.to(device)) for x in (dtype, None))
    for _ in range(2):
        assert_close(found_by(compiled(*call), leaves, incoming.to(device)), theirs, truth)


def test_captures(monkeypatch):
    """A captured graph has gradients, because it has PyTorch's own ops."""
    take(monkeypatch, "kept")
    input, weight, bias, target = drawn((5,), 3, 7, torch.float64, "cpu")

    def loss(x, w, b):
        return cudaloss.linear_cross_entropy(x, w, target, linear_bias=b)

    graph = torch.fx.experimental.proxy_tensor.make_fx(loss)(input, weight, bias)
    ours, theirs = graph(input, weight, bias), loss(input, weight, bias)
    torch.testing.assert_close(ours, theirs)
    leaves = input, weight, bias
    torch.testing.assert_close(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves))


@of_plans
def test_autocast(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((19,), 8, 53, torch.float32, device)
    with torch.autocast(device, dtype=torch.bfloat16):
        found = cudaloss.linear_cross_entropy(input, weight, target, memory=memory)
        gradients = torch.autograd.grad(found, (input, weight))
    truth, leaves = by_definition(input, weight, None, target)
    assert found.dtype == torch.float32
    expected = torch.autograd.grad(truth, leaves[:2])
    for ours, theirs in zip(gradients, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=0.05, atol=0.02 * theirs.abs().max().item())


@of_plans
def test_checkpoint_and_inference(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((19,), 8, 53, torch.float32, device)

    def loss(x, w):
        return cudaloss.linear_cross_entropy(x, w, target, memory=memory)

    expected = torch.autograd.grad(loss(input, weight), (input, weight))
    found = torch.autograd.grad(checkpoint(loss, input, weight, use_reentrant=False), (input, weight))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    with torch.inference_mode():
        torch.testing.assert_close(loss(input, weight), loss(input, weight))


def test_a_checkpoint_keeps_no_logits(monkeypatch, device):
    """Its hooks would not see them."""
    take(monkeypatch, "kept")
    input, weight, _, target = drawn((19,), 8, 53, torch.float32, device)
    found = cudaloss.linear_cross_entropy(input, weight, target)
    held = checkpoint(lambda x: cudaloss.linear_cross_entropy(x, weight, target), input, use_reentrant=False)

    def nodes(node):
        return [node, *(x for (child, _) in node.next_functions if child is not None for x in nodes(child))]

    assert any(hasattr(node, "logits") for node in nodes(found.grad_fn))
    assert not any(hasattr(node, "logits") for node in nodes(held.grad_fn))


@of_plans
def test_a_learnt_sample_weight_and_normalizer(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((19,), 8, 53, torch.float64, device)
    own = torch.rand(19, dtype=torch.float64, device=device, requires_grad=True)
    divisor = torch.tensor(3.0, dtype=torch.float64, device=device, requires_grad=True)
    found = cudaloss.linear_cross_entropy(input, weight, target, sample_weight=own, normalizer=divisor, memory=memory)
    kept = target != -100
    losses = F.cross_entropy(F.linear(input, weight), torch.where(kept, target, 0), reduction="none")
    truth = (losses * own * kept).sum() / divisor
    leaves = input, weight, own, divisor
    torch.testing.assert_close(torch.autograd.grad(found, leaves), torch.autograd.grad(truth, leaves))


def test_what_has_the_whole_logits(device):
    """Probabilities, further dimensions of the weight, and learnt class weights."""
    input, weight, _, target = drawn((6,), 8, 5, torch.float64, device)
    q = torch.randn(6, 5, dtype=torch.float64, device=device).softmax(1)
    logits = F.linear(input, weight)
    torch.testing.assert_close(cudaloss.linear_cross_entropy(input, weight, q), F.cross_entropy(logits, q))
    learnt = torch.rand(5, dtype=torch.float64, device=device, requires_grad=True)
    found = cudaloss.linear_cross_entropy(input, weight, target, weight=learnt, memory="least")
    truth = cudaloss.cross_entropy(logits, target, learnt)
    torch.testing.assert_close(torch.autograd.grad(found, learnt), torch.autograd.grad(truth, learnt))
    wide = torch.randn(5, 2, 3, 8, dtype=torch.float64, device=device)
    index = torch.randint(5, (6, 2, 3), device=device)
    logits = F.linear(input, wide.reshape(-1, 8)).reshape(6, 5, 2, 3)
    torch.testing.assert_close(cudaloss.linear_cross_entropy(input, wide, index), F.cross_entropy(logits, index))


def saved_sizes(call) -> list[int]:
    """The elements of each tensor that a call saves for its backward."""
    sizes: list[int] = []

    def pack(x):
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        call()
    return sizes


@pytest.mark.parametrize("plan", ["step", "least"])
def test_no_logits_are_saved(monkeypatch, device, plan):
    memory = take(monkeypatch, plan)
    input, weight, _, target = drawn((200,), 4, 300, torch.float32, device)
    sizes = saved_sizes(lambda: cudaloss.linear_cross_entropy(input, weight, target, memory=memory))
    assert sizes and max(sizes) < 200 * 300


@pytest.mark.cuda
def test_memory_on_a_gpu():
    """Beyond operands and gradients, in MiB: of 2,048 rows and 65,536 classes the logits have 256."""
    rows, features, classes = 2048, 1024, 65_536
    input = torch.randn(rows, features, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    weight = torch.randn(classes, features, device="cuda", dtype=torch.bfloat16).mul_(0.02).requires_grad_()
    target = torch.randint(classes, (rows,), device="cuda")

    def beyond(memory):
        def step():
            input.grad = weight.grad = None
            cudaloss.linear_cross_entropy(input, weight, target, memory=memory).backward()

        step()
        input.grad = weight.grad = None
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        gradients = 2 * (input.numel() + weight.numel())
        return (torch.cuda.max_memory_allocated() - before - gradients) / 2**20

    assert beyond("fast") <= 264
    assert beyond("least") <= 128 + 8 + 8  # half of the logits, and input's gradient in float32


def test_a_plan_follows_from_the_sizes():
    def keeps(rows, features, classes, memory="fast"):
        head = plans.Head(
            torch.empty(rows, features, device="meta"), torch.empty(classes, features, device="meta"), None
        )
        return calls._keeps_logits(head, memory)

    assert keeps(8192, 4096, 128_256) and keeps(4096, 1024, 32_000) and keeps(16_384, 64, 1000)
    assert not keeps(16_384, 2048, 151_936) and not keeps(64, 64, 1000, "least")
    assert [plans.chunks(rows) for rows in (1, 4096, 4097, 16_384)] == [1, 1, 2, 4]


def test_errors():
    input, weight, bias, target = drawn((6,), 8, 5, torch.float32, "cpu")
    call = cudaloss.linear_cross_entropy
    for wrong, error, message in (
        (lambda: call(input, weight[:, :7], target), RuntimeError, "expected equal input and linear_weight last dim"),
        (lambda: call(input, weight[0], target), RuntimeError, "expected linear_weight with dimensionality at least 2"),
        (lambda: call(input, weight, target[:5]), ValueError, "Expected target size"),
        (lambda: call(input, weight, target.double()), RuntimeError, "target must be of shape"),
        (lambda: call(input, weight, target, linear_bias=bias[:4]), RuntimeError, "expected linear_bias shape"),
        (lambda: call(input, weight, target, memory="most"), ValueError, "memory must be 'fast', 'least' or None"),
        (lambda: call(input, weight, target, reduction="average"), ValueError, "reduction must be"),
        (lambda: call(input, weight, target, weight=torch.ones(4)), RuntimeError, "weight tensor should be defined"),
        (lambda: call(input, weight, target, softcap=0.0, memory="least"), RuntimeError, "softcap must be"),
        (lambda: call(input, weight, target, label_smoothing=2.0), RuntimeError, "label_smoothing must be"),
        (lambda: call(input, weight, target, mask=torch.ones(4, dtype=torch.bool)), RuntimeError, "mask must have"),
        (lambda: call(input.long(), weight, target), RuntimeError, "input must be a floating-point tensor"),
    ):
        with pytest.raises(error, match=message):
            wrong()


def test_the_module():
    options = {"bias": True, "label_smoothing": 0.1, "z_loss": 0.01, "softcap": 5.0, "memory": "least"}
    module = cudaloss.LinearCrossEntropyLoss(8, 5, **options)
    input, target = torch.randn(6, 8), torch.randint(5, (6,))
    given = {name: options[name] for name in ("label_smoothing", "z_loss", "softcap", "memory")}
    layer = module.linear
    expected = cudaloss.linear_cross_entropy(input, layer.weight, target, linear_bias=layer.bias, **given)
    torch.testing.assert_close(module(input, target), expected)
    assert {*module.state_dict()} == {"linear.weight", "linear.bias"} and "softcap=5.0" in repr(module)
    if hasattr(torch.nn, "LinearCrossEntropyLoss"):  # torch 2.13
        theirs = torch.nn.LinearCrossEntropyLoss(8, 5, out_features=(2,), bias=True)
        own = cudaloss.LinearCrossEntropyLoss(8, 5, out_features=(2,), bias=True)
        own.load_state_dict(theirs.state_dict())
        target = torch.randint(5, (6, 2))
        torch.testing.assert_close(own(input, target), theirs(input, target))


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="torch has it from 2.13 on")
@pytest.mark.parametrize("plan", [None, *PLANS])
def test_samples_and_errors_of_pytorch(monkeypatch, plan):
    from torch.testing._internal.common_methods_invocations import op_db

    memory = None if plan is None else take(monkeypatch, plan)
    for op in (op for op in op_db if op.name == "nn.functional.linear_cross_entropy"):
        for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
            plain = {name: x for name, x in sample.kwargs.items() if name != "options"}
            found = cudaloss.linear_cross_entropy(sample.input, *sample.args, **sample.kwargs, memory=memory)
            expected = F.linear_cross_entropy(sample.input, *sample.args, **plain)
            torch.testing.assert_close(found, expected)
            leaves = [x for x in (sample.input, sample.args[0]) if x.requires_grad]
            incoming = torch.rand_like(expected)
            torch.testing.assert_close(
                torch.autograd.grad(found, leaves, incoming), torch.autograd.grad(expected, leaves, incoming)
            )
        for wrong in op.error_inputs("cpu"):
            sample = wrong.sample_input
            with pytest.raises((RuntimeError, ValueError)):
                cudaloss.linear_cross_entropy(sample.input, *sample.args, **sample.kwargs, memory=memory)
