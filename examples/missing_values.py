"""Forecasts room temperatures from sensors with holes in their records, with missing targets left out of the loss.

The packages needed bring no measured series, so a building is simulated, six rooms under changing weather. Two years of
hourly readings of seven sensors have holes: each sensor fails for blocks of time, by a two-state Markov chain of its
own (Gilbert's model of bursts), a failing gateway takes all sensors with it, and single packets are lost. A GRU
forecasts all sensors 6 hours ahead with the Huber loss. The claims, each checked, with a raised error where it fails:

* multiplying by a mask, ``torch.where`` after the loss, and ``nanmean`` give NaN gradients at the first batch;
* ``cudaloss.huber_loss(..., ignore_nan=True)`` gives the gradients of boolean indexing, to 1e-6 of their largest, under
  ``torch.compile(fullgraph=True)`` too and without compiling again for other holes, and under ``torch.vmap``, which
  boolean indexing's data-dependent shapes cannot enter;
* trained with holes filled by 0 the same network forecasts departures from the mean that are too small: what they lack
  of the true size, and the mean error, are at least twice those with ``ignore_nan``, the RMS error a quarter larger.

Needs matplotlib and rich::

    python examples/missing_values.py
    python examples/missing_values.py --quick
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import huber_loss

import cudaloss
import scaffold
from scaffold import require, say

SENSORS, HOURS, TESTED = 7, 2 * 8760, 2190  # of six rooms and outdoors; two years; three months
WINDOW, AHEAD, BATCH = 72, 6, 32  # hours of a forecast's input, hours ahead, windows


def record(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """The truth and the readings, NaN where missing, in standard deviations; and those, in K."""
    generator = torch.Generator().manual_seed(seed)
    truth = scaffold.temperatures(HOURS, SENSORS - 1, generator)
    off = scaffold.bursts((HOURS, SENSORS), 120, 40, generator) | scaffold.bursts((HOURS, 1), 500, 10, generator)
    readings = truth.masked_fill(off | (torch.rand(truth.shape, generator=generator) < 0.03), math.nan)
    mean = readings[:-TESTED].nanmean(0)
    degrees = (readings[:-TESTED] - mean).square().nanmean(0).sqrt()
    return (truth - mean) / degrees, (readings - mean) / degrees, degrees


def network_input(readings: Tensor) -> Tensor:
    """Readings with holes as 0, which readings there are, and the time of day."""
    clock = 2 * math.pi * torch.arange(HOURS)[:, None] / 24
    return torch.cat([readings.nan_to_num(), ~readings.isnan(), clock.sin(), clock.cos()], 1)


def windows(readings: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs, and what the sensors read AHEAD hours later, with holes."""
    inputs, starts = network_input(readings), torch.arange(HOURS - TESTED - WINDOW - AHEAD)
    for (start,) in scaffold.batches([starts], BATCH, seed):
        hours = start[:, None] + torch.arange(WINDOW)
        yield inputs[hours], readings[hours + AHEAD]


class Forecaster(nn.Module):
    """At every hour, from the inputs up to it, all sensors AHEAD hours later."""

    def __init__(self) -> None:
        super().__init__()
        self.memory, self.to_sensors = nn.GRU(2 * SENSORS + 2, 48, batch_first=True), nn.Linear(48, SENSORS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.to_sensors(self.memory(inputs)[0])


def ignoring_nan(predicted: Tensor, target: Tensor) -> Tensor:
    """The recipe."""
    return cudaloss.huber_loss(predicted, target, ignore_nan=True)


def boolean_indexing(predicted: Tensor, target: Tensor) -> Tensor:
    present = ~target.isnan()
    return huber_loss(predicted[present], target[present])


def filled_by_zero(predicted: Tensor, target: Tensor) -> Tensor:
    return huber_loss(predicted, target.nan_to_num())


def check_gradients(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """The claims about one call, on a fresh network's forecasts."""
    predicted, target = pairs[0]
    each, present = huber_loss(predicted, target, reduction="none"), ~target.isnan()
    leaking = {
        "(e * m).sum() / m.sum()": (each * present).sum() / present.sum(),
        "torch.where(m, e, 0).sum() / m.sum()": torch.where(present, each, 0).sum() / present.sum(),
        "e.nanmean()": each.nanmean(),
    }
    right = {loss.__name__: loss(predicted, target) for loss in (boolean_indexing, ignoring_nan)}
    for name, loss in (leaking | right).items():
        value, gradient = scaffold.value_and_gradient(loss, predicted)
        say(f"{name}: {value:.6f}, {gradient.isnan().float().mean():.1%} of the gradients are NaN")
        require(bool(gradient.isnan().any()) == (name in leaking), f"{name} gives NaN gradients or none, as it must")

    compiled = torch.compile(ignoring_nan, fullgraph=True, backend="aot_eager")  # which needs no C++ compiler
    eager, compiled = (scaffold.Compared(loss, boolean_indexing) for loss in (ignoring_nan, compiled))
    compiled(*pairs[0])
    with torch.compiler.set_stance("fail_on_recompile"):
        for pair in pairs:
            _ = eager(*pair), compiled(*pair)
    eager.require_within(1e-6, "boolean indexing")
    compiled.require_within(1e-6, "boolean indexing, compiled")
    torch.vmap(ignoring_nan)(predicted, target)
    try:
        torch.vmap(boolean_indexing)(predicted, target)
    except RuntimeError:
        return
    require(False, "torch.vmap refuses boolean indexing")


def draw(truth: Tensor, readings: Tensor, forecasts: dict[str, Tensor], path: Path) -> None:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    curves, hours, room = figure.subplots(), 21 * 24, 5
    curves.plot(truth[:hours, room], color="black", label="truth")
    curves.plot(readings[:hours, room], ".", color="black", label="read")
    for name, forecast in forecasts.items():
        curves.plot(forecast[:hours, room], label=f"trained with {name}")
    curves.set(xlabel="hour", ylabel="K from the mean", title=f"sensor {room}, forecast {AHEAD} hours ahead")
    curves.legend()
    scaffold.save(figure, path)


def main() -> None:
    arguments = scaffold.options(__file__, "Forecast from records with holes by ignore_nan.", 600, quick=100)
    seed, (truth, readings, degrees) = arguments.seed, record(arguments.seed)
    say(f"{readings.isnan().float().mean():.1%} of {HOURS:,} x {SENSORS} readings are missing")
    fresh, pairs = scaffold.seeded(Forecaster, seed), windows(readings, seed)
    check_gradients([(fresh(input), target) for input, target in (next(pairs) for _ in range(3))])

    tested = slice(WINDOW + AHEAD - TESTED, None)  # the first hours are the network's own warm-up
    wanted, forecasts, rows, scores = truth[tested] * degrees, {}, [], []
    for name, loss in {"ignore_nan=True": ignoring_nan, "holes as 0": filled_by_zero}.items():
        model = scaffold.seeded(Forecaster, seed)
        scaffold.train(model, windows(readings, seed), loss, arguments.steps, name)
        found = model(network_input(readings)[None, -TESTED:-AHEAD])[0, WINDOW:].detach() * degrees
        rms, bias = (found - wanted).square().mean().sqrt().item(), (found - wanted).mean().item()
        size = ((found * wanted).sum() / wanted.square().sum()).item()  # of a forecast departure, per K of the true one
        rows.append((name, f"{rms:.2f} K", f"{bias:+.2f} K", f"forecast at {size:.2f} of their size"))
        scores.append((rms, abs(bias), 1 - size))
        forecasts[name] = found
    scaffold.show_table("months not trained on", ("trained with", "RMS error", "mean error", "departures"), rows)
    draw(wanted, readings[tested] * degrees, forecasts, arguments.output)
    fused, filled = scores
    require(filled[0] > 1.25 * fused[0], "holes filled by 0 make the error a quarter larger, or more")
    require(filled[1] > 2 * fused[1], "holes filled by 0 double the mean error, or more")
    require(filled[2] > 2 * fused[2], "holes filled by 0 double what departures lack, or more")


if __name__ == "__main__":
    main()
