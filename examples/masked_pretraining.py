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

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifierCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import cudaloss

matplotlib.use("Agg")
import matplotlib.pyplot as plt

SIDE, PATCH = 8, 2
GRID = SIDE // PATCH
TOKENS, PIXELS = GRID * GRID, PATCH * PATCH
VISIBLE = 4  # of 16 patches: three quarters are hidden, as in the paper
WIDTH, DECODER_WIDTH = 64, 48
BATCH = 64
HELD_OUT = 297  # test images, of other writers; 1,500 are left to train on
COMPARED = 200  # first steps, in which both networks are trained
CURVE_BAR = 1e-5  # largest relative difference of the two loss curves
LABELS = 10  # of each class, for a classifier
STRENGTHS = [10**exponent for exponent in range(5)]  # of the classifier's penalty, to choose from
DRAWS = 10  # classifiers, each taught with other labels; their mean accuracy counts
SHOWN = 12  # digits in the picture

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def patchify(images: Tensor) -> Tensor:
    """(B, 8, 8) images as (B, 16, 4) patches."""
    return images.unflatten(1, (GRID, PATCH)).unflatten(3, (GRID, PATCH)).transpose(2, 3).flatten(3).flatten(1, 2)


def unpatchify(patches: Tensor) -> Tensor:
    grid = patches.unflatten(1, (GRID, GRID)).unflatten(3, (PATCH, PATCH))
    return grid.transpose(2, 3).reshape(len(patches), SIDE, SIDE)


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


@dataclass
class Run:
    """One network, its loss function and its loss curve."""

    name: str
    loss_function: Loss
    model: MaskedAutoencoder
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    losses: list[float] = field(default_factory=list)

    def step(self, patches: Tensor, visible: Tensor, hidden: Tensor) -> None:
        self.optimizer.zero_grad()
        loss = self.loss_function(self.model(patches, visible), patches, hidden)
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())


def make_model(seed: int) -> MaskedAutoencoder:
    torch.manual_seed(seed)
    return MaskedAutoencoder()


def make_run(name: str, loss_function: Loss, steps: int, seed: int) -> Run:
    model = make_model(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.15)
    return Run(name, loss_function, model, optimizer, schedule)


def batches(patches: Tensor, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        chosen = torch.randint(len(patches), (BATCH,), generator=generator)
        yield patches[chosen], *choose_visible(BATCH, generator)


def train(ours: Run, theirs: Run, patches: Tensor, steps: int, seed: int, console: Console) -> None:
    for step, batch in enumerate(track(batches(patches, steps, seed), "pretraining", total=steps, console=console)):
        ours.step(*batch)
        if step < COMPARED:
            theirs.step(*batch)


def accuracy(rows: Tensor, labels: Tensor) -> float:
    """On held-out images, the mean over linear classifiers, each taught with LABELS images of each class."""
    known = labels[:-HELD_OUT]
    scores = []
    for draw in range(DRAWS):
        few, _ = train_test_split(range(len(known)), train_size=10 * LABELS, stratify=known, random_state=draw)
        classifier = make_pipeline(StandardScaler(), RidgeClassifierCV(STRENGTHS))
        classifier.fit(rows[few].numpy(), known[few].numpy())
        scores.append(classifier.score(rows[-HELD_OUT:].numpy(), labels[-HELD_OUT:].numpy()))
    return statistics.mean(scores)


def held_out_masks() -> tuple[Tensor, Tensor]:
    return choose_visible(HELD_OUT, torch.Generator().manual_seed(1))


def draw(path: Path, ours: Run, theirs: Run, patches: Tensor) -> None:
    visible, hidden = held_out_masks()
    with torch.no_grad():
        painted = torch.where(hidden, ours.model(patches, visible), patches)
    seen = torch.where(hidden, 0.5, patches)  # grey where hidden
    rows = {name: unpatchify(x) for name, x in {"visible": seen, "painted": painted, "true": patches}.items()}
    figure = plt.figure(figsize=(11, 6.5), layout="constrained")
    digits, curves = figure.subfigures(2, 1, height_ratios=[1.3, 1], squeeze=False).flat
    for axes_row, (label, images) in zip(digits.subplots(len(rows), SHOWN), rows.items(), strict=True):
        for axes, image in zip(axes_row, images[:SHOWN], strict=True):
            axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        axes_row[0].set_ylabel(label)
    axes = curves.subplots()
    axes.plot(ours.losses, color="tab:blue", linewidth=1, label=ours.name)
    axes.plot(theirs.losses, color="tab:orange", linewidth=4, alpha=0.5, label=theirs.name)
    axes.set(xlabel="step", ylabel="loss on hidden patches", yscale="log")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


@dataclass
class Findings:
    """What is claimed of the pretrained network, and what is shown beside."""

    curve_difference: float  # largest, relative
    painted: float  # RMS error on the hidden pixels of held-out digits
    mean_image: float
    accuracies: dict[str, float]  # by the classifiers' input

    def table(self, steps: int, compared: int) -> Table:
        table = Table("", "seen", title=f"{steps} steps, the first {compared} of them with both losses")
        table.add_row("loss curves", f"differ by at most {self.curve_difference:.1e} of the loss; bar: {CURVE_BAR:g}")
        table.add_row("hidden pixels, RMS error", f"{self.painted:.3f}; by the mean image {self.mean_image:.3f}")
        for name, accuracy in self.accuracies.items():
            table.add_row(f"{10 * LABELS} labels on {name}", f"{accuracy:.1%} of the held-out digits right")
        return table

    def check(self) -> None:
        raw, untrained, pretrained = self.accuracies.values()
        for holds, claim in (
            (self.curve_difference <= CURVE_BAR, "the loss curves are alike"),
            (self.painted < self.mean_image, "hidden pixels are painted better than by the mean image"),
            (pretrained > untrained, "pretrained features serve a classifier better than untrained ones"),
            (pretrained > raw, "pretrained features serve a classifier better than raw pixels"),
        ):
            if not holds:
                raise AssertionError(f"does not hold: {claim}; seen: {self}")


def find(ours: Run, theirs: Run, patches: Tensor, labels: Tensor, untrained: MaskedAutoencoder) -> Findings:
    unknown, (visible, hidden) = patches[-HELD_OUT:], held_out_masks()
    mean_image = patches[:-HELD_OUT].mean(0).expand_as(unknown)
    with torch.no_grad():
        rows = {
            "raw pixels": patches.flatten(1),
            "an untrained encoder": untrained.features(patches),
            "the pretrained encoder": ours.model.features(patches),
        }
        return Findings(
            # theirs is the shorter curve
            curve_difference=max(abs(a - b) / b for a, b in zip(ours.losses, theirs.losses, strict=False)),
            painted=cudaloss.mse_loss(ours.model(unknown, visible), unknown, mask=hidden).sqrt().item(),
            mean_image=cudaloss.mse_loss(mean_image, unknown, mask=hidden).sqrt().item(),
            accuracies={name: accuracy(values, labels) for name, values in rows.items()},
        )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pretrain a masked autoencoder on digits with cudaloss's masked loss.")
    parser.add_argument("--steps", type=int, default=1500, help="training steps (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="600 steps, for tests")
    parser.add_argument("--output", type=Path, default=Path("demo_output/masked_pretraining.png"))
    parser.add_argument("--seed", type=int, default=0, help="of weights, batches and masks (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    steps, seed = 600 if arguments.quick else arguments.steps, arguments.seed
    torch.set_num_threads(1)  # networks this small gain nothing from a second
    console = Console()
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    patches = patchify(images.float().unflatten(1, (SIDE, SIDE)) / 16)

    ours = make_run("cudaloss, mask=hidden", fused_loss, steps, seed)
    theirs = make_run("PyTorch, (l * m).sum() / m.sum()", plain_loss, steps, seed)
    train(ours, theirs, patches[:-HELD_OUT], steps, seed, console)
    findings = find(ours, theirs, patches, labels, make_model(seed))
    console.print(findings.table(steps, len(theirs.losses)))
    draw(arguments.output, ours, theirs, patches[-HELD_OUT:])
    console.print(f"picture: {arguments.output}")
    findings.check()


if __name__ == "__main__":
    main()
