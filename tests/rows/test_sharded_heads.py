"""Heads whose classes are sharded: the same as with the whole weight. Four processes, gloo."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import cudaloss
from cudaloss._heads import sharded as module
from drawn_heads import token_by_definition
from processes import found_by_all

PROCESSES = 4
ROWS, FEATURES, CLASSES = 12, 8, 37
COLLECTIVES = "all_gather_into_tensor", "all_reduce"  # of a step
OPTIONS = {
    "none": {},
    "both": {"label_smoothing": 0.1, "weight": True},
    "all": {"z_loss": 0.01, "softcap": 2.0, "sample_weight": True, "mask": True},
    "single": {"reduction": "none"},
    "least": {"memory": "least"},
}


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def drawn(dtype=torch.float64):
    torch.manual_seed(0)
    input, weight, bias = (
        torch.randn(*s, dtype=torch.float64).to(dtype) for s in ((ROWS, FEATURES), (CLASSES, FEATURES), (CLASSES,))
    )
    target = torch.randint(CLASSES, (ROWS,))
    target[2] = -100
    return input, weight, bias, target


def compared(mesh, placements, name) -> list[float]:
    """The largest differences of the loss and the gradients."""
    input, weight, bias, target = drawn()
    options = dict(OPTIONS[name])
    tensors = {"weight": torch.rand(CLASSES).double() + 0.5, "sample_weight": torch.rand(ROWS).double() + 0.5}
    tensors["mask"] = torch.arange(ROWS) != 5
    options.update({key: tensors[key] for key in options if options[key] is True})
    ours = [
        input.clone() if placements is None else distribute_tensor(input, mesh, placements),
        distribute_tensor(weight, mesh, [Shard(0)]),
        distribute_tensor(bias, mesh, [Shard(0)]),
    ]
    theirs = [x.clone() for x in (input, weight, bias)]
    for x in (*ours, *theirs):
        x.requires_grad_()
    found = cudaloss.linear_cross_entropy(ours[0], ours[1], target, linear_bias=ours[2], **options)
    options.pop("memory", None)
    truth = cudaloss.cross_entropy(F.linear(*theirs), target, **options)
    incoming = torch.arange(1, truth.numel() + 1, dtype=torch.float64).view(truth.shape)
    wrapped = DTensor.from_local(incoming, mesh, [Replicate()]) if isinstance(found, DTensor) else incoming
    assert isinstance(found, DTensor) == (placements is not None)
    found.backward(wrapped)
    truth.backward(incoming)
    pairs = [(found, truth), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    return [(whole(a) - b).abs().max().item() for a, b in pairs]


def of_few_classes(mesh, memory) -> list[float]:
    """The same of linear_sparse_cross_entropy, with padding, equal indices and a row that is left out."""
    input, weight, bias, _ = drawn()
    indices, p = torch.randint(CLASSES, (ROWS, 4)), torch.rand(ROWS, 4).double()
    indices[:, 1], indices[3, 2:] = indices[:, 0], -1
    options = {"temperature": 0.7, "softcap": 2.0, "mask": torch.arange(ROWS) != 5}
    ours = [input.clone(), *(distribute_tensor(x, mesh, [Shard(0)]) for x in (weight, bias)), p.clone()]
    theirs = [x.clone() for x in (input, weight, bias, p)]
    for x in (*ours, *theirs):
        x.requires_grad_()
    call = ours[0], ours[1], indices, ours[3]
    found = cudaloss.linear_sparse_cross_entropy(*call, linear_bias=ours[2], memory=memory, **options)
    truth = cudaloss.sparse_cross_entropy(F.linear(*theirs[:3]), indices, theirs[3], **options)
    found.backward()
    truth.backward()
    pairs = [(found, truth), *((a.grad, b.grad) for a, b in zip(ours, theirs, strict=True))]
    return [(whole(a) - b).abs().max().item() for a, b in pairs]


class Counted:
    """PyTorch's collectives, counted."""

    def __init__(self, collectives):
        self.collectives, self.names = collectives, []

    def __getattr__(self, name):
        found = getattr(self.collectives, name)
        if name == "wait_tensor":
            return found

        def call(tensor, *rest):
            self.names.append(f"{name} {tensor.dtype}")
            return found(tensor, *rest)

        return call


def find() -> dict[str, list[float]]:
    mesh = init_device_mesh("cpu", (PROCESSES,))
    found = {}
    for placed, placements in (("plain", None), ("replicated", [Replicate()]), ("rows", [Shard(0)])):
        for name in OPTIONS:
            found[f"{placed} {name}"] = compared(mesh, placements, name)
    input, weight, _, target = drawn()
    target = target.clamp(0)
    sharded, leaf = distribute_tensor(weight, mesh, [Shard(0)]).requires_grad_(), input.clone().requires_grad_()
    seen = module.collectives = Counted(module.collectives)
    log_prob, entropy = cudaloss.linear_token_log_prob(leaf, sharded, target, temperature=0.7, return_entropy=True)
    (log_prob * entropy).sum().backward()
    found["collectives"], seen.names = seen.names, []
    of_halves = [x.requires_grad_() for x in drawn(torch.bfloat16)[:2]]
    of_halves[1] = distribute_tensor(of_halves[1].detach(), mesh, [Shard(0)]).requires_grad_()
    found["halves"] = []
    for memory in ("fast", "least"):
        cudaloss.linear_cross_entropy(*of_halves, target, memory=memory).backward()
        found["halves"].append(seen.names)
        seen.names = []
    module.collectives = seen.collectives
    theirs = [x.clone().requires_grad_() for x in (input, weight)]
    of_log_prob, of_entropy = token_by_definition(F.linear(*theirs), target, 0.7)
    (of_log_prob * of_entropy).sum().backward()
    pairs = (log_prob, of_log_prob), (entropy, of_entropy), (leaf.grad, theirs[0].grad), (sharded.grad, theirs[1].grad)
    found["tokens"] = [(whole(a) - b).abs().max().item() for a, b in pairs]
    found |= {f"sparse {memory}": of_few_classes(mesh, memory) for memory in ("fast", "least")}
    try:
        loss = cudaloss.linear_cross_entropy(leaf, sharded, target)
        torch.autograd.grad(loss, leaf, create_graph=True)
        found["second derivative"] = [1.0]
    except RuntimeError as error:
        found["second derivative"] = [0.0 if "no second derivative" in str(error) else 2.0]
    return found


CASES = [f"{placed} {name}" for placed in ("plain", "replicated", "rows") for name in OPTIONS]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return found_by_all(tmp_path_factory, PROCESSES, find)


@pytest.mark.parametrize("case", [*CASES, "tokens", "sparse fast", "sparse least", "second derivative"])
def test_sharded_classes(found, case):
    for process in found:
        assert all(difference <= 1e-11 for difference in process[case]), process[case]


def test_the_collectives_of_a_step(found):
    """One all-gather of the numbers, one all-reduce of input's gradient."""
    assert all(process["collectives"] == [f"{x} torch.float64" for x in COLLECTIVES] for process in found)


def test_the_gradients_of_halves_are_added_in_float32(found):
    """In both plans: the processes' parts are rounded after their sum."""
    expected = [f"{x} torch.{dtype}" for x, dtype in zip(COLLECTIVES, ("float64", "float32"), strict=True)]
    assert all(process["halves"] == [expected] * 2 for process in found)
