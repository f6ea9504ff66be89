"""Operands of any layout and rank, overlapping and lazily negated ones; with keywords and without."""

from __future__ import annotations

import itertools

import pytest
import torch

from calls import Call, selecting, with_and_without
from cudaloss._call.modes import REDUCTIONS
from cudaloss._losses.options import NONE, Options
from oracle import leaf, op, operands


def stepped(x):
    return torch.stack([x, torch.full_like(x, 7)], -1)[..., 0]


def padded(x):
    return torch.nn.functional.pad(x, (1, 2), value=float("nan"))[..., 1:-2]


LAYOUTS = {
    "contiguous": lambda x: x.contiguous(),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "permuted": lambda x: x.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0),
    "padded": padded,
    "stepped": stepped,
    "padded and permuted": lambda x: padded(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1),
    "offset": lambda x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "expanded": lambda x: x[:, :1].expand(x.shape),
    "expanded innermost": lambda x: x[..., :1].expand(x.shape),
    "windows": lambda x: x.flatten().as_strided(x.shape, (30, 7, 3, 1)),
}


@pytest.mark.parametrize("of_input", LAYOUTS)
def test_layouts(spec, device, of_input):
    shape = (3, 5, 6, 8)
    input, target = operands(shape, (torch.float32, torch.bfloat16), device)
    for of_target, options in itertools.product(LAYOUTS.values(), with_and_without(shape, device)):
        a, b = LAYOUTS[of_input](input).detach(), of_target(target).detach()
        assert a.shape == b.shape == shape
        for reduction in REDUCTIONS:
            Call(spec, a.requires_grad_(), b.requires_grad_(), reduction, options=options).assert_right()


MANY = (4, 40, 16)  # more than are computed exactly, in whole vectors of every dtype


@pytest.mark.any_numbers
@pytest.mark.parametrize(
    "dtypes",
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32),
        (torch.float32, torch.float16),
        (torch.float32, torch.uint8),
    ],
    ids=lambda dtypes: "-".join(str(dtype)[6:] for dtype in dtypes),
)
def test_many_elements_with_a_target_that_is_broadcast(spec, device, dtypes):
    """Without a gradient of its own, in which PyTorch would fold it. With masks and weights, in order and not."""
    input, whole = operands(MANY, dtypes, device)
    mask, weight = torch.rand(MANY, device=device) < 0.6, torch.rand(MANY, device=device) + 0.1
    for target in (whole[0, 0], whole[0, :, :1], whole[:, :1], whole[:, :1, :1]):
        for options in (
            Options(),
            Options(mask=mask),
            Options(weight=weight),
            Options(mask=mask.mT.contiguous().mT, weight=weight[..., :1].to(dtypes[0]), ignore_nan=True),
            Options(mask=mask, batch_dims=1),
        ):
            Call(spec, leaf(input), target.expand(MANY), options=options).assert_right()


DENSE = ("contiguous", "channels_last", "transposed", "permuted")


@pytest.mark.parametrize("of_target", DENSE)
@pytest.mark.parametrize("of_input", DENSE)
def test_gradients_lie_as_their_operands(spec, device, of_input, of_target):
    shape = (3, 5, 6, 8)
    input, target = operands(shape, (torch.float32,) * 2, device)
    for options, reduction in itertools.product(with_and_without(shape, device), REDUCTIONS):
        a, b = (LAYOUTS[name](x).detach().requires_grad_() for name, x in ((of_input, input), (of_target, target)))
        given = {name: value for name, value in options._asdict().items() if value is not None}
        value = op(spec)(a, b, reduction, **given)
        # As the loss hands them out: what is accumulated in .grad, PyTorch lays out as the operand itself.
        found = torch.autograd.grad(value, (a, b), torch.ones_like(value), retain_graph=True)
        assert [gradient.stride() for gradient in found] == [a.stride(), b.stride()]
        value.backward(torch.ones_like(value))
        assert (a.grad.stride(), b.grad.stride()) == (a.stride(), b.stride())


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dims", [5, 8, 12, 25])
def test_high_ranks_that_do_not_collapse(spec, device, dims, reduction):
    shape = (2,) * dims if dims <= 12 else (1, 2) * 8 + (1,) * (dims - 16)
    input, target = operands(shape, (torch.float32,) * 2, device)
    backwards = target.permute(*reversed(range(dims))).contiguous().permute(*reversed(range(dims)))
    options = selecting(shape, device, 2)
    mask = options.mask.transpose(0, dims - 1).contiguous().transpose(0, dims - 1)
    for given in (NONE, options, options._replace(mask=mask)):
        Call(spec, leaf(input), leaf(backwards), reduction, options=given).assert_right()


def test_lazily_negated_and_conjugated_views(spec, device):
    """Tensors whose storage holds the negative of their elements."""
    z = torch.randn(300, dtype=torch.complex64, device=device)
    negated = z.conj().imag
    assert negated.is_neg()
    plain = negated.resolve_neg()
    other = torch.randn(300, device=device)
    weight = torch.complex(other, -other.abs() - 0.1).conj().imag
    assert weight.is_neg() and (weight > 0).all()
    for options in ({}, {"weight": weight}):
        resolved = {name: x.resolve_neg() for name, x in options.items()}
        for given, expected in (((negated, other), (plain, other)), ((other, negated), (other, plain))):
            assert torch.equal(op(spec)(*given, **options), op(spec)(*expected, **resolved))
        a, b = leaf(other), leaf(other)
        op(spec)(a, negated, **options).backward()
        op(spec)(b, plain, **resolved).backward()
        assert torch.equal(a.grad, b.grad)
