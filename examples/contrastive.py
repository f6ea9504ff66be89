"""Trains towers to find partners among made-up pairs, with losses that take features in place of logits.

A pair is an "image" and a "text": two noisy mixtures of the same hidden causes. A small network, a tower, gives each a
feature vector. The logits are all products of these: N x N of them for N pairs. Three trainings: ``clip_loss`` with a
scale that learns, ``siglip_loss`` with a scale and a bias that learn, and MoCo: ``info_nce_loss`` of two views of an
image, with a queue of negatives. The claims, each checked, with a raised error where it fails:

* the loss and the features' gradients are those of the plain formula, to 1e-5, at every step, with ``memory="fast"``
  and with ``"least"``; after the training, in float64, the gradients of scale and bias too;
* with ``memory="least"`` a forward leaves less than a twentieth of the logits' memory allocated for the backward, and
  the plain formula at least all of it;
* of 256 held-out pairs at least 7 in 10 find their partner, and 2 in 10 more than before the training.

Needs scikit-learn, matplotlib and rich: ``python examples/contrastive.py`` (``--quick`` for fewer steps).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

CAUSES, SEEN, WIDTH = 8, 40, 16  # hidden causes; numbers of an image or a text; features
PAIRS, HELD_OUT, MANY, QUEUE = 128, 256, 1024, 512  # MANY: where the memory is compared
TEMPERATURE, MOMENTUM = 0.2, 0.9  # of MoCo
Loss = Callable[..., Tensor]


class Towers(nn.Module):
    """Its forward returns the loss's operands."""

    mixtures: Tensor

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        mix, of_view = torch.randn(2, CAUSES, SEEN).unbind()
        self.register_buffer("mixtures", torch.stack([mix, of_view if numbers else mix]))
        self.images = nn.Sequential(nn.Linear(SEEN, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.texts = nn.Sequential(nn.Linear(SEEN, 128), nn.GELU(), nn.Linear(128, WIDTH))
        self.numbers = nn.Parameter(torch.tensor(numbers))  # the scale's logarithm, and the bias
        self.queue = F.normalize(torch.randn(QUEUE, WIDTH), dim=1)  # MoCo's

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        causes = torch.randn(count, CAUSES, generator=generator)
        return (causes @ self.mixtures).tanh() + 0.4 * torch.randn(2, count, SEEN, generator=generator)

    def forward(self, seen: Tensor) -> list[Tensor]:
        sides = [F.normalize(tower(x), dim=1) for tower, x in zip((self.images, self.texts), seen, strict=True)]
        return [*sides, *(number if i else number.exp() for i, number in enumerate(self.numbers))]


class Moco(Towers):
    """The second tower follows the first one, and its last features are the queue."""

    def forward(self, seen: Tensor) -> list[Tensor]:
        with torch.no_grad():
            for slow, fast in zip(self.texts.parameters(), self.images.parameters(), strict=True):
                slow.lerp_(fast, 1 - MOMENTUM)
        query, key = super().forward(seen)
        keys = torch.cat([key.detach(), self.queue])
        self.queue = keys[:QUEUE]
        return [query, keys]


def clip(images: Tensor, texts: Tensor, scale: Tensor) -> Tensor:
    logits, own = scale * images @ texts.T, torch.arange(len(images))
    return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def siglip(images: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(images)) - 1
    return -F.logsigmoid(signs * (scale * images @ texts.T + bias)).sum() / len(images)


def info_nce(query: Tensor, keys: Tensor) -> Tensor:
    return F.cross_entropy(query @ keys.T / TEMPERATURE, torch.arange(len(query)))


def compare_once(loss: Loss, formula: Loss, given: list[Tensor]) -> None:
    given = [x.detach().requires_grad_() for x in given]
    wide = [x.detach().double().requires_grad_() for x in given]
    torch.testing.assert_close(*(torch.autograd.grad(each(*wide), wide) for each in (loss, formula)))
    left = {}
    for name, forward in ("least", partial(loss, *given, memory="least")), ("plain", partial(formula, *given)):
        forward().backward()  # what a first call allocates once is not of each step
        left[name] = scaffold.left_allocated(forward) / (len(given[0]) * len(given[1]) * 4)
    say("a forward leaves, in sizes of the logits:", ", ".join(f"{share:.3f} {name}" for name, share in left.items()))
    require(left["least"] < 0.05 and left["plain"] >= 1, "the least memory keeps nothing of the logits' size")


@torch.no_grad()
def share_found(model: Towers) -> float:
    queries, keys, *_ = deepcopy(model)(model.draw(HELD_OUT, torch.Generator().manual_seed(1)))
    return ((queries @ keys[:HELD_OUT].T).argmax(1) == torch.arange(HELD_OUT)).float().mean().item()


def train(name: str, model: Towers, loss: Loss, formula: Loss, sides: int, steps: int) -> list[float]:
    """By the loss, which gives gradients to so many sides; returns the loss curve."""
    generator, before = torch.Generator().manual_seed(0), share_found(model)
    plans = [scaffold.Compared(partial(loss, memory=plan), formula, operands=sides) for plan in ("fast", "least")]

    def step() -> Tensor:
        given = model(model.draw(PAIRS, generator))
        return [plan(*given) for plan in plans][-1]

    curve = scaffold.fit(scaffold.one_cycle(model, 1e-2, steps), step, steps, name)
    for plan in plans:
        plan.require_within(1e-5, f"the plain formula of {name}")
    compare_once(loss, formula, model(model.draw(MANY, generator)))
    after = share_found(model)
    say(f"{name}: {before:.2f} of {HELD_OUT} held-out pairs found before the training, {after:.2f} after it")
    require(after >= 0.7 and after > before + 0.2, "held-out pairs find their partners")
    return curve


def main() -> None:
    arguments = scaffold.options(__file__, "Train towers to find partners.", 400, quick=100)
    make, steps = partial(scaffold.seeded, seed=arguments.seed), arguments.steps
    of_moco = partial(cudaloss.info_nce_loss, temperature=TEMPERATURE)
    curves = {
        "clip": train("clip", make(partial(Towers, 2.6)), cudaloss.clip_loss, clip, 2, steps),
        "siglip": train("siglip", make(partial(Towers, 2.3, -10.0)), cudaloss.siglip_loss, siglip, 2, steps),
        "MoCo": train("MoCo", make(Moco), of_moco, info_nce, 1, steps),
    }
    figure = Figure((6, 4), layout="constrained")
    scaffold.show_curves(figure.subplots(), curves, "loss")
    scaffold.save(figure, arguments.output)


if __name__ == "__main__":
    main()
