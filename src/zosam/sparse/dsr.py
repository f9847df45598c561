"""DSR: one threshold for all layers, and weights that move to where many survive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zosam.sparse.budgets import fill
from zosam.sparse.state import Masks
from zosam.sparse.top_k import top
from zosam.sparse.updates import Periodic


class DSR(Periodic):
    """Dynamic: drop below a global threshold, grow at random in proportion to what survives in each layer.

    Drop |θ| < H everywhere; H doubles when fewer than 0.9 N were dropped and halves when more than 1.1 N were, with
    N = `drop_fraction` of the active weights. As many grow, a layer's share being its share of the survivors, and
    not where one was just dropped. Mostafa, Wang, "Parameter efficient training of deep convolutional neural networks
    by dynamic sparse reparameterization", ICML 2019. There N is a number chosen by hand for each network (20,000 for
    WRN-28-2 with 147,000 active weights: 14 %), and the time between updates doubles three times; here N is a share
    and `every` is constant.
    """

    budget: ClassVar[str] = "uniform"
    dense: ClassVar[tuple[str, ...]] = ("first", "shortcut", "last")
    over: ClassVar[str] = "masked"
    patterns: ClassVar[tuple[str, ...]] = ()
    until: float = 0.95
    update_reads_gradient: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        sparsity: float = 0.9,
        *,
        drop_fraction: float = 0.14,
        threshold: float = 1e-3,
        **settings: Any,
    ) -> None:
        if not 0 < drop_fraction <= 1:
            raise ValueError(f"drop_fraction must be above 0 and at most 1, not {drop_fraction}")
        if not threshold > 0:
            raise ValueError(f"threshold must be above 0, not {threshold}")
        self.drop_fraction, self.threshold = drop_fraction, threshold
        super().__init__(model, optimizer, sparsity, **settings)

    def update(self) -> Masks:
        kept = {n: self._surviving(n, w.detach()) for n, w in self.weights.items()}
        alive = {n: int(k.sum()) for n, k in kept.items()}
        dropped = self.n_active - sum(alive.values())
        room = {n: w.numel() - alive[n] for n, w in self.weights.items()}
        grow = fill(dropped, {n: float(a) for n, a in alive.items()}, room)
        masks = {n: self._grown(n, kept[n], alive[n] + grow[n]) for n in self.weights}
        self._adapt(dropped)
        return masks

    def _surviving(self, name: str, weight: Tensor) -> Tensor:
        """Active weights at or above the threshold; a layer keeps its largest weight whatever its size."""
        size = weight.abs().masked_fill(~self.masks[name], -1)
        kept = size >= self.threshold
        return kept if bool(kept.any()) else top(size, 1)

    def _grown(self, name: str, kept: Tensor, count: int) -> Tensor:
        just_dropped = self.masks[name] & ~kept
        score = self.noise(name, self.weights[name].detach()).masked_fill_(just_dropped, -1)  # these come last
        return top(score.masked_fill_(kept, torch.inf), count)

    def _adapt(self, dropped: int) -> None:
        aim = self.drop_fraction * self.n_active
        if dropped > 1.1 * aim:
            self.threshold /= 2
        elif dropped < 0.9 * aim:
            self.threshold *= 2

    def extra_state(self) -> dict[str, Any]:
        return {"threshold": self.threshold}

    def load_extra_state(self, state: dict[str, Any]) -> None:
        self.threshold = float(state["threshold"])
