"""Trains a small causal transformer on the words of Python's own reference, with a loss that takes no logits.

The text ships with Python (``pydoc_data.topics``, what ``help()`` shows). The last layer has a row for each of 3,072
words, so the logits are the largest tensor of a step: 48 times as large as the hidden states they come from.
``cudaloss.linear_cross_entropy`` takes these states and the layer's weight. The claims, each checked, with a raised
error where it fails:

* value and gradients (of the states and of the weight) are those of ``torch.nn.functional.cross_entropy`` on the
  logits in float64, to 1e-5, at every training step, with ``memory="fast"`` and with ``"least"``;
* with ``memory="least"`` a forward leaves less than a twentieth of the logits' memory allocated for the backward, and
  PyTorch's at least all of it; on a GPU also the peak of a whole step is below the logits' size, and PyTorch's above
  twice that size;
* held-out text is foretold better than by the frequencies of the words.

Needs scikit-learn, matplotlib and rich::

    python examples/language_model_head.py
    python examples/language_model_head.py --quick
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

VOCABULARY, LENGTH, BATCH = 3072, 32, 16  # LENGTH: words of a window
WIDTH, HEADS, LAYERS = 64, 4, 2
PADDING = -100  # linear_cross_entropy's ignore_index, as it is
HELD_OUT = 16  # one window in so many
MEMORY = "fast", "least"


def windows() -> tuple[Tensor, Tensor]:
    """What is seen, and the word that comes next: (windows, LENGTH), PADDING behind the end of a topic."""
    texts = [re.findall(r"\w+|[^\w\s]", text.lower()) for _, text in sorted(topics.items())]
    common = Counter(word for text in texts for word in text).most_common(VOCABULARY - 1)
    index = {word: i for i, (word, _) in enumerate(common, 1)}  # 0: all other words
    found = torch.full((sum(-(-len(text) // LENGTH) for text in texts), LENGTH + 1), PADDING)
    pieces = (text[i : i + LENGTH + 1] for text in texts for i in range(0, len(text), LENGTH))
    for row, piece in zip(found, pieces, strict=True):
        row[: len(piece)] = torch.tensor([index.get(word, 0) for word in piece])
    return found[:, :-1].clamp(min=0), found[:, 1:]


class LanguageModel(nn.Module):
    """Its forward ends before the head: the loss takes the head's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, seen: Tensor) -> Tensor:
        return self.layers(self.embed(seen) + self.position, mask=self.causal, is_causal=True)


def of_head(hidden: Tensor, weight: Tensor, target: Tensor, memory: str) -> Tensor:
    """The recipe: hidden states and targets keep their shapes."""
    return cudaloss.linear_cross_entropy(hidden, weight, target, memory=memory)


def plain(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), target.flatten())


def plain_in_float64(hidden: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return plain(hidden.double(), weight.double(), target)


def peak(forward: Callable[[], Tensor]) -> int:
    """The bytes that a step takes at its peak, beside what was there before, on a GPU."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forward().backward()
    return torch.cuda.max_memory_allocated() - before


def compare_memory(hidden: Tensor, weight: Tensor, target: Tensor) -> None:
    logits = target.numel() * VOCABULARY * hidden.element_size()
    hidden, weight = (x.detach().requires_grad_() for x in (hidden, weight))
    forwards = {name: partial(of_head, hidden, weight, target, name) for name in MEMORY}
    forwards["plain"] = partial(plain, hidden, weight, target)
    for forward in forwards.values():
        forward().backward()  # what a first call allocates once (gradients, workspaces) is not of each step
    left = {name: scaffold.left_allocated(forward, hidden.is_cuda) / logits for name, forward in forwards.items()}
    say("a forward leaves, in sizes of the logits:", ", ".join(f"{share:.3f} {name}" for name, share in left.items()))
    require(left["least"] < 0.05 and left["plain"] >= 1, "the least memory keeps nothing of the logits' size")
    if hidden.is_cuda:
        peaks = {name: peak(forward) / logits for name, forward in forwards.items()}
        say("a step takes at its peak:", ", ".join(f"{share:.2f} {name}" for name, share in peaks.items()))
        require(peaks["least"] < 1 and peaks["plain"] > 2, "a step with the least memory never has all logits")


def main() -> None:
    arguments = scaffold.options(__file__, "Train a language model of words.", 400, quick=40, device=True)
    seen, target = (x.to(arguments.device) for x in windows())
    held_out = torch.arange(0, len(seen), HELD_OUT)
    training = (torch.arange(len(seen)) % HELD_OUT).nonzero().squeeze(1)
    model = scaffold.seeded(LanguageModel, arguments.seed).to(arguments.device)
    losses = [scaffold.Compared(partial(of_head, memory=name), plain_in_float64, operands=2) for name in MEMORY]
    generator = torch.Generator().manual_seed(arguments.seed)

    def batch_loss() -> Tensor:
        chosen = training[torch.randint(len(training), (BATCH,), generator=generator)]
        hidden = model(seen[chosen])
        return [loss(hidden, model.head.weight, target[chosen]) for loss in losses][-1]

    curve = scaffold.fit(scaffold.one_cycle(model, 5e-3, arguments.steps), batch_loss, arguments.steps, "training")
    words, of_held_out = (target[some][target[some] != PADDING] for some in (training, held_out))
    often = torch.bincount(words, minlength=VOCABULARY).add(1).log()  # each word counted once more than it was seen
    with torch.no_grad():
        found = of_head(model(seen[held_out]), model.head.weight, target[held_out], "least").item()
        by_frequency = cudaloss.cross_entropy(often.expand(len(of_held_out), -1), of_held_out).item()
    say(f"held-out: {found:.2f} nats a word; {by_frequency:.2f} by frequency")
    figure = Figure((6, 4), layout="constrained")
    scaffold.show_curves(figure.subplots(), {"a batch": curve, "frequency": [by_frequency] * len(curve)}, "nats a word")
    scaffold.save(figure, arguments.output)

    compare_memory(model(seen[training[:BATCH]]), model.head.weight, target[training[:BATCH]])
    for loss in losses:
        loss.require_within(1e-5, "F.cross_entropy of logits in float64")
    require(found < by_frequency, "held-out text is foretold better than by frequency")


if __name__ == "__main__":
    main()
