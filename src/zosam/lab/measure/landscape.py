"""The loss around a trained network, along random directions whose filters are as long as the network's own.

Li et al., "Visualizing the loss landscape of neural nets", NeurIPS 2018. Each filter of a random direction is scaled
to the norm of the network's filter; biases and BatchNorm stay. A direction depends on the seed and on the names and
shapes of the weights alone, so networks of one architecture are cut along the same random directions, each scaled to
its own weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from zosam.lab.callbacks import Tick, nobody
from zosam.lab.measure.hessian import top_eigenvalues
from zosam.lab.measure.sharpness import sharpness
from zosam.lab.measure.untouched import Masks, active, away_from_home, bound, untouched, value
from zosam.optim.passes import Closure
from zosam.random_stream import stream

Measured = tuple[nn.Module, Closure, Masks | None]  # a network, its loss, and masks if pruned weights shall stay zero


def offsets(points: int = 21, span: float = 1.0) -> list[float]:
    """Where the loss is taken along each direction: evenly from -span to span, and exactly at 0."""
    if points < 3 or points % 2 == 0 or not span > 0:
        raise ValueError(f"points must be odd and 3 or more, span above 0; not {points} and {span}")
    half = points // 2
    return [span * i / half for i in range(-half, half + 1)]


def line(
    model: nn.Module, loss: Closure, points: int = 21, span: float = 1.0, seed: int = 0, masks: Masks | None = None
) -> list[float]:
    """The loss at each of `offsets(points, span)` along one direction, in eval mode; the middle one is the model's own.

    `loss` returns the loss of the model as it stands, without random parts. With `masks` pruned weights stay zero.
    """
    return _losses(model, loss, seed, masks, [(x,) for x in offsets(points, span)])


def surface(
    model: nn.Module, loss: Closure, points: int = 21, span: float = 1.0, seed: int = 0, masks: Masks | None = None
) -> list[list[float]]:
    """The same over two directions: a row for each offset along the second, an entry for each along the first."""
    at = offsets(points, span)
    flat = _losses(model, loss, seed, masks, [(x, y) for y in at for x in at])
    return [flat[i : i + points] for i in range(0, len(flat), points)]


@torch.no_grad()
def direction(model: nn.Module, seed: int = 0, axis: int = 0, masks: Masks | None = None) -> dict[str, Tensor]:
    """A random direction, filter-normalised, by the name of the parameter."""
    kept, found = bound(model, masks), {}
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        generator = stream("landscape", seed, axis, name, *p.shape)
        noise = torch.randn(p.shape, generator=generator).to(p.device, p.dtype) * kept.get(p, 1)
        found[name] = _filter_normalised(noise, p * kept.get(p, 1))
    return found


def figure_surface(
    models: Mapping[str, Measured],
    points: int = 21,
    span: float = 1.0,
    seed: int = 0,
    eigenvalues: int = 0,
    tick: Tick = nobody,
) -> dict[str, Any]:
    """The surfaces of several networks of one architecture, on one grid along the same random directions.

    With `eigenvalues`, beside each so many of the largest of its curvature, and its sharpness: the largest rise of the
    loss within 0.05 of the weights. Two random directions show neither. `tick` is told after each point how many of how
    many are done.
    """
    at, panels = offsets(points, span), []
    done = _counted(tick, len(models) * points**2)
    for name, (model, loss, masks) in models.items():
        rows = surface(model, done(loss), points, span, seed, masks)
        panel: dict[str, Any] = {"name": name, "loss": [_finite(row) for row in rows]}
        if eigenvalues and math.isfinite(rows[points // 2][points // 2]):  # else it has none
            panel["sharpness"] = sharpness(model, loss, masks=masks)
            panel["eigenvalues"] = top_eigenvalues(model, loss, eigenvalues, masks=masks)
        panels.append(panel)
    return {
        **_about("surface", "surface", "Loss surface", span, seed, models),
        "x": at,
        "y": at,
        "z": "loss",
        "log_z": True,
        "models": panels,
    }


def figure_line(
    models: Mapping[str, Measured], points: int = 41, span: float = 1.0, seed: int = 0, tick: Tick = nobody
) -> dict[str, Any]:
    """The loss of several networks of one architecture along the same random direction."""
    at, done = offsets(points, span), _counted(tick, len(models) * points)
    found = [(name, line(m, done(loss), points, span, seed, masks)) for name, (m, loss, masks) in models.items()]
    return {
        **_about("line", "lines", "Loss along a random direction", span, seed, models),
        "x": "offset, in norms of the filters",
        "y": "loss",
        "log_y": True,
        "series": [{"name": name, "x": at, "y": _finite(losses)} for name, losses in found],
    }


def _counted(tick: Tick, of: int) -> Callable[[Closure], Closure]:
    """Makes losses of which `tick` is told each time that one was computed."""
    times = itertools.count(1)

    def count(loss: Closure) -> Closure:
        def counted(*given: Any) -> Any:
            found = loss(*given)
            tick(next(times), of)
            return found

        return counted

    return count


def _losses(
    model: nn.Module, loss: Closure, seed: int, masks: Masks | None, places: Sequence[tuple[float, ...]]
) -> list[float]:
    space, found = active(model, masks), []
    axes = [direction(model, seed, axis, masks) for axis in range(len(places[0]))]
    vectors = [space.gather(list(parts.values())) for parts in axes]
    with torch.no_grad(), untouched(model), away_from_home(space) as home:
        for place in places:
            space.write(sum((x * u for x, u in zip(place, vectors, strict=True)), home))
            found.append(value(loss))
    return found


def _filter_normalised(noise: Tensor, weight: Tensor) -> Tensor:
    if weight.dim() < 2:
        return torch.zeros_like(weight)
    rows = noise.flatten(1)
    lengths = rows.norm(dim=1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
    scaled: Tensor = rows / lengths * weight.flatten(1).norm(dim=1, keepdim=True)
    return scaled.view(weight.shape)


def _finite(losses: Sequence[float]) -> list[float | None]:
    """A loss that has overflown is a gap: JSON knows no infinity."""
    return [x if math.isfinite(x) else None for x in losses]


def _about(name: str, kind: str, title: str, span: float, seed: int, models: Mapping[str, Measured]) -> dict[str, str]:
    over = "the active weights" if any(masks for _, _, masks in models.values()) else "all weights"
    note = f"Filter-normalised random directions (seed {seed}) over {over}, offsets to {span:g}; eval mode."
    return {"name": f"landscape-{name}", "kind": kind, "title": title, "note": note}
