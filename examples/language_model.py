"""Trains a small character-level language model on Python's own reference, in micro-batches of sentences.

The text ships with Python (``pydoc_data.topics``, what ``help()`` shows). A batch of sentences is sorted by length and
split into four micro-batches, so that the first has a third of the last one's characters; what lies behind a sentence
is padding. The claims, each checked, with a raised error where it fails:

* value and gradient of the four losses, ``cudaloss.cross_entropy(logits, target, normalizer=count)`` each, add up to
  those of ``torch.nn.functional.cross_entropy`` on the whole batch, to 1e-6, at every training step;
* the mean of the four means, the usual mistake, has another gradient, by more than 5 % in the median;
* held-out sentences are foretold better than by the frequencies of pairs of characters.

Needs scikit-learn, matplotlib and rich::

    python examples/language_model.py
    python examples/language_model.py --quick
"""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import cudaloss
import scaffold
from cudaloss import distributed
from scaffold import require, say

CHARACTERS = "".join(map(chr, range(32, 127)))
SHORTEST, LONGEST = 10, 120  # characters of a sentence
BATCH, MICRO_BATCHES, HELD_OUT = 64, 4, 500
EMBEDDING, WIDTH = 32, 128
PADDING = -100  # cross_entropy's ignore_index, as it is


def sentences() -> list[Tensor]:
    """As indices of CHARACTERS, the space before each included; in an order that is always the same."""
    text = " ".join(re.sub(r"\s+", " ", topic) for topic in topics.values())
    found = sorted({part.strip() for part in re.split(r"(?<=[.!?]) ", text) if part.isascii() and part.isprintable()})
    fit = [part for part in found if SHORTEST <= len(part) <= LONGEST]
    order = torch.randperm(len(fit), generator=torch.Generator().manual_seed(0)).tolist()
    return [torch.tensor([CHARACTERS.index(c) for c in " " + fit[i]]) for i in order]


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(CHARACTERS), EMBEDDING)
        self.recur = nn.GRU(EMBEDDING, WIDTH, batch_first=True)
        self.predict = nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, seen: Tensor) -> Tensor:
        return self.predict(self.recur(self.embed(seen))[0])


def padded(chosen: list[Tensor]) -> tuple[Tensor, Tensor]:
    """What is seen, and the character that comes next: (sentences, longest), PADDING behind a sentence's end."""
    seen = pad_sequence([one[:-1] for one in chosen], batch_first=True)
    return seen, pad_sequence([one[1:] for one in chosen], batch_first=True, padding_value=PADDING)


def rows(logits: Tensor, target: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Of each micro-batch the rows of logits, one a character, and their targets."""
    pairs = zip(logits.chunk(MICRO_BATCHES), target.chunk(MICRO_BATCHES), strict=True)
    return [(x.flatten(0, 1), t.flatten()) for x, t in pairs]


def accumulated(logits: Tensor, target: Tensor) -> Tensor:
    """The recipe: count what is in play first, then each micro-batch's part of the one mean."""
    parts = rows(logits, target)
    count = distributed.normalizer(*(distributed.in_play(t, mask=t != PADDING) for _, t in parts))
    return torch.stack([cudaloss.cross_entropy(x, t, normalizer=count) for x, t in parts]).sum()


def whole(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def mean_of_means(logits: Tensor, target: Tensor) -> Tensor:
    return torch.stack([cudaloss.cross_entropy(x, t) for x, t in rows(logits, target)]).mean()


def pretrain(
    loss: scaffold.Compared, training: list[Tensor], steps: int, seed: int
) -> tuple[LanguageModel, list[float], list[float]]:
    """The model, its loss curve, and how far the mean of means is off, in its gradient, at each step."""
    model, generator = scaffold.seeded(LanguageModel, seed), torch.Generator().manual_seed(seed)
    off = []

    def batch_loss() -> Tensor:
        chosen = torch.randint(len(training), (BATCH,), generator=generator).tolist()
        seen, target = padded(sorted((training[i] for i in chosen), key=len))
        logits = model(seen)
        one, other = (scaffold.value_and_gradient(of(logits, target), logits)[1] for of in (whole, mean_of_means))
        off.append(float(scaffold.relative_difference(other, one)))
        return loss(logits, target)

    return model, scaffold.fit(scaffold.one_cycle(model, 1e-2, steps), batch_loss, steps, "training"), off


def of_pairs(training: list[Tensor], held_out: list[Tensor]) -> float:
    """Nats a character by how often one follows another, each pair counted once more than it was seen."""
    counts = torch.ones(len(CHARACTERS), len(CHARACTERS))
    before, after = (torch.cat([one[where] for one in training]) for where in (slice(-1), slice(1, None)))
    counts.index_put_((before, after), torch.ones(()), accumulate=True)
    before, after = (torch.cat([one[where] for one in held_out]) for where in (slice(-1), slice(1, None)))
    return float(cudaloss.cross_entropy(counts[before].log(), after))


def draw(losses: list[float], pairs: float, path: Path) -> None:
    figure = Figure((6, 4), layout="constrained")
    scaffold.show_curves(figure.subplots(), {"training": losses, "pairs": [pairs] * len(losses)}, "nats a character")
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Train a character-level language model.", 600, quick=75)
    every = sentences()
    held_out, training = every[:HELD_OUT], every[HELD_OUT:]
    compared = scaffold.Compared(accumulated, whole)
    model, losses, off = pretrain(compared, training, arguments.steps, arguments.seed)
    with torch.no_grad():
        seen, target = padded(held_out)
        found = float(accumulated(model(seen), target))
    pairs = of_pairs(training, held_out)
    say(f"{len(training)} sentences; held-out: {found:.2f} nats a character, by pairs of characters {pairs:.2f}")
    say(f"gradient of the mean of means: {statistics.median(off):.0%} off in the median of {len(off)} steps")
    draw(losses, pairs, arguments.output)

    compared.require_within(1e-6, "F.cross_entropy on the whole batch")
    require(statistics.median(off) > 0.05, "the mean of means has another gradient")
    require(found < pairs, "held-out sentences are foretold better than by pairs of characters")


if __name__ == "__main__":
    main()
