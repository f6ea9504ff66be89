"""Prediction intervals by quantile regression: one output for each quantile, and one call for all of them.

From the ten mean features of a tumour's cell nuclei in scikit-learn's Breast Cancer Wisconsin data (569 cases) linear
models predict the standard error of the nuclei's area, whose spread grows with its size. One has three outputs, the
quantiles 0.05, 0.5 and 0.95, and ``cudaloss.quantile_loss`` with those as a tensor; the other predicts the mean by
least squares, with an interval of 1.64 standard deviations of its errors at each side. Both intervals are to hold
nine targets in ten. By 5-fold cross-validation each case is held out once. The claims, each checked, with a raised
error where it fails:

* value and gradient are those of the loss written out in PyTorch, to 1e-6, at every training step;
* of the held-out targets 0.86 to 0.94 lie between the outer quantiles, and in each third of the cases, by the predicted
  mean, 0.84 to 0.96;
* the other interval is worse in its worst third, twice as far from 0.9 or more, and wider on average, by a third or
  more.

Needs scikit-learn, matplotlib and rich::

    python examples/quantile_intervals.py
    python examples/quantile_intervals.py --quick
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

import cudaloss
from scaffold import Compared, options, require, save, seeded, show_table, train

QUANTILES = torch.tensor([0.05, 0.5, 0.95])
NOMINAL, SIGMAS = 0.9, 1.64  # of a normal distribution 0.9 lies within so many standard deviations of the mean
BAR = 1e-6  # of the loss, and of the gradient's largest element, against PyTorch
AREA_ERROR = 13  # the column; the first ten are the means


class Cases(NamedTuple):
    features: Tensor  # (cases, 10)
    target: Tensor  # (cases, 1), in square pixels


class Intervals(NamedTuple):
    """On held-out cases, in square pixels; each (cases, 1)."""

    target: Tensor
    middle: Tensor  # median or mean
    lower: Tensor
    upper: Tensor

    @property
    def covered(self) -> Tensor:
        return ((self.lower <= self.target) & (self.target <= self.upper)).float()


def load() -> Cases:
    data = torch.from_numpy(load_breast_cancer(return_X_y=True)[0])
    return Cases(data[:, :10], data[:, [AREA_ERROR]])


def quantile_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """The recipe: (cases, 3) outputs of one model. The expanded target takes no memory."""
    return cudaloss.quantile_loss(predicted, target.expand_as(predicted), quantile=QUANTILES)


def plain_loss(predicted: Tensor, target: Tensor) -> Tensor:
    # Where a prediction is the target's very number, relu's gradient is 0, as cudaloss's; torch.maximum would give half
    # of both sides'. In float32 that happens: six times in 4.1 million here.
    return (QUANTILES * F.relu(target - predicted) + (1 - QUANTILES) * F.relu(predicted - target)).mean()


def fitted(outputs: int, cases: Cases, loss: Callable[..., Tensor], steps: int, seed: int, label: str) -> nn.Module:
    model = seeded(lambda: nn.Linear(cases.features.shape[1], outputs), seed)
    train(model, repeat(cases), loss, steps, label, rate=0.05)
    return model


def standardized(scaler: StandardScaler, values: Tensor) -> Tensor:
    return torch.from_numpy(scaler.transform(values.numpy())).float()


def cross_validated(cases: Cases, steps: int, seed: int, compared: Compared) -> dict[str, Intervals]:
    """Both models' intervals of all cases, by models that did not see them."""
    found: dict[str, list[Intervals]] = {"quantiles": [], "mean and deviation": []}
    for fold, (known, unknown) in enumerate(KFold(5, shuffle=True, random_state=seed).split(cases.features), 1):
        scalers = [StandardScaler().fit(values[known].numpy()) for values in cases]
        training = Cases(*(standardized(scaler, values[known]) for scaler, values in zip(scalers, cases, strict=True)))
        quantiles = fitted(3, training, compared, steps, seed, f"fold {fold}, quantiles")
        mean = fitted(1, training, F.mse_loss, steps, seed, f"fold {fold}, mean")
        with torch.no_grad():
            features = standardized(scalers[0], cases.features[unknown])
            lower, median, upper = quantiles(features).split(1, 1)
            middle, half = mean(features), SIGMAS * (mean(training.features) - training.target).std()
        for name, three in zip(found, ((median, lower, upper), (middle, middle - half, middle + half)), strict=True):
            in_pixels = (torch.from_numpy(scalers[1].inverse_transform(values.numpy())) for values in three)
            found[name].append(Intervals(cases.target[unknown], *in_pixels))
    return {name: Intervals(*map(torch.cat, zip(*folds, strict=True))) for name, folds in found.items()}


def draw(found: dict[str, Intervals], order: Tensor) -> Figure:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (name, intervals) in zip(figure.subplots(1, 2, sharey=True), found.items(), strict=True):
        target, middle, lower, upper = (values[order, 0] for values in intervals)
        axes.vlines(range(len(order)), lower, upper, color="tab:blue", alpha=0.4, label="interval for nine in ten")
        axes.plot(middle, color="tab:blue", label="median" if name == "quantiles" else "mean")
        axes.plot(target, ".", color="black", markersize=3, label="held-out target")
        axes.set(title=name, xlabel="case, by the predicted mean", yscale="symlog")
        axes.legend(loc="upper left")
    figure.axes[0].set_ylabel("standard error of the area, square pixels")
    return figure


def main() -> None:
    arguments = options(__file__, "Predict intervals with cudaloss's quantile loss of a tensor.", 600, quick=300)
    compared = Compared(quantile_loss, plain_loss)
    found = cross_validated(load(), arguments.steps, arguments.seed, compared)
    order = found["mean and deviation"].middle.flatten().argsort()
    coverage = {
        name: [intervals.covered[rows].mean().item() for rows in (order, *order.chunk(3))]
        for name, intervals in found.items()
    }
    widths = {name: (intervals.upper - intervals.lower).mean().item() for name, intervals in found.items()}
    rows = [(name, *(f"{x:.3f}" for x in coverage[name]), f"{widths[name]:.1f}") for name in found]
    columns = "interval by", "coverage", "lowest third", "middle third", "highest third", "mean width"
    show_table(f"{len(order)} held-out cases, nominal coverage {NOMINAL}", columns, rows)
    save(draw(found, order), arguments.output)

    worst = {name: max(abs(share - NOMINAL) for share in shares[1:]) for name, shares in coverage.items()}
    by_quantiles, by_deviation = worst.values()
    compared.require_within(BAR, "the loss written out in PyTorch")
    require(
        abs(coverage["quantiles"][0] - NOMINAL) <= 0.04, "the quantiles' interval holds 0.86 to 0.94 of the targets"
    )
    require(by_quantiles <= 0.06, "the quantiles' interval holds 0.84 to 0.96 of each third")
    require(by_deviation >= 2 * by_quantiles, "the other interval is twice as far from 0.9 in its worst third, or more")
    require(widths["mean and deviation"] >= 4 / 3 * widths["quantiles"], "it is wider by a third, or more")


if __name__ == "__main__":
    main()
