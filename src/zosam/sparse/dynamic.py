"""Dynamic sparsity: now and then drop some weights of each layer and grow as many elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.distributed.fsdp import whole
from zosam.sparse.base import NoGradient
from zosam.sparse.state import Masks
from zosam.sparse.top_k import top
from zosam.sparse.updates import Periodic


class Dynamic(Periodic):
    """A random mask that moves: every `every` steps a share of each layer is dropped and as many weights grow.

    A method overrides the scores: the highest `drop_score` of the active weights stay, the highest `grow_score` of
    the others come in, a weight just dropped among them. A score may ask for `self.gradient(name)`; a layer that got
    none keeps its mask. The share starts at `drop_fraction` and follows half a cosine to zero at the last update.
    """

    sharded: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        drop_fraction: float = 0.3,
        **settings: Any,
    ) -> None:
        if not 0 < drop_fraction <= 1:
            raise ValueError(
                f"drop_fraction must be above 0 and at most 1, not {drop_fraction}: masks that stay are Random's"
            )
        self.drop_fraction = drop_fraction
        super().__init__(model, optimizer, sparsity, **settings)

    def fraction(self) -> float:
        """The share of a layer's active weights that an update at this step drops."""
        return self.drop_fraction / 2 * (1 + math.cos(math.pi * self.steps / self.end))

    def drop_score(self, name: str, weight: Tensor) -> Tensor:
        return weight.abs()

    def grow_score(self, name: str, weight: Tensor) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} does not say where to grow")

    def update(self) -> Masks:
        masks = {}
        for name in self.weights:
            with suppress(NoGradient):  # a layer that this step has left out: a dropped branch, a head not in use
                masks[name] = self.moved(name)
        return masks

    def moved(self, name: str) -> Tensor:
        """The next mask of a layer: as many weights as before."""
        units = self.n_active_by_layer[name] // self.pattern.size
        return self.move(name, units - int(self.fraction() * units), units)

    def move(self, name: str, keep: int, end: int) -> Tensor:
        """Keep so many units of a layer, then grow until it has `end`."""
        weight, structure = whole(self.weights[name].detach()), self.pattern
        active = structure.fold_mask(whole(self.masks[name]))
        kept = top(torch.where(active, structure.fold(self.drop_score(name, weight)), -torch.inf), keep)
        grown = structure.pick(torch.where(kept, torch.inf, structure.fold(self.grow_score(name, weight))), end)
        return structure.unfold(grown, weight)
