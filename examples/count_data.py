"""Fills in counts that are missing, by the Poisson likelihood of the counts that are there to compare with.

A pixel of scikit-learn's 8x8 handwritten digits is a count: of the inked points, 0 to 16, in a block of 4x4 of the
scanned image. A network sees half of an image's pixels and gives the log of the rate of every count. The loss is the
Poisson likelihood over the hidden pixels alone, ``cudaloss.poisson_nll_loss(..., mask=hidden)``. Two other networks are
trained by the squared error: one gives the rates themselves, and those below 0.1 are taken as 0.1 afterwards, the other
their logs. The squared error thinks 0.5 in place of 0 as wrong as 8.5 in place of 8; the likelihood does not. The
claims, each checked, with a raised error where it fails:

* value and gradient are those of ``F.poisson_nll_loss`` of the hidden pixels, picked out, in float64, to 1e-6, at every
  training step;
* the mean Poisson deviance of held-out hidden counts is at most 0.92 of that of the rates by the squared error, and
  lower than that of the logs by the squared error;
* where 0 is counted the rates are at most 0.9 of those of either of the two.

Needs scikit-learn, matplotlib and rich::

    python examples/count_data.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.metrics import mean_poisson_deviance
from torch import Tensor, nn

import cudaloss
import scaffold
from scaffold import require

BATCH = 100


def poisson(log_rate: Tensor, count: Tensor, hidden: Tensor) -> Tensor:
    """The recipe: the mean over the hidden counts."""
    return cudaloss.poisson_nll_loss(log_rate, count, mask=hidden)


def plain_poisson(log_rate: Tensor, count: Tensor, hidden: Tensor) -> Tensor:
    return F.poisson_nll_loss(log_rate[hidden].double(), count[hidden].double())


def squared(rate: Tensor, count: Tensor, hidden: Tensor) -> Tensor:
    return cudaloss.mse_loss(rate, count, mask=hidden)


def squared_of_log(log_rate: Tensor, count: Tensor, hidden: Tensor) -> Tensor:
    return cudaloss.mse_loss(log_rate.exp(), count, mask=hidden)


def visible(counts: Tensor, hidden: Tensor) -> Tensor:
    """What the network is given: the counts that are not hidden, and which those are."""
    return torch.cat([counts.masked_fill(hidden, 0) / 16, hidden.float()], 1)


def hide(counts: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(counts.shape, generator=generator) < 0.5


def batches(counts: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for (chosen,) in scaffold.batches([counts], BATCH, seed):
        hidden = hide(chosen, generator)
        yield visible(chosen, hidden), chosen, hidden


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 64))


def draw(counts: dict[str, Tensor], path: Path) -> None:
    figure = Figure(figsize=(11, 5.5), layout="constrained")
    scaffold.show_digits(
        figure.subfigures(1, 1, squeeze=False)[0, 0], {name: rows / 16 for name, rows in counts.items()}, 12
    )
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Fill in counts with cudaloss's Poisson likelihood and a mask.", 600)
    seed, real = arguments.seed, scaffold.digits()
    known, held_out = 16 * real.images, 16 * real.held_out
    hidden = hide(held_out, torch.Generator().manual_seed(seed + 1))
    compared = scaffold.Compared(poisson, plain_poisson, unit=1)
    rates: dict[str, Tensor] = {}
    for name, loss in {"squared error": squared, "squared, of logs": squared_of_log, "Poisson": compared}.items():
        model = scaffold.seeded(network, seed)
        scaffold.train(model, batches(known, seed), loss, arguments.steps, name, rate=3e-3)
        output = model(visible(held_out, hidden)).detach()
        rates[name] = output.clamp(min=0.1) if loss is squared else output.exp()

    true = held_out[hidden]
    deviance = {name: float(mean_poisson_deviance(true, rate[hidden])) for name, rate in rates.items()}
    at_zero = {name: rate[hidden][true == 0].mean().item() for name, rate in rates.items()}
    rms = {name: (rate[hidden] - true).square().mean().sqrt().item() for name, rate in rates.items()}
    rows = [(name, f"{deviance[name]:.3f}", f"{at_zero[name]:.3f}", f"{rms[name]:.3f}") for name in rates]
    columns = "trained by", "mean deviance", "mean rate where 0 is counted", "RMS error"
    scaffold.show_table("held-out hidden counts", columns, rows)
    shown = {"visible": held_out.masked_fill(hidden, 8), "true": held_out}
    filled = {name: torch.where(hidden, rate, held_out) for name, rate in rates.items()}
    draw({**shown, **filled}, arguments.output)

    compared.require_within(1e-6, "F.poisson_nll_loss of what is hidden, in float64")
    require(deviance["Poisson"] <= 0.92 * deviance["squared error"], "the deviance falls to 0.92 of that of the rates")
    require(deviance["Poisson"] < deviance["squared, of logs"], "the deviance is lower than that of the logs")
    for name in ("squared error", "squared, of logs"):
        require(at_zero["Poisson"] <= 0.9 * at_zero[name], f"the rates of counts of 0 are at most 0.9 of: {name}")


if __name__ == "__main__":
    main()
