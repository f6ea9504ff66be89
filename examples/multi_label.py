"""Tells which digits a picture holds, where some are rare: `pos_weight`, a number for each label.

A picture is the pixelwise maximum of two of scikit-learn's 8x8 handwritten digits; its ten labels say which digits are
in it. The digits are drawn with the frequencies of a long tail, each 0.6 times as often as the one before, so that a 0
is in two pictures of three and a 9 in one of a hundred. One network is trained with a `pos_weight` of
negatives over positives for each label, counted in the training set, another without. The claims, each checked, with a
raised error where it fails:

* value and gradient are those of ``F.binary_cross_entropy_with_logits`` in float64, to 1e-6, at every training step
  (its own in float32 are off by up to 1.7e-6 here);
* on pictures of held-out digits, `pos_weight` raises the recall of the rare labels, 5 to 9, by 0.3 or more, and their
  balanced accuracy (the mean of the recalls of positives and negatives) by 0.15 or more.

Needs scikit-learn, matplotlib and rich::

    python examples/multi_label.py
    python examples/multi_label.py --quick
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.metrics import balanced_accuracy_score, recall_score
from torch import Tensor, nn

import cudaloss
from scaffold import Compared, batches, digits, options, require, save, seeded, show_table, train

FREQUENCIES = 0.6 ** torch.arange(10)  # of the digits, up to a factor
RARE = slice(5, 10)  # labels: the digits 5 to 9
TRAINED, TESTED = 3000, 6000  # pictures
BATCH = 100
BAR = 1e-6  # of the loss, and of the gradient's largest element, against PyTorch in float64


class Pictures(NamedTuple):
    images: Tensor  # rows of 64 pixels in 0..1
    labels: Tensor  # (pictures, 10), 0 or 1


def pictures(images: Tensor, digit: Tensor, count: int, generator: torch.Generator) -> Pictures:
    """Each of two images, which are drawn by their digits' frequencies."""
    chances = (FREQUENCIES / torch.bincount(digit, minlength=10))[digit]
    chosen = torch.multinomial(chances, 2 * count, replacement=True, generator=generator).view(count, 2)
    return Pictures(images[chosen].amax(1), F.one_hot(digit[chosen], 10).amax(1).float())


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 10))


def compared(pos_weight: Tensor | None) -> Compared:
    """The recipe, and PyTorch's loss in float64."""
    wide = None if pos_weight is None else pos_weight.double()
    return Compared(
        lambda logits, labels: cudaloss.binary_cross_entropy_with_logits(logits, labels, pos_weight=pos_weight),
        lambda logits, labels: F.binary_cross_entropy_with_logits(logits.double(), labels.double(), pos_weight=wide),
    )


class Scores(NamedTuple):
    recall: Tensor  # of each label
    balanced_accuracy: Tensor


@torch.no_grad()
def scores(model: nn.Module, data: Pictures) -> Scores:
    told, true = (model(data.images) > 0).int().numpy(), data.labels.int().numpy()
    pairs = list(zip(true.T, told.T, strict=True))
    measures = recall_score, balanced_accuracy_score
    return Scores(*(torch.tensor([measure(*pair) for pair in pairs]) for measure in measures))


def draw(share: Tensor, by_name: dict[str, Scores]) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.bar(range(10), share.tolist(), color="tab:gray")
    left.set(xlabel="label: the picture holds this digit", ylabel="share of the training pictures", yscale="log")
    for name, found in by_name.items():
        right.plot(range(10), found.recall, "o-", label=name)
    right.set(xlabel="label", ylabel="recall on held-out digits", ylim=(0, 1))
    right.legend()
    return figure


def main() -> None:
    arguments = options(__file__, "Train a multi-label classifier with cudaloss's pos_weight.", 600, quick=150)
    generator = torch.Generator().manual_seed(arguments.seed)
    real = digits()
    data = pictures(real.images, real.labels, TRAINED, generator)
    held_out = pictures(real.held_out, real.held_out_labels, TESTED, generator)

    positives = data.labels.sum(0).clamp(min=1)  # a label without any would have an infinite weight
    pos_weight = (TRAINED - positives) / positives
    by_name, losses = {}, {"with pos_weight": compared(pos_weight), "without": compared(None)}
    for name, loss in losses.items():
        model = seeded(network, arguments.seed)
        train(model, batches(data, BATCH, arguments.seed), loss, arguments.steps, name)
        by_name[name] = scores(model, held_out)
    weighted, plain = by_name.values()
    scored = torch.stack([*plain, *weighted], 1)[:, [0, 2, 1, 3]]
    rare = scored[RARE].mean(0).tolist()
    rows = [
        (str(label), f"{positives[label] / TRAINED:.1%}", f"{pos_weight[label]:.1f}", *(f"{x:.3f}" for x in found))
        for label, found in enumerate(scored.tolist())
    ]
    rows.append(("5 to 9", "", "", *(f"{x:.3f}" for x in rare)))
    columns = "digit", "pictures", "pos_weight", "recall\nwithout", "\nwith", "balanced accuracy\nwithout", "\nwith"
    show_table(f"{TESTED:,} pictures of held-out digits", columns, rows)
    save(draw(positives / TRAINED, by_name), arguments.output)

    for name, loss in losses.items():
        loss.require_within(BAR, f"PyTorch in float64, {name}")
    require(rare[1] >= rare[0] + 0.3, "pos_weight raises the rare labels' recall by 0.3 or more")
    require(rare[3] >= rare[2] + 0.15, "pos_weight raises their balanced accuracy by 0.15 or more")


if __name__ == "__main__":
    main()
