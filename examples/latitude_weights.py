"""Learns a step of transport on the sphere from a latitude-longitude grid, with the loss weighted by the cells' areas.

The cells of such a grid shrink towards the poles, as the cosine of the latitude, so a plain mean counts the polar rows
many times too much. The dynamics is a toy, but exactly known: a tracer is a sum of heat kernels of the sphere,

    K_t(x . c) = sum over l of (2 l + 1) / (4 pi) exp(-l (l + 1) t) P_l(x . c),

around centres c. A solid-body rotation over both poles carries it (as in test case 1 of Williamson et al., A standard
test set for numerical approximations to the shallow water equations, 1992) and it diffuses: a step rotates the centres
and adds to every t. The next state is observed over the sea alone, as a microwave radiometer sees water vapour; over
land it is NaN. A small convolutional network learns the step. The claims, each checked, with a raised error where one
fails:

* the mean weighted by the cosine of the latitude, of shape (1, 1, H, 1), is the area's integral: of 500 tracers'
  squares all are within 5 % of the exact integral and half within 0.2 %; of the plain means half are off by 10 % and
  more;
* weight and mask together give what PyTorch gives in float64, where land is cut out and the weights are expanded;
* trained with the weight, the network's area-weighted error on held-out states is smaller, by 4 % or more.

Needs matplotlib and rich::

    python examples/latitude_weights.py
    python examples/latitude_weights.py --quick
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import pad, silu

import cudaloss
from scaffold import fit, options, require, save, seeded, show_table

ROWS, COLUMNS = 24, 48  # cells of 7.5 degrees
BUMPS = 8  # heat kernels of a state
DEGREES = 36  # of the Legendre series; the next term is at most 1.2e-6 of the sum, at a peak
TURN, DIFFUSION = math.radians(15), 0.004  # of a step
STATES, HELD_OUT = 500, 100
BATCH = 16
WIDTH = 16  # channels of the network
CONTINENTS = ((-90, 0, 25), (10, 20, 30), (50, 90, 30), (-15, 300, 22), (45, 260, 25))  # latitude, longitude, radius

TRAININGS = "with weight=AREA", "without"


def directions(latitude: Tensor, longitude: Tensor) -> Tensor:
    """Unit vectors, along a new last dimension."""
    latitude, longitude = torch.broadcast_tensors(latitude, longitude)
    across = latitude.cos()
    return torch.stack([across * longitude.cos(), across * longitude.sin(), latitude.sin()], -1)


LATITUDES = math.pi * ((torch.arange(ROWS) + 0.5) / ROWS - 0.5)
LONGITUDES = 2 * math.pi * torch.arange(COLUMNS) / COLUMNS
AREA = LATITUDES.cos().reshape(1, 1, ROWS, 1)  # of a cell, but for a factor, which a weighted mean divides out
TROPICS = AREA * (LATITUDES.abs() < math.radians(30)).reshape(AREA.shape)
POINTS = directions(LATITUDES[:, None], LONGITUDES)


def sea() -> Tensor:
    """(1, 1, ROWS, COLUMNS): outside the continents, which are round."""
    latitude, longitude, radius = torch.deg2rad(torch.tensor(CONTINENTS)).unbind(1)
    distance = (POINTS @ directions(latitude, longitude).T).clamp(-1, 1).acos()
    return (distance > radius).all(-1)[None, None]


def heat_kernel(cosine: Tensor, time: Tensor) -> Tensor:
    before, now, total = torch.zeros_like(cosine), torch.ones_like(cosine), torch.zeros_like(cosine)
    for degree in range(DEGREES):
        total = total + (2 * degree + 1) / (4 * math.pi) * (-degree * (degree + 1) * time).exp() * now
        before, now = now, ((2 * degree + 1) * cosine * now - degree * before) / (degree + 1)
    return total


@dataclass
class Tracer:
    """States, each the sum of BUMPS heat kernels."""

    centres: Tensor  # (N, BUMPS, 3)
    times: Tensor  # (N, BUMPS), as are the amounts
    amounts: Tensor

    def step(self) -> Tracer:
        turn = torch.tensor([[1, 0, 0], [0, math.cos(TURN), math.sin(TURN)], [0, -math.sin(TURN), math.cos(TURN)]])
        return Tracer(self.centres @ turn, self.times + DIFFUSION, self.amounts)

    def field(self) -> Tensor:
        """(N, 1, ROWS, COLUMNS): the values at the cells' centres."""
        cosine = torch.einsum("nkc,hwc->nkhw", self.centres, POINTS)
        return torch.einsum("nk,nkhw->nhw", self.amounts, heat_kernel(cosine, self.times[..., None, None]))[:, None]

    def mean_square(self) -> Tensor:
        """(N): over the sphere, exactly; the integral of K_s K_t around two centres is K_(s + t) of their cosine."""
        cosine = self.centres @ self.centres.mT
        times = self.times[:, :, None] + self.times[:, None]
        return torch.einsum("nj,nk,njk->n", self.amounts, self.amounts, heat_kernel(cosine, times)) / (4 * math.pi)


def tracer(count: int, seed: int) -> Tracer:
    generator = torch.Generator().manual_seed(seed)
    centres = nn.functional.normalize(torch.randn(count, BUMPS, 3, generator=generator), dim=-1)
    times = 0.01 + 0.03 * torch.rand(count, BUMPS, generator=generator)
    return Tracer(centres, times, 0.5 * torch.randn(count, BUMPS, generator=generator))


@dataclass
class Observations:
    now: Tensor
    after: Tensor  # NaN over land

    def __getitem__(self, index: Tensor | slice) -> Observations:
        return Observations(self.now[index], self.after[index])


def observations(states: Tracer) -> Observations:
    return Observations(states.field(), states.step().field().masked_fill(~sea(), math.nan))


def wind() -> Tensor:
    """(1, 2, ROWS, COLUMNS): the rotation's eastward and northward speed, 1 at most."""
    velocity = torch.linalg.cross(torch.tensor([1.0, 0, 0]).expand_as(POINTS), POINTS)
    east = (velocity * directions(torch.zeros(()), LONGITUDES + math.pi / 2)).sum(-1)
    north = (velocity * directions(LATITUDES[:, None] + math.pi / 2, LONGITUDES)).sum(-1)
    return torch.stack([east, north])[None]


def pad_sphere(x: Tensor) -> Tensor:
    """One cell more on each side: beyond a pole its row again, half the way round; past the last column the first."""
    across = x.roll(COLUMNS // 2, -1)
    return pad(torch.cat([across[..., :1, :], x, across[..., -1:, :]], -2), (1, 1, 0, 0), "circular")


class Step(nn.Module):
    """What a step adds to the state, from the state, the wind and the shape of the cells."""

    fixed: Tensor

    def __init__(self) -> None:
        super().__init__()
        shape = torch.cat([AREA, 0.25 / AREA], 1).expand(-1, -1, -1, COLUMNS)
        self.register_buffer("fixed", torch.cat([wind(), shape], 1))
        self.first, self.second = nn.Conv2d(5, WIDTH, 3), nn.Conv2d(WIDTH, WIDTH, 3)
        self.last = nn.Conv2d(WIDTH, 1, 3)

    def forward(self, now: Tensor) -> Tensor:
        hidden = silu(self.first(pad_sphere(torch.cat([now, self.fixed.expand(len(now), -1, -1, -1)], 1))))
        hidden = silu(self.second(pad_sphere(hidden)))
        return now + self.last(pad_sphere(hidden))


def train(weight: Tensor | None, data: Observations, steps: int, seed: int, label: str) -> Step:
    model, generator, mask = seeded(Step, seed), torch.Generator().manual_seed(seed), sea()

    def batch_loss() -> Tensor:
        batch = data[torch.randint(len(data.now), (BATCH,), generator=generator)]
        return cudaloss.mse_loss(model(batch.now), batch.after, weight=weight, mask=mask)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    fit(torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps), batch_loss, steps, label)
    return model


def check_integral(states: Tracer, fields: Tensor) -> None:
    exact, zeros = states.mean_square(), torch.zeros_like(fields)
    weighted = cudaloss.mse_loss(fields, zeros, weight=AREA, batch_dims=1)
    plain = cudaloss.mse_loss(fields, zeros, batch_dims=1)
    errors = {name: ((mean - exact) / exact).abs() for name, mean in {"weighted": weighted, "plain": plain}.items()}
    rows = [(name, f"{error.median().item():.2%}", f"{error.max().item():.2%}") for name, error in errors.items()]
    show_table("error against the exact integral over the sphere", ("mean of squares", "median", "largest"), rows)
    require(errors["weighted"].max().item() < 0.05, "weighted means are the integrals, within 5 %")
    require(errors["weighted"].median().item() < 0.002, "half of the weighted means are the integrals, within 0.2 %")
    require(errors["plain"].median().item() > 0.1, "half of the plain means are off by 10 % or more")


def check_against_pytorch(data: Observations) -> None:
    """The value and gradient of one batch, with the idioms that go wrong beside."""
    batch, mask = data[slice(BATCH)], sea()
    predicted = batch.now.clone().requires_grad_()
    loss = cudaloss.mse_loss(predicted, batch.after, weight=AREA, mask=mask)
    gradient = torch.autograd.grad(loss, predicted)[0]

    wide = batch.now.double().requires_grad_()
    squares = (wide - batch.after.double().nan_to_num()).square()
    weights = (AREA.double() * mask).expand_as(squares)
    wanted = (squares * weights).sum() / weights.sum()
    wanted_gradient = torch.autograd.grad(wanted, wide)[0]

    products = squares * weights
    leak = ((batch.now - batch.after).square() * AREA * mask).sum()
    means = {
        "cudaloss, weight= and mask=": loss,
        "PyTorch, float64, weights expanded": wanted,
        "(s * w * m).mean()": products.mean(),
        "(s * w * m).sum() / (w * m).sum()": products.sum() / weights[0].sum(),
        "NaN over land, times the mask": leak,
    }
    rows = [(name, f"{mean.item():.7f}") for name, mean in means.items()]
    show_table("mean over one batch", ("computed by", "value"), rows)
    require(abs(loss.item() / wanted.item() - 1) < 1e-6, "the value is float64's, within 1e-6")
    difference = ((gradient - wanted_gradient).norm() / wanted_gradient.norm()).item()
    require(difference < 1e-6, f"the gradient is float64's, within 1e-6 of its norm; seen {difference:.1e}")


@dataclass
class Errors:
    """Of a network over the sea, on held-out states."""

    field: Tensor  # (HELD_OUT, 1, ROWS, COLUMNS), NaN over land

    def rms(self, weight: Tensor | None = None) -> float:
        zeros = torch.zeros_like(self.field)
        return cudaloss.mse_loss(self.field, zeros, weight=weight, mask=sea()).sqrt().item()

    def by_latitude(self) -> Tensor:
        return self.field.square().nanmean((0, 1, 3)).sqrt()


def errors(model: Step, data: Observations) -> Errors:
    with torch.no_grad():
        return Errors(model(data.now) - data.after)


def draw(data: Observations, by_name: dict[str, Errors]) -> Figure:
    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.subplots(2, 2)
    maps = {"state": (data.now, 1.5), "observed a step later": (data.after, 1.5)}
    maps[f"error, trained {TRAININGS[0]}"] = (by_name[TRAININGS[0]].field, 0.3)
    for place, (title, (fields, limit)) in zip(axes.flat, maps.items(), strict=False):
        shown = place.imshow(fields[0, 0], "RdBu_r", vmin=-limit, vmax=limit, origin="lower", extent=(0, 360, -90, 90))
        figure.colorbar(shown, ax=place, shrink=0.8)
        place.set(title=title, xlabel="longitude", ylabel="latitude")
    for (name, found), colour in zip(by_name.items(), ("tab:blue", "tab:orange"), strict=True):
        axes.flat[3].plot(LATITUDES.rad2deg(), found.by_latitude(), color=colour, label=name)
    axes.flat[3].set(xlabel="latitude", ylabel="RMS error over the sea", ylim=(0, None))
    axes.flat[3].legend()
    return figure


def main() -> None:
    description = "Learn transport on the sphere with cudaloss's weights and masks."
    arguments = options(__file__, description, 400, quick=200)
    steps, seed = arguments.steps, arguments.seed
    states = tracer(STATES, seed)
    data, held_out = observations(states), observations(tracer(HELD_OUT, seed + 1))
    check_integral(states, data.now)
    check_against_pytorch(data)

    by_name = {
        name: errors(train(weight, data, steps, seed, name), held_out)
        for name, weight in zip(TRAININGS, (AREA, None), strict=True)
    }
    by_name_and_none = {**by_name, "no change at all": Errors(held_out.now - held_out.after)}
    rows = [
        (name, *(f"{found.rms(weight):.4f}" for weight in (AREA, None, TROPICS)))
        for name, found in by_name_and_none.items()
    ]
    columns = "trained", "weighted by area", "plain", "tropics"
    show_table("RMS error over the sea, held-out states", columns, rows)
    save(draw(held_out, by_name), arguments.output)
    weighted, unweighted = (by_name[name].rms(AREA) for name in TRAININGS)
    require(weighted < 0.96 * unweighted, "training with the weight lowers the area-weighted error by 4 % or more")


if __name__ == "__main__":
    main()
