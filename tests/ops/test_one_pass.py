"""One-pass training: a gradient made in the forward stays right whatever becomes of it before it is used."""

from __future__ import annotations

import gc
import math
import weakref
from functools import cache

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import cudaloss
from capturing import private_calls
from oracle import bar, error, exact_gradients, exact_slopes, op, operands, torch_op

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
# If it is what the forward expects (on a CPU 1), nothing changes; other numbers cause a new computation.
GRAD_OUTPUTS = (1.0, 0.5, -1.0, 65536.0, 0.3, -7.0, 0.0, 1e-30)


def leaf(x):
    return x.detach().requires_grad_()


def exact(spec, input, target, grad_output, reduction="mean"):
    incoming = torch.tensor(grad_output, dtype=torch.float64, device=input.device)
    return exact_gradients(spec, incoming, input, target, reduction, spec.default)


def assert_right(spec, gradient, truth):
    # float64 has no wider oracle: its own two roundings are in the comparison
    usual = 2.0 if gradient.dtype == torch.float64 else 0.51
    assert error(gradient, truth, gradient.dtype) <= bar(spec, gradient.dtype, usual)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("dtypes", [(a, b) for a in DTYPES for b in DTYPES], ids=str)
def test_any_grad_output(spec, device, dtypes, reduction):
    input, target = operands((5003,), dtypes, device)
    slopes = cache(exact_slopes(spec, input, target, reduction, spec.default))
    factors = [torch.tensor(x, dtype=torch.promote_types(*dtypes), device=device) for x in GRAD_OUTPUTS]
    for wanted in ((True, False), (False, True), (True, True)):
        tensors = [x.detach().requires_grad_(need) for x, need in zip((input, target), wanted, strict=True)]
        chosen = [x for x in tensors if x.requires_grad]
        for incoming in factors:
            value = op(spec)(*tensors, reduction)
            found = torch.autograd.grad(value, chosen, incoming)
            truth = slopes(incoming)  # of the same tensor the same
            for gradient, one in zip(found, [t for t, need in zip(truth, wanted, strict=True) if need], strict=True):
                assert_right(spec, gradient, one)


@pytest.mark.parametrize("grad_output", [math.nan, math.inf, -math.inf])
def test_special_grad_outputs(spec, device, grad_output):
    input, target = operands((100,), (torch.float32,) * 2, device)
    input = leaf(input)
    (ours,) = torch.autograd.grad(op(spec)(input, target), input, torch.tensor(grad_output, device=device))
    (of_one,) = torch.autograd.grad(torch_op(spec)(input, target), input)
    torch.testing.assert_close(ours, of_one * grad_output, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_that_the_first_pass_could_not_store(device, dtype):
    """Stored below the normal numbers, then multiplied: the result has the operands' digits, not the stored ones."""
    info = torch.finfo(dtype)
    exponents = torch.linspace(math.log2(info.tiny), math.log2(info.tiny) + 40, 4000, dtype=torch.float64)
    input = leaf(torch.exp2(exponents).to(device, dtype))
    target = torch.zeros_like(input)
    for grad_output in (2.0**40, 2.0**20, 0.5):
        incoming = torch.tensor(grad_output, dtype=dtype, device=device)
        (found,) = torch.autograd.grad(torch.ops.cudaloss.mse(input, target), input, incoming)
        truth = 2 * input.detach().double() * grad_output / input.numel()
        assert error(found, truth, dtype) <= 1.0  # a result below the normal numbers may be rounded twice


@pytest.mark.parametrize("size", [1 << 16, pytest.param(1 << 27, marks=pytest.mark.cuda)])
def test_scaled_fp16_gradients_do_not_underflow(spec, device, size):
    """The mean over 2^27 elements divides by more than fp16 can hold; a gradient scaler's 65,536 must come first."""
    if (device == "cuda") != (size > 1 << 16):
        pytest.skip("one size a device")
    scale = 65536.0
    input = leaf(torch.randn(size, device=device, dtype=torch.float16))
    target = torch.randn(size, device=device, dtype=torch.float16)
    # A float32 loss, as under autocast: fp16 has no 65,536.
    (found,) = torch.autograd.grad(op(spec)(input, target, dtype=torch.float32) * scale, input)
    (theirs,) = torch.autograd.grad(torch_op(spec)(input.float(), target.float()) * scale, input)
    assert theirs.isfinite().all()
    part = slice(0, 1 << 16)
    d = (input.detach()[part].double() - target[part].double()).requires_grad_()
    loss = torch_op(spec)(d, torch.zeros_like(d), "sum")
    truth = torch.autograd.grad(loss, d)[0] * scale / size
    ours = error(found[part], truth, torch.float16)
    assert ours <= max(bar(spec, torch.float16, 0.51), error(theirs[part], truth, torch.float16))
    # At half the smallest number PyTorch's own rounding decides: BCE with logits differs at 2 to 5 of 2^27 elements.
    smallest = torch.finfo(torch.float16).smallest_normal * torch.finfo(torch.float16).eps
    lost = ((found == 0) & (theirs.abs() > smallest)).sum().item()  # a number: pytest writes out an operand of `==`
    assert lost == 0


def test_one_reading_of_the_operands(spec, device):
    input, target = operands((64,), (torch.float32,) * 2, device)
    one = lambda: op(spec)(leaf(input), target).backward()  # noqa: E731
    both = lambda: op(spec)(leaf(input), leaf(target)).backward()  # noqa: E731
    rescale = [] if device == "cpu" else ["rescale_"]  # on the CPU a 1 is seen to be one
    kind = "forward_with_grads" if spec.second_default else "loss_with_grad"
    for step in (one, both):
        assert private_calls(step) == [kind, *rescale]


def test_two_readings_where_one_does_not_do(spec, device):
    input, target = operands((64,), (torch.float32,) * 2, device)
    for result in (None, torch.float32):  # the quick way to the ops, and the thorough one
        step = lambda: op(spec)(leaf(input), target, "none", dtype=result).sum().backward()  # noqa: B023, E731
        assert private_calls(step) == ["forward", "gradients"]


@pytest.mark.parametrize(("rank", "kernel"), [(7, "loss"), (3, "loss"), (6, "forward"), (7, "forward"), (8, None)])
def test_which_kernels_serve_which_rank(spec, device, rank, kernel):
    """Dense operands of any rank; with options up to six dimensions, and beyond where they can be merged; else plain
    PyTorch."""
    input, target = (x.view((1,) * (rank - 2) + (2, -1)) for x in operands((64,), (torch.float32,) * 2, device))
    target = target if kernel else target.mT.contiguous().mT
    options = {} if kernel == "loss" else {"scale": 0.5}
    kernel = "forward" if kernel == "loss" and spec.second_default else kernel
    # The quick way to the ops, and the thorough one; the quick one asks an op that may then decline.
    for result in (None, torch.bfloat16) if kernel else (torch.bfloat16,):
        found = private_calls(lambda: op(spec)(input, target, dtype=result, **options))  # noqa: B023
        assert set(found) == ({kernel if result is None else "forward"} if kernel else set())


def test_retained_graphs_hand_out_gradients_of_their_own(spec, device):
    input, target = operands((1000,), (torch.float32,) * 2, device)
    a, b = leaf(input), leaf(target)
    value = op(spec)(a, b)
    for grad_output in (1.0, 0.5, 0.3, 1.0):
        incoming = torch.tensor(grad_output, device=device)
        found = torch.autograd.grad(value, (a, b), incoming, retain_graph=True)
        for gradient, truth in zip(found, exact(spec, input, target, incoming.item()), strict=True):
            assert_right(spec, gradient, truth)
            gradient.fill_(math.nan)  # whoever was given it may do what he likes


def test_saved_tensor_hooks_that_change_one_layout(spec, device):
    input, target = (x.to(memory_format=torch.channels_last) for x in torch.randn(2, 2, 3, 4, 5, device=device))
    a, saved = leaf(input), []

    def pack(tensor):
        saved.append(tensor)
        return tensor.contiguous() if len(saved) == 1 else tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = op(spec)(a, target)
    (found,) = torch.autograd.grad(value, a, torch.tensor(0.5, device=device))
    torch.testing.assert_close(found, exact(spec, input, target, 0.5)[0].float())


def test_an_unused_gradient_is_freed_with_its_graph():
    input = leaf(torch.randn(1 << 20))
    value = cudaloss.mse_loss(input, torch.zeros_like(input))
    saved = value.grad_fn.saved_tensors[2]
    storage = saved.untyped_storage()
    assert storage.nbytes() == 4 << 20
    gone = weakref.ref(saved)
    del saved, value, storage
    gc.collect()
    assert gone() is None


@pytest.mark.cuda
@pytest.mark.parametrize("size", [1 << 20, (1 << 28) + 5])
def test_peak_memory_is_one_gradient(spec, size):
    input, target = torch.randn(2, size, device="cuda")
    input.requires_grad_()
    op(spec)(input, target)  # the stream's own workspace, once
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    op(spec)(input, target).backward()
    assert torch.cuda.max_memory_allocated() - before < 4 * size + 1e6
    assert torch.cuda.memory_allocated() - before < 4 * size + 4096  # rounded up by the allocator


# ---- under a compiler ----


def compiled_loss(spec, backend):
    torch._dynamo.reset()
    return torch.compile(lambda a, b: op(spec)(a, b), backend=backend, fullgraph=True)


def test_compiled_training_is_one_pass_too(spec, device, backend):
    input, target = operands((1000,), (torch.float32,) * 2, device)
    a, b = leaf(input), leaf(target)
    compiled = compiled_loss(spec, backend)
    compiled(a, target).backward()
    compiled(a, b).backward()
    a.grad = b.grad = None
    step = ["compiled_loss_with_grad", "compiled_finish_grad"]
    if spec.second_default:  # a number that a plain call does not have
        step = ["compiled_forward_with_grads", "compiled_finish_grads"]
    assert private_calls(lambda: compiled(a, target).backward()) == step
    assert_right(spec, a.grad, exact(spec, input, target, 1.0)[0])
    a.grad = None
    assert private_calls(lambda: compiled(a, b).backward()) == step
    for operand, truth in zip((a, b), exact(spec, input, target, 1.0), strict=True):
        assert_right(spec, operand.grad, truth)


def test_compiled_retained_graphs(spec, device, backend):
    input, target = operands((1000,), (torch.float32,) * 2, device)
    a, b = leaf(input), leaf(target)
    value = compiled_loss(spec, backend)(a, b)
    for grad_output in (0.5, 1.0, 0.3):
        incoming = torch.tensor(grad_output, device=device)
        found = torch.autograd.grad(value, (a, b), incoming, retain_graph=True)
        for gradient, truth in zip(found, exact(spec, input, target, incoming.item()), strict=True):
            assert_right(spec, gradient, truth)
            gradient.fill_(math.nan)


def test_compiled_checkpoint_recomputes_in_the_backward(spec, device, backend):
    """Pass and gradient are then in one graph, in which the compiler may reuse the memory between them."""
    torch._dynamo.reset()

    def loss(x, y):
        return op(spec)(x.sin() * 2, y)

    compiled = torch.compile(lambda x, y: checkpoint(loss, x, y, use_reentrant=False), backend=backend, fullgraph=True)
    x, y = (torch.randn(1 << 12, device=device) for _ in range(2))
    x.requires_grad_()
    for _ in range(2):
        x.grad = None
        compiled(x, y).backward()
        (expected,) = torch.autograd.grad(loss(x, y), x)
        torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=1e-9)


def test_compiled_with_the_gradient_in_the_same_graph(spec, device, backend):
    """What a compiler sees of a whole step: memory of the pass's gradient is free to it once the step is through."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = (torch.randn(1 << 12, device=device) for _ in range(2))

    def step(x, y):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(op(spec)(x, y), x)
        later = (y + 1).cos() * gradient.sum()  # of the gradient's size: it may be given its memory
        return gradient, later.sin()

    graph = make_fx(step, tracing_mode="fake")(x, y)
    torch._dynamo.reset()
    compiled = torch.compile(graph, backend=backend)
    for found, expected in zip(compiled(x, y), step(x, y), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore::UserWarning")  # of Inductor, on its own CUDA graphs
def test_compiled_with_cuda_graphs(spec):
    input, target = operands((100_000,), (torch.float32,) * 2, "cuda")
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b: op(spec)(a, b), mode="reduce-overhead", fullgraph=True)
    a = leaf(input)
    for grad_output in (1.0, 0.5, 1.0, 0.5, 0.3):
        torch.compiler.cudagraph_mark_step_begin()
        a.grad = None
        compiled(a, target).backward(torch.tensor(grad_output, device="cuda"))
        assert_right(spec, a.grad, exact(spec, input, target, torch.tensor(grad_output).item())[0])


@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_modules_in_a_compiled_model(spec, device, backend):
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 8)).to(device)
    criterion = getattr(cudaloss, spec.module)()
    x, y = torch.randn(64, 16, device=device), torch.randn(64, 8, device=device)
    step = torch.compile(lambda x, y: criterion(model(x), y), fullgraph=True, backend=backend)
    for factor in (1.0, 0.5, 0.3):
        model.zero_grad()
        (factor * step(x, y)).backward()
        found = [p.grad.clone() for p in model.parameters()]
        expected = torch.autograd.grad(factor * criterion(model(x), y), list(model.parameters()))
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=1e-6)
