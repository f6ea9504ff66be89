"""Pretrains a masked autoencoder on scikit-learn's digits, with the loss on the hidden patches alone.

As in He et al., Masked Autoencoders Are Scalable Vision Learners, 2021, in small: of an image's 16 patches of 2x2
pixels a transformer encoder sees 4, and a small decoder paints the other 12. Two such networks start from the same
weights and see the same batches and masks; one has ``cudaloss.mse_loss(predicted, patches, mask=hidden)``, the other
the usual ``(l * m).sum() / m.sum()`` in plain PyTorch. The claims, each checked, with a raised error where it fails:

* the two loss curves stay within 1e-5 of each other, relative to the loss;
* hidden patches of held-out digits are painted better than by the training images' mean;
* linear classifiers on the encoder's features, taught with 10 labels of each digit, are right more often than those on
  an untrained encoder's features and those on the raw pixels.

Needs scikit-learn, matplotlib and rich::

    python examples/masked_pretraining.py
    python examples/masked_pretraining.py --quick
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import cudaloss
from scaffold import HELD_OUT, digits, fit, options, require, save, seeded, show_curves, show_digits, show_table

PATCH, GRID = 2, 4  # pixels of a patch's side, patches of an image's
TOKENS, PIXELS = GRID * GRID, PATCH * PATCH
VISIBLE = 4  # of 16 patches: three quarters are hidden, as in the paper
WIDTH, DECODER_WIDTH = 64, 48
BATCH = 64
COMPARED = 200  # first steps, in which both networks are trained
CURVE_BAR = 1e-5  # largest relative difference of the two loss curves
LABELS = 10  # of each class, for a classifier
STRENGTHS = [10**exponent for exponent in range(5)]  # of the classifier's penalty, to choose from
DRAWS = 10  # classifiers, each taught with other labels; their mean accuracy counts
SHOWN = 12  # digits in the picture

Curve = list[float]
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


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
    # GELU has no corner, as ReLU has, at which two runs that differ by an ulp would part for good.
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
    return cudaloss.mse_loss(predicted, patches, mask=hidden)


def plain_loss(predicted: Tensor, patches: Tensor, hidden: Tensor) -> Tensor:
    # The mean over a patch's pixels comes first: m.sum() counts patches, not pixels.
    errors = nn.functional.mse_loss(predicted, patches, reduction="none").mean(-1, keepdim=True)
    return (errors * hidden).sum() / hidden.sum()


def train(loss_function: Loss, patches: Tensor, steps: int, total: int, seed: int) -> tuple[MaskedAutoencoder, Curve]:
    """Pretrains by the first `steps` steps of a schedule of `total`."""
    model, generator = seeded(MaskedAutoencoder, seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total, pct_start=0.15)

    def batch_loss() -> Tensor:
        batch = patches[torch.randint(len(patches), (BATCH,), generator=generator)]
        visible, hidden = choose_visible(BATCH, generator)
        return loss_function(model(batch, visible), batch, hidden)

    return model, fit(schedule, batch_loss, steps, f"pretraining, {loss_function.__name__}")


def accuracy(rows: Tensor, labels: Tensor) -> float:
    """On held-out images, the mean over linear classifiers, each taught with LABELS images of each class."""
    (known, unknown), (taught, tested) = ((x[:-HELD_OUT].numpy(), x[-HELD_OUT:].numpy()) for x in (rows, labels))
    scores = []
    for draw in range(DRAWS):
        few = train_test_split(range(len(known)), train_size=10 * LABELS, stratify=taught, random_state=draw)[0]
        classifier = make_pipeline(StandardScaler(), RidgeClassifierCV(STRENGTHS)).fit(known[few], taught[few])
        scores.append(classifier.score(unknown, tested))
    return statistics.mean(scores)


def draw(patches: Tensor, painted: Tensor, hidden: Tensor, curves: dict[str, Curve]) -> Figure:
    images = {"visible": torch.where(hidden, 0.5, patches), "painted": painted, "true": patches}  # grey where hidden
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    upper, lower = figure.subfigures(2, 1, height_ratios=[1.3, 1], squeeze=False).flat
    show_digits(upper, {name: unpatchify(rows) for name, rows in images.items()}, SHOWN)
    show_curves(lower.subplots(), curves, "loss on hidden patches")
    return figure


def main() -> None:
    arguments = options(__file__, "Pretrain a masked autoencoder with cudaloss's masked loss.", 1500, quick=600)
    steps, seed = arguments.steps, arguments.seed
    real = digits()
    patches, labels = patchify(torch.cat([real.images, real.held_out])), torch.cat([real.labels, real.held_out_labels])
    training, held_out = patches[:-HELD_OUT], patches[-HELD_OUT:]
    model, ours = train(fused_loss, training, steps, steps, seed)
    _, theirs = train(plain_loss, training, min(COMPARED, steps), steps, seed)
    curve_difference = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=False))

    visible, hidden = choose_visible(HELD_OUT, torch.Generator().manual_seed(1))
    with torch.no_grad():
        predicted = model(held_out, visible)
        untrained = seeded(MaskedAutoencoder, seed).features(patches)
        inputs = {"raw pixels": patches.flatten(1), "an untrained encoder": untrained}
        inputs["the pretrained encoder"] = model.features(patches)
    mean_image = training.mean(0).expand_as(held_out)
    errors = [cudaloss.mse_loss(x, held_out, mask=hidden).sqrt().item() for x in (predicted, mean_image)]
    accuracies = {name: accuracy(rows, labels) for name, rows in inputs.items()}
    rows = [
        ("loss curves", f"differ by at most {curve_difference:.1e} of the loss; bar: {CURVE_BAR:g}"),
        ("hidden pixels, RMS error", f"{errors[0]:.3f}; by the mean image {errors[1]:.3f}"),
    ]
    for name, share in accuracies.items():
        rows.append((f"{10 * LABELS} labels on {name}", f"{share:.1%} of the held-out digits right"))
    show_table(f"{steps} steps, the first {len(theirs)} of them with both losses", ("", "seen"), rows)
    painted = torch.where(hidden, predicted, held_out)
    curves = {"cudaloss, mask=hidden": ours, "PyTorch, (l * m).sum() / m.sum()": theirs}
    save(draw(held_out, painted, hidden, curves), arguments.output)

    raw, untrained, pretrained = accuracies.values()
    require(curve_difference <= CURVE_BAR, "the loss curves are alike")
    require(errors[0] < errors[1], "hidden pixels are painted better than by the mean image")
    require(pretrained > untrained, "pretrained features serve a classifier better than untrained ones")
    require(pretrained > raw, "pretrained features serve a classifier better than raw pixels")


if __name__ == "__main__":
    main()
