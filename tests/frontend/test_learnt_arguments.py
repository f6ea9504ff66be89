"""Arguments of modules that can be tensors: a Parameter is learnt, a tensor is a buffer, as in PyTorch's modules."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import Tensor, nn

import cudaloss
from cudaloss._losses.table import PUBLIC, LossSpec


def _names(spec: LossSpec) -> list[str]:
    """The arguments of the module that can be tensors."""
    third = spec.parameter
    kept = [third.name] if third and not third.of_call else []
    return [*(["weight"] if spec.weight_first else []), *kept]


ARGUMENTS = [(spec, name) for spec in PUBLIC for name in _names(spec)]
of_arguments = pytest.mark.parametrize(
    ("loss", "name"), ARGUMENTS, ids=[f"{spec.module}-{name}" for spec, name in ARGUMENTS]
)
CLASSES = 3


def value() -> Tensor:
    """For every loss: a number for each class, within each interval."""
    return torch.linspace(0.3, 0.7, CLASSES)


def module(loss: LossSpec, name: str, given: object) -> nn.Module:
    return getattr(cudaloss, loss.module)(**{name: given}, reduction="mean")


def operands(loss: LossSpec) -> tuple[Tensor, Tensor]:
    input = torch.rand(8, CLASSES) * 0.8 + 0.1
    return input, torch.arange(8) % CLASSES if loss.of_rows else (torch.rand(8, CLASSES) > 0.5).float()


def test_every_kind_of_argument_is_there():
    assert {name for _, name in ARGUMENTS} >= {"weight", "pos_weight", "beta", "delta", "quantile", "alpha", "margin"}


@of_arguments
def test_a_parameter_is_learnt(loss, name):
    given = nn.Parameter(value())
    criterion = module(loss, name, given)
    assert dict(criterion.named_parameters()).keys() == {name} and getattr(criterion, name) is given
    assert name not in dict(criterion.named_buffers())
    optimizer = torch.optim.SGD(criterion.parameters(), lr=0.1)
    criterion(*operands(loss)).backward()
    optimizer.step()
    assert given.grad is not None and given.grad.isfinite().all() and (given != value()).any()


@of_arguments
def test_a_tensor_is_a_buffer(loss, name):
    criterion = module(loss, name, value())
    assert dict(criterion.named_buffers()).keys() == {name} and not list(criterion.parameters())
    assert not getattr(criterion, name).requires_grad


@of_arguments
@pytest.mark.parametrize("kind", [nn.Parameter, Tensor.clone])
def test_it_moves_with_its_module(loss, name, kind):
    criterion = module(loss, name, kind(value()))
    found = operands(loss)
    expected = criterion(*found)
    again = copy.deepcopy(criterion)
    with torch.no_grad():
        getattr(again, name).mul_(0.5)
    assert torch.equal(getattr(criterion, name), value()) and type(getattr(again, name)) is type(kind(value()))
    assert [*again.state_dict()] == [name]
    again.load_state_dict(criterion.state_dict())
    torch.testing.assert_close(again(*found), expected)
    file = io.BytesIO()
    torch.save(criterion, file)
    file.seek(0)
    torch.testing.assert_close(torch.load(file, weights_only=False)(*found), expected)
    wide = criterion.to(torch.float64)
    assert getattr(wide, name).dtype == torch.float64 and getattr(wide, name).requires_grad == (kind is nn.Parameter)
    assert getattr(wide.to("meta"), name).device.type == "meta"


@of_arguments
def test_assignment_later(loss, name):
    found = operands(loss)
    expected = module(loss, name, value())(*found)
    number = 0.5 if name not in ("weight", "pos_weight") else None
    for first in (value() / 2, number):
        criterion = module(loss, name, first)
        setattr(criterion, name, nn.Parameter(value()))
        assert dict(criterion.named_parameters()).keys() == {name} and not list(criterion.buffers())
        torch.testing.assert_close(criterion(*found), expected)
    with pytest.raises(TypeError, match=f"cannot assign .* as parameter '{name}'"):  # torch.nn.Module's
        setattr(criterion, name, value())
    delattr(criterion, name)
    criterion.register_buffer(name, value())
    assert dict(criterion.named_buffers()).keys() == {name} and not list(criterion.parameters())
    torch.testing.assert_close(criterion(*found), expected)
