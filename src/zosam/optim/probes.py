"""The parts of a zero-order ascent: what to probe along, and how to decide by the losses found there.

A probe is called with the optimizer and gives vectors over its active weights; any function that does so is one too.
A decision makes of them the direction to climb.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.optim.passes import Closure
from zosam.optim.vector import ActiveWeights

if TYPE_CHECKING:
    from zosam.optim.zosam import ZOSAM

Probe = Callable[["ZOSAM"], Iterable[Tensor]]
TIE = 1e-12  # two equal losses: go up along u, as far as with any other difference


# --- along what -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaussian:
    """m random directions, normal in every active weight; each costs two forward passes."""

    m: int = 1

    def __post_init__(self) -> None:
        _at_least_one("m", self.m)

    def __call__(self, optimizer: ZOSAM) -> Iterator[Tensor]:
        return (optimizer.draw(str(i)) for i in range(self.m))

    def count(self, optimizer: ZOSAM) -> int:
        return self.m


@dataclass(frozen=True)
class Rademacher(Gaussian):
    """m random directions of signs: cheaper to draw than normal ones, and all equally long."""

    def __call__(self, optimizer: ZOSAM) -> Iterator[Tensor]:
        return (optimizer.draw(str(i), signs=True) for i in range(self.m))


@dataclass(frozen=True)
class Momentum:
    """The base optimizer's running mean of gradients; at random before there is one."""

    def __call__(self, optimizer: ZOSAM) -> Iterable[Tensor]:
        found = momentum(optimizer.base, optimizer.active)
        return Gaussian()(optimizer) if found is None else [found]

    def count(self, optimizer: ZOSAM) -> int:
        return 1


@dataclass(frozen=True)
class LastGradient:
    """The gradient that the step before has found; at random before there is one."""

    keeps = 1  # gradients that the optimizer remembers for it

    def __call__(self, optimizer: ZOSAM) -> Iterable[Tensor]:
        return optimizer.last_gradients(self.keeps) or Gaussian()(optimizer)

    def count(self, optimizer: ZOSAM) -> int:
        return 1


@dataclass(frozen=True)
class Subspace:
    """An orthonormal basis of the momentum and the last k gradients: k + 1 directions when all are there."""

    k: int = 4

    def __post_init__(self) -> None:
        _at_least_one("k", self.k)

    @property
    def keeps(self) -> int:
        return self.k

    def __call__(self, optimizer: ZOSAM) -> Iterable[Tensor]:
        speed = momentum(optimizer.base, optimizer.active)
        found = [*([] if speed is None else [speed]), *optimizer.last_gradients(self.k)]
        return orthonormal(found, optimizer.active) or Gaussian()(optimizer)

    def count(self, optimizer: ZOSAM) -> int:
        return 1 + self.k


@dataclass(frozen=True)
class Coordinates:
    """Every active weight in turn, 2k passes for k of them: the gradient itself, for small models (CGE)."""

    def __call__(self, optimizer: ZOSAM) -> Iterator[Tensor]:
        space = optimizer.active
        starts = [sum(space.full_sizes[:i]) + start for i, start in enumerate(space.starts)]
        places = torch.cat([torch.arange(a, a + n) for a, n in zip(starts, space.sizes, strict=True)]).to(space.device)
        return ((places == j).to(space.dtype) for j in range(sum(space.full_sizes)))

    def count(self, optimizer: ZOSAM) -> int:
        return sum(optimizer.active.full_sizes)


# --- how to decide --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Central:
    """The slope along each probe by central differences, and the sum of probes weighted by their slopes.

    - `radius`: how long the way to a probed point is; by default `rho`, so that the two points of a single probe are
      the two candidates themselves, group by group.
    - `delta`: instead of a length, a factor on u itself as it was drawn: the δ of papers, θ ± δu.
    - `batch_fraction`: probe on every n-th sample: with one direction only the sign of the difference matters.
    """

    radius: float | None = None
    delta: float | None = None
    batch_fraction: float = 1.0

    def __post_init__(self) -> None:
        if self.radius is not None and self.delta is not None:
            raise ValueError("give radius, a length, or delta, a factor on u, not both")
        for name, value in (("radius", self.radius), ("delta", self.delta)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}")
        part_of_batch(self.batch_fraction)

    def __call__(self, optimizer: ZOSAM, probes: Iterable[Tensor], closure: Closure) -> Tensor:
        space, keep = optimizer.active, part_of_batch(self.batch_fraction)
        reach = self.radius if self.radius is not None else max(optimizer.rhos())
        drawn, weights, differences = [], [], []
        for u in probes:
            length = space.norm(u)
            direction = optimizer.along(u) if self.delta is None else optimizer.scaled(u)
            offset = optimizer.offset(direction, self.radius or self.delta)
            up, down = optimizer.losses_around(offset, closure, keep)
            drawn.append(u)
            weights.append(1 / (2 * self.delta) if self.delta is not None else length / (2 * reach))
            differences.append(up - down)
        found = [d or TIE for d in optimizer.agreed(differences)]
        terms = (u * (weight * d) for u, weight, d in zip(drawn, weights, found, strict=True))
        return reduce(torch.add, terms)

    def passes(self, probes: int) -> float:
        """Forward passes for so many probes."""
        return 2 * probes * self.batch_fraction


@dataclass(frozen=True)
class Worst:
    """Of all candidates θ ± ε, one pair for each probe, the one with the highest loss."""

    batch_fraction: float = 1.0

    def __post_init__(self) -> None:
        part_of_batch(self.batch_fraction)

    def __call__(self, optimizer: ZOSAM, probes: Iterable[Tensor], closure: Closure) -> Tensor:
        keep = part_of_batch(self.batch_fraction)
        signed: list[Tensor] = []
        losses: list[Tensor] = []
        for u in probes:
            offset = optimizer.offset(optimizer.along(u))
            losses += optimizer.losses_around(offset, closure, keep)
            signed += [u, -u]
        found = optimizer.agreed(losses)
        return signed[found.index(max(found))]

    def passes(self, probes: int) -> float:
        return 2 * probes * self.batch_fraction


@dataclass(frozen=True)
class Pair:
    """The worst candidate too, each run with a graph, so that its gradient needs no further forward pass.

    For one probe 2 forwards and 1 backward instead of 3 and 1, and the memory of two graphs. In the two-phase form,
    where the last pass is the caller's own, it chooses without graphs, as `Worst` does.
    """

    def __call__(self, optimizer: ZOSAM, probes: Iterable[Tensor], closure: Closure) -> Tensor:
        return Worst()(optimizer, probes, closure)

    def passes(self, probes: int) -> float:
        return 2 * probes - 1


Decision = Central | Worst | Pair


# --- what they are made of ------------------------------------------------------------------------------------------


def momentum(optimizer: Optimizer, space: ActiveWeights) -> Tensor | None:
    """The base optimizer's running mean of gradients; None before there is one."""
    states = [optimizer.state.get(p, {}) for p in space.params]
    buffers = [s.get("momentum_buffer", s.get("exp_avg")) for s in states]
    return None if all(b is None for b in buffers) else space.gather(buffers)


def require_momentum(optimizer: Optimizer, what: str) -> None:
    """Refuse a base that keeps no running mean of gradients."""
    if not all(g.get("momentum") or "betas" in g for g in optimizer.param_groups):
        raise ValueError(f"{what} follows the momentum, and the base has none: give it, as in SGD(..., momentum=0.9)")


def orthonormal(vectors: Iterable[Tensor], space: ActiveWeights) -> list[Tensor]:
    """An orthonormal basis of what the vectors span; those that add nothing new are left out."""
    basis: list[Tensor] = []
    for vector in vectors:
        rest = space.unit(vector)
        for _ in range(2):  # twice: once is not enough in float32
            for b in basis:
                rest = rest - space.dot(rest, b) * b
        length = space.norm(rest)
        if float(length) > 1e-3:
            basis.append(rest / length)
    return basis


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, not {value}")


def part_of_batch(fraction: float) -> slice | None:
    """Which samples make up that part of any batch: every n-th; None for all of them."""
    n = round(1 / fraction) if 0 < fraction <= 1 else 0
    if n < 1 or abs(fraction * n - 1) > 1e-3:
        raise ValueError(f"batch_fraction must be 1, 1/2, 1/3, 1/4, ...; not {fraction}")
    return None if n == 1 else slice(None, None, n)
