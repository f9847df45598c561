"""Directions to probe: random ones, drawn or replayed, and those that training itself suggests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from zosam.distributed.ranks import Ranks
from zosam.optim.geometry import dot, norm
from zosam.optim.vector import Coordinates

DISTRIBUTIONS = ("gaussian", "rademacher")


def draw(size: int, distribution: str, space: Coordinates, generator: torch.Generator) -> Tensor:
    """Random numbers of variance 1 in the making: normal ones, or the bits of signs; see `made`."""
    if distribution == "gaussian":
        return torch.randn(size, generator=generator, dtype=space.dtype, device=space.device)
    return torch.randint(0, 2, (size,), generator=generator, dtype=torch.int8, device=space.device)


def made(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """What was drawn as numbers of variance 1; signs have the same norm in every draw."""
    return drawn if drawn.is_floating_point() else drawn.to(dtype).mul_(2).sub_(1)


def drawn(space: Coordinates, distribution: str, generator: torch.Generator) -> Iterator[Tensor]:
    """A random direction, one parameter after another; a rank that holds a part of each takes that part of the draw."""
    for whole, start, size in zip(space.whole_sizes, space.starts, space.sizes, strict=True):
        yield draw(whole, distribution, space, generator)[start : start + size]


class Replayed:
    """Σ weight · u over random directions that are drawn again from their seed whenever they are needed.

    Nothing of the length of the weights is stored: its parts, one per parameter, are made one after another.
    """

    def __init__(
        self,
        terms: Sequence[tuple[float, Callable[[], torch.Generator]]],
        distribution: str,
        space: Coordinates,
    ) -> None:
        self.terms, self.distribution, self.space = terms, distribution, space

    def __iter__(self) -> Iterator[Tensor]:
        streams = [(weight, drawn(self.space, self.distribution, generator())) for weight, generator in self.terms]
        for _ in self.space.sizes:
            first, *others = (weight * made(next(parts), self.space.dtype) for weight, parts in streams)
            yield sum(others, first)

    def __mul__(self, factor: float) -> Replayed:
        return Replayed([(weight * factor, g) for weight, g in self.terms], self.distribution, self.space)

    def norm(self) -> float:
        squares = sum(float(part.double().square().sum()) for part in self)
        return math.sqrt(self.space.shards.sum_of(squares, self.space.device, "norms"))


def momentum(optimizer: Optimizer, space: Coordinates) -> Tensor | None:
    """The base optimizer's running mean of gradients; None before there is one."""
    states = [optimizer.state.get(p, {}) for p in space.params]
    buffers = [s.get("momentum_buffer", s.get("exp_avg")) for s in states]
    return None if all(b is None for b in buffers) else space.gather(buffers)


def require_momentum(optimizer: Optimizer, what: str) -> None:
    """Refuse a base that keeps no running mean of gradients."""
    if not all(g.get("momentum") or "betas" in g for g in optimizer.param_groups):
        raise ValueError(f"{what} follows the momentum, and the base has none: give it, as in SGD(..., momentum=0.9)")


def orthonormal(vectors: Sequence[Tensor], shards: Ranks) -> list[Tensor]:
    """An orthonormal basis of what the vectors span; those that add nothing new are left out."""
    basis: list[Tensor] = []
    for vector in vectors:
        rest = vector / norm(vector, shards).clamp_min(torch.finfo(vector.dtype).tiny)
        for _ in range(2):  # twice: once is not enough in float32
            for b in basis:
                rest = rest - dot(rest, b, shards) * b
        length = norm(rest, shards)
        if float(length) > 1e-3:
            basis.append(rest / length)
    return basis
