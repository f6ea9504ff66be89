"""On a GPU a forward makes its gradients for the grad_output that it expects: the last one of such a call. Whatever it
expects, the gradients have the same bits; and where it is right, the backward changes nothing."""

from __future__ import annotations

import math
import threading
from functools import partial

import pytest
import torch

import cudaloss
from cudaloss._call.modes import BELOW_AUTOGRAD, DTYPES, EXPECTS, FOR_INPUT, pack
from oracle import HALVES, op, operands, torch_op

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

FACTORS = (1.0, 0.3, 0.25, -7.0, 65536.0, 1e-30, 1e-60, 0.0, math.inf, math.nan)


def scaled(value, factor):
    """A grad_output of `factor`; infinite or 0 where the value's dtype cannot hold it."""
    return torch.full_like(value, factor, dtype=torch.float64).to(value.dtype)


def gradients(call, leaves, factor):
    value = call(*leaves)
    return torch.autograd.grad(value, leaves, scaled(value, factor))


def assert_same_bits(call, leaves):
    """Each factor after itself, and after 0.3, 1 and inf."""
    expected = {}
    for factor in FACTORS:
        gradients(call, leaves, factor)
        expected[factor] = gradients(call, leaves, factor)
    for before in (0.3, 1.0, math.inf):
        for factor, right in expected.items():
            gradients(call, leaves, before)
            for found, wanted in zip(gradients(call, leaves, factor), right, strict=True):
                torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


def changes(call, leaves, factor):
    """Whether a backward with this factor changes the gradients that the forward has made."""
    value = call(*leaves)
    made = value.grad_fn.saved_tensors[2]
    made.data.fill_(3.0)
    (found, *_) = torch.autograd.grad(value, leaves, scaled(value, factor))
    return bool((found != 3.0).any())


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype).requires_grad_()


def rows(classes, dtype=torch.float32, result=None, **given):
    given["dtype"] = result
    input, target = leaf(40, classes, dtype=dtype), torch.arange(40, device="cuda") % classes
    if given.get("weight"):
        given["weight"] = torch.rand(classes, device="cuda") + 0.5
    return partial(cudaloss.cross_entropy, target=target, **given), [input]


def vectors(loss, of=torch.float32, count=2, **given):
    return partial(loss, **given), [leaf(30, 65, dtype=of) for _ in range(count)]


def strided_rows():
    target = torch.randint(0, 19, (2, 8, 33), device="cuda")
    return partial(cudaloss.cross_entropy, target=target), [leaf(2, 19, 8, 33)]


def probabilities():
    return partial(cudaloss.cross_entropy, target=torch.rand(40, 64, device="cuda").softmax(1)), [leaf(40, 64)]


CALLS = {
    **{f"{classes} classes {dtype}": partial(rows, classes, dtype)
       for classes in (3, 24, 64, 999, 4096, 20000) for dtype in (torch.float32, torch.bfloat16, torch.float16)},
    "float64": partial(rows, 64, torch.float64),
    "class weights": partial(rows, 999, weight=True),
    "smoothing": partial(rows, 64, weight=True, label_smoothing=0.125),
    "softcap": partial(rows, 999, softcap=30.0),
    "z_loss": partial(rows, 64, z_loss=2.0**-10),
    "sum": partial(rows, 64, reduction="sum", scale=0.5),
    "strided": strided_rows,
    "probabilities": probabilities,
    "nll": lambda: (partial(cudaloss.nll_loss, target=torch.arange(40, device="cuda")), [leaf(40, 64)]),
    "cosine": partial(vectors, cudaloss.cosine_similarity_loss),
    "kl_div_with_logits": partial(vectors, cudaloss.kl_div_with_logits, temperature=2.0),
    "kl_div_with_logits bf16": partial(vectors, cudaloss.kl_div_with_logits, torch.bfloat16, dtype=torch.float32),
    "kl_div_with_logits fp16": partial(vectors, cudaloss.kl_div_with_logits, torch.float16, dtype=torch.float32),
    "jsd_with_logits": partial(vectors, cudaloss.jsd_with_logits, temperature=2.0),
    "jsd_with_logits bf16": partial(vectors, cudaloss.jsd_with_logits, torch.bfloat16, dtype=torch.float32),
    "wide": partial(rows, 64, dtype=torch.bfloat16, result=torch.float32),
    "widest": partial(rows, 64, result=torch.float64),
    "widest vectors": partial(vectors, cudaloss.cosine_similarity_loss, torch.bfloat16, dtype=torch.float64),
    "triplet": partial(vectors, cudaloss.triplet_margin_loss, count=3),
    "triplet bf16": partial(vectors, cudaloss.triplet_margin_loss, torch.bfloat16, count=3),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_bits_of_rows(name):
    assert_same_bits(*CALLS[name]())


of_dtypes = pytest.mark.parametrize("dtypes", [(x, x) for x in DTYPES] + [(x, torch.float32) for x in HALVES], ids=str)


@pytest.mark.every_loss
@of_dtypes
def test_bits_of_elements(spec, dtypes):
    assert_bits_of_elements(spec, dtypes, 5003)


def assert_bits_of_elements(spec, dtypes, size):
    """Aligned and not, with results of each dtype: the forward's kernels can then differ in their arithmetic."""
    input, target = operands((size,), dtypes, "cuda")
    shifted = [torch.cat([x[:1], x])[1:] for x in (input, target)]
    for dtype in (None, torch.float32, torch.float64, dtypes[0]):
        for x, t in ((input, target), shifted):
            assert_same_bits(partial(op(spec), target=t, dtype=dtype), [x.detach().requires_grad_()])


@of_dtypes
@pytest.mark.parametrize("size", [64, 1 << 18])
def test_bits_of_few_and_many_elements(spec, dtypes, size):
    assert_bits_of_elements(spec, dtypes, size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_bits_with_options(spec, dtype):
    input, target = operands((64, 4096), (dtype, dtype), "cuda")
    mask, weight = torch.rand(64, 4096, device="cuda") < 0.5, torch.rand(64, 1, device="cuda")
    mask[5] = False
    for given in (
        {"mask": mask},
        {"weight": weight, "reduction": "sum"},
        {"weight": weight, "mask": mask.t().contiguous().t()},
        {"mask": mask, "batch_dims": 1},
        {"batch_dims": 1, "scale": 0.5},
        {"normalizer": torch.tensor(3.0, device="cuda")},
    ):
        assert_same_bits(lambda x, given=given: op(spec)(x, target, **given), [input.detach().requires_grad_()])
        both = [x.detach().requires_grad_() for x in (input, target)]
        assert_same_bits(lambda x, t, given=given: op(spec)(x, t, **given), both)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_expected_changes_nothing_in_rows(name):
    call, leaves = CALLS[name]()
    gradients(call, leaves, 1.0)  # forwards of other tests had no backward: from here on, calls are counted anew
    for factor in (0.3, 0.25, 1.0):
        gradients(call, leaves, factor)
        assert not changes(call, leaves, factor)
        assert changes(call, leaves, 7.0)


def test_what_is_expected_changes_nothing(spec):
    input, target = operands((64, 2048), (torch.float32,) * 2, "cuda")
    input, mask = input.requires_grad_(), torch.rand(64, 2048, device="cuda") < 0.9
    for given in ({}, {"mask": mask}, {"weight": torch.rand(64, 1, device="cuda")}, {"batch_dims": 1, "mask": mask}):
        call = partial(op(spec), target=target, **given)
        gradients(call, [input], 1.0)  # forwards without a backward, of other tests, have taken places before
        for factor in (0.3, 1.0):
            gradients(call, [input], factor)
            assert not changes(call, [input], factor)
            assert changes(call, [input], 7.0)


@pytest.mark.parametrize("shape", [(0, 10), (0, 10, 5), (0, 7, 9)])
def test_no_samples(shape):
    """The forward then starts no kernel and writes no record."""
    x = leaf(*shape)
    index = torch.zeros(shape[0], *shape[2:], dtype=torch.long, device="cuda")
    for loss in (cudaloss.cross_entropy, cudaloss.nll_loss):
        losses = loss(x, index, batch_dims=1)
        for incoming in (torch.zeros_like(losses), torch.zeros((), device="cuda").expand_as(losses)):
            (found,) = torch.autograd.grad(losses, x, incoming, retain_graph=True)
            assert found.shape == shape
    for call, leaves in (
        (cudaloss.cosine_similarity_loss, [leaf(*shape), leaf(*shape)]),
        (cudaloss.kl_div_with_logits, [leaf(*shape), leaf(*shape)]),
        (cudaloss.triplet_margin_loss, [leaf(*shape) for _ in range(3)]),
        (cudaloss.mse_loss, [leaf(*shape), leaf(*shape)]),
    ):
        losses = call(*leaves, batch_dims=1)
        for found in torch.autograd.grad(losses.sum(), leaves):
            assert found.shape == shape
    torch.cuda.synchronize()


def test_minus_zero():
    """It is not the 0 that was expected: a gradient can have its sign."""
    call, leaves = partial(cudaloss.mse_loss, target=torch.zeros(5000, device="cuda")), [leaf(5000)]
    signs = {}
    for before in (1.0, 0.0, -0.0):
        for factor in (0.0, -0.0):
            gradients(call, leaves, before)
            signs.setdefault(math.copysign(1.0, factor), []).append(gradients(call, leaves, factor)[0].signbit())
    assert all(torch.equal(x, found[0]) for found in signs.values() for x in found)


def test_factors_of_samples_that_differ():
    """There is one prediction for a call: other factors of its samples are not expected, and are right."""
    input, target = operands((8, 512), (torch.float32,) * 2, "cuda")
    input.requires_grad_()
    factors = torch.tensor([1.0, 0.3, 0.3, 2.0, 0.0, 1.0, 0.3, -1.0], device="cuda")
    alone = torch.stack([torch.autograd.grad(cudaloss.mse_loss(x, t) * f, x)[0] for x, t, f in zip(
        (y.detach().requires_grad_() for y in input), target, factors, strict=True)])  # fmt: skip
    for before in (1.0, 0.3):
        gradients(partial(cudaloss.mse_loss, target=target, batch_dims=1), [input], before)
        value = cudaloss.mse_loss(input, target, batch_dims=1)
        (found,) = torch.autograd.grad(value, input, factors)
        assert torch.equal(found, alone)


def test_terms_with_their_own_factors():
    """Several calls of one kind in a step are told apart by their order."""
    a, b, c = (leaf(3000) for _ in range(3))
    target = torch.zeros(3000, device="cuda")

    def step(look=False):
        values = [cudaloss.smooth_l1_loss(x, target) for x in (a, b, c)]
        made = [value.grad_fn.saved_tensors[2] for value in values]
        if look:
            for gradient in made:
                gradient.data.fill_(3.0)
        total = values[0] + 0.5 * values[1] + 0.3 * values[2]
        return torch.autograd.grad(total, (a, b, c))

    step()
    assert all((x == 3.0).all() for x in step(look=True))
    right = [torch.autograd.grad(cudaloss.smooth_l1_loss(x, target), x, torch.tensor(f, device="cuda"))[0]
             for x, f in ((a, 1.0), (b, 0.5), (c, 0.3))]  # fmt: skip
    assert all(torch.equal(x, y) for x, y in zip(step(), right, strict=True))


def test_each_stream_has_its_own():
    streams, factors = [torch.cuda.Stream() for _ in range(3)], (1.0, 0.3, 0.25)
    call, leaves = partial(cudaloss.mse_loss, target=torch.zeros(5000, device="cuda")), [[leaf(5000)] for _ in factors]
    torch.cuda.synchronize()
    for stream, factor, own in zip(streams, factors, leaves, strict=True):
        with torch.cuda.stream(stream):
            gradients(call, own, factor)
    for stream, factor, own in zip(streams, factors, leaves, strict=True):
        with torch.cuda.stream(stream):
            assert not changes(call, own, factor)
    torch.cuda.synchronize()


def test_more_streams_than_have_slots():
    call, leaves = partial(cudaloss.mse_loss, target=torch.zeros(5000, device="cuda")), [leaf(5000)]
    right = gradients(call, leaves, 0.3)[0]
    streams = [torch.cuda.Stream() for _ in range(40)]  # PyTorch has 32 of its own, and external ones would be more
    torch.cuda.synchronize()
    for stream in streams * 2:
        with torch.cuda.stream(stream):
            assert torch.equal(gradients(call, [leaves[0].detach().requires_grad_()], 0.3)[0], right)
    torch.cuda.synchronize()


def test_threads():
    call, leaves = partial(cudaloss.mse_loss, target=torch.zeros(5000, device="cuda")), [leaf(5000)]
    right = {factor: gradients(call, leaves, factor)[0] for factor in (1.0, 0.3)}
    torch.cuda.synchronize()
    wrong = []

    def steps(factor):
        own = [x.detach().requires_grad_() for x in leaves]  # whose nodes belong to one stream
        with torch.cuda.stream(torch.cuda.Stream() if factor == 0.3 else torch.cuda.default_stream()):
            for _ in range(200):
                if not torch.equal(gradients(call, own, factor)[0], right[factor]):
                    wrong.append(factor)

    workers = [threading.Thread(target=steps, args=(factor,)) for factor in (1.0, 0.3, 1.0, 0.3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("name", ["64 classes torch.float32", "elements", "masked"])
def test_cuda_graph_replays(name):
    """The factor of a graph changes between its replays; another graph and eager calls have others."""
    if name in CALLS:
        call, leaves = CALLS[name]()
    else:
        mask = torch.rand(5000, device="cuda") < 0.5 if name == "masked" else None
        call, leaves = partial(cudaloss.mse_loss, target=torch.zeros(5000, device="cuda"), mask=mask), [leaf(5000)]
    factors = [torch.ones((), device="cuda") for _ in range(2)]
    graphs, outputs = [], []
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        gradients(call, [x.detach().requires_grad_() for x in leaves], 1.0)
    torch.cuda.current_stream().wait_stream(side)
    for factor in factors:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            own = [x.detach().requires_grad_() for x in leaves]  # whose nodes belong to the capturing stream
            outputs.append(torch.autograd.grad(call(*own) * factor, own)[0])
        graphs.append(graph)
    expected = {factor: gradients(call, leaves, factor)[0] for factor in (1.0, 0.3, 0.25, 5.0)}
    for pair in ((1.0, 0.3), (0.3, 0.3), (0.25, 0.3), (0.25, 5.0)):
        for factor, number in zip(factors, pair, strict=True):
            factor.fill_(number)
        for _ in range(2):
            for graph, output, number in zip(graphs, outputs, pair, strict=True):
                graph.replay()
                assert torch.equal(output, expected[number])
            assert torch.equal(gradients(call, leaves, 0.25)[0], expected[0.25])


@pytest.mark.parametrize("rows", [40, 5000])
def test_cuda_graph_replays_change_nothing(rows):
    """From the second replay on. More rows are counted by a kernel of their own, beside which the forward starts, and
    whose memory is then free for the record."""
    call = partial(cudaloss.cross_entropy, target=torch.arange(rows, device="cuda") % 64)
    leaves, factor = [leaf(rows, 64)], torch.full((), 0.3, device="cuda")
    gradients(call, leaves, 1.0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        own = [x.detach().requires_grad_() for x in leaves]
        value = call(*own)
        value.grad_fn.saved_tensors[2].data.fill_(3.0)
        (found,) = torch.autograd.grad(value * factor, own)
    graph.replay()
    assert (found != 3.0).any()  # 1 was expected
    graph.replay()
    assert (found == 3.0).all()


def test_cuda_graph_replays_on_two_streams_at_once():
    call, leaves = partial(cudaloss.mse_loss, target=torch.zeros(1 << 20, device="cuda")), [leaf(1 << 20)]
    streams, factors, graphs, outputs = [], [], [], []
    gradients(call, leaves, 1.0)
    for _ in range(2):
        factors.append(torch.ones((), device="cuda"))
        streams.append(torch.cuda.Stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            own = [x.detach().requires_grad_() for x in leaves]
            outputs.append(torch.autograd.grad(call(*own) * factors[-1], own)[0])
        graphs.append(graph)
    expected = {factor: gradients(call, leaves, factor)[0] for factor in (0.3, 5.0)}
    torch.cuda.synchronize()
    for turn in range(20):
        numbers = (0.3, 5.0) if turn % 2 else (5.0, 0.3)
        for stream, factor, graph, number in zip(streams, factors, graphs, numbers, strict=True):
            with torch.cuda.stream(stream):
                factor.fill_(number)
                graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(x, expected[number]) for x, number in zip(outputs, numbers, strict=True))


def test_retained_graphs():
    call, leaves = partial(cudaloss.smooth_l1_loss, target=torch.zeros(5000, device="cuda")), [leaf(5000)]
    right = {factor: gradients(call, leaves, factor)[0] for factor in (1.0, 0.3)}
    gradients(call, leaves, 0.3)
    value = call(*leaves)
    for factor in (0.3, 1.0, 0.3):
        (found,) = torch.autograd.grad(value, leaves, scaled(value, factor), retain_graph=True)
        assert torch.equal(found, right[factor])
        found.fill_(math.nan)


def test_a_gradient_scaler_in_fp16(spec):
    """One pass from the second step on; a scale that overflows is followed by a right one."""
    input, target = operands((5000,), (torch.float16,) * 2, "cuda")
    leaves, call = [input.requires_grad_()], lambda x: op(spec)(x, target, dtype=torch.float32)
    for scale in (65536.0, 65536.0, math.inf, 32768.0, 32768.0):
        (found,) = gradients(call, leaves, scale)
        wide = input.detach().double().requires_grad_()
        (truth,) = torch.autograd.grad(torch_op(spec)(wide, target.double()), wide)
        if scale < math.inf:
            torch.testing.assert_close(found.double(), truth * scale, rtol=2**-10, atol=2**-24)
        else:
            assert not found.isfinite().all()
    assert not changes(call, leaves, 32768.0)


def test_a_record_that_hooks_have_changed(spec):
    input, target = operands((1000,), (torch.float32,) * 2, "cuda")
    input.requires_grad_()
    right = gradients(partial(op(spec), target=target), [input], 0.3)[0]
    for hook in (
        lambda x: x,
        lambda x: x.float() if x.dtype == torch.float64 else x,
        lambda x: x.cpu() if x.dtype == torch.float64 else x,
        lambda x: x * 1e30 if x.dtype == torch.float64 else x,  # its slot is then none
        lambda x: x[:1] if x.dtype == torch.float64 else x,
    ):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, hook):
            value = op(spec)(input, target)
        (found,) = torch.autograd.grad(value, input, scaled(value, 0.3))
        assert torch.equal(found, right)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_steps(spec, backend):
    torch._dynamo.reset()
    input, target = operands((5000,), (torch.float32,) * 2, "cuda")
    input.requires_grad_()
    compiled = torch.compile(lambda x: op(spec)(x, target), backend=backend, fullgraph=True)
    right = {factor: gradients(lambda x: op(spec)(x, target), [input], factor)[0] for factor in (1.0, 0.3)}
    for factor in (1.0, 0.3, 0.3, 1.0, 1.0, 0.3):
        (found,) = gradients(compiled, [input], factor)
        assert torch.equal(found, right[factor])


def test_without_the_flag_gradients_are_for_1(spec):
    input, target = operands((1000,), (torch.float32,) * 2, "cuda")
    how = pack("mean", torch.float32, spec.mode) | FOR_INPUT | BELOW_AUTOGRAD
    leaves = [input.detach().requires_grad_()]
    of_one = gradients(partial(op(spec), target=target), leaves, 1.0)[0]
    gradients(partial(op(spec), target=target), leaves, 0.3)
    private = torch.ops.cudaloss._pointwise_forward_with_grads
    _, gradient, *_, record = private(input, target, how, spec.default)
    assert record is None and torch.equal(gradient, of_one)
    _, gradient, *_, record = private(input, target, how | EXPECTS, spec.default)
    expected = torch.tensor(0.3).double()  # of a float32 grad_output
    assert record[0] == expected and not torch.equal(gradient, of_one)
