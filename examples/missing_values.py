"""Forecasts room temperatures from sensors with holes in their records, with missing targets left out of the loss.

The packages needed bring no measured series, so a building is simulated: six rooms as a resistor-capacitor network,
the usual lumped model of building physics. A room of heat capacity C, in K, follows

    C dT/dt = (T_outdoors - T) / R_wall + sum over neighbours (T_neighbour - T) / R_inner + sun + people + thermostat

under outdoor temperatures with a yearly and a daily wave and autoregressive weather. Two years of hourly readings of
seven sensors have holes: each sensor fails for blocks of time, by a two-state Markov chain of its own (Gilbert's model
of bursts), a failing gateway takes all sensors with it, and single packets are lost. A GRU forecasts all sensors 6
hours ahead with the Huber loss. The claims, each checked, with a raised error where it fails:

* multiplying by a mask, ``torch.where`` after the loss, and ``nanmean`` give NaN gradients at the first batch;
* ``cudaloss.huber_loss(..., ignore_nan=True)`` gives the gradients of boolean indexing, to 1e-5 of their norm, under
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import huber_loss

import cudaloss
from scaffold import fit, options, require, save, say, seeded, show_table

ROOMS, SENSORS = 6, 7  # the seventh sensor is outdoors
HOURS = 2 * 8760
TESTED = 2190  # the last three months
WINDOW, AHEAD = 72, 6  # hours
BATCH = 32
GRADIENT_BAR = 1e-5  # of the gradient's norm

Loss = Callable[[Tensor, Tensor], Tensor]


def outdoor_temperatures(generator: torch.Generator) -> Tensor:
    """Hourly, in degrees Celsius: 10 on the yearly average, colder in winter and at night, with weather of 60 hours."""
    hours = torch.arange(HOURS)
    year = -9 * torch.cos(2 * math.pi * hours / 8760)
    day = -4 * torch.cos(2 * math.pi * (hours - 4) / 24)
    keep = math.exp(-1 / 60)
    shocks = 4 * math.sqrt(1 - keep**2) * torch.randn(HOURS, generator=generator)
    weather = torch.zeros(HOURS)
    for hour in range(1, HOURS):
        weather[hour] = keep * weather[hour - 1] + shocks[hour]
    return 10 + year + day + weather


def room_temperatures(outdoors: Tensor, generator: torch.Generator) -> Tensor:
    """(HOURS, ROOMS): the network's temperatures, by Euler steps of an hour, far below its time constants."""
    to_outdoors = 1 / torch.linspace(30, 60, ROOMS)  # 1 / (R_wall C), per hour
    row = torch.ones(ROOMS - 1) / 15  # 1 / (R_inner C) of rooms side by side
    coupling = torch.diag(row, 1) + torch.diag(row, -1)
    laplacian = coupling - torch.diag(coupling.sum(1))
    sun_hour = torch.linspace(9, 17, ROOMS)  # from the eastern to the western window
    temperatures = torch.full((HOURS, ROOMS), 18.0)
    people = 0.2 * torch.randn(HOURS, ROOMS, generator=generator).abs()
    for hour in range(1, HOURS):
        now = temperatures[hour - 1]
        sun = 0.8 * torch.exp(-((hour % 24 - sun_hour) ** 2) / 8)
        thermostat = 0.2 * ((20 - now).clamp(0, 5) - (now - 25).clamp(0, 5))
        flows = to_outdoors * (outdoors[hour] - now) + laplacian @ now
        temperatures[hour] = now + flows + sun + people[hour] + thermostat
    return temperatures


def bursts(up: float, down: float, columns: int, generator: torch.Generator) -> Tensor:
    """(HOURS, columns): where a two-state chain is down, whose states last `up` and `down` hours on average."""
    draws = torch.rand(HOURS, columns, generator=generator)
    is_down = torch.zeros(HOURS, columns, dtype=torch.bool)
    for hour in range(1, HOURS):
        is_down[hour] = torch.where(is_down[hour - 1], draws[hour] >= 1 / down, draws[hour] < 1 / up)
    return is_down


@dataclass
class Record:
    """What the sensors saw, in standard deviations from the means of the readings to train on."""

    truth: Tensor  # (HOURS, SENSORS), without holes
    readings: Tensor  # NaN where missing
    degrees: Tensor  # a sensor's standard deviation, in K

    def inputs(self) -> Tensor:
        """A network's input: readings with holes as 0, which readings there are, and the time of day."""
        clock = 2 * math.pi * torch.arange(HOURS)[:, None] / 24
        present = ~self.readings.isnan()
        return torch.cat([self.readings.nan_to_num(), present, clock.sin(), clock.cos()], 1)


def record(seed: int) -> Record:
    generator = torch.Generator().manual_seed(seed)
    outdoors = outdoor_temperatures(generator)
    truth = torch.cat([room_temperatures(outdoors, generator), outdoors[:, None]], 1)
    lost_packets = torch.rand(HOURS, SENSORS, generator=generator) < 0.03
    lost = bursts(120, 40, SENSORS, generator) | bursts(500, 10, 1, generator) | lost_packets
    readings = truth.masked_fill(lost, math.nan)
    known = readings[:-TESTED]
    mean = known.nanmean(0)
    degrees = (known - mean).square().nanmean(0).sqrt()
    return Record((truth - mean) / degrees, (readings - mean) / degrees, degrees)


def batches(record: Record, steps: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows of inputs, and what the sensors read AHEAD hours later, with holes."""
    generator = torch.Generator().manual_seed(seed)
    inputs, last = record.inputs(), HOURS - TESTED - WINDOW - AHEAD
    for _ in range(steps):
        hours = torch.randint(last, (BATCH, 1), generator=generator) + torch.arange(WINDOW)
        yield inputs[hours], record.readings[hours + AHEAD]


class Forecaster(nn.Module):
    """At every hour, from the inputs up to it, all sensors AHEAD hours later."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.GRU(2 * SENSORS + 2, 48, batch_first=True)
        self.to_sensors = nn.Linear(48, SENSORS)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.to_sensors(self.memory(inputs)[0])


def ignoring_nan(predicted: Tensor, target: Tensor) -> Tensor:
    return cudaloss.huber_loss(predicted, target, ignore_nan=True)


def boolean_indexing(predicted: Tensor, target: Tensor) -> Tensor:
    present = ~target.isnan()
    return huber_loss(predicted[present], target[present])


def filled_by_zero(predicted: Tensor, target: Tensor) -> Tensor:
    return huber_loss(predicted, target.nan_to_num())


def each(predicted: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Every element's loss, and which elements count."""
    return huber_loss(predicted, target, reduction="none"), ~target.isnan()


LEAKING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "(e * m).sum() / m.sum()": lambda e, m: (e * m).sum() / m.sum(),
    "torch.where(m, e, 0).sum() / m.sum()": lambda e, m: torch.where(m, e, 0).sum() / m.sum(),
    "e.nanmean()": lambda e, _: e.nanmean(),
}


def value_and_gradient(loss: Loss, predicted: Tensor, target: Tensor) -> tuple[float, Tensor]:
    leaf = predicted.detach().requires_grad_()
    value = loss(leaf, target)
    return value.item(), torch.autograd.grad(value, leaf)[0]


def largest_difference(loss: Loss, pairs: list[tuple[Tensor, Tensor]]) -> float:
    """Of the gradients of `loss` from boolean indexing's, over a few batches, relative to their norm."""
    differences = []
    for pair in pairs:
        wanted = value_and_gradient(boolean_indexing, *pair)[1]
        differences.append(((value_and_gradient(loss, *pair)[1] - wanted).norm() / wanted.norm()).item())
    return max(differences)


def compiled_difference(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """As above, compiled at the first batch; a second compilation, for other holes, would raise."""
    compiled = torch.compile(ignoring_nan, fullgraph=True, backend="aot_eager")  # which needs no C++ compiler
    first = largest_difference(compiled, pairs[:1])
    with torch.compiler.set_stance("fail_on_recompile"):
        return max(first, largest_difference(compiled, pairs[1:]))


def refused_by_vmap(loss: Loss, pair: tuple[Tensor, Tensor]) -> bool:
    try:
        torch.vmap(loss)(*pair)
    except RuntimeError:
        return True
    return False


@dataclass
class Forecast:
    """What a forecaster makes of the tested months, beside the truth; in K from the mean."""

    predicted: Tensor
    truth: Tensor

    @property
    def rms_error(self) -> float:
        return (self.predicted - self.truth).square().mean().sqrt().item()

    @property
    def bias(self) -> float:
        return (self.predicted - self.truth).mean().item()

    @property
    def departure(self) -> float:
        """How large a departure from the mean is forecast, per K of the true one."""
        return ((self.predicted * self.truth).sum() / self.truth.square().sum()).item()


def train(loss: Loss, record: Record, steps: int, seed: int, label: str) -> Forecast:
    model, pairs = seeded(Forecaster, seed), batches(record, steps, seed)

    def batch_loss() -> Tensor:
        inputs, target = next(pairs)
        return loss(model(inputs), target)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps), batch_loss, steps, label)
    with torch.no_grad():
        predicted = model(record.inputs()[None, -TESTED:-AHEAD])[0]
    # The first hours are the network's own warm-up.
    return Forecast(predicted[WINDOW:] * record.degrees, record.truth[WINDOW + AHEAD - TESTED :] * record.degrees)


def draw(record: Record, fused: Forecast, filled: Forecast) -> Figure:
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    holes, curves = figure.subplots(2, 1, height_ratios=[1, 2])
    days, room = 21, 5
    shown = slice(WINDOW + AHEAD - TESTED, WINDOW + AHEAD - TESTED + 24 * days)
    missing = record.readings[shown].isnan().T
    holes.imshow(missing, aspect="auto", cmap="Greys", interpolation="none", extent=(0, days, SENSORS, 0))
    holes.set(ylabel="sensor", title="missing readings")
    day = torch.arange(24 * days) / 24
    curves.plot(day, record.truth[shown, room] * record.degrees[room], color="black", label="truth")
    curves.plot(day, record.readings[shown, room] * record.degrees[room], ".", color="black", label="read")
    curves.plot(day, fused.predicted[: 24 * days, room], color="tab:blue", label="trained with ignore_nan=True")
    curves.plot(day, filled.predicted[: 24 * days, room], color="tab:orange", label="trained with holes as 0")
    curves.set(xlabel="day", ylabel="K from the mean", title=f"sensor {room}, forecast {AHEAD} hours ahead")
    curves.margins(x=0)
    curves.legend()
    return figure


def check_gradients(record: Record, seed: int) -> None:
    """The claims about one call, on a fresh network's forecasts."""
    model = seeded(Forecaster, seed)
    with torch.no_grad():
        pairs = [(model(inputs), target) for inputs, target in batches(record, 3, seed)]
    rows = []
    losses: dict[str, Loss] = {name: lambda p, t, mean=mean: mean(*each(p, t)) for name, mean in LEAKING.items()}
    losses |= {"boolean indexing": boolean_indexing, "cudaloss, ignore_nan=True": ignoring_nan}
    for name, loss in losses.items():
        value, gradient = value_and_gradient(loss, *pairs[0])
        rows.append((name, f"{value:.6f}", f"{gradient.isnan().float().mean().item():.1%}"))
        leaks, expected = bool(gradient.isnan().any()), name in LEAKING
        require(leaks == expected, f"{name} gives {'some' if expected else 'no'} NaN gradients")
    show_table(f"first of {len(pairs)} batches", ("loss", "value", "gradients that are NaN"), rows)
    eager, compiled = largest_difference(ignoring_nan, pairs), compiled_difference(pairs)
    say(f"gradients differ from boolean indexing's by {eager:.1e} of their norm, {compiled:.1e} compiled")
    require(max(eager, compiled) <= GRADIENT_BAR, f"gradients within {GRADIENT_BAR:g} of boolean indexing's")
    require(not refused_by_vmap(ignoring_nan, pairs[0]), "torch.vmap takes ignore_nan=True")
    require(refused_by_vmap(boolean_indexing, pairs[0]), "torch.vmap refuses boolean indexing")


def main() -> None:
    arguments = options(__file__, "Forecast from records with holes by cudaloss's ignore_nan.", 600, quick=200)
    steps, seed = arguments.steps, arguments.seed
    building = record(seed)
    missing = building.readings.isnan().float().mean().item()
    say(f"{missing:.1%} of {HOURS:,} x {SENSORS} readings are missing")
    check_gradients(building, seed)

    fused = train(ignoring_nan, building, steps, seed, "ignore_nan=True")
    filled = train(filled_by_zero, building, steps, seed, "holes as 0")
    rows = [
        (name, f"{found.rms_error:.2f} K", f"{found.bias:+.2f} K", f"forecast at {found.departure:.2f} of their size")
        for name, found in {"ignore_nan=True": fused, "holes as 0": filled}.items()
    ]
    columns = "trained with", "RMS error", "mean error", "departures"
    show_table(f"{TESTED:,} hours not trained on", columns, rows)
    save(draw(building, fused, filled), arguments.output)
    require(filled.rms_error > 1.25 * fused.rms_error, "holes filled by 0 make the error a quarter larger, or more")
    require(abs(filled.bias) > 2 * abs(fused.bias), "holes filled by 0 double the mean error, or more")
    require(1 - filled.departure > 2 * (1 - fused.departure), "holes filled by 0 double what departures lack, or more")


if __name__ == "__main__":
    main()
