"""Predicts a value and how far off it may be: a network's two outputs, mean and variance, by the Gaussian likelihood.

From the ten mean features of a tumour's cell nuclei in scikit-learn's Breast Cancer Wisconsin data (569 cases) linear
models predict the standard error of the nuclei's area, whose spread grows with its size. One has two outputs, the mean
and the log of the variance, and ``cudaloss.gaussian_nll_loss``; the other predicts the mean by least squares, with
the variance of its errors, one for all. Both give intervals that are to hold nine targets in ten. By 5-fold
cross-validation each case is held out once. The claims, each checked, with a raised error where it fails:

* value and gradient are those of ``F.gaussian_nll_loss`` in float64, to 1e-6, at every training step;
* the negative log likelihood of a held-out target is lower by 0.3 or more, in nats;
* in each third of the cases, by the predicted mean, 0.82 to 0.98 of the targets lie in the intervals; with one variance
  for all, one third is twice as far from 0.9, or more.

Needs scikit-learn, matplotlib and rich::

    python examples/heteroscedastic_regression.py
"""

from __future__ import annotations

import math
from itertools import repeat
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import KFold
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require

NOMINAL, SIGMAS = 0.9, 1.645  # of a normal distribution 0.9 lies within so many standard deviations of the mean
AREA_ERROR = 13  # the column; the first ten are the means


def gaussian_nll(outputs: Tensor, target: Tensor) -> Tensor:
    """The recipe. The log of the variance is what the network predicts: every output is then a variance."""
    mean, log_variance = outputs.split(1, 1)
    return cudaloss.gaussian_nll_loss(mean, target, var=log_variance.exp(), full=True)


def plain_gaussian_nll(outputs: Tensor, target: Tensor) -> Tensor:
    mean, log_variance = outputs.split(1, 1)
    return F.gaussian_nll_loss(mean.double(), target.double(), log_variance.exp().double(), full=True)


def squared(outputs: Tensor, target: Tensor) -> Tensor:
    return cudaloss.mse_loss(outputs[:, :1], target)


def standardized(values: Tensor, known: Tensor) -> Tensor:
    return (values - values[known].mean(0)) / values[known].std(0)


def cross_validated(loss: scaffold.Compared | None, steps: int, seed: int) -> Tensor:
    """(cases, 3): target, mean and standard deviation, of models that did not see the case; targets standardized."""
    data = torch.from_numpy(load_breast_cancer(return_X_y=True)[0]).float()
    found = torch.zeros(len(data), 3)
    for fold in KFold(5, shuffle=True, random_state=seed).split(data.numpy()):
        known, unknown = map(torch.from_numpy, fold)
        features = standardized(data[:, :10], known)
        target = standardized(data[:, [AREA_ERROR]], known)
        model = scaffold.seeded(lambda: nn.Linear(10, 2), seed)
        scaffold.train(model, repeat((features[known], target[known])), loss or squared, steps, "fold", rate=0.05)
        mean, log_variance = model(features).detach().split(1, 1)
        deviation = (log_variance / 2).exp() if loss else (mean - target)[known].std().expand_as(mean)
        found[unknown] = torch.cat([target, mean, deviation], 1)[unknown]
    return found


def scores(found: Tensor) -> tuple[float, list[float]]:
    """The mean negative log likelihood, and the coverage of all cases and of each third by the mean."""
    target, mean, deviation = found[found[:, 1].argsort()].unbind(1)
    likelihood = F.gaussian_nll_loss(mean, target, deviation.square(), full=True).item()
    covered = ((target - mean).abs() <= SIGMAS * deviation).float()
    return likelihood, [part.mean().item() for part in (covered, *covered.chunk(3))]


def draw(by_name: dict[str, Tensor], path: Path) -> None:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for axes, (name, found) in zip(figure.subplots(1, 2, sharey=True), by_name.items(), strict=True):
        target, mean, deviation = found[found[:, 1].argsort()].unbind(1)
        half = SIGMAS * deviation
        axes.vlines(range(len(mean)), mean - half, mean + half, color="tab:blue", alpha=0.4, label="nine in ten")
        axes.plot(mean, color="tab:blue", label="mean")
        axes.plot(target, ".", color="black", markersize=3, label="held-out target")
        axes.set(title=name, xlabel="case, by the predicted mean", ylabel="standard error of the area, standardized")
    figure.axes[0].legend()
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Predict mean and variance with cudaloss's Gaussian likelihood.", 600)
    compared = scaffold.Compared(gaussian_nll, plain_gaussian_nll, unit=1)
    losses = {"a variance for each case": compared, "one variance for all": None}
    by_name = {name: cross_validated(loss, arguments.steps, arguments.seed) for name, loss in losses.items()}
    (own, own_shares), (one, one_shares) = scored = [scores(found) for found in by_name.values()]
    rows = [
        (name, f"{likelihood:.3f}", *(f"{share:.3f}" for share in shares))
        for name, (likelihood, shares) in zip(by_name, scored, strict=True)
    ]
    columns = "", "negative log likelihood", "coverage", "lowest third", "middle third", "highest third"
    scaffold.show_table(f"held-out cases, nominal coverage {NOMINAL}", columns, rows)
    draw(by_name, arguments.output)

    compared.require_within(1e-6, "F.gaussian_nll_loss in float64")
    require(math.isfinite(own) and own <= one - 0.3, "the negative log likelihood is lower by 0.3 or more")
    worst, worst_of_one = (max(abs(x - NOMINAL) for x in shares[1:]) for shares in (own_shares, one_shares))
    require(worst <= 0.08, "the intervals hold 0.82 to 0.98 of each third")
    require(worst_of_one >= 2 * worst, "with one variance for all, a third is twice as far off, or more")


if __name__ == "__main__":
    main()
