"""The same input gives the same bits: on every run, on every stream, with any number of threads, at any alignment."""

from __future__ import annotations

import warnings

import pytest
import torch

from oracle import op, operands

SIZES = (1000, 8193, 100_003, 3_000_001)


def bits(spec, input, target):
    """The value and both gradients of a mean."""
    input, target = input.detach().requires_grad_(), target.detach().requires_grad_()
    value = op(spec)(input, target)
    return value.detach(), *torch.autograd.grad(value, (input, target))


def assert_same_bits(first, second):
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a, b)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", SIZES)
def test_repeats(spec, device, size):
    tensors = operands((size,), (torch.float32, torch.float32), device)
    first = bits(spec, *tensors)
    for _ in range(5):
        assert_same_bits(first, bits(spec, *(x.clone() for x in tensors)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_number_of_threads(spec, size, dtype, threads):
    tensors = operands((size,), (dtype, dtype), "cpu")
    threads(1)
    first = bits(spec, *tensors)
    for count in (2, 3, 7):
        threads(count)
        assert_same_bits(first, bits(spec, *tensors))


@pytest.mark.parametrize("size", SIZES)
def test_alignment(spec, device, size):
    tensors = operands((size,), (torch.float32, torch.float32), device)
    shifted = tuple(torch.cat([x.new_zeros(1), x])[1:] for x in tensors)
    assert shifted[0].data_ptr() % 16 != tensors[0].data_ptr() % 16
    (value, *gradients), (other, *others) = bits(spec, *tensors), bits(spec, *shifted)
    assert_same_bits(gradients, others)
    if device == "cuda" and spec.kernels == "general":  # another kernel, which adds in another order
        assert torch.nextafter(value, other) == other
    else:
        assert torch.equal(value, other)


@pytest.mark.cuda
def test_side_streams(spec):
    tensors = [operands((size,), (torch.float32, torch.float32), "cuda") for size in SIZES]
    expected = [bits(spec, *pair) for pair in tensors]
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(10):
        found = []
        for i, pair in enumerate(tensors):
            with torch.cuda.stream(streams[i % len(streams)]):
                found.append(bits(spec, *pair))
        torch.cuda.synchronize()
        for a, b in zip(expected, found, strict=True):
            assert_same_bits(a, b)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream")  # nothing is accumulated here
@pytest.mark.parametrize("size", SIZES)
def test_cuda_graph(spec, size):
    input, target = operands((size,), (torch.float32, torch.float32), "cuda")
    input.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.autograd.grad(op(spec)(input, target), input)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = op(spec)(input, target)
        (gradient,) = torch.autograd.grad(value, input)
    for _ in range(3):
        with torch.no_grad():
            input.copy_(torch.randn_like(input))
        graph.replay()
        expected = bits(spec, input, target)
        assert torch.equal(value, expected[0])
        assert torch.equal(gradient, expected[1])


@pytest.fixture
def forbidden_syncs():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "a prototype feature"
        torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
def test_no_host_synchronisation(spec, forbidden_syncs):
    input, target = (torch.randn(100_003, device="cuda").requires_grad_() for _ in range(2))
    op(spec)(input, target).backward()
    op(spec)(input.to(torch.bfloat16), target, "none").sum().backward()
