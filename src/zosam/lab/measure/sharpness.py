"""Sharpness: how far the loss rises within a small ball around the weights, at worst and on average."""

from __future__ import annotations

import torch
from torch import nn

from zosam.lab.measure.untouched import Masks, active, away_from_home, noise, untouched, value
from zosam.optim.passes import Closure


def sharpness(
    model: nn.Module,
    loss: Closure,
    rho: float = 0.05,
    steps: int = 10,
    masks: Masks | None = None,
) -> float:
    """max L(θ+ε) − L(θ) over ‖ε‖ ≤ ρ, by projected gradient ascent from the gradient's own direction.

    `loss` returns the loss of the model as it stands, without random parts; the model is put in eval mode. `masks`
    keeps ε on the active weights. The weights come back exactly.
    """
    space, worst = active(model, masks), 0.0
    with untouched(model), away_from_home(space) as home:
        offset = torch.zeros_like(home)
        for step in range(steps + 1):
            with torch.no_grad():
                space.write(home + offset)
            with torch.enable_grad():
                found = loss()
                gradient = space.gather(torch.autograd.grad(found, space.params, allow_unused=True))
            if step == 0:
                start = found.item()
            worst = max(worst, found.item() - start)
            offset += rho * gradient / gradient.norm().clamp_min(torch.finfo(gradient.dtype).tiny)
            offset *= rho / offset.norm().clamp_min(rho)
    return worst


@torch.no_grad()
def average(
    model: nn.Module,
    loss: Closure,
    rho: float = 0.05,
    samples: int = 10,
    seed: int = 0,
    masks: Masks | None = None,
) -> float:
    """The mean of L(θ+ε) − L(θ) over random ε of length ρ: for a small ρ, ρ²/2 times the mean curvature.

    Each of the `samples` directions is taken both ways, so that the slope at θ cancels. Directions come from a private
    stream; the rest is as in `sharpness`. A random ε meets few of the steep directions, so it rises far less.
    """
    if samples < 1:
        raise ValueError(f"samples must be 1 or more, not {samples}")
    space, rise = active(model, masks), 0.0
    with untouched(model), away_from_home(space) as home:
        start = value(loss)
        for i in range(samples):
            epsilon = rho * space.unit(noise(space, "sharpness", seed, i))
            for place in (home + epsilon, home - epsilon):
                space.write(place)
                rise += value(loss) - start
    return rise / (2 * samples)
