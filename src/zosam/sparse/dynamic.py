"""Dynamic sparsity: now and then drop some weights of each layer and grow as many elsewhere."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.base import Masks, Sparsity
from zosam.sparse.top import top


class Dynamic(Sparsity):
    """A random mask that moves: every `every` steps a share of each layer is dropped and as many weights grow.

    A method overrides the scores: the highest `drop_score` of the active weights stay, the highest `grow_score` of
    the others come in, a weight just dropped among them. The share starts at `drop_fraction` and follows half a
    cosine to zero at step `until`; without `until` it is constant and updates never end.
    """

    at_start: ClassVar[bool] = False  # whether step 0 updates the masks as well

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float = 0.9,
        *,
        every: int = 100,
        until: int | None = None,
        drop_fraction: float = 0.3,
        **settings: Any,
    ) -> None:
        if every < 1:
            raise ValueError(f"every must be 1 or more steps, not {every}")
        if not 0 <= drop_fraction <= 1:
            raise ValueError(f"drop_fraction must be between 0 and 1, not {drop_fraction}")
        self.every, self.until, self.drop_fraction = every, until, drop_fraction
        super().__init__(model, optimizer, sparsity, **settings)

    def choose(self) -> Masks:
        return {n: top(self.noise(n, w), self.counts[n]) for n, w in self.weights.items()}

    def due(self) -> bool:
        """Whether this step updates the masks."""
        started = self.steps > 0 or self.at_start
        return started and self.steps % self.every == 0 and (self.until is None or self.steps < self.until)

    def fraction(self) -> float:
        """The share of a layer's active weights that an update at this step drops."""
        if self.until is None:
            return self.drop_fraction
        return self.drop_fraction / 2 * (1 + math.cos(math.pi * self.steps / self.until))

    def drop_score(self, name: str, weight: Tensor) -> Tensor:
        return weight.abs()

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say where to grow")

    def update(self) -> Masks | None:
        return {n: self.moved(n, w.detach()) for n, w in self.weights.items()} if self.due() else None

    def moved(self, name: str, weight: Tensor) -> Tensor:
        """The next mask of a layer: as many weights as before."""
        mask = self.masks[name]
        active = int(mask.sum())
        keep = active - int(self.fraction() * active)
        kept = top(self.drop_score(name, weight).masked_fill(~mask, -torch.inf), keep)
        score = self.grow_score(name, weight)
        if not bool(score.isfinite().all()):
            raise FloatingPointError(f"{type(self).__name__}: the growth scores of {name} are not finite; masks stay")
        return top(score.masked_fill(kept, torch.inf), active)

    def noise(self, name: str, weight: Tensor) -> Tensor:
        """Uniform random scores for a layer, from a private stream."""
        flat = torch.rand(weight.numel(), generator=self.stream(name), device=weight.device)
        return torch.empty_like(weight, dtype=flat.dtype).copy_(flat.view(weight.shape))
