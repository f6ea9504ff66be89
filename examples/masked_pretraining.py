"""Pretrains a masked autoencoder on scikit-learn's digits, with the loss on the hidden patches alone.

As in He et al., Masked Autoencoders Are Scalable Vision Learners, 2021, in small: of an image's 16 patches of 2x2
pixels a transformer encoder sees 4, and a small decoder paints the other 12. The claims, each checked, with a raised
error where it fails:

* value and gradient of ``cudaloss.mse_loss(predicted, patches, mask=hidden)`` are those of the usual
  ``(l * m).sum() / m.sum()`` in plain PyTorch, to 1e-6, at every training step;
* hidden patches of held-out digits are painted better than by the training images' mean;
* linear classifiers on the encoder's features, taught with 10 labels of each digit, are right more often than those on
  an untrained encoder's features and those on the raw pixels.

Needs scikit-learn, matplotlib and rich::

    python examples/masked_pretraining.py
    python examples/masked_pretraining.py --quick
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require, say

PATCH, GRID = 2, 4  # pixels of a patch's side, patches of an image's
TOKENS, PIXELS = GRID * GRID, PATCH * PATCH
VISIBLE = 4  # of 16 patches: three quarters are hidden, as in the paper
WIDTH, DECODER_WIDTH, BATCH = 64, 48, 64
LABELS = 10  # of each class, for a classifier


def patchify(images: Tensor) -> Tensor:
    """(B, 64) images as (B, 16, 4) patches."""
    return images.unflatten(1, (GRID, PATCH, GRID, PATCH)).transpose(2, 3).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor) -> Tensor:
    return patches.unflatten(2, (PATCH, PATCH)).unflatten(1, (GRID, GRID)).transpose(2, 3).flatten(1)


def choose_visible(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """For each of `count` images the indices of its visible patches, (B, 4, 1), and which are hidden, (B, 16, 1)."""
    visible = torch.rand(count, TOKENS, 1, generator=generator).argsort(1)[:, :VISIBLE]
    hidden = torch.ones(count, TOKENS, 1, dtype=torch.bool).scatter(1, visible, False)
    return visible, hidden


def transformer(width: int, layers: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)


class MaskedAutoencoder(nn.Module):
    """The encoder sees visible patches only; the decoder gets a learned token in place of each hidden one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, WIDTH)
        self.position = nn.Parameter(0.3 * torch.randn(TOKENS, WIDTH))
        self.encoder = transformer(WIDTH, 2)
        self.to_decoder = nn.Linear(WIDTH, DECODER_WIDTH)
        self.hidden_token = nn.Parameter(0.02 * torch.randn(DECODER_WIDTH))
        self.decoder_position = nn.Parameter(0.3 * torch.randn(TOKENS, DECODER_WIDTH))
        self.decoder = transformer(DECODER_WIDTH, 1)
        self.to_pixels = nn.Linear(DECODER_WIDTH, PIXELS)

    def forward(self, patches: Tensor, visible: Tensor) -> Tensor:
        tokens = self.embed(patches) + self.position
        seen = self.to_decoder(self.encoder(tokens.gather(1, visible.expand(-1, -1, WIDTH))))
        canvas = self.hidden_token.expand(len(patches), TOKENS, -1)
        canvas = canvas.scatter(1, visible.expand(-1, -1, DECODER_WIDTH), seen)
        return self.to_pixels(self.decoder(canvas + self.decoder_position))

    def features(self, patches: Tensor) -> Tensor:
        """One row an image: the encoder's tokens side by side, with every patch visible."""
        return self.encoder(self.embed(patches) + self.position).flatten(1)


def fused_loss(predicted: Tensor, patches: Tensor, hidden: Tensor) -> Tensor:
    """The recipe: the mask, one a patch, broadcasts over its pixels."""
    return cudaloss.mse_loss(predicted, patches, mask=hidden)


def plain_loss(predicted: Tensor, patches: Tensor, hidden: Tensor) -> Tensor:
    # The mean over a patch's pixels comes first: m.sum() counts patches, not pixels.
    errors = nn.functional.mse_loss(predicted, patches, reduction="none").mean(-1, keepdim=True)
    return (errors * hidden).sum() / hidden.sum()


def pretrain(loss: scaffold.Compared, patches: Tensor, steps: int, seed: int) -> tuple[MaskedAutoencoder, list[float]]:
    model, generator = scaffold.seeded(MaskedAutoencoder, seed), torch.Generator().manual_seed(seed)

    def batch_loss() -> Tensor:
        batch = patches[torch.randint(len(patches), (BATCH,), generator=generator)]
        visible, hidden = choose_visible(BATCH, generator)
        return loss(model(batch, visible), batch, hidden)

    return model, scaffold.fit(scaffold.one_cycle(model, 3e-3, steps), batch_loss, steps, "pretraining")


def accuracy(rows: Tensor, labels: Tensor) -> float:
    """On held-out images, the mean over linear classifiers, each taught with LABELS images of each class."""
    count = scaffold.HELD_OUT
    (known, unknown), (taught, tested) = ((x[:-count].numpy(), x[-count:].numpy()) for x in (rows, labels))
    scores = []
    for draw in range(10):  # each taught with other labels, at the best of five penalties
        few = train_test_split(range(len(known)), train_size=10 * LABELS, stratify=taught, random_state=draw)[0]
        classifier = make_pipeline(StandardScaler(), RidgeClassifierCV([1, 10, 100, 1000, 10000]))
        scores.append(classifier.fit(known[few], taught[few]).score(unknown, tested))
    return statistics.mean(scores)


def draw(images: dict[str, Tensor], losses: list[float], path: Path) -> None:
    figure, upper, lower = scaffold.above((11, 6.5), 1.3)
    scaffold.show_digits(upper, {name: unpatchify(rows) for name, rows in images.items()}, 12)
    scaffold.show_curves(lower.subplots(), {"mask=hidden": losses}, "loss on hidden patches")
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Pretrain a masked autoencoder with a masked loss.", 1500, quick=450)
    seed, real = arguments.seed, scaffold.digits()
    patches, labels = patchify(torch.cat([real.images, real.held_out])), torch.cat([real.labels, real.held_out_labels])
    training, held_out = patches[: -scaffold.HELD_OUT], patches[-scaffold.HELD_OUT :]
    compared = scaffold.Compared(fused_loss, plain_loss)
    model, losses = pretrain(compared, training, arguments.steps, seed)
    visible, hidden = choose_visible(scaffold.HELD_OUT, torch.Generator().manual_seed(1))
    with torch.no_grad():
        predicted = model(held_out, visible)
        inputs = {"raw pixels": patches.flatten(1)}
        inputs["an untrained encoder"] = scaffold.seeded(MaskedAutoencoder, seed).features(patches)
        inputs["the pretrained encoder"] = model.features(patches)
    mean_image = training.mean(0).expand_as(held_out)
    errors = [cudaloss.mse_loss(x, held_out, mask=hidden).sqrt().item() for x in (predicted, mean_image)]
    accuracies = {name: accuracy(rows, labels) for name, rows in inputs.items()}
    say(f"hidden pixels: RMS error {errors[0]:.3f}, by the mean image {errors[1]:.3f}")
    for name, share in accuracies.items():
        say(f"{10 * LABELS} labels on {name}: {share:.1%} of the held-out digits right")
    images = {"visible": torch.where(hidden, 0.5, held_out), "painted": torch.where(hidden, predicted, held_out)}
    draw({**images, "true": held_out}, losses, arguments.output)

    raw, untrained, pretrained = accuracies.values()
    compared.require_within(1e-6, "(l * m).sum() / m.sum()")
    require(errors[0] < errors[1], "hidden pixels are painted better than by the mean image")
    require(pretrained > untrained, "pretrained features serve a classifier better than untrained ones")
    require(pretrained > raw, "pretrained features serve a classifier better than raw pixels")


if __name__ == "__main__":
    main()
